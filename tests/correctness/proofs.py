"""Every tile that may be chosen for an attention kernel, run in the interpreter on poisoned memory, against float64.

Shapes: q (B, H, N, D); k, v (B, H_kv, N, D); N is more than a tile and no multiple of one, but for the backward in one
pass, which takes whole tiles. Kernels whose tile follows from the shape alone (fused kernels, scan, grouped and
quantised products, chunks of the recurrence) run in theirs in their own suites, each time.

Run as a program it writes the committed digests, of these and of all that `perflab kernels` compiles; `make kernels`
does that when all of it has passed.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import zip_longest
from typing import Any

import pytest
import torch
from torch import Tensor

from perflab import ARCHITECTURES
from perflab.attention.plain import attention_magnitudes, plain_attention
from perflab.correctness import verify
from perflab.lab.attention import attention, decode_attention, reference_attention, triton_operator
from perflab.lab.attention import triton_tuning as tuning
from perflab.lab.attention.examples import one_pass_tiles_of
from perflab.lab.attention.pattern import BLOCKS, Pattern
from perflab.lab.attention.pattern_attention import pattern_attention
from perflab.lab.attention.triton_decode import decode_launch, decode_tiles, merge_launch
from perflab.lab.attention.triton_launches import (
    delta_launch,
    dk_dv_launch,
    dq_launch,
    forward_launch,
    one_pass_launch,
)
from perflab.lab.attention.triton_pattern import pattern_launch, pattern_tiles
from perflab.lab.attention.triton_tiles import Tiles, candidate_tiles
from perflab.lab.attention.triton_tma import tma_forward_launch
from perflab.lab.launch import SHARED_BYTES

from .decode_cases import Case
from .decode_cases import hold as hold_decode
from .digests import arguments_digest, digest, write
from .test_long_context import hold_pattern

DTYPES = {"fp16": torch.float16, "fp32": torch.float32}
WIDTHS = (48, 128, 160)
"""Head dimensions: one for each list of tiles, two of them padded."""
MASKS: dict[str, dict[str, Any]] = {
    "full": {},
    "every": {"is_causal": True, "window_size": (70, 0), "softcap": 2.0, "sinks": 2},
}
ONE_PASS_MASKS: dict[str, dict[str, Any]] = {
    "full": {},
    "causal": {"is_causal": True},
}
BACKWARD = (forward_launch, delta_launch, dk_dv_launch, dq_launch)


@dataclass(frozen=True)
class Proof:
    """One configuration, or one of each kernel of a form; `run(device)` raises AssertionError where it is wrong."""

    name: str
    code: tuple[Any, ...]
    run: Callable[[torch.device], object]

    def __str__(self) -> str:
        return self.name

    @property
    def digest(self) -> str:
        """Of the launches with their kernels, and of what is run."""
        return digest(self.code, self.name)


def all_proofs() -> list[Proof]:
    """Each of them, in the same order in every process."""
    return [*_dense(), *_one_pass(), *_decode(), *_pattern()]


def _dense() -> Iterator[Proof]:
    for short, dtype in DTYPES.items():
        for width in WIDTHS:
            each = {kernel: _tiles(kernel, width, dtype) for kernel in ("forward", "dk_dv", "dq")}
            for chosen in zip_longest(*each.values()):
                tiles = {kernel: tile or each[kernel][0] for kernel, tile in zip(each, chosen, strict=True)}
                said = "-".join(
                    f"{kernel}{tile.block_q}x{tile.block_k}w{tile.num_warps}" for kernel, tile in tiles.items()
                )
                for mask in MASKS:
                    run = partial(hold, "triton", tiles, width, dtype, mask)
                    yield Proof(f"attention-{short}-d{width}-{mask}-{said}", BACKWARD, run)
            run = partial(hold, "triton-tma", {}, width, dtype, "full")
            yield Proof(f"attention_tma-{short}-d{width}", (tma_forward_launch, *BACKWARD), run)


def _one_pass() -> Iterator[Proof]:
    """The tiles of all GPUs, in 16 bits."""
    code = (forward_launch, delta_launch, one_pass_launch)
    for width in (64, 80, 128):
        for short, dtype in {"bf16": torch.bfloat16, "fp16": torch.float16}.items():
            for tiles in {one_pass_tiles_of(width, arch) for arch in SHARED_BYTES} - {None}:
                both = {"forward": _tiles("forward", width, dtype)[0], "one_pass": tiles}
                said = f"{tiles.block_q}x{tiles.block_k}w{tiles.num_warps}"
                for mask in ONE_PASS_MASKS:
                    run = partial(hold, "triton-one-pass", both, width, dtype, mask)
                    yield Proof(f"attention_one_pass-{short}-d{width}-{mask}-{said}", code, run)


def _decode() -> Iterator[Proof]:
    for short, dtype in DTYPES.items():
        for width in WIDTHS:
            for tokens in (1, 8, 32):  # of four heads each: 16 rows, 32, and a full tile
                case = Case(tokens, (4, 1), dtype, width, sequences=(300, 33))
                run = partial(hold_decode, case, partial(decode_attention, impl="triton"))
                code = (decode_launch, decode_tiles, merge_launch)
                yield Proof(f"decode-{short}-d{width}-t{tokens}", code, run)


def _pattern() -> Iterator[Proof]:
    for short, dtype in DTYPES.items():
        for block in BLOCKS:
            pattern = Pattern(length=block + 7, block=block, local=1, globals_=1)
            run = partial(_hold_pattern, pattern, dtype)
            yield Proof(f"pattern-{short}-{block}", (pattern_launch, pattern_tiles, delta_launch), run)


def _hold_pattern(pattern: Pattern, dtype: torch.dtype, device: torch.device) -> None:
    hold_pattern(partial(pattern_attention, form="triton"), pattern, dtype, False)


def _tiles(kernel: str, width: int, dtype: torch.dtype) -> list[Tiles]:
    """Those of all GPUs, each once: in the interpreter stages make no difference."""
    found = [tiles for limit in SHARED_BYTES.values() for tiles in candidate_tiles(kernel, width, dtype, limit)]
    return list({(tiles.block_q, tiles.block_k, tiles.num_warps): tiles for tiles in found}.values())


def _length(width: int, dtype: torch.dtype) -> int:
    """Tokens: tiles of wide heads and of float32 have 64 rows at most, others 128."""
    return 69 if width > 128 or dtype == torch.float32 else 133


def hold(impl: str, tiles: dict[str, Tiles], width: int, dtype: torch.dtype, mask: str, device: torch.device) -> None:
    """Hold a form with these tiles to the definition, forward and backward; and see that it ran with them."""
    key_heads, length = (2, 256) if "one_pass" in tiles else (1, _length(width, dtype))

    def make(seed: int) -> dict[str, Tensor]:
        drawn = torch.Generator().manual_seed(seed)
        shapes = {"q": 2, "k": key_heads, "v": key_heads}
        return {n: torch.randn(1, h, length, width, generator=drawn).to(device, dtype) for n, h in shapes.items()}

    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(tuning, "_ran", {})
        if tiles:
            monkeypatch.setattr(tuning, "candidate_tiles", lambda kernel, *_, **__: (tiles[kernel],))
            monkeypatch.setattr(triton_operator, "one_pass_tiles", lambda *_: tiles.get("one_pass"))
        verify(
            partial(attention, impl=impl),
            make,
            reference=reference_attention,
            plain=plain_attention,
            magnitudes=attention_magnitudes,
            gradient_of=("out",),
            settings=(MASKS | ONE_PASS_MASKS)[mask],
        )
        ran = {str(key[0]): used for key, used in tuning.tiles_in_use().items()}
    assert not tiles or ran == tiles, f"{ran} ran"


def compiled_digests() -> dict[str, str]:
    """Those of all that `perflab kernels` compiles, by the ids of tests/perf/test_kernels_compiled.py."""
    from tests.perf.kernels import examples

    return {
        f"{one.name}-sm{arch}": arguments_digest(one.kernel, one.arguments, one.num_warps, one.num_stages, one.options)
        for arch in (80, 90, 100)
        if arch in ARCHITECTURES
        for one in examples(arch)
    }


if __name__ == "__main__":
    write({proof.name: proof.digest for proof in all_proofs()} | compiled_digests())
