"""Announces before the first test which cases are measured, compiled or predicted, and for which GPU."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from perflab.internals import TORCH, TRITON, version_warnings
from perflab.plugin.config.kinds import is_compiled_case, is_perf_case, measures_elsewhere
from perflab.plugin.config.run_mode import RunMode, mode_of
from perflab.plugin.config.settings import Settings
from perflab.plugin.stash import settings_of
from perflab.units import format_count


def predicts_by_itself(settings: Settings) -> bool:
    """Whether a case that does not fit this machine is predicted, though nobody asked: for want of a GPU.

    A CPU that was asked for by name is what is to be measured.
    """
    from perflab.measure.devices import resolve_device

    return not settings.predict and settings.device == "auto" and resolve_device("auto").type == "cpu"


def announcement(config: pytest.Config, items: Sequence[pytest.Item]) -> list[str]:
    """What becomes of the perf cases, in a line for each way; none where all of them are simply measured, or not.

    Before that, in a quiet run too, a line for PyTorch and Triton in versions that perflab was not checked with.

    Raises:
        SettingError: a setting that cannot be used.
    """
    marked = [item for item in items if is_perf_case(item)]
    if config.option.collectonly or not marked or mode_of(config, items, marked) is not RunMode.MEASURE:
        return []
    warnings = [f"perf: {one}" for one in version_warnings(TORCH, TRITON)]
    return warnings + (_ways(config, items, marked) if config.option.verbose >= 0 else [])


def _ways(config: pytest.Config, items: Sequence[pytest.Item], marked: Sequence[pytest.Item]) -> list[str]:
    settings = settings_of(config)
    compiled = [item for item in marked if is_compiled_case(item)]
    others = [item for item in marked if item not in compiled and not measures_elsewhere(item)]
    if settings.against is not None:  # what is compiled does not depend on the machine, and is skipped
        return []
    cases = format_count(len(others), "case")
    if settings.dry_run:
        said = [f"{cases} run dry on {settings.gpu.name}: CUDA without a GPU, nothing is computed"] if others else []
    elif settings.predict:
        said = [f"{cases} predicted for {settings.gpu.name} (--perf-gpu), not run"] if others else []
    else:
        said = [f"{cases} measured"] if others and compiled else []
        said += [f"{format_count(len(compiled), 'kernel')} compiled"] if compiled else []
    lines = [f"perf: {', '.join(said)}"] if said else []
    if others and predicts_by_itself(settings):
        lines.append(
            f"perf: no GPU here; what is too much for this machine is predicted for {settings.gpu.name}, not run"
        )
    return lines
