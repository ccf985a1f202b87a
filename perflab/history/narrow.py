"""The parts of results files, reports and journals that a history needs: narrow structures, which skip all else.

A file of 10,000 cases is read in a tenth of a second. ``perflab/results.py`` and ``perflab/report/contents.py`` have
the whole.
"""

from __future__ import annotations

from datetime import datetime

import msgspec

from perflab.history.series import Reading
from perflab.records import Environment

DAMAGED = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What a damaged file makes the decoder raise: also by text that is no UTF-8, or brackets within brackets."""
UNIT_NS, UNIT_BYTES, UNIT_COUNT = "ns", "bytes", "count"


class Narrow(msgspec.Struct, gc=False):
    """Reads some of an object's fields, whatever others it has."""


class Head(Narrow):
    """What tells the kinds of files apart."""

    schema: int
    kind: str | None = None


# --- a report as JSON: the quantities of a case stand ready -------------------------------------------------


class Quantity(Narrow):
    """One number of a case in a report."""

    now: float | None = None
    unit: str = ""
    exact: bool = False


class ReportCase(Narrow):
    """One case of a report."""

    case: str
    quantities: dict[str, Quantity] = {}
    variant: str = ""
    environment: int | None = None
    verdict: str = ""
    compared_by: dict[str, str] = {}


class ReportRun(Narrow):
    """One run of a report."""

    created: datetime
    cases: list[ReportCase]
    commit: str | None = None
    environments: list[Environment] = []


class Report(Narrow):
    """A report as JSON."""

    runs: list[ReportRun]


# --- results as a run wrote them ----------------------------------------------------------------------------


class Changed(Narrow):
    """A quantity that was compared: what it is now."""

    now: float


class Judgement(Narrow):
    """A verdict, and the numbers that were judged."""

    verdict: str
    reasons: list[str] = []
    latency: Changed | None = None
    memory: Changed | None = None
    phases: dict[str, Changed] = {}


class Memory(Narrow):
    """Memory of one call."""

    peak_bytes: int


class Replicate(Narrow):
    """What one process measured."""

    median_ns: float
    fastest_ns: float
    phases_ns: dict[str, float] = {}
    memory: Memory | None = None
    calibration_ns: dict[str, float] = {}
    yardsticks_ns: dict[str, float] = {}
    """What schema 2 called ``calibration_ns``."""
    counts: dict[str, int] = {}

    @property
    def calibration(self) -> dict[str, float]:
        """Median readings of the calibration workload."""
        return self.calibration_ns or self.yardsticks_ns


class Cost(Narrow):
    """One operator of a prediction."""

    calls: int
    flops: int = 0
    bytes_moved: int = 0


class Resources(Narrow):
    """What a compiled kernel takes."""

    registers: int
    spill_store_bytes: int = 0
    spill_load_bytes: int = 0
    stack_bytes: int = 0
    static_shared_bytes: int = 0
    dynamic_shared_bytes: int = 0
    warps_per_sm: int = 0
    instructions: dict[str, int] = {}
    ptxas: str = ""

    def readings(self) -> dict[str, Reading]:
        """By quantity, named as in a report."""
        sizes = {name: getattr(self, name) for name in ("spill_store_bytes", "spill_load_bytes", "stack_bytes")}
        sizes["shared_bytes"] = self.static_shared_bytes + self.dynamic_shared_bytes
        counts = {"registers": self.registers, "warps_per_sm": self.warps_per_sm, **self.instructions}
        return {name: Reading(value, UNIT_BYTES, True) for name, value in sizes.items()} | {
            name: Reading(value, UNIT_COUNT, True) for name, value in counts.items()
        }


class Size(Narrow):
    """Something that takes memory."""

    size_bytes: int


class DryRun(Narrow):
    """What a dry run counted."""

    asked_bytes: int = 0


class Now(Narrow):
    """A prediction, or a compiled kernel."""

    gpu: str | None = None
    torch: str | None = None
    peak_bytes: int | None = None
    costs: list[Cost] = []
    saved: list[Size] = []
    launches: int = 0
    allocated_bytes: int = 0
    reserved_bytes: int = 0
    dry_run: DryRun | None = None
    arch: int | None = None
    triton: str | None = None
    resources: Resources | None = None


class Outcome(Narrow):
    """What a case came to, in any tier."""

    type: str = ""
    """The tier's tag."""
    environment: Environment | None = None
    summary: Replicate | None = None
    fresh: list[Replicate] = []
    now: Now | None = None


class Mode(msgspec.Struct, frozen=True):
    """How calls were timed."""

    cache: str = "warm"
    cuda_graph: bool = False


class Result(Narrow):
    """One case of a results file, or of a journal."""

    case: str
    judgement: Judgement
    outcome: Outcome | None = None
    failure: str | None = None
    mode: Mode = Mode()
    commit: str | None = None
    """In a journal."""


class Document(Narrow):
    """A results file."""

    created: datetime
    results: list[Result]
    commit: str | None = None
