"""The order of the Triton kernels' programs: each tile of each head once, in sections of heads where masks are causal.

Shapes: q (B, H, N, D); k, v (B, H_kv, N, D).
"""

from functools import partial
from typing import Any

import pytest
import torch
import triton
import triton.language as tl
from torch import Tensor

from perflab.attention.plain import attention_magnitudes, plain_attention
from perflab.correctness import verify
from perflab.lab.attention import attention, reference_attention, triton_launches
from perflab.lab.attention.scoring import Scoring
from perflab.lab.attention.triton_launches import section_of
from perflab.lab.attention.triton_pieces import place
from perflab.lab.launch import is_interpreted
from tests.studies.attention_order import Program, ideal_cycles, in_sections, schedule

pytestmark = pytest.mark.correctness
RUNS = pytest.mark.skipif(
    not is_interpreted() and not torch.cuda.is_available(), reason="kernels need a GPU or Triton's interpreter"
)
CAUSAL, FULL = Scoring(1.0, None, None, 0), Scoring(1.0, None, None, None)


@triton.jit  # type: ignore[untyped-decorator]
def _write_places(tiles_ptr, heads_ptr, num_tiles, section):
    number = tl.program_id(0)
    tile, head = place(number, num_tiles, section)
    tl.store(tiles_ptr + number, tile)
    tl.store(heads_ptr + number, head)


@pytest.mark.parametrize(("num_tiles", "num_heads", "section"), [(3, 8, 2), (1, 6, 3), (4, 6, 6), (5, 3, 1)])
@RUNS
def test_programs_take_sections_of_heads_in_turn_and_in_each_first_tiles_before_second_ones(
    num_tiles: int, num_heads: int, section: int, device: torch.device
) -> None:
    tiles, heads = torch.full((2, num_tiles * num_heads), -1, dtype=torch.int32, device=device)
    _write_places[num_tiles * num_heads,](tiles, heads, num_tiles, section)
    assert list(zip(tiles.tolist(), heads.tolist(), strict=True)) == list(in_sections(num_tiles, num_heads, section))


def test_a_section_is_as_many_heads_as_l2_holds_in_equal_sections_and_whole_groups() -> None:
    def heads(query_heads: int, key_heads: int, tokens: int = 4096, scoring: Scoring = CAUSAL, batch: int = 1) -> int:
        q, k = (torch.empty(batch, h, tokens, 64, dtype=torch.half, device="meta") for h in (query_heads, key_heads))
        return section_of(q, q, k, scoring, (k, k))

    assert heads(16, 16) == 16, "1 MiB each: all of them"
    assert heads(33, 33) == 11, "32 fit: three sections, as two are not equal"
    assert heads(37, 37) == 1
    assert heads(16, 16, batch=4) == 32
    assert heads(32, 8, batch=5) == 4 * 20, "40 key heads in two parts, each with its four query heads"
    assert heads(8, 2, tokens=2**18) == 4, "64 MiB each: one key head"
    assert heads(16, 16, scoring=FULL) == 1
    assert heads(16, 16, scoring=Scoring(1.0, None, -512, 0)) == 1, "a window: all tiles are as long"
    q, k = (torch.empty(1, h, 4096, 64, dtype=torch.half, device="meta") for h in (32, 8))
    assert section_of(k, q, k, CAUSAL, (q, q)) == 8, "of tiles of keys: 4 MiB of queries each"
    assert section_of(k, q, k, CAUSAL, (q, q, q.float())) == 4, "8 MiB each"
    assert section_of(k, q, k, CAUSAL, (q, q, q.float(), q)) == 2, "10 MiB each: 3 fit, but 8 are no threes"
    assert heads(16, 16, batch=0) == 1


@RUNS
@pytest.mark.parametrize("impl", ["triton", "triton-one-pass"])
def test_attention_is_right_in_several_sections(
    impl: str, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    heads, key_heads, length = (3, 3, 256) if impl == "triton-one-pass" else (6, 3, 160)
    monkeypatch.setattr(triton_launches, "IN_L2_BYTES", 3 * 2 * length * 64 * 2)

    def make(seed: int) -> dict[str, Tensor]:
        drawn = torch.Generator().manual_seed(seed)
        shapes = {"q": heads, "k": key_heads, "v": key_heads}
        return {
            name: torch.randn(2, h, length, 64, generator=drawn).to(device, torch.half) for name, h in shapes.items()
        }

    settings: dict[str, Any] = {"is_causal": True}
    verify(
        partial(attention, impl=impl),
        make,
        reference=reference_attention,
        plain=plain_attention,
        magnitudes=attention_magnitudes,
        gradient_of=("out",),
        settings=settings,
    )


def test_a_schedule_ends_with_its_last_program_and_counts_what_running_ones_walk_over() -> None:
    programs = [Program(4.0, 40), Program(1.0, 10)]
    assert schedule(programs, list(in_sections(2, 3, 1)), 2) == (9.0, 80)
    assert schedule(programs, list(in_sections(2, 3, 3)), 2) == (8.0, 80)
    assert schedule(programs, list(in_sections(2, 1, 1)), 2) == (4.0, 40), "one head: what its longest program reads"
    assert ideal_cycles(programs, 3, 2) == 7.5
    assert ideal_cycles(programs, 1, 4) == 4.0
