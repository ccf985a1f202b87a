"""Many runs as series: a case's quantity, in an environment that compares, over time. Columns of numbers.

A million points are held as three arrays a series, 16 bytes a point: no object stands for one.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from statistics import median
from typing import NamedTuple

from perflab.history.places import Place

CALIBRATION = "calibration "
"""How quantities begin that are the machine's: readings of fixed work beside a case."""
BY_PRODUCTS = ("fastest",)
"""Quantities that follow another one: read and judged only where they are asked for."""
_LONGEST_RUN = timedelta(days=1)
"""A journal is dated by a run's begin, and results by its end."""
INEXACT_COUNTS = ("instructions", "callgrind_instructions")
"""Counts that are not the same from run to run: they are judged as times are."""


@dataclass(frozen=True)
class Run:
    """One run, or one commit of the baselines."""

    created: datetime
    commit: str | None
    """40 hexadecimal digits, with ``+dirty`` behind them if files differed."""
    file: str
    """Where it was read; of baselines, the commit's subject."""
    is_journal: bool = False
    """Whether ``created`` is when it began, and not when it ended."""


@dataclass
class Series:
    """One quantity of one case in one place. Columns have a value a point, in the order of runs."""

    case: str
    variant: str
    quantity: str
    place: int
    """Index into ``History.places``."""
    unit: str
    is_exact: bool
    runs: array[int] = field(default_factory=lambda: array("i"))
    """Indices into ``History.runs``."""
    values: array[float] = field(default_factory=lambda: array("d"))
    words: array[int] = field(default_factory=lambda: array("i"))
    """Indices into ``History.words``: the verdict of the run, or why a level was accepted."""


class LeftOut(NamedTuple):
    """A file that is not part of the history, and why."""

    file: str
    problem: str
    is_ours: bool = True
    """Whether it seems to be what a run wrote."""


class Reading(NamedTuple):
    """One quantity of one case in one run."""

    value: float
    unit: str
    is_exact: bool

    @property
    def is_usable(self) -> bool:
        """Whether it can be a point: finite, and of what varies above 0, since nothing takes no time."""
        return 0.0 < self.value < math.inf or (self.is_exact and self.value == 0.0)


Key = tuple[str, str, str, int]
"""Case, variant, quantity and place of a series."""


class History:
    """Runs and series, as they are read. ``finish`` puts them into order.

    ``source`` is what is read, for people; ``skipped`` are quantities that nobody asks for.
    """

    def __init__(self, source: str, skipped: Collection[str] = ()) -> None:
        self.source = source
        self.runs: list[Run] = []
        self.places: list[Place] = []
        self.words: list[str] = []
        self.series: list[Series] = []
        self.left_out: list[LeftOut] = []
        self.repeated = 0
        """Runs that were read from several files, and count once: how many were too many."""
        self.repository: str | None = None
        """The address of the page that shows the project's repository, as the run read last names it."""
        self.are_accepted = False
        """Whether points are accepted levels, and no runs."""
        self.machines: list[Series] = []
        """The calibration workload's own series: of each run in each environment the median over all cases."""
        self.varying: set[Key] = set()
        """Counts that differ from process to process: they are judged as times are."""
        self._collected: tuple[datetime, Collection[str], Collection[str]] | None = None
        self._skipped = frozenset(skipped)
        self._known: dict[Key, Series] = {}
        self._readings: dict[tuple[int, str], list[float]] = {}
        self._place_numbers: dict[Place, int] = {}
        self._word_numbers: dict[str, int] = {}

    def note_collected(self, created: datetime, collected: Collection[str], stale: Collection[str]) -> None:
        """Which cases a run found, run or not, and which it knew to be gone. The newest run that says so counts."""
        if collected and (self._collected is None or created >= self._collected[0]):
            self._collected = created, collected, stale

    def gone(self) -> Callable[[str], bool]:
        """Whether a case certainly no longer exists: the newest run found other tests of its file, or knew it.

        One of which only the parameters are not found may be back with another option.
        """
        if self._collected is None:
            return lambda _case: False
        _, collected, stale = self._collected
        there = {case.partition("[")[0] for case in collected}
        files = {function.partition("::")[0] for function in there}
        known = {case.partition("[")[0] for case in stale}

        def is_gone(case: str) -> bool:
            function, _, _ = case.partition("[")
            return function not in there and (function.partition("::")[0] in files or function in known)

        return is_gone

    def begin(self, run: Run) -> int:
        """Add a run; returns its number."""
        self.runs.append(run)
        return len(self.runs) - 1

    def place(self, place: Place) -> int:
        """The number of a place."""
        number = self._place_numbers.setdefault(place, len(self.places))
        if number == len(self.places):
            self.places.append(place)
        return number

    def word(self, text: str) -> int:
        """The number of a word."""
        number = self._word_numbers.setdefault(text, len(self.words))
        if number == len(self.words):
            self.words.append(text)
        return number

    def add(
        self, run: int, case: str, variant: str, places: tuple[int, int], word: str, readings: Mapping[str, Reading]
    ) -> None:
        """What one run says of a case.

        ``places`` are numbers of the places of times, and of exact quantities; ``word`` is the verdict, or why it was
        accepted. Readings of the calibration workload are among those of the case.
        """
        number = self.word(word)
        for quantity, reading in readings.items():
            if quantity in self._skipped or not reading.is_usable:
                continue
            if quantity.startswith(CALIBRATION):
                self._readings.setdefault((places[0], quantity), []).append(reading.value)
                continue
            self._append(self.series, (case, variant, quantity, places[reading.is_exact]), run, reading, number)

    def _append(self, series: list[Series], key: Key, run: int, reading: Reading, word: int) -> None:
        one = self._known.get(key)
        if one is None:
            one = self._known[key] = Series(*key, reading.unit, reading.is_exact)
            series.append(one)
        one.runs.append(run)
        one.values.append(reading.value)
        one.words.append(word)

    def end(self, run: int) -> None:
        """The run is read: what the calibration workload took beside its cases becomes a point of the machine's."""
        for (place, name), values_ns in self._readings.items():
            if values_ns:
                reading = Reading(median(values_ns), "ns", is_exact=False)
                self._append(self.machines, ("", "", name, place), run, reading, self.word(""))
            values_ns.clear()

    def finish(self, since: datetime | None = None) -> None:
        """Put runs and points in order of time, each run once, without those before ``since``.

        Accepted levels are in order already, that of the commits: a rebase gives several of them the same second.
        """
        again = set() if self.are_accepted else _repeats(self.runs, self.series)
        order = list(range(len(self.runs)))
        if not self.are_accepted:
            order.sort(key=lambda at: (self.runs[at].created, self.runs[at].file))
        order = [at for at in order if since is None or self.runs[at].created >= since]
        kept = [at for at in order if at not in again]
        self.repeated = len(order) - len(kept)
        if kept != list(range(len(self.runs))):
            rank = {old: new for new, old in enumerate(kept)}
            for one in [*self.series, *self.machines]:
                points = sorted((rank[run], at) for at, run in enumerate(one.runs) if run in rank)
                one.runs = array("i", (run for run, _ in points))
                one.values = array("d", (one.values[at] for _, at in points))
                one.words = array("i", (one.words[at] for _, at in points))
            self.runs = [self.runs[at] for at in kept]
        self.series = [one for one in self.series if one.runs]
        for key in self.varying & self._known.keys():
            self._known[key].is_exact = False
        self.machines = [one for one in self.machines if one.runs]


def _repeats(runs: Sequence[Run], series: Sequence[Series]) -> set[int]:
    """The runs that another one holds as well, number for number; of equal ones the first stays.

    Only runs of one moment are compared, or a journal with results that came after it: two nights may well agree.
    """
    pairs = _pairs(runs)
    numbers: dict[int, dict[int, float]] = {run: {} for pair in pairs for run in pair}
    for at, row in enumerate(series) if pairs else ():
        for run, value in zip(row.runs, row.values, strict=True):
            if run in numbers:
                numbers[run][at] = value
    gone: set[int] = set()
    for one, other in pairs:
        poorer, richer = sorted((one, other), key=lambda run: (-len(numbers[run]), run))[::-1]
        if not gone & {poorer, richer} and _holds(numbers[richer], numbers[poorer]):
            gone.add(poorer)
    return gone


def _pairs(runs: Sequence[Run]) -> list[tuple[int, int]]:
    """Runs that may be one."""
    moments: dict[object, list[int]] = {}
    for at, run in enumerate(runs):
        moments.setdefault(run.created, []).append(at)
    pairs = [(a, b) for ones in moments.values() for a in ones for b in ones if a < b]
    ended = sorted((run.created, at) for at, run in enumerate(runs) if not run.is_journal)
    for at, journal in enumerate(runs):
        if journal.is_journal:
            begun = journal.created
            pairs += [(at, other) for created, other in ended if begun < created <= begun + _LONGEST_RUN]
    return [(a, b) for a, b in pairs if None in (runs[a].commit, runs[b].commit) or runs[a].commit == runs[b].commit]


def _holds(richer: Mapping[int, float], poorer: Mapping[int, float]) -> bool:
    return bool(poorer) and all(richer.get(at) == value for at, value in poorer.items())
