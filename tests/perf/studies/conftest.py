"""How long the studies' cases are measured; and that they are not predicted."""

from __future__ import annotations

import pytest

from perflab import Perf
from tests.perf.attention_cases import device_type
from tests.perf.choice import study_model_name

_SECONDS = {"test_optimisations.py": 1, "test_compile.py": 1, "test_mixers.py": 1, "test_memory.py": 3}


def pytest_itemcollected(item: pytest.Item) -> None:
    """`tiny`, which stands in on a CPU, is given little time; another model, what any case has."""
    if item.path.name in _SECONDS and study_model_name(item.config, device_type(item.config)) == "tiny":
        seconds = _SECONDS[item.path.name]
        switch = item.callspec.params.get("switch") if hasattr(item, "callspec") else None
        # Half precision is emulated on a CPU, at a fifth of the speed.
        is_fp16 = switch is not None and switch.training.get("precision") == "fp16"
        item.add_marker(pytest.mark.perf(budget=4 * seconds if is_fp16 else seconds))


@pytest.fixture
def perf(perf: Perf) -> Perf:
    """The plugin's; a study compares what was run, and what a GPU would need the end-to-end cases say."""
    if perf.predicts:
        pytest.skip("a study compares what was run: see the end-to-end cases (tests/perf/test_transformer.py)")
    return perf
