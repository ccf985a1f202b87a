"""Throughput of a multiprocessor's pipes by architecture. Pure data with sources; no constant is fitted.

Results a cycle: CUDA C++ Programming Guide, "Throughput of Native Arithmetic Instructions" (CUDA 13: Best Practices
Guide, 12.1). Which pipe runs what: Nsight Compute, Kernel Profiling Guide, "Pipelines": the ALU takes integers and
logic but multiplications, comparisons, selections and packed conversions; the FMA pipe float32 and integer
multiplications; the XU special functions and conversions between integers and floats. Four schedulers issue an
instruction of a warp each cycle, and shared memory passes 32 banks of 4 bytes (Programming Guide). Tensor cores:
NVIDIA's white papers of A100 and H100 ("1830 MHz"); for B200 Zadouri et al. (2026), FlashAttention-4, "Feeds and
speeds", which also tells that exponentials stay at 16 a cycle; its clock is the peak of 2.25 PFLOP/s divided by that.

Latencies of dependent instructions: Abdelkhalik et al. (2022), arXiv 2208.11174, tables II and IV; Luo et al. (2024),
arXiv 2402.13499, tables IV, VII and VIII. A latency that no table tells is taken as that of an addition, or of an
integer multiplication, which is less: the bound is lower then.

Memory, which is no part of the bound: bandwidth as in the data sheets of ``--perf-gpu``, for the 80 GB of an A100 and
H100; latency by pointers that are followed through main memory on these GPUs, github.com/markdewing/AI_kernels,
``latency/README.md`` (0d701ad). The papers tell less: 290 (Abdelkhalik) and 466 cycles (Luo) for an A100.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType

from perflab.compiled.machine.disassembly import Instruction
from perflab.compiled.machine.kinds import Kind, Product
from perflab.results.compiled import LoopCounts


class Pipe(StrEnum):
    """A part of a multiprocessor that takes instructions of some kinds."""

    TENSOR = "tensor cores"
    FMA = "float arithmetic"
    ALU = "integers and comparisons"
    XU = "special functions"
    SHARED = "shared memory"


_PIPE_OF: Mapping[Kind, Pipe] = MappingProxyType(
    {
        Kind.TENSOR: Pipe.TENSOR,
        Kind.EXPONENTIAL: Pipe.XU,
        Kind.SPECIAL: Pipe.XU,
        Kind.FLOAT: Pipe.FMA,
        Kind.PACKED_FLOAT: Pipe.FMA,
        Kind.COMPARE: Pipe.ALU,
        Kind.INTEGER: Pipe.ALU,
    }
)
_SLOW_CONVERSIONS = ("F2F", "F2I", "I2F", "I2I", "FRND")
_ON_FMA = ("IMAD",)
_SHORT = frozenset(("E4M3", "E5M2", "U8", "S8"))
_ADDED = 4
"""The latency of an addition in cycles, on all three architectures."""
_LEAST = 3
"""The least latency of arithmetic in cycles: that of integer multiplications and of halves on an A100."""
_DEEP_BYTES = 32
"""The bytes of a row of operands in the product whose latency the tables tell: m16n8k16 of 16 bits."""


@dataclass(frozen=True)
class Pipes:
    """The data sheet of an architecture's multiprocessor."""

    name: str
    """The GPU whose number of multiprocessors and clock these are."""
    multiprocessors: int
    clock_hz: float
    """The clock at which the white paper states the peak."""
    products: int
    """Dense FLOP a cycle in tensor cores with operands of 16 bits."""
    floats: int
    """Additions, multiplications and fused ones of float32 a cycle."""
    packed_lanes: int
    """Lanes of packed arithmetic (two results each) a cycle."""
    comparisons: int
    """Minima and maxima of float32 a cycle."""
    shared_latency: int
    """Cycles until a load from shared memory can be used; where no table tells, those of an addition."""
    product_latency: int
    """Cycles until the result of a warp's own product can be used; 0 where no table tells."""
    memory_bytes_per_s: float
    """The bandwidth of the GPU's memory."""
    memory_latency: int
    """Cycles until a load from memory can be used, past all caches."""
    integers: int = 64
    special: int = 16
    schedulers: int = 4
    shared_bytes: int = 128

    @property
    def bandwidth_latency_bytes(self) -> float:
        """The bytes that a multiprocessor must have in flight for its share of the bandwidth (Little's law)."""
        return self.memory_bytes_per_s / (self.multiprocessors * self.clock_hz) * self.memory_latency

    def flops_per_second(self, loop: LoopCounts) -> float:
        """Return the FLOP/s that all multiprocessors reach at most in a loop, at the clock of the data sheet."""
        return loop.flops / loop.least_cycles * self.multiprocessors * self.clock_hz

    def pipe_of(self, one: Instruction, kind: Kind) -> Pipe | None:
        """Return the pipe that an instruction takes; None where only issuing it counts."""
        if one.is_never_executed:
            return None
        if one.name in _ON_FMA:
            return Pipe.FMA
        if kind is Kind.CONVERSION:
            return Pipe.XU if one.name in _SLOW_CONVERSIONS else Pipe.ALU
        return _PIPE_OF.get(kind)

    def results(self, one: Instruction, kind: Kind) -> int:
        """Return how many threads' results of such an instruction there are in a cycle at most."""
        if self.pipe_of(one, kind) is Pipe.XU:
            return self.special
        if kind is Kind.PACKED_FLOAT:
            return self.packed_lanes
        if kind is Kind.COMPARE and one.name.startswith("FMNMX"):
            return self.comparisons
        return self.floats if self.pipe_of(one, kind) is Pipe.FMA else self.integers

    def tensor_flops(self, one: Instruction) -> float:
        """Return the FLOP that tensor cores do in a cycle with the operands of a product: those of the peak."""
        if one.name == "DMMA":
            return self.products / 16
        short = bool(_SHORT & one.modifiers) or one.name.startswith(("Q", "UTCQ", "UTCI"))
        width = 0.5 if "TF32" in one.modifiers else 2.0 if short else 1.0
        return self.products * width * (2.0 if "SP" in one.modifiers else 1.0)

    def interval(self, one: Instruction, kind: Kind, product: Product | None) -> float:
        """Return the cycles that an instruction of one warp keeps its pipe, a quarter of the multiprocessor's, busy."""
        if product is not None:
            alone = self.schedulers if product.warps == 1 else 1  # a warp has a quarter of the tensor cores
            return product.flops / self.tensor_flops(one) * alone
        return 32 * self.schedulers / self.results(one, kind)

    def latency(self, one: Instruction, kind: Kind, product: Product | None) -> float:
        """Return the cycles from the begin of an instruction until its result can be used, at least."""
        if product is not None:
            size = 4 if "TF32" in one.modifiers else 1 if product.inner > 16 else 2
            known = product.warps == 1 and product.inner * size >= _DEEP_BYTES
            return max(self.product_latency if known else 0.0, self.interval(one, kind, product))
        if kind is Kind.SHARED_LOAD:
            return self.shared_latency
        return _LEAST if one.name == "IMAD" or kind is Kind.HALF else _ADDED


PIPES: Mapping[int, Pipes] = MappingProxyType(
    {
        80: Pipes(
            "A100 SXM",
            multiprocessors=108,
            clock_hz=1.410e9,
            products=2048,
            floats=64,
            packed_lanes=64,
            comparisons=64,
            shared_latency=23,
            product_latency=24,
            memory_bytes_per_s=2039e9,
            memory_latency=550,
        ),
        90: Pipes(
            "H100 SXM",
            multiprocessors=132,
            clock_hz=1.830e9,
            products=4096,
            floats=128,
            packed_lanes=128,
            comparisons=64,
            shared_latency=29,
            product_latency=24,
            memory_bytes_per_s=3352e9,
            memory_latency=700,
        ),
        100: Pipes(
            "B200",
            multiprocessors=148,
            clock_hz=2.25e15 / (148 * 8192),
            products=8192,
            floats=128,
            packed_lanes=64,
            comparisons=128,
            shared_latency=_ADDED,
            product_latency=0,
            memory_bytes_per_s=8e12,
            memory_latency=860,
        ),
    }
)
"""Data sheets by architecture. Others have counts and no bound."""
