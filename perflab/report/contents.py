"""Everything that a report says of one or several runs, as plain data: the JSON of ``perflab report``. Pure.

Pages are rendered from this and from nothing else, so every number on a page stands in the JSON beside it. What a
case's own tier knows, its tier adds; absent values are left out of the JSON. ``docs/reference.md`` has the schema.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from perflab.data import Data, Parameters
from perflab.measure.records import Evidence, Generation, Paired, Quote
from perflab.profiles.records import Explanation, PeakExplanation
from perflab.records import Change, Drift, Environment, Shortage, Uncompared

KIND, SCHEMA = "perflab report", 1
STEPS = 20
"""Of a distribution with more samples than this and one: 21 quantiles, 5 % apart."""
CALIBRATION = "calibration "
"""How quantities begin that tell of the machine, and not of the case."""
Number = int | float
Scalar = str | int | float | bool | None


class Quantity(Data, frozen=True):
    """One number of a case, beside its baseline's where they were compared."""

    unit: str
    """``ns``, ``bytes``, ``count``."""
    exact: bool
    """Whether every run of the same code gives the same number."""
    now: Number
    before: Number | None = None
    ratio: float | None = None
    """now / before."""
    low: float | None = None
    high: float | None = None
    """95 % interval of the ratio. ``low`` alone: nothing bounds it from above."""
    limit: float | None = None
    """The ratio from which the change counts; absent of what is shown and not gated."""
    worse: bool = False
    """Whether the verdict rests on it."""


class Times(Data, frozen=True):
    """Where the time of one call comes from: samples of this process, and the medians of whole processes."""

    samples: int
    repetitions: int
    """Calls in each sample."""
    median_ns: float
    noise: float
    """Half the width of the median's interval within the process, as a share."""
    clock: str
    samples_ns: list[float] = []
    """Of one call, in the order in which they were taken, if there are 21 at most."""
    quantiles_ns: list[float] = []
    """Of more samples: the fastest, the slowest and every 5 % between them, each one that was measured."""
    fresh_ns: list[float] = []
    """Median of each fresh process in which the case was measured again."""
    before_ns: list[float] = []
    """Medians of the baseline's processes."""
    set_aside_ns: list[float] = []
    """Medians of processes that were disturbed, and replaced."""
    warmup_calls: int = 0
    settled: bool | None = None
    first_ns: float | None = None
    ran_on: list[str] = []
    intervals_ns: dict[str, list[float]] = {}
    """Quantiles of a call, ``p50``, ``p90`` and ``p99``: each with the bounds of its 95 % interval."""
    generation: Generation | None = None
    """Of ``perf.generation``, statistics of its tokens, each with its formula."""


class TableColumn(Data, frozen=True):
    """A column of a table. Values are in its unit: ``ns``, ``bytes``, ``count``, ``share``, ``ratio``, or ``text``."""

    title: str
    unit: str = "text"


class Table(Data, frozen=True):
    """The first rows of something that has many: a profile, the memory at the peak, the kernels of a call."""

    key: str
    title: str
    columns: list[TableColumn]
    rows: list[list[Scalar]]
    left_out: int = 0
    """Rows that the results file has beyond these."""
    notes: list[str] = []


class MemoryTimeline(Data, frozen=True):
    """Live bytes over one call, in stretches of equally many allocations and frees."""

    highest_bytes: list[int]
    """The highest level in each stretch."""
    phases: dict[str, int] = {}
    """In which stretch each phase begins."""


class Case(Data, frozen=True):
    """One case of a run."""

    case: str
    """pytest's node id."""
    name: str
    """Short, and no other case's of the run."""
    variant: str
    """What tells results of one case apart: a mode, or the GPU of a prediction; else empty."""
    tier: str | None
    """None of what came to nothing: skipped, or failed by itself."""
    environment: int | None
    """Index into the run's environments; None of what did not run."""
    verdict: str
    reasons: list[str]
    parameters: Parameters
    quantities: dict[str, Quantity]
    saved: bool = False
    """Whether its numbers were saved as the new baseline, so that a change was accepted."""
    times: Times | None = None
    memory: dict[str, int] = {}
    """What the peak is made of, in bytes; the parts add up to it."""
    memory_beside: dict[str, int] = {}
    """Other readings of memory, which the verdict does not rest on."""
    timeline: MemoryTimeline | None = None
    paired: Paired | None = None
    paired_to_anchor: Paired | None = None
    drift: dict[str, Drift] = {}
    tables: list[Table] = []
    facts: list[str] = []
    """What its tier says of it, in short."""
    noted: Parameters = {}
    """What the test noted."""
    quotes: list[Quote] = []
    explained: Explanation | None = None
    explained_peak: PeakExplanation | None = None
    cause: list[str] = []
    """Both explanations in words."""
    not_profiled: str | None = None
    compared_by: dict[str, str] = {}
    """Without an environment: what must agree before its numbers are compared with another run's."""
    evidence: Evidence | None = None
    disturbed: list[str] | None = None
    """What disturbed the processes that were judged. Empty: nothing did. Absent: there is no telling."""
    beside: list[str] = []
    no_times: str | None = None
    not_compared: list[Uncompared] = []
    short_of: list[Shortage] = []
    failure: str | None = None
    """What pytest shows of the test, if it failed."""
    study: str | None = None
    side_by_side: str | None = None


class MachineReading(Data, frozen=True):
    """What a calibration workload took over the cases of a run, or what a counter of the machine read beside them."""

    of: str
    unit: str
    """``ns``, ``cores``, ``share`` of the time, ``load``."""
    least: float
    median: float
    most: float
    cases: int
    """How many have it."""


class RunContents(Data, frozen=True):
    """One run."""

    label: str
    """What tells it from the other runs: the name of its file."""
    created: str
    """When it ended, ISO 8601."""
    perflab: str
    commit: str | None
    """The project's, with ``+dirty`` behind it if files differed; null where there was no git."""
    exitstatus: int
    complete: bool
    """Whether it is known to have reached its end."""
    verdicts: dict[str, int]
    """How many cases have each verdict; changes that were saved count as ``accepted``."""
    notes: list[str]
    """What is to be known first: how it ended, what else failed, what stands above its table."""
    environments: list[Environment]
    cases: list[Case]
    tables: dict[str, Any]
    """What tiers set beside each other: ``studies``, ``side_by_side``."""
    machine: list[MachineReading] = []
    """The machine during the run, over all cases."""
    repository: str | None = None
    """The address of the page that shows the project's repository; absent where git names none."""
    baselines: str | None = None
    threshold: float | None = None
    command: str | None = None
    not_compared: list[str] = []
    """What was not compared, and what noise hides, over all cases."""


class Compared(Data, frozen=True):
    """One case in the runs of a comparison: for each run, where it stands, or that it has none."""

    case: str
    variant: str
    cases: list[int | None]
    """By run: index into its cases."""
    ratios: dict[str, list[float | None]]
    """By quantity and run: against the first run that has numbers of the case; absent where they cannot be compared."""
    elsewhere: list[str | None]
    """By run: why its times are not compared with the first one's."""


class Contents(Data, frozen=True):
    """A whole report."""

    kind: str
    schema: int
    runs: list[RunContents]
    compared: list[Compared] = []
    """Where there are several runs: their cases side by side. Nothing of it is judged."""


def finite(value: float | None) -> float | None:
    """The number, if JSON can hold it."""
    return value if value is not None and math.isfinite(value) else None


def quantity(unit: str, now: float, change: Change | None = None, *, exact: bool, worse: bool = False) -> Quantity:
    """A number as it is now, with what it was compared with."""
    if change is None:
        return Quantity(unit=unit, exact=exact, now=now)
    before = int(change.before) if isinstance(now, int) and change.before == int(change.before) else change.before
    return Quantity(
        unit=unit,
        exact=exact,
        now=now,
        before=before,
        ratio=finite(change.ratio),
        low=finite(change.low),
        high=finite(change.high),
        limit=finite(change.limit),
        worse=worse,
    )


def exact_quantities(
    now: Mapping[str, float], changes: Mapping[str, Change], units: Mapping[str, str] | None = None
) -> dict[str, Quantity]:
    """Counts and the like; those that a baseline has and the case has not any more stand with what they are now."""
    values = {**{name: change.now for name, change in changes.items()}, **now}
    found = {}
    for name, value in values.items():
        change = changes.get(name)
        unit = (units or {}).get(name, "count")
        whole = int(value) if float(value).is_integer() else value
        worse = change is not None and change.is_past_limit
        found[name] = quantity(unit, whole, change, exact=True, worse=worse)
    return found


def quantiles(values: Iterable[float]) -> list[float]:
    """From the least to the most in ``STEPS`` equal steps; each is the value nearest to its rank, so one of them."""
    ordered = sorted(values)
    last = len(ordered) - 1
    return [ordered[(last * step + STEPS // 2) // STEPS] for step in range(STEPS + 1)]


def first_rows(
    key: str,
    title: str,
    columns: Sequence[tuple[str, str]],
    rows: Sequence[Sequence[Scalar]],
    most: int,
    notes: Sequence[str] = (),
) -> Table:
    """A table of the first ``most`` rows."""
    return Table(
        key=key,
        title=title,
        columns=[TableColumn(title=name, unit=unit) for name, unit in columns],
        rows=[[finite(one) if isinstance(one, float) else one for one in row] for row in rows[:most]],
        left_out=max(0, len(rows) - most),
        notes=list(notes),
    )


def counted(words: Iterable[str], order: Sequence[str]) -> dict[str, int]:
    """How often each word occurs, in an order."""
    counts = Counter(words)
    return {word: counts[word] for word in order if counts[word]}
