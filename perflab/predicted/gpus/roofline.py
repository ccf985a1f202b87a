"""Roofline: the least time of operators on a GPU. Pure.

A roofline (Williams, Waterman and Patterson 2009) says that work takes as long as its arithmetic at the data sheet's
rate, or as long as its bytes at the memory's bandwidth, whichever is longer. Two numbers come of that:

- ``roofline_ns`` is the textbook's: every operand and result passes through memory once. It is what an estimate is made
  from, and what the share of time in an operator is judged by.
- ``bound_ns`` is one that holds. What the operator before has left in the L2 cache need not come from memory, and what
  this one writes may still be there when it ends: so up to one cache full of its reads and one of its writes are not
  counted. Operators whose operands and results fit into that have no bytes bound at all.

Neither contains launches (some µs each, so many small operators take far longer than both say), waiting for the host,
kernels that read an operand twice, tiles that fill the multiprocessors unevenly, or power limits. Summed up, both are
of operators that run one after another: in streams side by side, one's arithmetic can hide the other's bytes. And both
are at the data sheet's boost clock, which GeForce cards pass by a few percent where power allows it, and of the FLOPs
that are counted: a convolution by Winograd's algorithm does fewer.
"""

from __future__ import annotations

from perflab.predicted.gpus.data_sheets import Gpu
from perflab.predicted.trace.trace import Op

_NS_PER_S = 1e9
_INSTEAD = {
    # What has no tensor cores for it is multiplied as float32 (cuBLAS on Volta and Turing: bfloat16; TF32 is ignored).
    "tf32": "float32",
    "bfloat16": "float32",
    "float16": "float32",
    # Without instructions for it, float8 is converted first.
    "float8_e4m3fn": "float16",
    "float8_e5m2": "float16",
    # A product of complex numbers is four of real ones, and its FLOPs are counted as such.
    "complex64": "float32",
    "complex128": "float64",
}


def rate_of(gpu: Gpu, dtype: str) -> float | None:
    """FLOP/s of products in a dtype: the sheet's, or that of the dtype which they are computed in instead.

    None for what the sheets know no rate of: integers, bool, float4. Then only bytes are reckoned with.
    """
    asked: str | None = dtype
    while asked is not None and asked not in gpu.rates:
        asked = _INSTEAD.get(asked)
    return gpu.rates[asked] if asked is not None else None


def roofline_ns(op: Op, gpu: Gpu) -> float | None:
    """The textbook's roofline time, in ns: the longer of arithmetic and bytes; no lower bound where caches help.

    None where the operator has FLOPs of a dtype without a rate, and no bytes.
    """
    return _longer_ns(op, gpu, op.bytes_moved, op.flops)


def bound_ns(op: Op, gpu: Gpu) -> float | None:
    """No shorter than this, in ns, whatever is in the L2 cache before and after.

    0 for an operator without products whose operands and results fit into the cache. None where the operator has FLOPs
    of a dtype without a rate, and no bytes that have to come from memory.
    """
    # A causal kernel leaves out tiles above the diagonal: half of what is counted, nearly.
    flops = op.flops // 2 if op.is_causal else op.flops
    return _longer_ns(op, gpu, max(op.bytes_moved - 2 * gpu.l2_bytes, 0), flops)


def _longer_ns(op: Op, gpu: Gpu, memory_bytes: int, flops: int) -> float | None:
    from_memory_ns = memory_bytes / gpu.bandwidth_bytes_per_s * _NS_PER_S
    if flops == 0:
        return from_memory_ns
    rate = rate_of(gpu, op.dtype)
    if rate is None:
        return from_memory_ns or None
    return max(flops / rate * _NS_PER_S, from_memory_ns)


def room_bytes(gpu: Gpu) -> int:
    """What PyTorch's allocator can have: the memory without the context. Workspaces and fragments come out of it."""
    return gpu.memory_bytes - gpu.context_bytes
