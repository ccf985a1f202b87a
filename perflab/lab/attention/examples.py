"""The attention kernels in the configurations that they are shipped in, as launches on `meta` tensors.

Shapes: q (4, 16, 4096, D); k, v (4, 16 or 4, 4096, D): a training step of usual size. For decoding q (16, 32, T, D) and
keys of 8 heads, 8192 positions or pages of 64. Block-sparse: the first, by a pattern of blocks of 64 or 128. Nothing is
allocated or run.

For whoever compiles ahead of time. The functions that make these launches are those that a GPU's calls go through, and
the tiles are all that may be chosen there. This module imports Triton.
"""

import contextlib
from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor

from perflab.lab.attention import gluon_one_pass_kernel as in_gluon
from perflab.lab.attention.decode import Stored
from perflab.lab.attention.pattern import BlockLists
from perflab.lab.attention.scoring import Scoring, default_scale
from perflab.lab.attention.triton_decode import decode_launch, decode_tiles, merge_launch, splits_of
from perflab.lab.attention.triton_launches import (
    delta_launch,
    dk_dv_launch,
    dq_launch,
    forward_launch,
    one_pass_launch,
)
from perflab.lab.attention.triton_pattern import pattern_launch, pattern_tiles
from perflab.lab.attention.triton_tiles import NoTiles, Tiles, candidate_tiles, one_pass_tiles
from perflab.lab.attention.triton_tma import tma_forward_launch
from perflab.lab.launch import SHARED_BYTES, Launch

_BATCH, _HEADS, _LENGTH = 4, 16, 4096
_KERNELS = ("forward", "dk_dv", "dq")
_DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}
_WINDOW, _SOFTCAP, _GROUP, _SINKS = 512, 50.0, 4, 4
_SEQUENCES, _QUERY_HEADS, _KEY_HEADS, _CAPACITY, _PAGE = 16, 32, 8, 8192, 64


def launches(shared_limit_bytes: int, architecture: int) -> dict[str, Launch]:
    """Name -> launch, such as "attention_forward-bf16-d128-causal-128x64-w8", for a GPU with so much shared memory.

    All tiles that may be chosen, for each mask, without the kernels for which the memory has room for no tile. The TMA
    kernel is there where the limit is Hopper's or more, the backward in one pass where that compute capability (0:
    another maker's) takes it.
    """
    limit = shared_limit_bytes
    out, ends = _meta(_HEADS, 128, torch.bfloat16), _ends()
    found = {"attention_delta-bf16-d128": delta_launch(out, out, None, ends)}
    masked = [(dtype, head_dim, "causal") for head_dim in (64, 128) for dtype in _DTYPES]
    masked += [("bf16", head_dim, "full") for head_dim in (64, 128)]
    masked += [("bf16", 80, "causal"), ("bf16", 256, "causal"), ("bf16", 64, "windowed"), ("bf16", 128, "sinks")]
    patterns = (("bf16", 64, 64), ("bf16", 128, 128), ("fp32", 128, 64))
    decoded = [*(("bf16", head_dim, "plain") for head_dim in (64, 128, 256)), ("fp32", 128, "plain")]
    decoded += [("bf16", 128, kind) for kind in ("paged", "int8", "windowed", "several", "many", "windowed-many")]
    decoded += [("bf16", 256, "windowed-many"), ("fp32", 128, "windowed-many")]
    groups = [
        *(partial(_each, *one, limit) for one in masked),
        *(partial(_once, head_dim, mask, architecture) for head_dim in (64, 80, 128) for mask in ("full", "causal")),
        *(partial(_pattern, *one, limit) for one in patterns),
        *(partial(_decode, *one, limit) for one in decoded),
    ]
    for group in groups:
        with contextlib.suppress(NoTiles):  # a forward without its backward is left out with it
            found |= dict(group())
    return found


def _decode(dtype_name: str, head_dim: int, kind: str, shared_limit_bytes: int) -> Iterator[tuple[str, Launch]]:
    """One token of each sequence; `several`: 8, which fill half a tile; `many`: 32, a whole one. `windowed` is capped,
    and has pages of int8."""
    dtype, every = _DTYPES[dtype_name], kind.startswith("windowed")
    paged, held = every or kind == "paged", torch.int8 if every or kind == "int8" else dtype
    place = (_SEQUENCES * _CAPACITY // _PAGE, _PAGE) if paged else (_SEQUENCES, _CAPACITY)
    pages = torch.empty(_SEQUENCES, _CAPACITY // _PAGE, dtype=torch.int32, device="meta") if paged else None
    scales = torch.empty(*place, _KEY_HEADS, device="meta") if held == torch.int8 else None
    keys = torch.empty(*place, _KEY_HEADS, head_dim, dtype=held, device="meta")
    stored = Stored(keys, keys, torch.empty(_SEQUENCES, dtype=torch.int32, device="meta"), pages, scales, scales)
    tokens = {"several": 8, "many": 32}.get(kind.rpartition("-")[2], 1)
    q = torch.empty(_SEQUENCES, _QUERY_HEADS, tokens, head_dim, dtype=dtype, device="meta")
    scoring = Scoring(default_scale(head_dim), _SOFTCAP if every else None, 1 - _WINDOW if every else None, 0)
    tiles = decode_tiles(q, _KEY_HEADS, shared_limit_bytes)
    num_splits, _ = splits_of(q, stored, tiles)
    parts = torch.empty(num_splits, *q.shape, device="meta")
    shape = f"{tiles.block_q}x{tiles.block_k}-w{tiles.num_warps}"
    name = f"attention_decode-{dtype_name}-d{head_dim}-{kind}-{shape}"
    yield name, decode_launch(q, stored, parts, parts[..., 0], scoring, tiles)
    if kind == "plain":
        merged = merge_launch(parts, parts[..., 0], q, q[..., 0])
        yield f"attention_decode_merge-{dtype_name}-d{head_dim}", merged


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


def _each(dtype_name: str, head_dim: int, mask: str, shared_limit_bytes: int) -> Iterator[tuple[str, Launch]]:
    dtype = _DTYPES[dtype_name]
    kernels: tuple[str, ...] = _KERNELS
    if shared_limit_bytes >= SHARED_BYTES[90] and mask != "sinks":
        kernels = ("forward_tma", *_KERNELS)
    features = {"is_capped": mask == "windowed", "has_sinks": mask == "sinks"}
    for kernel in kernels:
        for tiles in candidate_tiles(kernel, head_dim, dtype, shared_limit_bytes, **features):
            shape = f"{tiles.block_q}x{tiles.block_k}-w{tiles.num_warps}"
            name = f"attention_{kernel}-{dtype_name}-d{head_dim}-{mask}-{shape}"
            yield name, launch_of(kernel, head_dim, dtype, mask, tiles)


def _once(head_dim: int, mask: str, architecture: int) -> Iterator[tuple[str, Launch]]:
    tiles = one_pass_tiles_of(head_dim, architecture)
    if tiles is not None:
        name = f"attention_one_pass-bf16-d{head_dim}-{mask}-{tiles.block_q}x{tiles.block_k}-w{tiles.num_warps}"
        yield name, launch_of("one_pass", head_dim, torch.bfloat16, mask, tiles)
    if (architecture, head_dim) == (in_gluon.ARCHITECTURE, in_gluon.HEAD_DIM):
        name = f"attention_one_pass_gluon-bf16-d{head_dim}-{mask}"
        yield name, launch_of("one_pass_gluon", head_dim, torch.bfloat16, mask, in_gluon.TILES)


def one_pass_tiles_of(head_dim: int, architecture: int) -> Tiles | None:
    """The tiles of the backward in one pass; None where it is not taken."""
    q = _meta(_HEADS, head_dim, torch.bfloat16)
    return one_pass_tiles(q, q, Scoring(default_scale(head_dim), None, None, None), architecture)


def launch_of(kernel: str, head_dim: int, dtype: torch.dtype, mask: str, tiles: Tiles) -> Launch:
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
    if kernel == "one_pass":
        return one_pass_launch(q, k, k, q, ends, ends, k, k, q.float(), scoring, tiles)
    if kernel == "one_pass_gluon":
        return in_gluon.one_pass_gluon_launch(q, k, k, q, ends, ends, k, k, q.float(), scoring)
    return dq_launch(q, k, k, q, ends, ends, q, scoring, tiles)


def _meta(heads: int, head_dim: int, dtype: torch.dtype) -> Tensor:
    return torch.empty(_BATCH, heads, _LENGTH, head_dim, dtype=dtype, device="meta")


def _ends() -> Tensor:
    return torch.empty(_BATCH, _HEADS, _LENGTH, dtype=torch.float32, device="meta")
