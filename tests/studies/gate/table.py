"""Records trials, judges them, and makes a table with a line a slowdown, beside pytest-benchmark's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from perflab.base.errors import UsageError
from perflab.processes.child import workplace
from tests.studies.gate.rates import SLOWDOWNS, Rate, benchmark_rate, cases_of, memory_rate, paired_rate, stored_rate
from tests.studies.gate.trials import Line, Pair, append, read, record_trial
from tests.studies.gate.workloads import KINDS, MIXED, MORE, UNEVEN, write_modules

_HEADER = ("gate", "code", "flagged", "95 % interval", "inconclusive", "cases", "cost of a run")

_TRIED = {None: (0.0, 0.05, 0.10), 1: (0.05, 0.10)}
"""Slowdowns that are tried in runs of other sizes, by the number of slow cases in a run; None: all cases are slow."""


def measure_gate(
    trials: int, log: Path | None, say: Callable[[str], None], kinds: Sequence[str] = tuple(KINDS)
) -> list[str]:
    """Record trials and judge them, together with the lines that the log held before.

    Args:
        trials: number of trials to record; with 0, only the lines of the log are judged.
        log: file to which one line is appended for each measurement; None keeps the log for this call alone.
        say: called with the progress.
        kinds: the kinds of workloads that are recorded.

    Returns:
        The table, line by line.

    Raises:
        RivalError: the workloads do not run here.
        UsageError: no trials were recorded, and the log holds none.
    """
    with workplace() as folder:
        write_modules(folder)
        kept = log or folder / "trials.jsonl"
        kept.parent.mkdir(parents=True, exist_ok=True)
        kept.touch()
        read(kept)  # a file that is no log is refused before anybody waits
        try:
            for number in range(trials):
                say(f"trial {number + 1} of {trials}")
                for line in record_trial(folder, number, kinds):
                    append(kept, line)
        except KeyboardInterrupt:
            say("stopped; results of the trials so far:")
        lines = read(kept)
        if not lines:
            raise UsageError("there is nothing to judge: no trial was recorded", "record some: --trials=10")
        return gate_table(lines)


def gate_table(lines: Sequence[Line]) -> list[str]:
    """Return a table with the rates of all gates on all recorded lines."""
    rows: list[tuple[str, ...]] = [_HEADER]
    for name, rates in (
        ("perflab, A/B", {s: paired_rate(lines, s) for s in SLOWDOWNS}),
        ("pytest-benchmark, two runs", {s: benchmark_rate(lines, s) for s in SLOWDOWNS}),
        ("perflab, stored baseline", {s: stored_rate(lines, s) for s in SLOWDOWNS}),
        ("perflab, stored, then A/B", {s: stored_rate(lines, s, settle=True) for s in SLOWDOWNS}),
        ("pytest-benchmark, stored run", {s: benchmark_rate(lines, s, stored=True) for s in SLOWDOWNS}),
    ):
        rows += [_row(name, slowdown, rate) for slowdown, rate in rates.items() if rate.tried]
    for kind in (kind for kind in KINDS if kind != UNEVEN):
        for cases, slow in ((4, None), (10, None), (30, None), (30, 1))[kind == MIXED :]:
            name = f"A/B, {kind}, {cases} cases{'' if slow is None else ', one of them'}"
            for slowdown in _TRIED[slow]:
                rate = paired_rate(lines, slowdown, kind=kind, cases=cases, slow=slow)
                rows += [_row(f"perflab, {name}", slowdown, rate)] if rate.tried else []
    for name in cases_of(lines, UNEVEN):
        rate = paired_rate(lines, 0.0, kind=UNEVEN, only=name)
        rows.append(_row(f"perflab, A/B, uneven, {name.replace('_', ' ')} call", MORE, rate))
    for name, added in (("unchanged", 0), ("+1 MiB", 1 << 20)):
        rate = memory_rate(lines, added)
        if rate.tried:
            rows.append(("perflab, memory", name, *_row("perflab", 0.0, rate)[2:6], "–"))
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEADER))]
    table = [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |" for row in rows
    ]
    table.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
    return [*table, "", _told(lines)]


def _row(name: str, slowdown: float, rate: Rate) -> tuple[str, ...]:
    low, high = rate.interval()
    return (
        name,
        "unchanged" if slowdown == 0.0 else f"+{slowdown:.0%}",
        f"{rate.share:.1%}",
        f"{low:.1%} to {high:.1%}",
        f"{rate.unsure / rate.tried:.1%}" if name.startswith("perflab") else "–",
        str(rate.tried),
        f"{rate.cost_s:.0f} s",
    )


def _told(lines: Sequence[Line]) -> str:
    pairs = sum(isinstance(line, Pair) for line in lines)
    hours = (max(line.began_s for line in lines) - min(line.began_s for line in lines)) / 3600.0 if lines else 0.0
    return (
        f"{pairs} process pairs and all other runs, over {hours:.1f} h; slowdowns are injected into the times.\n"
        "Runs of ten and thirty cases repeat the same four, mostly with pairs that were recorded at other times.\n"
        "Pairs that confirm a suspect are used by later screens too, and every session is judged by the baseline\n"
        "of every other one. These comparisons depend on each other, so their intervals are too narrow."
    )
