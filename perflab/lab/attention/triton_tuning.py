"""Which tiles the Triton attention kernels run with: timed once for each kind of problem, then remembered.

On a GPU the first problem of a kind is run with every tile of a small table (`triton_tiles`) by Triton's own autotuner,
which keeps the timings on disk, beside the compiled kernels, for as long as kernel, compiler and candidates stay the
same. A kind of problem is a kernel, dtype, head dimension, what is masked, and the sizes to a power of two. Other tiles
may sum in another order: bits are the same for the same tiles.

Nothing is tuned in Triton's interpreter, while a CUDA graph is captured, or with PERFLAB_AUTOTUNE=0 in the
environment: a kind that was not tuned before gets the first tiles of the table. `tiles_in_use` says what ran. This
module imports Triton.
"""

import os
from collections.abc import Callable, Mapping
from typing import Any

import torch
import triton
from torch import Tensor

from perflab.lab.attention.scoring import Scoring
from perflab.lab.attention.triton_launches import (
    dk_dv_launch,
    dq_launch,
    forward_launch,
    kernel_bounds,
    one_pass_launch,
    problem_class,
)
from perflab.lab.attention.triton_tiles import Tiles, candidate_tiles, choose_tiles
from perflab.lab.attention.triton_tma import (
    aligned_like,
    describable,
    programs_at_once,
    require_tma,
    tma_forward_launch,
)
from perflab.lab.launch import Launch, architecture_of, current, is_interpreted, run_prepared, shared_memory_bytes

# What tells kinds apart, by the names of the kernels' parameters.
_KINDS = ("HEAD_DIM", "HAS_LOWER", "HAS_UPPER", "HAS_SINKS", "HAS_SOFTCAP", "problem_class")
# None: Triton's own. Tests put theirs here.
_do_bench: Callable[..., list[float]] | None = None
_tuned: dict[tuple[Any, ...], Tiles] = {}
_ran: dict[tuple[Any, ...], Tiles] = {}


def run_forward(q: Tensor, k: Tensor, v: Tensor, out: Tensor, logsumexp: Tensor, scoring: Scoring) -> None:
    """Write out and logsumexp."""
    _run("forward", (q, k, v, out, logsumexp), scoring, forward_launch)


def run_forward_tma(q: Tensor, k: Tensor, v: Tensor, out: Tensor, logsumexp: Tensor, scoring: Scoring) -> None:
    """The same by way of TMA; what it cannot read or write in place goes through a copy."""
    require_tma(q.device)
    q, k, v = (x if describable(x) else aligned_like(x).copy_(x) for x in (q, k, v))
    target = out if describable(out) else aligned_like(out)
    programs = programs_at_once(q.device)
    # Block sizes stand in the descriptors, where Triton's autotuner does not reach: the first tiles of the table.
    _ran["forward_tma", *_kind(q, k, scoring)] = tiles = choose_tiles(
        "forward_tma", q.shape[-1], q.dtype, shared_memory_bytes(q.device)
    )
    tma_forward_launch(q, k, v, target, logsumexp, scoring, tiles, programs)()
    if target is not out:
        out.copy_(target)


def run_dk_dv(
    q: Tensor, k: Tensor, v: Tensor, d_out: Tensor, logsumexp: Tensor, delta: Tensor, dk: Tensor, dv: Tensor,
    scoring: Scoring,
) -> None:  # fmt: skip
    """Write dk and dv."""
    _run("dk_dv", (q, k, v, d_out, logsumexp, delta, dk, dv), scoring, dk_dv_launch)


def run_dq(
    q: Tensor, k: Tensor, v: Tensor, d_out: Tensor, logsumexp: Tensor, delta: Tensor, dq: Tensor, scoring: Scoring
) -> None:
    """Write dq."""
    _run("dq", (q, k, v, d_out, logsumexp, delta, dq), scoring, dq_launch)


def run_one_pass(
    q: Tensor, k: Tensor, v: Tensor, d_out: Tensor, logsumexp: Tensor, delta: Tensor, dk: Tensor, dv: Tensor,
    dq_sum: Tensor, scoring: Scoring, tiles: Tiles,
) -> None:  # fmt: skip
    """Write dk and dv, and add dq / scale to dq_sum. Nothing is tuned: a kernel that ran twice would add twice."""
    _ran["one_pass", *_kind(q, k, scoring)] = tiles
    run_prepared(one_pass_launch, q, k, v, d_out, logsumexp, delta, dk, dv, dq_sum, scoring, tiles)


def run_one_pass_in_gluon(
    q: Tensor, k: Tensor, v: Tensor, d_out: Tensor, logsumexp: Tensor, delta: Tensor, dk: Tensor, dv: Tensor,
    dq_sum: Tensor, scoring: Scoring, tiles: Tiles,
) -> None:  # fmt: skip
    """The same by the kernel in Gluon, in its own tiles; by `run_one_pass` where that kernel does not take them."""
    from perflab.lab.attention import gluon_one_pass_kernel as in_gluon  # what else runs needs no Gluon

    if not in_gluon.takes(q, k, v, d_out, architecture_of(q.device)):
        return run_one_pass(q, k, v, d_out, logsumexp, delta, dk, dv, dq_sum, scoring, tiles)
    _ran["one_pass_gluon", *_kind(q, k, scoring)] = in_gluon.TILES
    run_prepared(in_gluon.one_pass_gluon_launch, q, k, v, d_out, logsumexp, delta, dk, dv, dq_sum, scoring)


def tiles_in_use() -> Mapping[tuple[Any, ...], Tiles]:
    """The tiles that ran in this process, tuned or not, by (kernel, device, dtype, head dimension, masks, sizes)."""
    return dict(_ran)


def _run(kernel: str, tensors: tuple[Tensor, ...], scoring: Scoring, make_launch: Callable[..., Launch]) -> None:
    """Launch a kernel on its tensors, q and k first, with the tiles for their kind of problem."""
    q, k, *_ = tensors

    def launch_with(tiles: Tiles) -> Launch:
        return make_launch(*tensors, scoring, tiles)

    key = (kernel, *_kind(q, k, scoring))
    tiles = _tuned.get(key)
    if tiles is None:
        features = {"is_capped": scoring.softcap is not None, "has_sinks": scoring.sinks > 0}
        candidates = candidate_tiles(kernel, q.shape[-1], q.dtype, shared_memory_bytes(q.device), **features)
        tiles = candidates[0]
        if len(candidates) > 1 and _may_tune():
            _tuned[key] = tiles = _fastest(launch_with, candidates)
    _ran[key] = tiles
    run_prepared(make_launch, *tensors, scoring, tiles)


def _kind(q: Tensor, k: Tensor, scoring: Scoring) -> tuple[Any, ...]:
    lower, upper = kernel_bounds(q.shape[-2], k.shape[-2], scoring)
    masks = (lower is not None, upper is not None, scoring.sinks > 0, scoring.softcap is not None)
    return q.device, q.dtype, q.shape[-1], *masks, problem_class(q, k)


def _may_tune() -> bool:
    asked = os.environ.get("PERFLAB_AUTOTUNE", "1") != "0"
    if not asked or is_interpreted():
        return False
    return not (torch.cuda.is_available() and torch.cuda.is_current_stream_capturing())


def _fastest(launch_with: Callable[[Tiles], Launch], candidates: tuple[Tiles, ...]) -> Tiles:
    """The fastest of the candidates. The kernels write every result whole, so running one twice harms nothing."""
    launch = launch_with(candidates[0])
    kernel = triton.autotune(
        configs=[
            triton.Config({"BLOCK_Q": tiles.block_q, "BLOCK_K": tiles.block_k}, tiles.num_warps, tiles.num_stages)
            for tiles in candidates
        ],
        key=list(_KINDS),
        cache_results=True,
        do_bench=_do_bench,
    )(launch.kernel)
    arguments = {name: value for name, value in launch.arguments.items() if name not in ("BLOCK_Q", "BLOCK_K")}

    def grid(meta: Mapping[str, int]) -> tuple[int, ...]:
        return launch_with(Tiles(meta["BLOCK_Q"], meta["BLOCK_K"], num_warps=1, num_stages=1)).grid

    with current(launch.device):
        kernel[grid](**arguments, enable_fp_fusion=True)
    best = kernel.best_config
    return Tiles(best.kwargs["BLOCK_Q"], best.kwargs["BLOCK_K"], best.num_warps, best.num_stages)
