"""The attention kernels in the configurations that they are shipped in, as launches on `meta` tensors.

Shapes: q (4, 16, 4096, D); k, v (4, 16 or 4, 4096, D): a training step of usual size. For decoding q (16, 32, T, D) and
keys of 8 heads, 8192 positions or pages of 64. Block-sparse: the first, by a pattern of blocks of 64 or 128. Nothing is
allocated or run.

For whoever compiles ahead of time. The functions that make these launches are those that a GPU's calls go through, and
the tiles are all that may be chosen there. This module imports Triton.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from perflab.lab.attention.decode import Stored
from perflab.lab.attention.pattern import BlockLists
from perflab.lab.attention.scoring import Scoring, default_scale
from perflab.lab.attention.triton_decode import decode_launch, decode_tiles, merge_launch, splits_of
from perflab.lab.attention.triton_launches import delta_launch, dk_dv_launch, dq_launch, forward_launch
from perflab.lab.attention.triton_pattern import pattern_launch, pattern_tiles
from perflab.lab.attention.triton_tiles import Tiles, candidate_tiles
from perflab.lab.attention.triton_tma import tma_forward_launch
from perflab.lab.launch import SHARED_BYTES, Launch

_BATCH, _HEADS, _LENGTH = 4, 16, 4096
_KERNELS = ("forward", "dk_dv", "dq")
_DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}
_WINDOW, _SOFTCAP, _GROUP, _SINKS = 512, 50.0, 4, 4
_SEQUENCES, _QUERY_HEADS, _KEY_HEADS, _CAPACITY, _PAGE = 16, 32, 8, 8192, 64


def launches(shared_limit_bytes: int) -> dict[str, Launch]:
    """Name -> launch, such as "attention_forward-bf16-d128-causal-128x64-w8", for a GPU with so much shared memory.

    All tiles at head dimensions 64 and 128 in bfloat16; at others, in float32, without a mask and with every feature
    at once those that are taken first. The TMA kernel is there where the limit is Hopper's or more.
    """
    found: dict[str, Launch] = {}
    for head_dim in (64, 128):
        found |= dict(_each("bf16", head_dim, "causal", shared_limit_bytes, first=False))
        found |= dict(_each("fp32", head_dim, "causal", shared_limit_bytes))
        found |= dict(_each("bf16", head_dim, "full", shared_limit_bytes))
    for head_dim in (80, 256):
        found |= dict(_each("bf16", head_dim, "causal", shared_limit_bytes))
    found |= dict(_each("bf16", 64, "windowed", shared_limit_bytes))
    out, ends = _meta(_HEADS, 128, torch.bfloat16), _ends()
    for dtype_name, head_dim, side in (("bf16", 64, 64), ("bf16", 128, 128), ("fp32", 128, 64)):
        found |= dict(_pattern(dtype_name, head_dim, side, shared_limit_bytes))
    for head_dim in (64, 128):
        found |= dict(_each("bf16", head_dim, "sinks", shared_limit_bytes))
    found["attention_delta-bf16-d128"] = delta_launch(out, out, None, ends)
    for dtype_name, head_dim in (("bf16", 64), ("bf16", 128), ("bf16", 256), ("fp32", 128)):
        found |= _decode(dtype_name, head_dim, "plain", shared_limit_bytes)
    for kind in ("paged", "int8", "windowed", "many", "windowed-many"):
        found |= _decode("bf16", 128, kind, shared_limit_bytes)
    found |= _decode("bf16", 256, "windowed-many", shared_limit_bytes)
    found |= _decode("fp32", 128, "windowed-many", shared_limit_bytes)
    return found


def _decode(dtype_name: str, head_dim: int, kind: str, shared_limit_bytes: int) -> dict[str, Launch]:
    """One token of each sequence; `many`: 32, which fill tiles. `windowed` is capped, and has pages of int8."""
    dtype, every = _DTYPES[dtype_name], kind.startswith("windowed")
    paged, held = every or kind == "paged", torch.int8 if every or kind == "int8" else dtype
    place = (_SEQUENCES * _CAPACITY // _PAGE, _PAGE) if paged else (_SEQUENCES, _CAPACITY)
    pages = torch.empty(_SEQUENCES, _CAPACITY // _PAGE, dtype=torch.int32, device="meta") if paged else None
    scales = torch.empty(*place, _KEY_HEADS, device="meta") if held == torch.int8 else None
    keys = torch.empty(*place, _KEY_HEADS, head_dim, dtype=held, device="meta")
    stored = Stored(keys, keys, torch.empty(_SEQUENCES, dtype=torch.int32, device="meta"), pages, scales, scales)
    q = torch.empty(_SEQUENCES, _QUERY_HEADS, 32 if kind.endswith("many") else 1, head_dim, dtype=dtype, device="meta")
    scoring = Scoring(default_scale(head_dim), _SOFTCAP if every else None, 1 - _WINDOW if every else None, 0)
    tiles = decode_tiles(q, _KEY_HEADS, shared_limit_bytes)
    num_splits, _ = splits_of(q, stored, tiles)
    parts = torch.empty(num_splits, *q.shape, device="meta")
    shape = f"{tiles.block_q}x{tiles.block_k}-w{tiles.num_warps}"
    found = {
        f"attention_decode-{dtype_name}-d{head_dim}-{kind}-{shape}": decode_launch(
            q, stored, parts, parts[..., 0], scoring, tiles
        )
    }
    if kind == "plain":
        found[f"attention_decode_merge-{dtype_name}-d{head_dim}"] = merge_launch(parts, parts[..., 0], q, q[..., 0])
    return found


def _pattern(dtype_name: str, head_dim: int, side: int, shared_limit_bytes: int) -> Iterator[tuple[str, Launch]]:
    """Causal, local and strided: 16 blocks a row at most."""
    q = _meta(_HEADS, head_dim, _DTYPES[dtype_name])
    rows = _LENGTH // side
    lists = BlockLists(*(torch.empty(shape, dtype=torch.int32, device="meta") for shape in ((rows,), (rows, 16))))
    ends = _ends()
    saved = {"g": q, "logsumexp": ends, "delta": ends}
    written = {"forward": {"o": q, "logsumexp": ends}, "dk_dv": {**saved, "dk": q, "dv": q}, "dq": {**saved, "dq": q}}
    for kernel, tensors in written.items():
        tiles = pattern_tiles(kernel, head_dim, q.dtype, side, shared_limit_bytes)
        name = f"attention_pattern_{kernel}-{dtype_name}-d{head_dim}-{side}-{tiles.block_q}x{tiles.block_k}"
        yield name, pattern_launch(kernel, lists, default_scale(head_dim), True, side, tiles, q=q, k=q, v=q, **tensors)


def _each(
    dtype_name: str, head_dim: int, mask: str, shared_limit_bytes: int, *, first: bool = True
) -> Iterator[tuple[str, Launch]]:
    dtype = _DTYPES[dtype_name]
    kernels: tuple[str, ...] = _KERNELS
    if shared_limit_bytes >= SHARED_BYTES[90] and mask != "sinks":
        kernels = ("forward_tma", *_KERNELS)
    for kernel in kernels:
        candidates = candidate_tiles(kernel, head_dim, dtype, shared_limit_bytes)
        for tiles in candidates[:1] if first else candidates:
            shape = f"{tiles.block_q}x{tiles.block_k}-w{tiles.num_warps}"
            name = f"attention_{kernel}-{dtype_name}-d{head_dim}-{mask}-{shape}"
            yield name, _launch(kernel, head_dim, dtype, mask, tiles)


def _launch(kernel: str, head_dim: int, dtype: torch.dtype, mask: str, tiles: Tiles) -> Launch:
    """`windowed` is causal with a window, a soft cap and grouped heads; `sinks` causal with a window and sinks."""
    windowed = mask == "windowed"
    scoring = Scoring(
        scale=default_scale(head_dim),
        softcap=_SOFTCAP if windowed else None,
        lower=-_WINDOW if windowed or mask == "sinks" else None,
        upper=None if mask == "full" else 0,
        sinks=_SINKS if mask == "sinks" else 0,
    )
    q = _meta(_HEADS, head_dim, dtype)
    k = _meta(_HEADS // _GROUP if windowed else _HEADS, head_dim, dtype)
    ends = _ends()
    if kernel == "forward":
        return forward_launch(q, k, k, q, ends, scoring, tiles)
    if kernel == "forward_tma":
        return tma_forward_launch(q, k, k, q, ends, scoring, tiles, num_programs=132)
    if kernel == "dk_dv":
        return dk_dv_launch(q, k, k, q, ends, ends, k, k, scoring, tiles)
    return dq_launch(q, k, k, q, ends, ends, q, scoring, tiles)


def _meta(heads: int, head_dim: int, dtype: torch.dtype) -> Tensor:
    return torch.empty(_BATCH, heads, _LENGTH, head_dim, dtype=dtype, device="meta")


def _ends() -> Tensor:
    return torch.empty(_BATCH, _HEADS, _LENGTH, dtype=torch.float32, device="meta")
