"""The contents of a report on one or several runs, as plain data: the JSON of ``perflab report``. Pure.

Pages are rendered from this data and from nothing else, so every number on a page is also in the JSON. A case's tier
adds the tier's own facts. Absent values are left out of the JSON. ``docs/reference.md`` has the schema.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from perflab.base.data import Data, Parameters
from perflab.results.measurement import Evidence, Generation, Paired, Quote
from perflab.results.peak import PeakExplanation
from perflab.results.predicted import Timeline
from perflab.results.profile import Explanation
from perflab.results.records import Change, Drift, Environment, Shortage, Uncompared

KIND, SCHEMA = "perflab report", 1
STEPS = 20
"""Steps between quantiles: 21 quantiles, 5 % apart, of a distribution with more than 21 samples."""
CALIBRATION = "calibration "
"""The prefix of quantities that describe the machine instead of the case."""
Number = int | float
Scalar = str | int | float | bool | None


class Quantity(Data, frozen=True):
    """One number of a case, beside the number of its baseline if the two were compared."""

    unit: str
    """The unit: ``ns``, ``bytes`` or ``count``."""
    exact: bool
    """Whether every run of the same code gives the same number."""
    now: Number
    before: Number | None = None
    ratio: float | None = None
    """The quotient ``now / before``."""
    low: float | None = None
    high: float | None = None
    """Upper bound of the ratio's 95 % interval; absent beside ``low``: the interval has no upper bound."""
    limit: float | None = None
    """The ratio from which the change counts; absent for a quantity that is shown but not gated."""
    worse: bool = False
    """Whether the quantity is worse, and the verdict rests on the quantity."""


class Times(Data, frozen=True):
    """The measurements behind the time of one call: samples of this process, and the medians of whole processes."""

    samples: int
    repetitions: int
    """The number of calls in each sample."""
    median_ns: float
    noise: float
    """Half the width of the median's interval within the process, as a share of the median."""
    clock: str
    samples_ns: list[float] = []
    """Times of one call, one for each sample in the order of sampling, if there are at most 21 samples."""
    quantiles_ns: list[float] = []
    """Quantiles of more than 21 samples: fastest, slowest and every 5 % between them; each is a measured value."""
    fresh_ns: list[float] = []
    """Median of each fresh process in which the case was re-measured."""
    before_ns: list[float] = []
    """Medians of the baseline's processes."""
    set_aside_ns: list[float] = []
    """Medians of processes that were disturbed and therefore replaced."""
    warmup_calls: int = 0
    settled: bool | None = None
    cut_short: bool = False
    """Whether the times to judge are of a measurement that ``--perf-check=exact`` cut short."""
    first_ns: float | None = None
    ran_on: list[str] = []
    intervals_ns: dict[str, list[float]] = {}
    """Quantiles of a call, ``p50``, ``p90`` and ``p99``: each with the bounds of the quantile's 95 % interval."""
    generation: Generation | None = None
    """Statistics of the tokens of ``perf.generation``, each with its formula."""


class TableColumn(Data, frozen=True):
    """A table's column with the unit of its values: ``ns``, ``bytes``, ``count``, ``share``, ``ratio`` or ``text``."""

    title: str
    unit: str = "text"


class Table(Data, frozen=True):
    """The first rows of a long list: a profile, the memory at the peak, the kernels of a call."""

    key: str
    title: str
    columns: list[TableColumn]
    rows: list[list[Scalar]]
    left_out: int = 0
    """The number of further rows, which only the results file has."""
    notes: list[str] = []


class Case(Data, frozen=True):
    """One case of a run."""

    case: str
    """The case's node id in pytest."""
    name: str
    """A short name that no other case of the run has."""
    variant: str
    """The mode, or the GPU of a prediction: it distinguishes results of one case; else empty."""
    tier: str | None
    """The tier of the case's outcome; None if there is no outcome: the case was skipped, or failed by itself."""
    environment: int | None
    """Index into the run's environments; None for a case that did not run."""
    verdict: str
    reasons: list[str]
    parameters: Parameters
    quantities: dict[str, Quantity]
    saved: bool = False
    """Whether the case's numbers were saved as the new baseline, so that a change was accepted."""
    times: Times | None = None
    memory: dict[str, int] = {}
    """The parts of the peak, in bytes; the parts add up to the peak."""
    memory_beside: dict[str, int] = {}
    """Other readings of memory, in bytes, on which the verdict does not rest."""
    timeline: Timeline | None = None
    paired: Paired | None = None
    paired_to_anchor: Paired | None = None
    drift: dict[str, Drift] = {}
    tables: list[Table] = []
    facts: list[str] = []
    """Short facts about the case from its tier."""
    noted: Parameters = {}
    """The values that the test noted, by name."""
    quotes: list[Quote] = []
    explained: Explanation | None = None
    explained_peak: PeakExplanation | None = None
    cause: list[str] = []
    """The explanations of the time and of the peak, in words."""
    not_profiled: str | None = None
    compared_by: dict[str, str] = {}
    """Values that must agree before a case without an environment is compared with another run's case, by name."""
    evidence: Evidence | None = None
    disturbed: list[str] | None = None
    """Sentences on what disturbed the judged processes. Empty: nothing did. Absent: unknown."""
    beside: list[str] = []
    beside_alone: list[str] | None = None
    no_times: str | None = None
    not_compared: list[Uncompared] = []
    short_of: list[Shortage] = []
    failure: str | None = None
    """The text that pytest shows for the test, if the test failed."""
    study: str | None = None
    side_by_side: str | None = None


class MachineReading(Data, frozen=True):
    """Readings over the cases of a run: of a calibration workload, or of a counter of the machine beside the cases."""

    of: str
    unit: str
    """The unit: ``ns``, ``cores``, ``share`` of the time, or ``load``."""
    least: float
    median: float
    most: float
    cases: int
    """The number of cases that have the reading."""


class RunContents(Data, frozen=True):
    """One run."""

    label: str
    """The name of the run's file, which distinguishes the run from the other runs."""
    created: str
    """Date and time of the run's end in ISO 8601."""
    perflab: str
    commit: str | None
    """The project's commit, with ``+dirty`` behind it if files differed; null if there was no git."""
    exitstatus: int
    complete: bool
    """Whether the run is known to have reached its end."""
    verdicts: dict[str, int]
    """The number of cases with each verdict; changes that were saved count as ``accepted``."""
    notes: list[str]
    """Notes to read first: how the run ended, what else failed, and the text above the run's table."""
    environments: list[Environment]
    cases: list[Case]
    tables: dict[str, Any]
    """The cases that tiers set side by side, by kind: ``studies``, ``side_by_side``."""
    machine: list[MachineReading] = []
    """Readings of the machine during the run, over all cases."""
    repository: str | None = None
    """The address of the web page of the project's repository; absent if git names none."""
    baselines: str | None = None
    threshold: float | None = None
    command: str | None = None
    not_compared: list[str] = []
    """Sentences on what was not compared, and on what noise hides, over all cases."""


class Compared(Data, frozen=True):
    """One case in the runs of a comparison."""

    case: str
    variant: str
    cases: list[int | None]
    """The case's index into the cases of each run; null for a run that does not have the case."""
    ratios: dict[str, list[float | None]]
    """Ratios to the first run that has numbers of the case, by quantity and run.

    The first run itself, and a run that cannot be compared, have null. A quantity without any ratio is absent."""
    elsewhere: list[str | None]
    """The reason why a run's times are not compared with the first run's, for each run; null if there is none."""


class Contents(Data, frozen=True):
    """A whole report."""

    kind: str
    schema: int
    runs: list[RunContents]
    compared: list[Compared] = []
    """The cases of several runs side by side; empty for one run. Nothing in it is judged."""


def finite(value: float | None) -> float | None:
    """Return the number if JSON can hold it; else None."""
    return value if value is not None and math.isfinite(value) else None


def quantity(unit: str, now: float, change: Change | None = None, *, exact: bool, worse: bool = False) -> Quantity:
    """Return a quantity with its present value, and with the baseline's value if ``change`` has one."""
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
    """Return counts and other exact quantities, by name.

    A quantity that only the baseline has is included with its present value in ``changes``.
    """
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
    """Return the quantiles from the least to the greatest value in ``STEPS`` equal steps.

    Each quantile is the value nearest to its rank, so it is one of the values.
    """
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
    """Return a table of the first ``most`` rows."""
    return Table(
        key=key,
        title=title,
        columns=[TableColumn(title=name, unit=unit) for name, unit in columns],
        rows=[[finite(one) if isinstance(one, float) else one for one in row] for row in rows[:most]],
        left_out=max(0, len(rows) - most),
        notes=list(notes),
    )


def counted(words: Iterable[str], order: Sequence[str]) -> dict[str, int]:
    """Return how often each word occurs, in the order of ``order``; words that do not occur are left out."""
    counts = Counter(words)
    return {word: counts[word] for word in order if counts[word]}
