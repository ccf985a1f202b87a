"""Announces before the first test how the perf cases are treated, by tier."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pytest

from perflab.internals.lookup import TORCH, TRITON, version_warnings
from perflab.running.config.kinds import is_perf_case, measures_elsewhere, tier_asked_by
from perflab.running.config.reading import settings_of
from perflab.running.config.run_mode import RunMode, mode_of
from perflab.tiers.interface import tier, tiers
from perflab.units import format_count


def announcement(config: pytest.Config, items: Sequence[pytest.Item]) -> list[str]:
    """Return lines that announce how the perf cases are treated, one line for each treatment.

    There are no such lines if all cases are simply measured, or if the run does not measure. The first lines, also in a
    quiet run, warn of versions of PyTorch and Triton that perflab was not checked with.

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
    own = Counter(name for item in marked if (name := tier_asked_by(item)) is not None)
    others = sum(tier_asked_by(item) is None and not measures_elsewhere(item) for item in marked)
    if settings.against is not None:  # cases with a tier's own fixture do not depend on the machine, and are skipped
        return []
    said = []
    if not settings.predict:  # a prediction skips cases with a tier's own fixture too
        said += [f"{format_count(others, 'case')} measured"] if others and own else []
        said += [f"{format_count(count, tier(name).unit)} {name}" for name, count in own.items()]
    lines = [f"perf: {', '.join(said)}"] if said else []
    return [*lines, *(line for one in tiers() if others for line in one.announce(settings, others))]
