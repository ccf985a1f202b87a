"""docs/recurrence.md's table is what the layers have, and the how-to's example does what it says."""

import math
import re
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from perflab.lab.models.config import ModelConfig
from perflab.lab.recurrence.mixer import Mixer

from .test_recurrent_mixers import KINDS

pytestmark = pytest.mark.correctness

DOCS = Path(__file__).parents[2] / "docs"
CONFIG = ModelConfig(d_model=1024, d_ff=4096, num_layers=1, num_heads=16)
CACHE_BYTES = 2 * 1024 * 2
CHUNK = 64


def row(kind: type[Mixer]) -> str:
    """One line of the table."""
    with torch.device("meta"):
        mixer = kind(CONFIG)
    state = mixer.initial_state(1, torch.device("meta"), torch.bfloat16)
    held = sum(x.numel() * x.element_size() for x in state)
    heads, key, value = state[0].shape[1:]
    operations = heads * (4 * key * value + (CHUNK + 1) * (key + value))
    tokens = math.ceil(operations / (2 * CONFIG.d_model)) - 1
    return (
        f"| {kind.__name__} | {held:,} B | {math.ceil(held / CACHE_BYTES)} tokens | {operations:,} | {tokens} tokens |"
    )


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_the_table_is_what_the_layers_have(kind: type[Mixer]) -> None:
    assert row(kind) in (DOCS / "recurrence.md").read_text(encoding="utf-8").splitlines()


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> dict[str, object]:
    """What the how-to's first block of code defines."""
    page = (DOCS / "howto" / "your-own-operator.md").read_text(encoding="utf-8")
    code = re.findall(r"```python\n(.*?)```", page, re.DOTALL)[0]
    monkeypatch.setitem(__import__("sys").modules, "decayed_sum", SimpleNamespace(decayed_sum=None))
    defined: dict[str, object] = {}
    exec(compile(code, "your-own-operator.md", "exec"), defined)
    return defined


def test_the_how_to_s_operator_passes_a_right_form_and_names_the_edge_of_a_wrong_one(
    example: dict[str, object],
) -> None:
    operator = example["DECAYED_SUM"]

    def in_tiles(x: Tensor, log_decay: Tensor, carry: float) -> Tensor:
        total, outputs = torch.zeros(x[:, 0].shape), []
        for t in range(x.shape[1]):
            total = total * carry if t and t % 64 == 0 else total
            total = log_decay[:, t].exp() * total + x[:, t]
            outputs.append(total)
        return torch.stack(outputs, dim=1).to(x.dtype)

    for case in operator.cases(length=(1, 65)):
        operator.check(in_tiles, case, carry=1.0)
    with pytest.raises(
        AssertionError, match=r"decayed_sum is wrong for fp32-length65-batch1-weak\nhint: out.*from 64 on"
    ):
        operator.check(in_tiles, operator.case(length=65), carry=0.0)
    with pytest.raises(
        ValueError, match=r"decayed_sum has no factor 'lengths'; its factors are dtype, layout, upstream, l"
    ):
        operator.cases(lengths=(1,))
