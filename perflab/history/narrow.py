"""The parts of results files, reports and journals that a history needs: narrow structures, which skip all else.

A file of 10,000 cases is read in a third of a second. ``perflab/results.py`` and ``perflab/report/contents.py`` have
the complete structures.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, TypeVar

import msgspec

from perflab.history.places import basis_text, prediction_text
from perflab.history.series import Reading
from perflab.reading import MOST_FLOAT, MOST_INT, refuse_key_twice
from perflab.records import Environment

DAMAGED = (msgspec.DecodeError, ValueError, RecursionError)
"""The errors that ``decoded`` raises for a damaged file, also for invalid UTF-8 and for brackets nested too deep."""
Amount = Annotated[int, msgspec.Meta(ge=0, le=MOST_INT)]
"""A number of bytes, or a count, within the limits of ``perflab.reading``."""
Number = Annotated[float, msgspec.Meta(ge=0, le=MOST_FLOAT)]
Kind = TypeVar("Kind")
UNIT_NS, UNIT_BYTES, UNIT_COUNT = "ns", "bytes", "count"


def decoded(raw: bytes, kind: type[Kind]) -> Kind:
    """Decode a JSON text as ``kind``, with the checks that the readers of whole files make.

    Raises:
        One of ``DAMAGED``: the text is damaged, or no JSON of that kind.
    """
    refuse_key_twice(raw)
    return msgspec.json.decode(raw, type=kind)


def exact_readings(sizes: Mapping[str, int], counts: Mapping[str, int]) -> dict[str, Reading]:
    """Return the readings of a case that did not run, by quantity: ``sizes`` in bytes, and ``counts``."""
    return {name: Reading(value, UNIT_BYTES, True) for name, value in sizes.items()} | {
        name: Reading(value, UNIT_COUNT, True) for name, value in counts.items()
    }


class Narrow(msgspec.Struct, gc=False):
    """A structure that reads some fields of a JSON object, and skips all others."""


class Head(Narrow):
    """The fields by which the kinds of files differ."""

    schema: int
    kind: str | None = None


# --- a report as JSON: the quantities of a case stand ready -------------------------------------------------


class Quantity(Narrow):
    """One number of a case in a report."""

    now: Number | None = None
    unit: str = ""
    exact: bool = False

    before: float | None = None


class Times(Narrow):
    """Medians of the samples of this process, and of fresh processes."""

    median_ns: Number
    fresh_ns: list[Number] = []


class ReportCase(Narrow):
    """One case of a report."""

    case: str
    times: Times | None = None
    quantities: dict[str, Quantity] = {}
    variant: str = ""
    environment: Amount | None = None
    verdict: str = ""
    compared_by: dict[str, str] = {}


class ReportRun(Narrow):
    """One run of a report."""

    created: datetime
    cases: list[ReportCase]
    commit: str | None = None
    repository: str | None = None
    environments: list[Environment] = []


class Report(Narrow):
    """A report as JSON."""

    runs: list[ReportRun]


# --- results as a run wrote them ----------------------------------------------------------------------------


class Changed(Narrow):
    """The present value of a quantity that was compared."""

    now: Number


class Judgement(Narrow):
    """A verdict, and the numbers that were judged."""

    verdict: str
    reasons: list[str] = []
    memory: Changed | None = None
    phases: dict[str, Changed] = {}
    counts: dict[str, Changed] = {}


class Memory(Narrow):
    """Memory of one call."""

    peak_bytes: Amount
    least: dict[str, Amount] = {}


class Replicate(Narrow):
    """The measurements of one process."""

    median_ns: Number
    fastest_ns: Number
    phases_ns: dict[str, Number] = {}
    launch_ns: Number | None = None
    memory: Memory | None = None
    calibration_ns: dict[str, Number] = {}
    yardsticks_ns: dict[str, Number] = {}
    """The name of ``calibration_ns`` in schema 2."""
    counts: dict[str, Amount] = {}

    @property
    def calibration(self) -> dict[str, Number]:
        """Median readings of the calibration workloads, by name."""
        return self.calibration_ns or self.yardsticks_ns


class Cost(Narrow):
    """One operator of a prediction."""

    calls: Amount
    flops: Amount = 0
    bytes_moved: Amount = 0


class Resources(Narrow):
    """The resources of a compiled kernel."""

    registers: Amount
    spill_store_bytes: Amount = 0
    spill_load_bytes: Amount = 0
    stack_bytes: Amount = 0
    static_shared_bytes: Amount = 0
    dynamic_shared_bytes: Amount = 0
    warps_per_sm: Amount = 0
    instructions: dict[str, Amount] = {}
    ptxas: str = ""

    def readings(self) -> dict[str, Reading]:
        """Return the readings by quantity, named as in a report."""
        sizes = {name: getattr(self, name) for name in ("spill_store_bytes", "spill_load_bytes", "stack_bytes")}
        sizes["shared_bytes"] = self.static_shared_bytes + self.dynamic_shared_bytes
        return exact_readings(
            sizes, {"registers": self.registers, "warps_per_sm": self.warps_per_sm, **self.instructions}
        )


class Size(Narrow):
    """An object that takes memory."""

    size_bytes: Amount


class DryRun(Narrow):
    """The bytes that a dry run requested from the allocator."""

    asked_bytes: Amount = 0


class Now(Narrow):
    """A prediction, or a compiled kernel."""

    gpu: str | None = None
    torch: str | None = None
    peak_bytes: Amount | None = None
    costs: list[Cost] = []
    saved: list[Size] = []
    launches: Amount = 0
    allocated_bytes: Amount = 0
    reserved_bytes: Amount = 0
    dry_run: DryRun | None = None
    arch: Amount | None = None
    triton: str | None = None
    resources: Resources | None = None

    @property
    def where(self) -> str:
        """The text of the place where the numbers belong: GPU and torch version, or versions of Triton and ptxas."""
        if self.gpu is not None:
            return prediction_text(f"{self.gpu}-dry-run" if self.dry_run is not None else self.gpu, self.torch or "")
        ptxas = self.resources.ptxas if self.resources is not None else ""
        return basis_text({"triton": self.triton or "", "ptxas": ptxas})

    def readings(self) -> dict[str, Reading]:
        """Return the readings by quantity, named as in a report."""
        if self.resources is not None:
            return self.resources.readings()
        if self.peak_bytes is None:
            return {}
        sizes = {
            "peak": self.peak_bytes,
            "saved": sum(one.size_bytes for one in self.saved),
            "bytes": sum(one.bytes_moved for one in self.costs),
        }
        if self.dry_run is not None:
            asked = self.dry_run.asked_bytes
            sizes |= {"asked": asked, "allocated": self.allocated_bytes, "reserved": self.reserved_bytes}
        counts = {
            "flops": sum(one.flops for one in self.costs),
            "operators": sum(one.calls for one in self.costs),
            "launches": self.launches,
        }
        return exact_readings(sizes, {name: count for name, count in counts.items() if count})


class Statistic(Narrow):
    """One statistic of a generation of tokens, with its formula."""

    value: Number
    formula: str


class Generation(Narrow):
    """The statistics of a generation of tokens."""

    statistics: dict[str, Statistic] = {}


class Measured(Narrow):
    """The measurement that the session of pytest made itself."""

    generation: Generation | None = None


class Outcome(Narrow):
    """The outcome of a case, in any tier."""

    type: str = ""
    """The tag of the outcome's tier."""
    environment: Environment | None = None
    summary: Replicate | None = None
    fresh: list[Replicate] = []
    measurement: Measured | None = None
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
    """The run's commit, which only a journal's lines have."""


class Document(Narrow):
    """A results file."""

    created: datetime
    results: list[Result]
    commit: str | None = None
    collected: list[str] = []
    stale: list[str] = []
    repository: str | None = None
