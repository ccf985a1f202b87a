"""The lab's end-to-end cases: which there are, and in which order.

Shapes: tokens (B, T) int64 -> logits (B, T, V).
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from perflab.lab.train import TrainingConfig
from perflab.plugin.stash import SETTINGS

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
    """Where time runs out, every kind of case has been measured by then: the main job first, then what is cheap.

    The model at its shortest context, then what has no context, then what compiles for seconds, then longer contexts,
    and Triton's kernels for other GPUs last. The sort is stable: what is alike stays in the order of the files.
    """
    _leave_to_whoever_asks(config, items)
    lengths = {item: _end_to_end_length(item) for item in items}
    shortest = min((length for length in lengths.values() if length is not None), default=None)

    def place(item: pytest.Item) -> tuple[int, int]:
        if "compiled_kernel" in getattr(item, "fixturenames", ()):
            return 4, 0
        length = lengths[item]
        if length is not None:
            return (0, 0) if length == shortest else (3, length)
        return (2, 0) if _compiles(item) else (1, 0)

    items.sort(key=place)


def _leave_to_whoever_asks(config: pytest.Config, items: list[pytest.Item]) -> None:
    """A whole run predicts the main job, the models; other cases where their file or folder, or a keyword, is given."""
    if config.option.keyword or config.option.pyargs or not config.stash[SETTINGS].predict:
        return
    here, start = Path(__file__).parent, config.invocation_params.dir
    given = [start / argument.partition("::")[0] for argument in config.args]
    asked = {path.resolve() for path in given if here in path.resolve().parents}
    left = {
        item
        for item in items
        if here in item.path.parents
        and asked.isdisjoint((item.path, *item.path.parents))
        and (_end_to_end_length(item) is None or "warmup_steps" in getattr(item, "fixturenames", ()))
    }
    if left:
        config.hook.pytest_deselected(items=[item for item in items if item in left])
        items[:] = [item for item in items if item not in left]


def _compiles(item: pytest.Item) -> bool:
    parameters = item.callspec.params if hasattr(item, "callspec") else {}
    switch = parameters.get("switch", parameters.get("rung"))
    return item.path.name == "test_compile.py" or getattr(switch, "compiles", None) is not None


def _end_to_end_length(item: pytest.Item) -> int | None:
    """The context length of a case of the main job; None of another."""
    if "setup" not in getattr(item, "fixturenames", ()) or not hasattr(item, "callspec"):
        return None
    length: int = item.callspec.params["context_length"]
    return length


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
