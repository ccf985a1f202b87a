"""Records of the predicted tier: what a case needs on a GPU, and its baseline.

Module names have ``*`` in the place of a layer's number (``blocks.*.attention.q``), and what stands there is the sum
over all layers. A module that is no layer's has its plain name, and what runs outside of every module the name ``""``.
Memory is bytes as CUDA's caching allocator counts them, each block rounded up; times are nanoseconds.
"""

from __future__ import annotations

from typing import ClassVar

from perflab.data import Amount, Data, Layers, Parameters, Positive, Share
from perflab.records import TierRecord

KINDS = (
    "parameters",
    "gradients",
    "optimizer state",
    "buffers",
    "inputs",
    "activations",
    "temporaries",
)
"""What a block of memory is for. ``activations`` were saved for a backward; ``temporaries`` are all that is left."""


REAL = ("asked", "allocated", "reserved", "launches", "waits", "to_device", "to_host")
"""What a dry run counts and is gated (``Prediction.real``); its baseline has all of them."""
WAIT, TO_DEVICE, TO_HOST = "wait", "to the device", "to the host"
"""What a dry run sees between host and device."""


class Cost(Data, frozen=True):
    """What one operator does in one module, summed over its calls."""

    phase: str
    """As the case names it. In a case without phases ``backward`` where a node of autograd's runs, else ``""``."""
    module: str
    operator: str
    """As the dispatcher names it: ``aten::mm``, ``mylib::op``."""
    calls: Amount
    flops: Amount = 0
    """Multiplications and additions of matrix products and convolutions; what else computes counts by its bytes."""
    bytes_moved: Amount = 0
    """Read and written, each operand and result once."""
    roofline_ns: Share = 0.0
    """Its roofline time on the named GPU."""
    line: str = ""
    """Where the code is that asked for most of it: ``train.py:12``. Not part of a baseline."""


class PeakPart(Data, frozen=True):
    """What is alive at the peak: all blocks of one kind that one operator of one module made."""

    kind: str
    module: str
    operator: str
    """``""`` of what was there before the call."""
    size_bytes: Amount
    blocks: Amount
    line: str = ""


class SavedTensors(Data, frozen=True):
    """Tensors of one shape that one line of one module had autograd save for backward."""

    module: str
    line: str
    operator: str
    """What made them, where that was in this call."""
    shape: list[int]
    dtype: str
    count: Amount
    size_bytes: Amount
    """Of all of them together, what only they keep alive: 0 for parameters and inputs, which are there anyway."""


class Fit(Data, frozen=True):
    """Whether a case has room on the named GPU, and what would change that."""

    room_bytes: int
    """What the GPU has for tensors."""
    fits: bool
    fits_on: list[str] = []
    """Names of the GPUs that it fits on."""
    rooms: dict[str, int] = {}
    """What each GPU that is known has for tensors, by name: those that it does not fit on too."""
    largest: dict[str, int | None] = {}
    """By size, such as ``batch_size``: the largest that fits, all else equal; None: not even the smallest."""
    remedies: dict[str, int] = {}
    """Peak with each remedy the case knows of, such as ``checkpointing``; asked where it does not fit."""


class Costed(Data, frozen=True):
    """What has costs, and their sums."""

    costs: list[Cost]
    """In the order in which they came first."""

    @property
    def operators(self) -> int:
        """Calls of operators that do work; views do none."""
        return sum(cost.calls for cost in self.costs)

    @property
    def flops(self) -> int:
        """Of all phases."""
        return sum(cost.flops for cost in self.costs)

    @property
    def bytes_moved(self) -> int:
        """Of all phases."""
        return sum(cost.bytes_moved for cost in self.costs)


_DRY_RUN = "-dry-run"


def place_of(gpu: str, *, dry_run: bool) -> str:
    """What a GPU's predictions are stored under: ``h100``; those of dry runs apart, ``h100-dry-run``."""
    return f"{gpu}{_DRY_RUN}" if dry_run else gpu


def gpu_of(place: str) -> tuple[str, bool]:
    """The GPU of such a place, and whether it is that of dry runs."""
    return place.removesuffix(_DRY_RUN), place.endswith(_DRY_RUN)


class Traffic(Data, frozen=True):
    """What crossed between host and device, or made the host wait for it, by the line that asked for it."""

    what: str
    """``wait``, ``to the device``, ``to the host``."""
    line: str
    """``train.py:12``; ``backward`` in autograd's own thread."""
    function: str
    """Of CUDA: ``cudaMemcpyAsync``."""
    calls: Amount
    size_bytes: Amount = 0


class Race(Data, frozen=True):
    """Two streams that use one tensor with no order between: what it then holds is chance."""

    what: str
    """``access``: the second use does not wait for the first; ``freed``: the memory is given back before it."""
    first: str
    """``aten::mul on stream 1``."""
    first_lines: list[str]
    """The user's lines, the innermost first."""
    second: str
    """Empty where it was freed."""
    second_lines: list[str]


class DryRun(Data, frozen=True):
    """What PyTorch did on CUDA in one call in which nothing was computed. Exact, but for the host's time."""

    asked_bytes: Amount
    """What tensors were asked for at the worst moment, before the allocator rounds."""
    kernels: dict[str, Amount]
    """Launches by kernel, the most frequent first; those in replayed graphs are not among them."""
    replayed: Amount = 0
    """Launches in replayed CUDA graphs."""
    traffic: list[Traffic] = []
    """The most frequent first."""
    races: list[Race] = []
    """In the order in which they were found."""
    host_ns: Share = 0.0
    """What the host took to issue the call. A GPU that is faster than that waits for it."""
    unknown: list[str] = []
    """Functions of CUDA's libraries that the case called, set-up included, and that did and answered nothing here."""

    def calls_of(self, what: str) -> int:
        """How often that happened."""
        return sum(one.calls for one in self.traffic if one.what == what)

    def bytes_of(self, what: str) -> int:
        """How much went that way."""
        return sum(one.size_bytes for one in self.traffic if one.what == what)


class Timeline(Data, frozen=True):
    """Live bytes over one call, in stretches of equally many allocations and frees."""

    highest_bytes: list[int]
    """The highest level in each stretch; the highest of all is the peak."""
    phases: dict[str, int] = {}
    """In which stretch each phase begins."""


class Prediction(Costed, frozen=True):
    """What one call of a case needs on a GPU that is not here."""

    gpu: str
    """Name of the data sheet: ``h100``."""
    torch: str
    """Whose operators: without its local part, ``2.13.0``."""
    peak_bytes: Amount
    """What the case needs at its worst moment, as ``Memory.peak_bytes`` is measured."""
    held_bytes: Amount
    """Of that, what was there before the call."""
    composition: dict[str, Amount]
    """The peak by kind (``KINDS``)."""
    at_peak: list[PeakPart]
    """The same in detail, the largest first."""
    timeline: Timeline | None = None
    saved: list[SavedTensors] = []
    """The largest first."""
    parameters: Amount = 0
    """How many numbers are trained or frozen: of all parameters that the callable has in its hands."""
    layers: dict[str, Layers] = {}
    """How many ``*`` stands for: ``{"blocks": 32}``."""
    keeping_output_bytes: Amount | None = None
    """The peak in a script in which the result of the call before is still alive, where that is more."""
    workspace_bytes: Amount = 0
    """Estimate of what libraries (cuBLAS) hold beside that in the same allocator."""
    allocated_bytes: Amount = 0
    """Estimate of what ``torch.cuda.max_memory_allocated`` shows: workspaces too, and what is not cut off blocks."""
    reserved_bytes: Amount = 0
    """Estimate of what the caching allocator takes of the GPU for all that, fragmentation included."""
    launches: Amount = 0
    """Estimate of the kernels that are launched."""
    bound_ns: Positive | None = None
    """Lower bound: no shorter on that GPU, whatever its caches hold; None where nothing is known of its rates."""
    roofline_ns: Positive | None = None
    """The textbook's roofline, every operand and result through memory once; estimates are made from it."""
    estimate_ns: Positive | None = None
    """With an efficiency that was measured on such a GPU."""
    estimate_from: str | None = None
    """Which measurements that rests on, in words."""
    traced_layers: list[int] = []
    """How many layers were run, where the rest was extrapolated; empty: all were."""
    fit: Fit | None = None
    notes: list[str] = []
    """What is to be known of the prediction, in sentences."""
    dry_run: DryRun | None = None
    """Where it ran on CUDA with nothing computed. Then ``allocated_bytes``, ``reserved_bytes`` and ``launches`` are
    what PyTorch's own allocator and launches came to, and no estimates; None: it was traced on fake tensors."""

    @property
    def real(self) -> dict[str, int]:
        """What a dry run counted and is gated; nothing of a trace on fake tensors."""
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
        """What it is stored under."""
        return place_of(self.gpu, dry_run=self.dry_run is not None)

    @property
    def saved_bytes(self) -> int:
        """What is kept for backward and would not be there otherwise."""
        return sum(one.size_bytes for one in self.saved)


class PredictedBaseline(Costed, frozen=True):
    """A prediction as it is stored: what is compared, and nothing that changes with an edit elsewhere in a file."""

    torch: str
    recorded: str
    """Date, ISO 8601."""
    peak_bytes: Amount
    held_bytes: Amount
    at_peak: list[PeakPart]
    saved_bytes: Amount = 0
    roofline_ns: Positive | None = None
    """Not compared: with it, measured times of the same cases tell an efficiency."""
    saved: list[SavedTensors] = []
    layers: dict[str, Layers] = {}
    parameters: Parameters = {}
    """The case's, not the model's."""
    real: dict[str, Amount] = {}
    """What a dry run counted, by quantity (``Prediction.real``)."""
    kernels: dict[str, Amount] = {}
    """Its launches by kernel."""
    commit: str | None = None
    reason: str | None = None
    """Why it was saved, if that was said."""


class PredictedCase(TierRecord, frozen=True, tag="predicted"):
    """A prediction beside what its baseline holds."""

    stands_in: ClassVar[bool] = True

    now: Prediction
    before: PredictedBaseline | None = None
    parameters: Parameters = {}
    """The case's."""

    @property
    def place(self) -> str:
        """What it is stored under."""
        return self.now.place

    @property
    def variant(self) -> str:
        """The GPU: predictions for two GPUs stand beside each other."""
        return self.now.gpu
