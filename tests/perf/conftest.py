"""The lab's end-to-end cases: which there are, and in which order.

Shapes: tokens (B, T) int64 -> logits (B, T, V).
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from perflab import settings_of
from perflab.lab.train import TrainingConfig

from .attention_cases import COMPILED
from .choice import context_lengths, model_names
from .setup import DEFAULT_BATCH_SIZE, Setup

PRECISIONS = ("fp32", "bf16")
"""Those of the end-to-end cases."""


@pytest.fixture
def setup(
    request: pytest.FixtureRequest, device: torch.device, model_name: str, context_length: int, precision: str
) -> Setup:
    """The case's ``Setup``, from its parameters."""
    batch_size = request.config.getoption("--batch-size")
    if "warmup_steps" in request.fixturenames and device.type == "cpu":
        batch_size = 1  # the cheapest shape shows it as well
    return Setup(model_name, batch_size, context_length, device, TrainingConfig(precision=precision))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """The main job first, the models. What compiles for seconds comes last where time is short."""
    _leave_to_whoever_asks(config, items)
    _leave_out_unchanged_kernels(config, items)
    items.sort(key=lambda item: not _is_main_job(item))
    for item in items:
        if item.get_closest_marker("perf") is not None and _compiles(item):
            item.add_marker(pytest.mark.perf(last=True))


def _leave_to_whoever_asks(config: pytest.Config, items: list[pytest.Item]) -> None:
    """A whole run predicts the main job, the models; other cases where their file or folder, or a keyword, is given."""
    if config.option.keyword or config.option.pyargs or not settings_of(config).predict:
        return
    here, start = Path(__file__).parent, config.invocation_params.dir
    given = [start / argument.partition("::")[0] for argument in config.args]
    asked = {path.resolve() for path in given if here in path.resolve().parents}
    left = {
        item
        for item in items
        if here in item.path.parents
        and asked.isdisjoint((item.path, *item.path.parents))
        and (not _is_main_job(item) or "warmup_steps" in getattr(item, "fixturenames", ()))
    }
    if left:
        config.hook.pytest_deselected(items=[item for item in items if item in left])
        items[:] = [item for item in items if item not in left]


def _leave_out_unchanged_kernels(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Of compiled kernels those that differ from the committed digests stay, and today's fortieth."""
    compiled = {item for item in items if "compiled_kernel" in getattr(item, "fixturenames", ())}
    if not compiled:
        return
    from tests.correctness.digests import is_due, rotation
    from tests.correctness.proofs import compiled_digests

    now, reporter = compiled_digests(), config.pluginmanager.get_plugin("terminalreporter")
    names = {item: item.callspec.id for item in compiled if hasattr(item, "callspec")}
    left = {item for item, name in names.items() if not is_due(name, now.get(name, ""))}
    if reporter is not None:
        reporter.write_line(
            f"{len(compiled) - len(left)} of {len(compiled)} compiled kernels: those that differ from the digests, and "
            f"the fortieth of PERFLAB_ROTATION={rotation()}; PERFLAB_KERNELS=all takes all"
        )
    if left:
        config.hook.pytest_deselected(items=[item for item in items if item in left])
        items[:] = [item for item in items if item not in left]


def _compiles(item: pytest.Item) -> bool:
    parameters = item.callspec.params if hasattr(item, "callspec") else {}
    switch = parameters.get("switch", parameters.get("rung"))
    by_name = parameters.get("impl") in COMPILED or item.path.name == "test_compile.py"
    return by_name or getattr(switch, "compiles", None) is not None


def _is_main_job(item: pytest.Item) -> bool:
    return "setup" in getattr(item, "fixturenames", ())


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Spread end-to-end cases over ``--model``, ``--context-length`` and the precisions."""
    if "setup" not in metafunc.fixturenames:
        return
    lengths, precisions = context_lengths(metafunc.config), list(PRECISIONS)
    if "warmup_steps" in metafunc.fixturenames:  # a study of first steps: the cheapest shape shows it as well
        lengths, precisions = [min(lengths)], ["fp32"]
    batch_size = metafunc.config.getoption("--batch-size")
    suffix = "" if batch_size == DEFAULT_BATCH_SIZE else f"-b{batch_size}"  # another batch is another case
    cases = [
        (name, length, precision)
        for name in model_names(metafunc.config)
        for length in lengths
        for precision in precisions
    ]
    metafunc.parametrize(
        ("model_name", "context_length", "precision"), cases, ids=["-".join(map(str, case)) + suffix for case in cases]
    )
