"""Records of the compiled tier: the resources of a kernel, and its baseline."""

from __future__ import annotations

from perflab.base.data import Amount, Data
from perflab.base.gpu_names import Arch, name_of_arch
from perflab.results.records import TierRecord


class LoopCounts(Data, frozen=True):
    """The instructions of one iteration of a loop, counted in machine code, and a bound on its time."""

    issues: dict[str, Amount]
    """The number of instructions of a warp by kind: ``conversions``, ``exponentials``; tensor-core products by shape
    (``tensor_products:16x8x16``), accesses to memory by the bytes of a thread (``global_loads:16B``)."""
    cycles: dict[str, float] = {}
    """The least cycles of a block's iteration by what they are for: each pipe, issuing, dependencies. The greatest is
    a bound. Empty where the architecture has no data sheet."""
    flops: Amount = 0
    """Multiplications and additions in tensor cores, of a block in an iteration."""
    share_of_peak: float = 0.0
    """The share of the tensor cores' peak that the loop can reach at most; 0 without products."""
    copied_bytes: Amount = 0
    """The bytes that a block's iteration copies asynchronously from global to shared memory at most; TMA's are not
    known."""
    in_flight_bytes: Amount = 0
    """The most bytes of such copies in flight at once on a multiprocessor, with all blocks that it has room for; 0
    where other loads are in the loop, too."""
    is_all: bool = False
    """Whether these are all instructions of a kernel that has no loop."""

    @property
    def total(self) -> int:
        """The number of instructions of an iteration."""
        return sum(self.issues.values())

    @property
    def global_bytes(self) -> int:
        """The bytes of global memory that a thread loads, stores and copies in an iteration; TMA's are not known."""
        kinds = ("global_loads", "global_stores", "async_copies")
        accesses = [(name.partition(":"), count) for name, count in self.issues.items()]
        return sum(int(width.removesuffix("B")) * count for (kind, _, width), count in accesses if kind in kinds)

    @property
    def least_cycles(self) -> float:
        """The least time of a block's iteration in cycles, while other blocks share the multiprocessor; 0: unknown."""
        return max(self.cycles.values(), default=0.0)

    @property
    def limit(self) -> str:
        """The name of the greatest of the cycles, the pipe or what else binds; empty: unknown."""
        return max(self.cycles, key=lambda name: self.cycles[name], default="")


class KernelResources(Data, frozen=True):
    """The resources of a multiprocessor that a compiled kernel uses, and the counts of its special instructions."""

    ptxas: str
    """The version of the assembler; Triton ships more than one. Empty for AMD: Triton's own LLVM
    assembles there."""
    num_warps: Amount
    """The number of warps in a block, including warps that the compiler added."""
    num_stages: Amount
    registers: Amount
    """The number of registers of a thread."""
    stack_bytes: Amount
    """The stack size of a thread: spilled registers, and arrays that fit nowhere else."""
    spill_store_bytes: Amount
    spill_load_bytes: Amount
    """The bytes that a thread spills (stores) and reads back (loads), as the assembler counts them: each instruction
    counts once, in a loop or not. AMD's compiler counts spilled vector registers, of four bytes: these are stores."""
    static_shared_bytes: Amount
    dynamic_shared_bytes: Amount
    shared_limit_bytes: int
    """The most shared memory that a block can have on the architecture."""
    blocks_per_sm: Amount
    warps_per_sm: Amount
    """Upper bounds of the number of blocks, and of warps, that are on a multiprocessor at once."""
    max_warps_per_sm: Amount
    limited_by: str
    """The resource that limits blocks: ``registers``, ``shared memory``, ``tensor memory``, ``warps`` or ``blocks``."""
    tensor_columns: Amount = 0
    """The number of columns of tensor memory that a block uses (Blackwell)."""
    instructions: dict[str, Amount] = {}
    """The number of instructions by kind: in the PTX ``mma``, ``wgmma``, ``tcgen05``, and ``tma`` for copies by TMA; in
    AMD's assembly ``mfma``."""
    loops: list[LoopCounts] = []
    """The innermost loops by address, or all of the machine code if it has none; empty for AMD."""
    remarks: list[str] = []
    """The assembler's remarks on lost performance: "wgmma.mma_async instructions are serialized due to ..."."""

    @property
    def shared_bytes(self) -> int:
        """The shared memory of a block in bytes, static and dynamic."""
        return self.static_shared_bytes + self.dynamic_shared_bytes

    @property
    def main_loop(self) -> LoopCounts | None:
        """The loop that does most in tensor cores, the shortest of several; else the longest. None if none is known."""
        return min(self.loops, key=lambda one: (-one.flops, one.total if one.flops else -one.total), default=None)

    @property
    def fits(self) -> bool:
        """Whether a multiprocessor has room for a block, so that a launch can run."""
        return self.shared_bytes <= self.shared_limit_bytes and self.blocks_per_sm > 0


class CompiledKernel(Data, frozen=True):
    """A registered kernel that was compiled for one architecture: its resources, or why it did not compile."""

    registration: str
    """The place where the kernel is registered: ``package.module:attribute``."""
    name: str
    arch: Arch
    triton: str
    resources: KernelResources | None = None
    problem: str | None = None
    """The compiler's message if the kernel did not compile, else None."""
    tuned: str | None = None
    """The name of the autotuned example of which this kernel is a configuration; None if it is none."""
    passed_over: bool = False
    """Whether the autotuner passes this configuration over on this architecture, for another one that can run."""


class KernelBaseline(Data, frozen=True):
    """The stored baseline of a compiled kernel."""

    triton: str
    recorded: str
    """The date and time at which the baseline was saved, in ISO 8601."""
    resources: KernelResources
    commit: str | None = None
    reason: str | None = None
    """The user's reason for saving the baseline; None if none was given."""


class CompiledCase(TierRecord, frozen=True, tag="compiled"):
    """The record of a compiled kernel, with the resources of its baseline."""

    now: CompiledKernel
    before: KernelResources | None = None


def case_of(name: str, arch: Arch) -> str:
    """Return the case name of a kernel for an architecture: ``rms-norm-bf16[sm_90]``, ``rms-norm-bf16[gfx942]``."""
    return f"{name}[{name_of_arch(arch)}]"
