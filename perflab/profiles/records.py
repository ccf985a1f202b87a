"""Records of one call: rows of time that add up to it, and parts that add up to its peak memory. Plain frozen data."""

from __future__ import annotations

from typing import Annotated

import msgspec

from perflab.data import Amount, Data, Positive, Share, changed

PYTHON = "python"
CALLED_FIRST = "perflab"
"""Who calls the user's first function."""
GAPS = ("host wait", "launches", "kernel wait", PYTHON)
"""Categories that are no operator's."""
OTHER_THREAD = "another thread"
OTHER = "other"
DISPATCH = "dispatch"
FORWARD, BACKWARD, OPTIMIZER = "forward", "backward", "optimizer"
"""Phases of a training step. In a case without phases, autograd's nodes and PyTorch's range around an optimizer's step
tell which of them an operator is of.

Where a case has phases, their names are the user's, and no code asks for one of them, but for what only these three
tell: that a backward or an optimizer is one which is written by hand, and has neither nodes nor that range.
"""
UNNAMED = (*GAPS, OTHER_THREAD, DISPATCH)
"""Categories that stand in an operator's place: gaps, and PyTorch's own work."""


class ProfileRow(Data, frozen=True):
    """What equal pieces of work took together in one call."""

    category: str
    """``products forward``, ``products backward``, ``attention``, ``element-wise and norms``, ``embedding and loss``,
    ``optimizer``, ``copies``, ``communication``, ``compiled code``, or one of these:

    ``dispatch`` is PyTorch's own work on a CPU: views, allocation, the autograd engine; on a GPU its rows are operators
    that launch nothing, and have no time. ``python`` is time on a CPU in which no operator runs. On a GPU, ``host
    wait`` is time in which the device waits for a kernel that the host has not begun to launch, ``launches`` that in
    which it waits for this call of CUDA to end, and ``kernel wait`` what is left between kernels. ``another thread`` is
    time in which the device only does what a thread launched that the profiler does not follow, such as a data
    loader's. ``your operators`` are those that are not PyTorch's own, an ``autograd.Function`` among them; ``other`` is
    what no operator launched, and on a CPU an operator that the call with places did not have.
    """
    operator: str = ""
    """``aten::mm``; on a GPU the operator that launched the kernel; ``""`` for a gap. Of a line of plain Python, its
    function; where that line is a call, the function called."""
    kernel: str = ""
    """On a GPU, the kernel's readable name."""
    phase: str = ""
    """As the case names it. In a case without phases ``forward``, ``backward`` or ``optimizer``, as autograd and the
    optimizer tell them; ``""`` for what is in none of these there, and where no backward runs."""
    module: str = ""
    """The innermost module, with ``*`` for a layer's number: ``blocks.*.attention.q``. Of a gap, that of the operator
    that ends it."""
    line: str = ""
    """The user's line; of a backward, the forward's; of ``python``, that of the operator that ends it."""
    shapes: str = ""
    """Shapes and dtype of the operator's inputs: ``512x256, 256x768 float32``."""
    within: str = ""
    """The outermost operator that this one runs within: ``aten::repeat`` of the ``aten::cat`` that it calls. Of calls
    in plain Python, rows without a time, the function that calls; ``CALLED_FIRST`` where that is no user's."""
    device: Amount = 0
    """On GPUs, the number of the one whose time it is."""
    instances: Share = 0.0
    """How often in one call; of plain Python 0 where that is not the same in each call."""
    time_ns: Share = 0.0
    spread_ns: Share = 0.0
    """Standard deviation of ``time_ns`` from call to call."""
    flops: Amount = 0
    """Of all instances."""
    is_part: bool = False
    """On a CPU, whether it runs within another operator of its category, of which that one is the instance."""
    code: str = ""
    """Of a line of plain Python, a digest of its text: lines move when a file is edited."""

    @property
    def is_plain(self) -> bool:
        """Whether it is a line of plain Python, which no operator runs on, or calls from there."""
        return self.category == PYTHON and bool(self.operator)


def merged_with(row: ProfileRow, other: ProfileRow) -> ProfileRow:
    """Two rows as one, which keeps what the first says besides its numbers."""
    return changed(
        row,
        instances=row.instances + other.instances,
        time_ns=row.time_ns + other.time_ns,
        spread_ns=(row.spread_ns**2 + other.spread_ns**2) ** 0.5,
        flops=row.flops + other.flops,
    )


class CudaCall(Data, frozen=True):
    """What the host's calls of one function of CUDA take in one profiled call. They run beside the device's time."""

    name: str
    """``cudaLaunchKernel``."""
    instances: Share
    time_ns: Share


class Profile(Data, frozen=True, forbid_unknown_fields=False):
    """Where the time of one call went. Fields of older versions are passed over when a saved run is read."""

    device: str
    """``cpu`` or ``cuda``."""
    calls: Annotated[int, msgspec.Meta(ge=1)]
    """Profiled calls that the rows are the mean of: the faster half, each with the plain call beside it."""
    timer_ns: Positive
    """One call without the profiler, timed between the profiled ones: the mean of those beside them."""
    profiled_ns: Positive
    """One call with it."""
    cost_ns: Share = 0.0
    """What the profiler is known to add to a call. It has been taken away from the rows."""
    rows: list[ProfileRow] = []
    """The most time first."""
    notes: list[str] = []
    called: dict[str, list[str]] = {}
    """By module, the lines from which it is called, each with those that called it, ``net.py:9 < train.py:5``; where a
    checkpoint runs it, those from the checkpoint's on. Of ``""``, the lines that run a backward."""
    devices: Annotated[int, msgspec.Meta(ge=1)] = 1
    """How many devices the rows are of. Each has a timeline as long as the call."""
    has_plain: bool = False
    """On a CPU, whether lines of plain Python have rows of their own. They are no part of ``python``'s others then."""
    cuda_calls: list[CudaCall] = []
    """On a GPU, what the host does there meanwhile; the longest first. The profiler's own cost is in it."""

    @property
    def whole_ns(self) -> float:
        """What the rows should add up to: the time of one call, on each of its devices."""
        return self.timer_ns * self.devices

    @property
    def explained_ns(self) -> float:
        """What the rows add up to."""
        return sum(row.time_ns for row in self.rows)

    @property
    def unexplained_ns(self) -> float:
        """What the timer says beyond the rows, or less than they do; with what was recorded and is of no category."""
        return self.whole_ns - self.explained_ns

    @property
    def unknown_share(self) -> float:
        """Share of the call that nobody could be given."""
        return abs(self.unexplained_ns) / self.whole_ns + self.share_of(OTHER)

    def share_of(self, category: str) -> float:
        """Share of the call that the rows of a category take."""
        return sum(row.time_ns for row in self.rows if row.category == category) / self.whole_ns


ON_HOST = "on the host"
"""The category of a part that is CUDA's calls, or operators that launch nothing: the device has no time for it but in
its gaps."""
SAME, VARY = "same", "vary"
"""The inputs of an operator that takes longer."""


class OnLine(Data, frozen=True):
    """What changed most on a further line of the same edit."""

    operator: str
    line: str
    more: float = 0.0
    """How many more calls; 0: as many, on other inputs."""


class Part(Data, frozen=True):
    """One piece of an explanation: what some module does otherwise than before."""

    change_ns: float
    """Of the time of one call; negative: it became faster."""
    operator: str = ""
    """The operator that changed most; ``""`` for a gap."""
    module: str = ""
    line: str = ""
    phases: list[str] = []
    more: float = 0.0
    """How many more calls of that operator; 0: as many as before, which take longer."""
    often: list[Share] = []
    """Of plain Python, whose ``module`` is a function and whose operator is what its line calls, or ``python``: how
    often before and now."""
    again: Amount = 0
    """How many times more the whole of ``module`` is computed; 0: what changed is not all that it does."""
    other_modules: list[str] = []
    """Further modules that are, or that run so much more often."""
    layers: list[Amount] = []
    """Where ``module`` is layers, of which more or fewer run: how many before, and how many now."""
    left_out: list[str] = []
    """Parts of these that are not."""
    called: str = ""
    """Where all of a module is computed again or more often, the line from which it is called, and those that called
    that one; under a checkpoint the line of that; of a backward that runs again, the line that runs it."""
    moved_from: list[str] = []
    """Phases that have as many fewer calls of it: it is called as often as before, and elsewhere."""
    others: list[str] = []
    """Further operators of which there are more too on that line, or less too."""
    instead_of: list[str] = []
    """The optimizer's operators that are no more called, where these calls do their work."""
    other_lines: list[OnLine] = []
    """Of the same edit, the most time first."""
    category: str = ""
    shapes: str = ""
    """Where it is called on other inputs than before: one of those then, and one of those now."""
    inputs: str = ""
    """Where it takes longer and nothing else changed: its shapes are the ``same``, or they, or the number of its calls,
    ``vary`` from call to call; ``""``: they are not known."""
    within: str = ""
    """The operator that makes most of these calls, where it is not called more often itself or has no row."""


class Explanation(Data, frozen=True):
    """Why a case became worse, as the profiles of both versions tell it. The parts and ``rest_ns`` add up."""

    base: str
    """Whose profile this one was held against, as people call it."""
    before_ns: Share = 0.0
    now_ns: Share = 0.0
    """Time of one call in both profiles."""
    parts: list[Part] = []
    """The most likely cause first."""
    rest_ns: float = 0.0
    """What is left of the change that the gate measured."""
    problem: str | None = None
    """Why nothing could be looked into, or why the parts do not explain the change."""


INPUTS = "inputs"
"""The category of what is held before a call and is nothing else."""
KEPT = "kept"
"""The category of what a call has made and nobody lets go when it has returned, and its result was dropped."""
KEPT_BEFORE = "kept by more calls before"
"""The category of what a peak lacks of the gate's because each call keeps something, and more calls had run."""
LET_GO = "let go"
"""The category of what was held before a call and is no more at its peak: it has a negative size."""


class PeakPart(Data, frozen=True):
    """Blocks of one place and kind that are alive at the peak of a call."""

    category: str
    """Held before the call: ``parameters``, ``gradients``, ``optimizer state``, ``buffers``, ``inputs``, and pools
    of ``CUDA graphs``. Made by it: ``activations``, ``temporaries``, ``passed on`` to a later
    phase that is no backward, ``new gradients``, ``new optimizer state``,
    ``results``, which go when the call's result is dropped, and ``KEPT``; of the call before it too. Besides those
    ``LET_GO``."""
    size_bytes: int
    blocks: int
    operator: str = ""
    """That asked for them; ``""``: not known, or held before the call."""
    module: str = ""
    """As in ``ProfileRow``."""
    line: str = ""
    """That asked for them; of what a module held before the call, the one that calls the module."""
    stack: list[str] = []
    """That line and those that called it, the innermost first."""


class Keeper(Data, frozen=True):
    """What holds tensors that a call keeps, and the line that puts them there."""

    line: str = ""
    """After which the holder has changed; ``""``: none of the user's lines was seen to do it."""
    holder: str = ""
    """``train.HISTORY``, ``Training.last``; ``kept of watch``, a variable of a function; ``""``: it has no name."""
    kind: str = ""
    """Of a container: ``list``."""
    many: Amount = 0
    """How many a container has."""
    grows: bool = False
    """Whether a container has more after each call."""

    @property
    def place(self) -> str:
        """``at train.py:12 in train.HISTORY, a list of 1640``, as far as that is known."""
        size = f"a {self.kind} of {self.many:,}" if self.kind else ""
        held = ", ".join(filter(None, (self.holder, size)))
        return " ".join([*([f"at {self.line}"] if self.line else []), *([f"in {held}"] if held else [])])


class Peak(Data, frozen=True):
    """What makes the peak memory of one call: its parts add up to it, to the byte."""

    parts: list[PeakPart]
    """The largest first."""
    grows_bytes: int = 0
    """How much more the callable holds after each call than before it."""
    keepers: list[Keeper] = []
    """What holds the tensors that a call keeps, what grows first, then what holds most."""

    @property
    def peak_bytes(self) -> int:
        """What is gated: what was held, and how far the call rose above that."""
        return sum(part.size_bytes for part in self.parts)


class PeakChange(Data, frozen=True):
    """What is more, or less, at one peak than at another."""

    category: str
    change_bytes: int
    more: int = 0
    """How many more blocks; 0: as many, of other sizes. Of ``KEPT_BEFORE``, how many more calls."""
    places: int = 1
    """How many kinds and places of blocks this is the sum of; operator, module and line are of the largest."""
    operator: str = ""
    module: str = ""
    line: str = ""
    stack: list[str] = []
    """That line and those that called it, the innermost first."""
    keeper: Keeper | None = None
    """Of what is kept: what holds it."""


class PeakExplanation(Data, frozen=True):
    """Why a case needs more memory than before. The parts add up to ``now_bytes - before_bytes``."""

    base: str
    """Whose peak this one was held against, as people call it."""
    before_bytes: Amount = 0
    now_bytes: Amount = 0
    parts: list[PeakChange] = []
    """The largest change first."""
    problem: str | None = None
    """Why nothing could be looked into, or why the parts do not explain the change."""
