"""Records of the compiled tier: the resources of a kernel, and its baseline."""

from __future__ import annotations

from perflab.data import Amount, Data
from perflab.records import TierRecord


class KernelResources(Data, frozen=True):
    """What a compiled kernel takes of a multiprocessor, and which instructions it is made of."""

    ptxas: str
    """Version of the assembler; Triton ships more than one."""
    num_warps: Amount
    """Of a block, those that the compiler added included."""
    num_stages: Amount
    registers: Amount
    """Of a thread."""
    stack_bytes: Amount
    """Of a thread: spilled registers, and arrays that have no other place."""
    spill_store_bytes: Amount
    spill_load_bytes: Amount
    """Of a thread, as the assembler counts them: each store and load stands once, in a loop or not."""
    static_shared_bytes: Amount
    dynamic_shared_bytes: Amount
    shared_limit_bytes: int
    """The most that the architecture gives a block."""
    blocks_per_sm: Amount
    warps_per_sm: Amount
    """Upper bounds, of blocks and warps on a multiprocessor at once."""
    max_warps_per_sm: Amount
    limited_by: str
    """What has no room for one more: ``registers``, ``shared memory``, ``tensor memory``, ``warps``, ``blocks``."""
    tensor_columns: Amount = 0
    """Columns of tensor memory (Blackwell)."""
    instructions: dict[str, Amount] = {}
    """How often each kind stands in the PTX: ``mma``, ``wgmma``, ``tcgen05``, and ``tma`` for TMA's copies."""

    @property
    def shared_bytes(self) -> int:
        """Shared memory of a block."""
        return self.static_shared_bytes + self.dynamic_shared_bytes

    @property
    def fits(self) -> bool:
        """Whether a multiprocessor has room for a block, so that a launch can run."""
        return self.shared_bytes <= self.shared_limit_bytes and self.blocks_per_sm > 0


class CompiledKernel(Data, frozen=True):
    """A registered kernel, compiled for one architecture: what it takes, or why there is nothing to take."""

    registration: str
    """Where it is registered: ``package.module:attribute``."""
    name: str
    arch: int
    """Compute capability without its dot: 90 is sm_90."""
    triton: str
    resources: KernelResources | None = None
    problem: str | None = None
    """What the compiler said, if it did not compile."""
    tuned: str | None = None
    """The autotuned example that it is a configuration of."""
    passed_over: bool = False
    """The autotuner goes on to another configuration on this architecture, which can run."""


class KernelBaseline(Data, frozen=True):
    """A compiled kernel as it is stored."""

    triton: str
    recorded: str
    """Date, ISO 8601."""
    resources: KernelResources
    commit: str | None = None
    reason: str | None = None
    """Why it was saved, if that was said."""


class CompiledCase(TierRecord, frozen=True, tag="compiled"):
    """A compiled kernel beside what its baseline holds."""

    now: CompiledKernel
    before: KernelResources | None = None


def case_of(name: str, arch: int) -> str:
    """What a kernel is called for an architecture: ``rms-norm-bf16[sm_90]``."""
    return f"{name}[sm_{arch}]"
