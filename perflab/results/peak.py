"""Records of peak memory: the blocks that are alive at a peak, by category and place, and what makes it higher.

Profiles and predictions divide a peak into the same records; snapshots have the same categories.
"""

from __future__ import annotations

from perflab.base.data import Amount, Data

GATHERED = "gathered"
"""The category of what a rank has gathered from all ranks, such as the parameters of a layer that are in shards."""
ACTIVATIONS = "activations"
"""The category of blocks that a backward needs."""
UNKNOWN = "unknown"
"""The category of blocks of which nothing says what they are for."""
CATEGORIES = (
    "parameters",
    "buffers",
    "gradients",
    "optimizer state",
    "inputs",
    GATHERED,
    ACTIVATIONS,
    "temporaries",
    "workspace",
    UNKNOWN,
)
"""The categories that all sources of peaks know, in the order in which they are stacked and listed.

``activations`` were saved for a backward; ``temporaries`` are blocks of no other category."""
INPUTS = "inputs"
"""The category of memory that is held before a call and is in no other category."""
KEPT = "kept"
"""The category of blocks that a call has allocated and that are still alive after it has returned and its result was
dropped."""
KEPT_BEFORE = "kept by more calls before"
"""The category of the difference between a recorded peak and the gate's, if each call keeps something and more calls
had run before the gate's."""
MADE_BY = "made by the "
"""The beginning of a category of memory that a call made until it ran out; the phase follows, or ``call``."""
LET_GO = "let go"
"""The category of blocks that were held before a call and are freed by its peak. Their size is negative."""


OUTLIVED = "alive after their backward"
"""The category of blocks that a call has made and that are alive at its peak, although the backward of the operator
that asked for them is over, as with ``retain_graph=True``."""


class PeakPart(Data, frozen=True):
    """Blocks of one place and kind that are alive at the peak of a call."""

    category: str
    """The kind of memory. Memory held before the call is ``parameters``, ``gradients``, ``optimizer state``,
    ``buffers``, ``inputs``, or pools of ``CUDA graphs``. Memory that the call has allocated is ``activations``,
    ``temporaries``, ``passed on`` to a later phase that is no backward, ``new gradients``, ``new optimizer state``,
    ``results``, which are freed when the call's result is dropped, ``OUTLIVED``, or ``KEPT``, which earlier calls may
    have allocated too; in a call that ran out of memory, it is ``made by the`` phase. Memory that the call has freed
    is ``LET_GO``."""
    size_bytes: int
    blocks: int
    operator: str = ""
    """The operator that asked for the blocks; ``""``: not known, or held before the call."""
    module: str = ""
    """The innermost module, as in ``ProfileRow``."""
    line: str = ""
    """The line that asked for the blocks, or for most of their bytes; for memory that a module held before the call,
    the line that calls the module."""
    stack: list[str] = []
    """The line and its callers, the innermost first."""


class Keeper(Data, frozen=True):
    """A holder of tensors that a call keeps, and the line that puts the tensors there."""

    line: str = ""
    """The line after which the holder has changed; ``""``: the holder changed after none of the user's lines."""
    holder: str = ""
    """The holder's name: ``train.HISTORY``, ``Training.last``, or ``kept of watch`` for a variable of a function;
    ``""``: none."""
    kind: str = ""
    """The type of a container, such as ``list``; ``""``: the holder is no container."""
    many: Amount = 0
    """The number of entries of a container."""
    grows: bool = False
    """Whether a container has more entries after each call."""

    @property
    def place(self) -> str:
        """The line and the holder as text, if known: ``at train.py:12 in train.HISTORY, a list of 1,640``."""
        size = f"a {self.kind} of {self.many:,}" if self.kind else ""
        held = ", ".join(filter(None, (self.holder, size)))
        return " ".join([*([f"at {self.line}"] if self.line else []), *([f"in {held}"] if held else [])])


class Peak(Data, frozen=True):
    """The peak memory of one call, divided into parts that add up to it, to the byte."""

    parts: list[PeakPart]
    """The parts, the largest first."""
    grows_bytes: int = 0
    """How many more bytes the callable holds after each call than before it."""
    keepers: list[Keeper] = []
    """The holders of the tensors that a call keeps: containers that grow first, then holders of tensors with an
    autograd graph, then those with the most bytes."""
    backward: list[str] = []
    """The lines that run a backward, each with its callers."""
    with_gradients: dict[str, list[str]] = {}
    """The operators of the forward for which gradients are enabled, by the innermost module; empty for a module without
    any."""

    @property
    def peak_bytes(self) -> int:
        """The size that is gated: the memory held before the call, and how far the call rose above that."""
        return sum(part.size_bytes for part in self.parts)


class PeakChange(Data, frozen=True):
    """A change between two peaks: more, or fewer, blocks of one kind and place."""

    category: str
    change_bytes: int
    more: int = 0
    """How many more blocks, negative for fewer; 0: as many, of other sizes. For ``KEPT_BEFORE``, how many more
    calls."""
    places: int = 1
    """How many kinds and places of blocks the change sums up; operator, module and line are of the largest."""
    operator: str = ""
    module: str = ""
    line: str = ""
    stack: list[str] = []
    """The line and its callers, the innermost first."""
    keeper: Keeper | None = None
    """The holder of blocks that are kept; for ``OUTLIVED``, the line that runs the backward; None: not known, or the
    blocks are not kept."""
    has_gradients: bool = False
    """Whether gradients are enabled for the operator now, and were not in the module before; said of the first change
    alone."""
    size_bytes: Amount = 0
    """The size of blocks that are ``OUTLIVED`` now and were at the peak before as well, so that they are no change."""


class PeakExplanation(Data, frozen=True):
    """The reasons why a case needs more memory than before. The parts add up to ``now_bytes - before_bytes``."""

    base: str
    """The name, in texts, of the version whose peak this one was compared with."""
    before_bytes: Amount = 0
    now_bytes: Amount = 0
    parts: list[PeakChange] = []
    """The parts, the largest change first."""
    problem: str | None = None
    """Why the peaks could not be compared, or why the parts do not explain the change; None: no problem."""
