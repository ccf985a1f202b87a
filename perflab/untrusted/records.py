"""The judgement of a candidate: plain frozen data, a JSON line each."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import msgspec

from perflab.base.data import Amount, Data

MOST_TEXT = 4000
"""The length in characters of a text that a candidate's process sends, or that is written of it, at most."""
Text = Annotated[str, msgspec.Meta(max_length=MOST_TEXT)]
Tally = Annotated[dict[Text, int], msgspec.Meta(max_length=4000)]
"""How often something was called, by its name."""


class Finding(StrEnum):
    """The verdict on a candidate."""

    OK = "ok"
    WRONG = "wrong"
    SLOWER = "slower"
    SUSPICIOUS = "suspicious"
    UNKNOWN = "can't tell"


class Reason(StrEnum):
    """The reason why a candidate is wrong or suspicious, as a value."""

    NONE = ""
    UNBUILT = "does not compile"
    RAISED = "raised"
    CRASHED = "crash"
    HUNG = "hang"
    OUT_OF_MEMORY = "out of memory"
    RESULT = "wrong result"
    FORM = "no plain tensor"
    INPUTS_CHANGED = "changed its inputs"
    INPUTS_RETURNED = "returned its inputs' memory"
    CLOCK = "told another time"
    FLOOR = "faster than the hardware"
    AHEAD = "faster among calls than alone"
    LOOSE = "kept its rights"
    TIME = "time not known well enough"
    UNDEFINED = "no definition"
    UNJUDGED = "not judged"


SUSPICIONS = frozenset((Reason.CLOCK, Reason.FLOOR, Reason.AHEAD, Reason.LOOSE))
"""The reasons that make a candidate suspicious; it is wrong for the others of those that end a judgement."""


class Ratio(Data, frozen=True):
    """The candidate's time divided by a rival's, with its 95 % interval, and the times of one call in nanoseconds."""

    rival: str
    value: float
    low: float
    high: float
    candidate_ns: float
    rival_ns: float
    pairs: int
    finding: Finding = Finding.OK


class Ran(Data, frozen=True):
    """The work of one call of a candidate, as the candidate's own process saw it."""

    operators: Tally = {}
    """PyTorch's operators."""
    kernels: Tally = {}
    """The kernels that a device ran."""
    streams: Amount = 0
    """The streams of the device on which these ran."""
    graphs: Amount = 0
    """The CUDA graphs that the host launched."""
    allocations: Amount = 0
    """The blocks that PyTorch's allocator gave out on the device of the inputs."""
    threads: Amount = 0
    """The threads of the process after the call."""
    precision: Text = ""
    """PyTorch's setting for products in float32."""
    device_ns: Annotated[int, msgspec.Meta(ge=0, le=2**62)] | None = None
    """The time from the first work on the device to the last, in nanoseconds; None if the profiler saw none."""


class Judged(Ran, frozen=True, kw_only=True):
    """The judgement of one candidate, with its evidence."""

    name: str
    finding: Finding
    reason: Reason = Reason.NONE
    text: str = ""
    """The evidence: which result is wrong, where and by how much; or the candidate's error."""
    ratios: list[Ratio] = []
    checked: Amount = 0
    """The number of calls whose results were compared with the definition."""
    calls: Amount = 0
    """The number of calls that were made."""
    as_rival: list[str] = []
    """Operators and kernels that do the work of the trusted callable, and that the candidate runs too."""
    notes: list[str] = []
    """Limits of the judgement: rights that the process has kept, and what cannot be known."""

    @property
    def is_accepted(self) -> bool:
        """Whether the candidate was judged, and nothing speaks against it."""
        return self.finding in (Finding.OK, Finding.UNKNOWN) and self.reason is not Reason.UNJUDGED
