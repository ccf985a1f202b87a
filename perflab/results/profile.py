"""Records of where one call spends its time: rows that add up to it, and what makes it longer. Plain frozen data."""

from __future__ import annotations

from typing import Annotated

import msgspec

from perflab.base.data import Amount, Data, Positive, Share, changed

PYTHON = "python"
CALLED_FIRST = "perflab"
"""The name that stands for the caller of the user's first function."""
GAPS = ("host wait", "launches", "kernel wait", PYTHON)
"""Categories of time in which no operator, or on a GPU no kernel, runs."""
OTHER_THREAD = "another thread"
OTHER = "other"
DISPATCH = "dispatch"
FORWARD, BACKWARD, OPTIMIZER = "forward", "backward", "optimizer"
"""Phases of a training step. In a case without phases, autograd's nodes and PyTorch's range around an optimizer's step
show the phase of an operator.

In a case with phases, their names are the user's. The code compares them with these three names only to recognise a
backward or an optimizer that is written by hand, and so has neither nodes nor that range.
"""
UNNAMED = (*GAPS, OTHER_THREAD, DISPATCH)
"""Categories that stand in an operator's place: gaps, work of other threads, and PyTorch's own work."""


class ProfileRow(Data, frozen=True):
    """The time that equal pieces of work took together in one call."""

    category: str
    """``products forward``, ``products backward``, ``attention``, ``element-wise and norms``, ``embedding and loss``,
    ``optimizer``, ``copies``, ``communication``, ``compiled code``, or one of these:

    ``dispatch`` is PyTorch's own work on a CPU: views, allocation, the autograd engine; on a GPU, ``dispatch`` rows are
    operators that launch nothing, and have no time. ``python`` is time on a CPU in which no operator runs. On a GPU,
    ``host wait`` is time in which the device waits for a kernel that the host has not begun to launch, ``launches`` is
    time in which the device waits for the launching call of CUDA to end, and ``kernel wait`` is the rest of the time
    between kernels. ``another thread`` is time in which the device runs only kernels that were launched by a thread
    which the profiler does not follow, such as a data loader's. ``your operators`` are operators that are not PyTorch's
    own, such as an ``autograd.Function``; ``other`` is a kernel that no operator launched, and on a CPU an operator
    that the call recorded with places did not have.
    """
    operator: str = ""
    """The operator's name, ``aten::mm``; on a GPU, the operator that launched the kernel; ``""`` for a gap. In a row
    of plain Python, the function of the line; in a row of calls in plain Python, the function called."""
    kernel: str = ""
    """The kernel's readable name, on a GPU."""
    phase: str = ""
    """The phase's name in the case. In a case without phases, ``forward``, ``backward`` or ``optimizer``, as shown
    by autograd and the optimizer; ``""`` for work in none of these, and for all work if no backward runs."""
    module: str = ""
    """The innermost module, with ``*`` for a layer's number: ``blocks.*.attention.q``. A gap has the module of the
    operator that ends the gap."""
    line: str = ""
    """The user's line. An operator of the backward has the line of the forward; a ``python`` gap has the line of the
    operator that ends the gap."""
    shapes: str = ""
    """Shapes and dtype of the operator's inputs: ``512x256, 256x768 float32``."""
    within: str = ""
    """The outermost operator that this operator runs within: ``aten::repeat`` for the ``aten::cat`` that it calls.
    In a row of calls in plain Python, which has no time, the calling function; ``CALLED_FIRST`` if the caller is not
    the user's code."""
    device: Amount = 0
    """The number of the GPU whose time the row has."""
    instances: Share = 0.0
    """How often the work is done in one call; for plain Python 0 if the number differs from call to call."""
    time_ns: Share = 0.0
    spread_ns: Share = 0.0
    """Standard deviation of ``time_ns`` from call to call."""
    flops: Amount = 0
    """FLOPs of all instances together."""
    is_part: bool = False
    """Whether, on a CPU, the operator runs within another operator of its category, which is the one counted as an
    instance."""
    code: str = ""
    """A digest of the text of a line of plain Python: a line's number changes when a file is edited."""

    @property
    def is_plain(self) -> bool:
        """Whether the row is a line of plain Python, on which no operator runs, or function calls on such a line."""
        return self.category == PYTHON and bool(self.operator)


def merged_with(row: ProfileRow, other: ProfileRow) -> ProfileRow:
    """Return two rows as one, with the first row's fields and both rows' numbers; spreads are added as squares."""
    return changed(
        row,
        instances=row.instances + other.instances,
        time_ns=row.time_ns + other.time_ns,
        spread_ns=(row.spread_ns**2 + other.spread_ns**2) ** 0.5,
        flops=row.flops + other.flops,
    )


class CudaCall(Data, frozen=True):
    """The number and time of the host's calls of one function of CUDA, in one profiled call.

    These calls run beside the device's time.
    """

    name: str
    """The function's name, ``cudaLaunchKernel``."""
    instances: Share
    time_ns: Share


class Profile(Data, frozen=True, forbid_unknown_fields=False):
    """The time of one call, divided into rows. Fields of older versions are ignored when a saved run is read."""

    device: str
    """The type of device: ``cpu`` or ``cuda``."""
    calls: Annotated[int, msgspec.Meta(ge=1)]
    """How many profiled calls the rows are the mean of: the faster half, each with the plain call beside it."""
    timer_ns: Positive
    """The time of one call without the profiler: the mean of the plain calls that ran beside the profiled calls."""
    profiled_ns: Positive
    """The time of one call with the profiler."""
    cost_ns: Share = 0.0
    """The time that the profiler is known to add to a call. It is subtracted from the rows."""
    rows: list[ProfileRow] = []
    """The rows, the most time first."""
    notes: list[str] = []
    called: dict[str, list[str]] = {}
    """The lines that call each module, each with its callers: ``net.py:9 < train.py:5``. If a checkpoint runs the
    module, the lines begin with the call of the checkpoint. The key ``""`` has the lines that run a backward."""
    devices: Annotated[int, msgspec.Meta(ge=1)] = 1
    """How many devices the rows are of. Each device has a timeline as long as the call."""
    has_plain: bool = False
    """Whether, on a CPU, lines of plain Python have rows of their own, whose time is then no part of the other
    ``python`` rows."""
    cuda_calls: list[CudaCall] = []
    """The host's calls of CUDA while a GPU works, the longest first. Their time includes the profiler's own cost."""

    @property
    def whole_ns(self) -> float:
        """The time that the rows should add up to: the time of one call on each of its devices."""
        return self.timer_ns * self.devices

    @property
    def explained_ns(self) -> float:
        """The time that the rows add up to."""
        return sum(row.time_ns for row in self.rows)

    @property
    def unexplained_ns(self) -> float:
        """The time by which the rows fall short of the timer; negative if they exceed it."""
        return self.whole_ns - self.explained_ns

    @property
    def unknown_share(self) -> float:
        """Share of the call without explanation: unexplained time, in either direction, and the category ``other``."""
        return abs(self.unexplained_ns) / self.whole_ns + self.share_of(OTHER)

    def share_of(self, category: str) -> float:
        """Return the share of the call that the rows of a category take."""
        return sum(row.time_ns for row in self.rows if row.category == category) / self.whole_ns


ON_HOST = "on the host"
"""The category of a part that consists of calls of CUDA, or of operators that launch nothing: on the device, such a
part takes time only in gaps."""
SAME, VARY = "same", "vary"
"""Values of ``Part.inputs``: the inputs of an operator that takes longer."""


class OnLine(Data, frozen=True):
    """The operator that changed most on a further line of the same edit."""

    operator: str
    line: str
    more: float = 0.0
    """How many more calls, or runs of a line of plain Python; 0: as many, on other inputs or in edited code."""


class Part(Data, frozen=True):
    """One part of an explanation: a change in what some module does."""

    change_ns: float
    """The change of the time of one call in nanoseconds; negative: it became faster."""
    operator: str = ""
    """The operator that changed most; ``""`` for a gap."""
    module: str = ""
    line: str = ""
    phases: list[str] = []
    more: float = 0.0
    """How many more calls of the operator, negative for fewer; 0: as many as before, which take longer."""
    often: list[Share] = []
    """How often the line of a part of plain Python runs, or calls the operator, before and now. In such a part,
    ``module`` is a function, and ``operator`` is the function that the line calls, or ``python``."""
    again: Amount = 0
    """How many times more the whole of ``module`` is computed; 0: only some of the module's work changed."""
    other_modules: list[str] = []
    """Further modules that are computed again too, or that run more often by the same number."""
    layers: list[Amount] = []
    """How many layers ran before and run now, if ``module`` is layers of which more or fewer run."""
    left_out: list[str] = []
    """Parts of the modules that are not computed again."""
    called: str = ""
    """The line that calls the module, with its callers, if all of the module is computed again or more often. Under
    a checkpoint, this is the checkpoint's line; for a backward that runs again, the line that runs it."""
    moved_from: list[str] = []
    """Phases that have as many fewer calls of the operator: it is called as often as before, in another phase."""
    others: list[str] = []
    """Further operators that also have more calls on the line, or that also have fewer."""
    instead_of: list[str] = []
    """The optimizer's operators that are no longer called, if the part's calls do their work."""
    other_lines: list[OnLine] = []
    """Further lines of the same edit, the most time first."""
    category: str = ""
    shapes: str = ""
    """One of the operator's input shapes before and one of those now, if the operator is called on other inputs."""
    inputs: str = ""
    """The inputs of an operator that takes longer while nothing else changed: the ``same`` shapes, or they ``vary``:
    shapes or the number of calls differ from call to call; ``""``: not known."""
    within: str = ""
    """The operator that makes most of these calls, if that operator is not called more often itself or has no row."""


class Explanation(Data, frozen=True):
    """The reasons why a case became worse, by both versions' profiles. Parts and ``rest_ns`` add up to the change."""

    base: str
    """The name, in texts, of the version whose profile this one was compared with."""
    before_ns: Share = 0.0
    now_ns: Share = 0.0
    """The time of one call in the profile now, as ``before_ns`` is in the profile before."""
    parts: list[Part] = []
    """The parts, the most likely cause first."""
    rest_ns: float = 0.0
    """The rest of the change that the gate measured, beyond the parts."""
    problem: str | None = None
    """Why the profiles could not be compared, or why the parts do not explain the change; None: no problem."""
