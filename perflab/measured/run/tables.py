"""Measures rows of tables interleaved with their base row, once all cases have been measured.

Numbers that were taken one after another differ because the machine's state changes. So a row and its base run once
more, interleaved in separate processes, like the sides of an A/B comparison. A round of new processes gives a row one
log-ratio, and all rounds together give the ratio with its interval.
"""

from __future__ import annotations

import contextlib
import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

from perflab.base.data import changed
from perflab.base.errors import PerflabError
from perflab.judging.interleave import Reading
from perflab.judging.paired import PairedPolicy, calls_judged, log_of
from perflab.judging.statistics import LEAST_PAIRS, estimate
from perflab.measure.calls.nvtx import ranges_asked
from perflab.measured.report.columns import shown_ns
from perflab.measured.report.side_by_side import levels_with_bases
from perflab.measured.report.studies import rows_with_bases
from perflab.measured.run.replicates import no_room
from perflab.measured.run.settle import CALLS_IN_A_PAIR, LEAST_S
from perflab.results.measurement import Beside, Ratio
from perflab.results.result import Result
from perflab.running.case.locks import device_turn
from perflab.running.case.progress import ProgressLine
from perflab.tiers.saving import Saving
from perflab.turns.comparison import Taken, each_once
from perflab.turns.process import Ancestry
from perflab.turns.rounds import CaseRound, CaseTurns, Round, RoundPlan
from perflab.turns.start_sides import Starts, this_side

ROUNDS = 7
"""Number of rounds of new processes. With LEAST_PAIRS rounds, intervals are four times as wide (simulated)."""
AT_ONCE = 4
"""Largest number of processes in a round: with more, a block's turns are too far from the base's in time."""
TURNS_NS = 0.25e9
"""Time of the turns of a row and its base in a round, without set-up and warm-up; long calls take more."""
ROW_S = 10.0
"""Seconds that a row may take in a round in addition to --perf-budget: compiling models anew takes longer."""


@dataclass
class Row:
    """A row with its base, and the results of the rounds: readings of the call, and log-ratios of its phases."""

    result: Result
    base: Result
    readings: list[Reading] = field(default_factory=list)
    phase_logs: dict[str, list[float]] = field(default_factory=dict)
    problem: str | None = None

    @property
    def beside(self) -> Beside:
        """The ratios of the call and its phases from all rounds, each only if at least LEAST_PAIRS rounds have it."""
        call, base_ns = None, shown_ns(self.base)
        assert base_ns is not None, "a base was measured"
        if len(self.readings) >= LEAST_PAIRS:
            judged, _ = calls_judged(self.readings, PairedPolicy())
            call = ratio_of([log_of(one, judged) for one in self.readings])
        ratios = {name: ratio_of(logs) for name, logs in self.phase_logs.items() if len(logs) >= LEAST_PAIRS}
        problem = self.problem if call is None else None
        return Beside(base=self.base.case, base_ns=base_ns, call=call, phases=ratios, problem=problem)

    def take(self, own: CaseTurns, base: CaseTurns, reading: Reading) -> None:
        """Add the results of a round."""
        self.readings.append(reading)
        for name in own.phases_ns.keys() & base.phases_ns.keys():
            own_ns, base_ns = (median(one.phases_ns[name]) / one.repetitions for one in (own, base))
            if min(own_ns, base_ns) > 0:
                self.phase_logs.setdefault(name, []).append(math.log(own_ns / base_ns))

    def refuse(self, problem: str) -> None:
        """Exclude the row from further rounds; the first reason is kept."""
        self.problem = self.problem or problem


def ratio_of(logs: Sequence[float]) -> Ratio:
    """Return the ratio, with its interval, from the log-ratios of at least LEAST_PAIRS rounds."""
    found = estimate(logs)
    return Ratio(value=math.exp(found.value), low=math.exp(found.low), high=math.exp(found.high))


def take_turns(saving: Saving) -> None:
    """Give each row of a table its ratio, or the reason why it has none.

    Raises:
        KeyboardInterrupt: raised during a round; the results so far are kept.
    """
    if saving.settings.check == "exact" or ranges_asked():
        return  # times were not asked for, or are not those of the case alone
    results = list(saving.results.values())
    pairs = [*rows_with_bases(results), *levels_with_bases(results)]
    rows = list({(row.case, base.case): Row(row, base) for row, base in pairs}.values())
    devices = [row.base.record.device for row in rows if row.base.record is not None]
    try:
        for device in dict.fromkeys(devices):
            _Turns(saving, device).take([row for row, its in zip(rows, devices, strict=True) if its == device])
    finally:
        for row in rows:
            known = saving.results[row.result.case]
            saving.results[known.case] = changed(known, beside=[*known.beside, row.beside])


class _Turns:
    """Runs the rounds of all rows that were measured on one device."""

    def __init__(self, saving: Saving, device: str) -> None:
        self._saving, self._settings, self._device = saving, saving.settings, device
        self._progress = ProgressLine(saving.config)
        self._draw = random.Random()  # a separate generator: tests may have seeded the global one
        self._ancestry, self._took = Ancestry(), Taken()
        self._row_s = ROW_S + saving.settings.budget_s

    def take(self, rows: Sequence[Row]) -> None:
        """Run rounds while there is time; the first one shows for how many tables the time is enough."""
        late = "too few rounds gave a reading"
        if self._settings.total_budget_s is not None:
            over = self._settings.over_before("the rows could take turns")
            late = f"{over} -> raise it, or run fewer cases"
        chunks = self._chunks(rows)
        try:
            with (
                device_turn(self._device, self._progress.waiting),
                this_side(self._saving.config, self._device) as starts,
            ):
                for number in range(ROUNDS):
                    left_s = self._saving.budget.left_s()
                    needed_s = self._took.again_s(list(chunks)) if number else LEAST_S
                    if not chunks or (left_s is not None and left_s < needed_s):
                        break
                    reached = self._round(starts, chunks, number, left_s)
                    still = {name: [row for row in chunks[name] if row.problem is None] for name in reached}
                    chunks = {name: some for name, some in still.items() if some}
        except (PerflabError, OSError) as error:
            late = error.problem if isinstance(error, PerflabError) else str(error)
        finally:
            self._progress.clear()
            for row in rows:
                row.refuse(late)

    def _round(self, starts: Starts, chunks: Mapping[str, list[Row]], number: int, left_s: float | None) -> list[str]:
        """Run one round of new processes; return the names of the chunks that it reached."""
        cases = {name: [rows[0].base.case, *(row.result.case for row in rows)] for name, rows in chunks.items()}
        sides = [f"row {place + 1}" for place in range(max(map(len, cases.values())))]
        # Assign cases to processes at random: their order of set-up, and what they measured before, must not matter.
        places = {name: dict(zip(self._draw.sample(sides, len(own)), own, strict=True)) for name, own in cases.items()}
        rows_of = {side: {name: own[side] for name, own in places.items() if side in own} for side in sides}

        def begin(waiting: Sequence[str]) -> Round:
            wanted = {side: [own[name] for name in waiting if name in own] for side, own in rows_of.items()}
            begun = {side: starts.start("head", names) for side, names in wanted.items() if names}
            found = {side: start for side, start in begun.items() if start is not None}
            running = Round(found, None, self._settings.patience_s(), self._ancestry, self._saving.budget.left_s)
            running.call(rows_of)
            return running

        def say(name: str, what: str) -> None:
            self._progress.label(cases[name][0])
            self._progress.show(f"a table's rows in turns, {what}")

        plan, told = RoundPlan(TURNS_NS, memory=False, of_rows=True), f"round {number + 1} of {ROUNDS}"
        reached: list[str] = []
        self._progress.begin("")
        with contextlib.closing(each_once(begin, list(cases), lambda _: plan, say, told, self._took)) as began:
            for name, found, _ in began:
                reached.append(name)
                is_long = self._took.case_s.get(name, 0.0) > self._row_s * len(cases[name])
                for row in chunks[name]:
                    _take(row, {case: side for side, case in places[name].items()}, found)
                    if is_long:
                        row.refuse(f"a row takes more than {self._row_s:g} s in a round -> raise --perf-budget")
                now_s = self._saving.budget.left_s()
                if not number and left_s is not None and now_s is not None and left_s - now_s > left_s / ROUNDS:
                    break
        return reached

    def _chunks(self, rows: Sequence[Row]) -> dict[str, list[Row]]:
        """Return chunks of rows with one base, as many rows in each as memory allows; refuse slow rows."""
        import torch

        by_base: dict[str, list[Row]] = {}
        for row in rows:
            longest_ns = max(shown_ns(one) or 0.0 for one in (row.result, row.base))
            if CALLS_IN_A_PAIR / 2 * longest_ns > self._row_s * 1e9:
                row.refuse(f"{CALLS_IN_A_PAIR // 2} calls take more than {self._row_s:g} s -> raise --perf-budget")
            else:
                by_base.setdefault(row.base.case, []).append(row)
        chunks: dict[str, list[Row]] = {}
        for base, some in by_base.items():
            records = [one.record for one in (some[0].base, *(row.result for row in some)) if one.record is not None]
            for most in range(AT_ONCE, 1, -1):
                why = [no_room(one, torch.device(self._device), most) for one in records]
                if not any(why):
                    chunks |= {f"{base} {at}": some[at : at + most - 1] for at in range(0, len(some), most - 1)}
                    break
            else:
                for row in some:
                    row.refuse(next(filter(None, why)))
        return chunks


def _take(row: Row, sides: Mapping[str, str], found: CaseRound) -> None:
    """Add a round to a row. ``sides``: case -> side. A row whose test did not pass takes part in no more rounds."""
    own, base = sides[row.result.case], sides[row.base.case]
    if (reading := found.reading(own, base)) is not None:
        row.take(found.turns[own], found.turns[base], reading)
    if found.not_started is not None:
        row.refuse(str(found.not_started))
    spoilt = any(ended.outcome == "died" for ended in found.ended.values())  # which is why other cases were not reached
    for whose, side in (("", own), ("its base ", base)):
        ended = found.ended.get(side)
        if ended is None and not spoilt:
            row.refuse(f"{whose}was not collected again in a fresh process")
        elif ended is not None and ended.outcome != "passed":
            row.refuse(f"{whose}{ended.outcome}: {ended.in_short}")
