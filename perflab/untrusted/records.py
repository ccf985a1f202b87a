"""The judgement of a candidate: plain frozen data, a JSON line each."""

from __future__ import annotations

from enum import StrEnum

from perflab.base.data import Amount, Data


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


class Judged(Data, frozen=True):
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
    operators: dict[str, int] = {}
    """The operators of one call, as the candidate's own process saw them."""
    as_rival: list[str] = []
    """Operators that do the work of the trusted callable, and that the candidate calls too."""
    threads: Amount = 0
    precision: str = ""
    """The candidate process's setting for products in float32."""
    notes: list[str] = []
    """Limits of the judgement: rights that the process has kept, and what cannot be known."""

    @property
    def is_accepted(self) -> bool:
        """Whether the candidate was judged, and nothing speaks against it."""
        return self.finding in (Finding.OK, Finding.UNKNOWN) and self.reason is not Reason.UNJUDGED
