"""GPUs by name, and their rooflines: the least time of operators on a GPU. Pure.

A GPU is found by the name of its data sheet, or by the device name that PyTorch reports.

A roofline (Williams, Waterman and Patterson 2009) says that work takes as long as its arithmetic at the data sheet's
rate, or as long as its bytes at the memory's bandwidth, whichever is longer. This module computes two such times:

- ``roofline_ns`` is the textbook's: every operand and result passes through memory once. Estimates are made from this
  time, and an operator's share of the time is judged by it.
- ``bound_ns`` is a true lower bound. Data that the previous operator left in the L2 cache need not come from memory,
  and results of this operator may still be in the cache at its end. So up to one cache full of reads and one of writes
  are not counted. Operators whose operands and results fit into these two have no bound by bytes.

Neither time includes launches (some µs each, so many small operators take far longer than both times), waiting for the
host, kernels that read an operand twice, tiles that fill the multiprocessors unevenly, or power limits. Sums of either
time are of operators that run one after another: with several streams, one operator's arithmetic can overlap another's
memory traffic. Both times are at the data sheet's boost clock, which GeForce cards exceed by a few percent if power
allows it. Both use counted FLOPs; a convolution by Winograd's algorithm does fewer.
"""

from __future__ import annotations

import re
from difflib import get_close_matches

from perflab.predicted.data_sheets import GPUS, MODELLED, DataSheet, Gpu
from perflab.predicted.trace.trace import Op

__all__ = ["GPUS", "MODELLED", "DataSheet", "Gpu", "gpu_by_device_name", "parse_gpu", "parse_modelled"]

_BRANDS = ("nvidia", "tesla", "geforce", "amd", "instinct", "apple")


def _plain(text: str) -> str:
    """Return the letters and digits of a name in lower case, without the maker's brands before it."""
    words = [word for word in re.split(r"[^a-z0-9]+", text.lower()) if word]
    while len(words) > 1 and words[0] in _BRANDS:
        del words[0]
    return "".join(words)


def parse_gpu(text: str) -> DataSheet:
    """Find a GPU by name: ``h100``, ``A100 80GB``, ``rtx_4090``, or the device name, ``NVIDIA H100 80GB HBM3``.

    Raises:
        ValueError: no sheet has that name; the message lists similar names, and all names.
    """
    asked = _plain(text)
    by_plain = {_plain(name): gpu for name, gpu in GPUS.items()}
    gpu = by_plain.get(asked) or gpu_by_device_name(text)
    if gpu is not None:
        return gpu
    if not asked:
        raise ValueError(f"no GPU is named; known are {', '.join(GPUS)}")
    begun = [gpu.name for plain, gpu in by_plain.items() if plain.startswith(asked)]
    like = begun or [by_plain[plain].name for plain in get_close_matches(asked, by_plain, n=3, cutoff=0.6)]
    meant = f"did you mean {' or '.join(like)}? Known" if like else "known"
    raise ValueError(f"{text!r} is not a GPU that perflab has a data sheet of; {meant} are {', '.join(GPUS)}")


def parse_modelled(text: str) -> Gpu:
    """Find a GPU as ``parse_gpu`` does, if what PyTorch does there is modelled: one of NVIDIA's.

    Raises:
        ValueError: no sheet has that name, or the GPU is another maker's; the message lists names.
    """
    gpu = parse_gpu(text)
    if isinstance(gpu, Gpu):
        return gpu
    raise ValueError(f"{gpu.name} has bounds alone, by --perf-predict; known are {', '.join(MODELLED)}")


def gpu_by_device_name(device_name: str) -> DataSheet | None:
    """Find the sheet of the GPU with this name from ``torch.cuda.get_device_name()``; None if no sheet has the name.

    The whole name has to match: an ``A10G`` is no A10, a ``4090 D`` or a laptop's 4090 is no 4090, and a slice of a GPU
    (``NVIDIA A100-SXM4-40GB MIG 1g.5gb``) has no sheet.
    """
    asked = _plain(device_name)
    for gpu in GPUS.values():
        if any(_plain(name) == asked for name in (gpu.device_name, *gpu.other_device_names)):
            return gpu
    return None


_NS_PER_S = 1e9
_INSTEAD = {
    # A dtype without tensor cores is multiplied as float32 (cuBLAS on Volta and Turing: bfloat16; TF32 is ignored).
    "tf32": "float32",
    "bfloat16": "float32",
    "float16": "float32",
    # On a GPU without float8 instructions, float8 is converted first.
    "float8_e4m3fn": "float16",
    "float8_e5m2": "float16",
    # A product of complex numbers is four of real ones, and its FLOPs are counted as such.
    "complex64": "float32",
    "complex128": "float64",
}


def rate_of(gpu: DataSheet, dtype: str) -> float | None:
    """Return the FLOP/s of products in a dtype: the sheet's rate, or the rate of the dtype that is used instead.

    None for dtypes without any rate: integers, bool, float4. Only bytes count then.
    """
    asked: str | None = dtype
    while asked is not None and asked not in gpu.rates:
        asked = _INSTEAD.get(asked)
    return gpu.rates[asked] if asked is not None else None


def roofline_ns(op: Op, gpu: DataSheet) -> float | None:
    """Return the textbook's roofline time in ns, the longer of arithmetic and bytes; caches can make a run faster.

    None if the operator has FLOPs of a dtype without a rate, and no bytes.
    """
    return _longer_ns(op, gpu, op.bytes_moved, op.flops)


def bound_ns(op: Op, gpu: DataSheet) -> float | None:
    """Return a lower bound of the operator's time in ns, whatever the L2 cache holds before and after.

    0 for an operator without products whose operands and results fit into twice the cache. None if the operator has
    FLOPs of a dtype without a rate, and no bytes that have to come from memory.
    """
    # A causal kernel skips tiles above the diagonal: nearly half of the counted FLOPs.
    flops = op.flops // 2 if op.is_causal else op.flops
    return _longer_ns(op, gpu, max(op.bytes_moved - 2 * gpu.l2_bytes, 0), flops)


def _longer_ns(op: Op, gpu: DataSheet, memory_bytes: int, flops: int) -> float | None:
    from_memory_ns = memory_bytes / gpu.bandwidth_bytes_per_s * _NS_PER_S
    if flops == 0:
        return from_memory_ns
    rate = rate_of(gpu, op.dtype)
    if rate is None:
        return from_memory_ns or None
    return max(flops / rate * _NS_PER_S, from_memory_ns)
