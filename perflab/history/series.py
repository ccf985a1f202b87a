"""Many runs as series: one quantity of one case in one comparable environment over time, in columns of numbers.

Each series is three arrays with 16 bytes a point, so that a million points need no million objects.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from statistics import median

from perflab.base.identity import file_of, test_of
from perflab.history.contents import LeftOutRow
from perflab.results.readings import CALIBRATION, Place, Reading

BY_PRODUCTS = ("fastest",)
"""Quantities that follow another quantity: they are read and judged only if they are asked for."""
_LONGEST_RUN = timedelta(days=1)
"""The longest time from a journal's date, the begin of its run, to the date of results, the end of the run."""


@dataclass(frozen=True)
class Run:
    """One run, or one commit that saved baselines."""

    created: datetime
    commit: str | None
    """40 hexadecimal digits, with ``+dirty`` behind them if files differed; None if no commit is known."""
    file: str
    """The file that the run was read from; in a history of baselines, the commit's subject."""
    is_journal: bool = False
    """Whether ``created`` is when the run began, instead of when it ended."""


@dataclass
class Series:
    """One quantity of one case in one place. Each column has a value for each point, in the order of runs."""

    case: str
    variant: str
    quantity: str
    place: int
    """Number in ``History.places``."""
    unit: str
    is_exact: bool
    runs: array[int] = field(default_factory=lambda: array("i"))
    """Indices into ``History.runs``."""
    values: array[float] = field(default_factory=lambda: array("d"))
    words: array[int] = field(default_factory=lambda: array("i"))
    """Numbers in ``History.words``: the verdict of the run, or why a level was accepted."""


Key = tuple[str, str, str, int]
"""The key of a series: case, variant, quantity and place."""


class History:
    """The runs and series of a history while it is read. ``finish`` puts them into order.

    ``source`` names, for people, what is read; ``skipped`` are the quantities that are left out.
    """

    def __init__(self, source: str, skipped: Collection[str] = ()) -> None:
        self.source = source
        self.runs: list[Run] = []
        self.places: dict[Place, int] = {}
        """The places with their numbers, which count them in order."""
        self.words: dict[str, int] = {}
        """The words with their numbers, as places have them."""
        self.reasons: dict[int, str] = {}
        """The reasons that were given for accepted levels, by the index of the word that has the reason."""
        self.series: list[Series] = []
        self.left_out: list[LeftOutRow] = []
        self.unread: list[str] = []
        """The files that were left out although a run or a report of perflab seems to have written them."""
        self.repeated = 0
        """The number of runs left out because another file has them as well: each run counts once."""
        self.cut_short: set[Run] = set()
        """The runs of which times were left out, since ``--perf-check=exact`` had cut their measuring short."""
        self.repository: str | None = None
        """The address of the web page of the project's repository, as the last run that names one gives it."""
        self.are_accepted = False
        """Whether points are accepted levels instead of runs."""
        self.machines: list[Series] = []
        """The calibration workloads' own series: the median over all cases, for each run in each environment."""
        self.varying: set[Key] = set()
        """The keys of counts that differ from process to process; these counts are judged as times are."""
        self.collected: tuple[datetime, Collection[str], Collection[str]] | None = None
        """When the newest run with a list of collected cases was made, which cases it collected, whether it ran them or
        not, and which cases it knew to be gone."""
        self._skipped = frozenset(skipped)
        self._known: dict[Key, Series] = {}
        self._readings: dict[tuple[int, str], list[float]] = {}

    def gone(self) -> Callable[[str], bool]:
        """Return a function that says whether a case certainly no longer exists.

        A case is gone if the newest run did not collect its test function, and either collected other tests of its file
        or knew it to be gone. A case of which only the parameters are missing may come back with another option.
        """
        if self.collected is None:
            return lambda _case: False
        _, collected, stale = self.collected
        there = set(map(test_of, collected))
        files = set(map(file_of, there))
        known = set(map(test_of, stale))

        def is_gone(case: str) -> bool:
            test = test_of(case)
            return test not in there and (file_of(test) in files or test in known)

        return is_gone

    def begin(self, run: Run) -> int:
        """Add a run, and return its number."""
        self.runs.append(run)
        return len(self.runs) - 1

    def place(self, place: Place) -> int:
        """Return the number of a place, and add the place if it is new."""
        return self.places.setdefault(place, len(self.places))

    def word(self, text: str) -> int:
        """Return the number of a word, and add the word if it is new."""
        return self.words.setdefault(text, len(self.words))

    def add(
        self, run: int, case: str, variant: str, places: tuple[int, int], word: str, readings: Mapping[str, Reading]
    ) -> None:
        """Add the readings of a case in one run.

        ``places`` are the numbers of the place of times and of the place of exact quantities; ``word`` is the verdict,
        or why the level was accepted. Readings of the calibration workload are among the readings of the case.
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
        """End a run: add the median of each calibration workload beside its cases to the machine's series."""
        for (place, name), values_ns in self._readings.items():
            if values_ns:
                reading = Reading(median(values_ns), "ns", is_exact=False)
                self._append(self.machines, ("", "", name, place), run, reading, self.word(""))
            values_ns.clear()

    def finish(self, since: datetime | None = None) -> None:
        """Put runs and points in order of time, keep each run once, and leave out runs before ``since``.

        Accepted levels keep the order of the commits, since a rebase gives several commits the same second.
        """
        again = set() if self.are_accepted else _repeats(self.runs, self.series, self.cut_short)
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


def _repeats(runs: Sequence[Run], series: Sequence[Series], cut_short: Collection[Run]) -> set[int]:
    """Return the runs of which another run has every number as well; of equal runs the first stays.

    A run without numbers is one if its times were ``cut_short``. Only runs of one moment are compared, or a journal
    with results that ended within ``_LONGEST_RUN`` after it, since the numbers of two nights may well agree.
    """
    moments: dict[object, list[int]] = {}
    for at, run in enumerate(runs):
        moments.setdefault(run.created, []).append(at)
    pairs = [(a, b) for ones in moments.values() for a in ones for b in ones if a < b]
    ended = sorted((run.created, at) for at, run in enumerate(runs) if not run.is_journal)
    for at, begun in ((at, run.created) for at, run in enumerate(runs) if run.is_journal):
        pairs += [(at, other) for created, other in ended if begun < created <= begun + _LONGEST_RUN]
    pairs = [(a, b) for a, b in pairs if None in (runs[a].commit, runs[b].commit) or runs[a].commit == runs[b].commit]
    numbers: dict[int, dict[int, float]] = {run: {} for pair in pairs for run in pair}
    for at, row in enumerate(series) if pairs else ():
        for number, value in zip(row.runs, row.values, strict=True):
            if number in numbers:
                numbers[number][at] = value
    gone: set[int] = set()
    for one, other in pairs:
        poorer, richer = sorted((one, other), key=lambda run: (-len(numbers[run]), run))[::-1]
        is_held = numbers[poorer].items() <= numbers[richer].items()
        if (numbers[poorer] or runs[poorer] in cut_short) and is_held and not gone & {poorer, richer}:
            gone.add(poorer)
    return gone
