"""Records of the predicted tier: what a case needs on a GPU, and its baseline.

Module names have ``*`` in the place of a layer's number (``blocks.*.attention.q``), and the amounts of such a row are
sums over all layers. A module outside of layers has its plain name; code outside of every module has the name ``""``.
Memory is in bytes as CUDA's caching allocator counts them, each block rounded up; times are in nanoseconds.
"""

from __future__ import annotations

from typing import ClassVar

from perflab.base.data import Amount, Data, Layers, Parameters, Positive, Share
from perflab.results.peak import PeakPart
from perflab.results.records import TierRecord

REAL = ("asked", "allocated", "reserved", "launches", "waits", "to_device", "to_host")
"""The names of the gated counts of a dry run (``Prediction.real``). The baseline of a dry run has all of them."""
WAIT, TO_DEVICE, TO_HOST = "wait", "to the device", "to the host"
"""The kinds of traffic between host and device that a dry run records."""


class Cost(Data, frozen=True):
    """The cost of one operator in one module and phase, summed over the operator's calls."""

    phase: str
    """The phase's name in the case. In a case without phases: ``backward`` inside a node of autograd, else ``""``."""
    module: str
    operator: str
    """The operator's name in the dispatcher: ``aten::mm``, ``mylib::op``."""
    calls: Amount
    flops: Amount = 0
    """Multiplications and additions of operators with a FLOP formula: matrix products, convolutions, fused attention,
    and custom operators that register one. Other operators have 0 FLOPs, and count by their bytes."""
    bytes_moved: Amount = 0
    """Bytes read and written, each operand and result counted once."""
    roofline_ns: Share = 0.0
    """The operator's roofline time on the prediction's GPU, in ns."""
    line: str = ""
    """The line of code that caused most of ``bytes_moved``: ``train.py:12``. Empty in a baseline."""


class SavedTensors(Data, frozen=True):
    """Tensors of one shape that autograd saved for backward at one line of one module."""

    module: str
    line: str
    operator: str
    """The operator that allocated the tensors in this call."""
    shape: list[int]
    dtype: str
    count: Amount
    size_bytes: Amount
    """Bytes of all these tensors' blocks together. Tensors that are alive anyway (parameters, inputs) have no row."""


class Fit(Data, frozen=True):
    """Whether a case fits into the memory of the prediction's GPU, and which sizes or remedies would make it fit."""

    room_bytes: int
    """The GPU's memory for tensors, in bytes: all but the CUDA context."""
    fits: bool
    fits_on: list[str] = []
    """The names of the GPUs that the case fits on."""
    rooms: dict[str, int] = {}
    """The memory for tensors of every known GPU in bytes, by name, including GPUs that the case does not fit on."""
    largest: dict[str, int | None] = {}
    """The largest value that fits of each size, such as ``batch_size``, with all other sizes unchanged; None if the
    smallest value does not fit either."""
    worlds: dict[int, Amount] = {}
    """The peak of one rank in bytes by the number of ranks, about, for a case in ranks that says how to build itself
    with others (``perf.fits(world_size=...)``)."""
    remedies: dict[str, int] = {}
    """The peak in bytes with each remedy that the case declares, such as ``checkpointing``; empty if the case fits."""


class Costed(Data, frozen=True):
    """A record that has costs, with the sums of the costs."""

    costs: list[Cost]
    """The costs: of a prediction in the order of their first calls, of a baseline by phase, module and operator."""

    @property
    def operators(self) -> int:
        """The number of calls of operators that do work; views do none."""
        return sum(cost.calls for cost in self.costs)

    @property
    def flops(self) -> int:
        """The FLOPs of all phases together."""
        return sum(cost.flops for cost in self.costs)

    @property
    def bytes_moved(self) -> int:
        """The bytes moved in all phases together."""
        return sum(cost.bytes_moved for cost in self.costs)


_DRY_RUN = "-dry-run"


def place_of(gpu: str, *, dry_run: bool) -> str:
    """Return the name under which a GPU's predictions are stored: ``h100``; for dry runs ``h100-dry-run``."""
    return f"{gpu}{_DRY_RUN}" if dry_run else gpu


def gpu_of(place: str) -> tuple[str, bool]:
    """Return the GPU's name of a place from ``place_of``, and whether the place is that of dry runs."""
    return place.removesuffix(_DRY_RUN), place.endswith(_DRY_RUN)


def played(place: str, rank: int | None, world_size: int) -> str:
    """Return a place with the rank whose numbers stand there, if there are several: ``h100, rank 7 of 8``."""
    return f"{place}, rank {rank or 0} of {world_size}" if world_size > 1 else place


class Traffic(Data, frozen=True):
    """Copies of one kind between host and device, or waits of the host for the device, that one line asked for."""

    what: str
    """The kind: ``wait``, ``to the device`` or ``to the host``."""
    line: str
    """The line of code that made the calls: ``train.py:12``; ``backward`` for calls in autograd's own thread."""
    function: str
    """The called function of CUDA: ``cudaMemcpyAsync``."""
    calls: Amount
    size_bytes: Amount = 0


class Race(Data, frozen=True):
    """Two streams that use one tensor in no defined order, so that the tensor's contents are undefined."""

    what: str
    """The kind of race. ``access``: the second use does not wait for the first use. ``freed``: the memory is freed, and
    allocated again without waiting for the first use."""
    first: str
    """The first use: ``aten::mul on stream 1``."""
    first_lines: list[str]
    """The user's lines of the first use, the innermost first."""
    second: str
    """The second use; empty if ``what`` is ``freed``."""
    second_lines: list[str]
    """The user's lines of the second use or of the free, the innermost first."""


class Exchanged(Data, frozen=True):
    """Collectives of one kind that one line asked for in a call of one rank."""

    kind: str
    dtype: str
    """The dtype of their tensors; empty for a barrier."""
    line: str
    """The user's line: ``train.py:12``; ``backward`` where no Python of the user's ran."""
    calls: Amount
    size_bytes: Amount
    """Bytes of their tensors in the rank, of the larger side."""


class Communication(Data, frozen=True):
    """The least bytes and time that a rank's collectives take on a network."""

    network: str
    """The network's name: ``dgx-h100``, or ``8x400``."""
    sent_bytes: Amount
    """The bytes that the rank sends at least in one call."""
    bound_ns: Share
    """The least time in ns of all its collectives, one after the other (``predicted.world.network``)."""
    by_kind: dict[str, Share]
    """The same by kind: ``all_gather``."""


class Mismatch(Data, frozen=True):
    """A collective of one rank that another rank does not make with it: a real group would hang, or mix up data."""

    number: int
    """The place of the collective among those that both ranks take part in, from 1."""
    rank: int
    collective: str
    """The first rank's collective: ``all_reduce of 4.00 KiB float32, all ranks``; empty if it makes no more."""
    line: str
    """The user's line of it; empty if there is none."""
    other_rank: int
    other_collective: str
    """The other rank's collective in the same place; empty if it makes no more."""
    other_line: str


class DryRun(Data, frozen=True):
    """The counts of one call of a dry run: PyTorch on CUDA, with nothing computed. Exact except for ``host_ns``."""

    asked_bytes: Amount
    """The peak of the bytes that tensors requested, before the allocator rounds them up."""
    kernels: dict[str, Amount]
    """Launches by kernel, the most frequent first, without the launches in replayed graphs."""
    replayed: Amount = 0
    """Launches in replayed CUDA graphs."""
    traffic: list[Traffic] = []
    """Copies and waits of the host, the most frequent first."""
    races: list[Race] = []
    """The races, in the order in which they were found."""
    mismatches: list[Mismatch] = []
    """The first collectives that do not match of each pair of the ranks that were played."""
    host_ns: Share = 0.0
    """The host's time to issue the call, in ns. A GPU that is faster waits for the host."""
    unknown: list[str] = []
    """The functions of CUDA's libraries that the case called or looked up, set-up included, and that a dry run does not
    implement: such a call does nothing and returns no answer."""

    def calls_of(self, what: str) -> int:
        """Return the number of calls of one kind: ``WAIT``, ``TO_DEVICE`` or ``TO_HOST``."""
        return sum(one.calls for one in self.traffic if one.what == what)

    def bytes_of(self, what: str) -> int:
        """Return the number of bytes copied in one direction: ``TO_DEVICE`` or ``TO_HOST``."""
        return sum(one.size_bytes for one in self.traffic if one.what == what)


class Timeline(Data, frozen=True):
    """Live bytes over one call, in stretches with equal numbers of allocations and frees."""

    highest_bytes: list[int]
    """The most live bytes in each stretch; the maximum of all stretches is the peak."""
    phases: dict[str, int] = {}
    """The index of the stretch in which each phase begins."""


class Prediction(Costed, frozen=True):
    """The predicted memory, work and time of one call of a case on a GPU that this machine need not have."""

    gpu: str
    """The name of the GPU's data sheet: ``h100``."""
    torch: str
    """The version of PyTorch whose operators were traced, without its local part: ``2.13.0``."""
    peak_bytes: Amount
    """The most bytes alive at one moment of the call, the counterpart of the measured ``Memory.peak_bytes``."""
    held_bytes: Amount
    """The bytes that were allocated before the call."""
    composition: dict[str, Amount]
    """The peak's bytes by category (``CATEGORIES``), without categories that have none."""
    at_peak: list[PeakPart]
    """The peak's bytes by category, module and operator, the largest part first."""
    timeline: Timeline | None = None
    saved: list[SavedTensors] = []
    """The tensors saved for backward, the largest rows first."""
    parameters: Amount = 0
    """The number of elements of all parameters, trained and frozen, that the callable can reach."""
    layers: dict[str, Layers] = {}
    """The number of layers that ``*`` stands for in each stack: ``{"blocks": 32}``."""
    keeping_output_bytes: Amount | None = None
    """The peak in bytes of a script that keeps the previous call's result alive; None if the result holds no memory."""
    is_bound: bool = False
    """Whether the peak is a lower bound: which kernels PyTorch takes on this GPU, and their memory, is not known."""
    workspace_bytes: Amount = 0
    """Estimate of the bytes that libraries (cuBLAS) hold in the same allocator, in addition to the peak."""
    allocated_bytes: Amount = 0
    """Estimate of ``torch.cuda.max_memory_allocated``, in bytes: workspaces included, and remainders that the allocator
    does not split off a block."""
    reserved_bytes: Amount = 0
    """Estimate of the bytes that the caching allocator reserves on the GPU, fragmentation included."""
    launches: Amount = 0
    """Estimate of the number of kernel launches."""
    bound_ns: Positive | None = None
    """Lower bound of the call's time on the GPU in ns, whatever the GPU's caches hold; None if no operator has a bound
    above 0."""
    roofline_ns: Positive | None = None
    """The textbook's roofline time in ns: every operand and result passes through memory once. ``estimate_ns`` is made
    from this time. None if no operator has one above 0."""
    estimate_ns: Positive | None = None
    """Estimated time in ns: the roofline time divided by the efficiency of cases measured on such a GPU; None without
    such measurements."""
    estimate_from: str | None = None
    """The measurements on which ``estimate_ns`` rests, in words."""
    traced_layers: list[int] = []
    """The numbers of layers that were run, if the rest was extrapolated; empty if every layer was run."""
    fit: Fit | None = None
    snapshot: str | None = None
    """The name of the file that has the memory timeline of the call; None if none was asked for."""
    notes: list[str] = []
    """Remarks on how the prediction was made and what the prediction leaves out, in sentences."""
    world_size: int = 1
    """The number of ranks of the case's group; the numbers are those of one rank."""
    rank: int | None = None
    """The rank whose numbers these are; None in older files, which do not say it."""
    collectives: dict[str, Amount] = {}
    """The counts of the call's collectives in that rank (``measure.counts.collectives``); empty without a group."""
    exchanged: list[Exchanged] = []
    """The same collectives by kind and line, those of most bytes first."""
    communication: Communication | None = None
    """The least bytes and time of these collectives; None without a group, or where the GPU's link is not known."""
    dry_run: DryRun | None = None
    """The counts of a dry run: the case ran on CUDA with nothing computed. ``allocated_bytes``, ``reserved_bytes`` and
    ``launches`` are then counted in PyTorch's own allocator and launches. None: the case was traced on fake tensors."""

    @property
    def real(self) -> dict[str, int]:
        """The gated counts of a dry run, by quantity (``REAL``); empty for a trace on fake tensors."""
        dry = self.dry_run
        if dry is None:
            return {}
        numbers = (
            dry.asked_bytes,
            self.allocated_bytes,
            self.reserved_bytes,
            self.launches,
            dry.calls_of(WAIT),
            dry.bytes_of(TO_DEVICE),
            dry.bytes_of(TO_HOST),
        )
        return dict(zip(REAL, numbers, strict=True))

    @property
    def place(self) -> str:
        """The name under which the prediction is stored."""
        return place_of(self.gpu, dry_run=self.dry_run is not None)

    @property
    def saved_bytes(self) -> int:
        """The bytes that are alive only because autograd saves them for backward."""
        return sum(one.size_bytes for one in self.saved)


class PredictedBaseline(Costed, frozen=True):
    """A prediction as it is stored for comparison, without what changes when a file is edited elsewhere."""

    torch: str
    recorded: str
    """The date of recording, ISO 8601."""
    peak_bytes: Amount
    held_bytes: Amount
    at_peak: list[PeakPart]
    saved_bytes: Amount = 0
    roofline_ns: Positive | None = None
    """The roofline time in ns. It is not compared: with measured times of the same cases it gives an efficiency."""
    saved: list[SavedTensors] = []
    layers: dict[str, Layers] = {}
    parameters: Parameters = {}
    """The parameters of the test case; a model's parameters are counted in ``Prediction.parameters``."""
    real: dict[str, Amount] = {}
    """The gated counts of a dry run, by quantity (``Prediction.real``)."""
    kernels: dict[str, Amount] = {}
    """The dry run's launches by kernel."""
    world_size: int = 1
    rank: Amount = 0
    """The rank whose numbers these are."""
    collectives: dict[str, Amount] = {}
    """The counts of the call's collectives in that rank; empty without a group."""
    commit: str | None = None
    reason: str | None = None
    """The reason given for saving the baseline, if one was given."""


class PredictedCase(TierRecord, frozen=True, tag="predicted"):
    """A prediction, and the baseline that it is compared with, if there is one."""

    stands_in: ClassVar[bool] = True

    now: Prediction
    before: PredictedBaseline | None = None
    parameters: Parameters = {}
    """The parameters of the test case."""

    @property
    def place(self) -> str:
        """The name under which the prediction is stored."""
        return self.now.place

    @property
    def variant(self) -> str:
        """The GPU's name, so that predictions for two GPUs are shown side by side."""
        return self.now.gpu
