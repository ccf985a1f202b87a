"""Lines below the table about quantities that were not compared with a baseline, and why. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from perflab.base.data import changed
from perflab.results.records import Judgement, Uncompared
from perflab.results.result import Result
from perflab.units import format_count


def what_was_compared(results: Sequence[Result]) -> list[str]:
    """Return a line for each reason why time, memory or counts of cases were not compared."""
    return [*_without_times(results), *_without_quantities(results)]


def _without_times(results: Sequence[Result]) -> list[str]:
    compared: dict[str, Counter[str]] = {}
    for result in results:
        one = result.judgement
        if one.time_not_judged is not None and not (result.saved and one.few_runs):  # the next run has enough
            compared.setdefault(one.time_not_judged, Counter())[_exact_of(one)] += 1
    return [f"{reason}: {_of_cases(counter)} compared" for reason, counter in compared.items()]


def _of_cases(compared: Counter[str]) -> str:
    """Format what was compared, with its verb: ``of 4 cases only memory and counts, of 2 only operators were``."""
    said = [f"of {format_count(many, 'case')} {f'only {it}' if it else 'nothing'}" for it, many in compared.items()]
    plural = len(compared) > 1 or next(iter(compared)) not in ("memory", "")
    return f"{', '.join(said)} {'were' if plural else 'was'}"


def _exact_of(one: Judgement) -> str:
    """Return the exact quantities on which a case's verdict rests, in words."""
    counts = [in_words(name) for name, change in one.counts.items() if change.limit is not None]
    if not any(missed.quantity != "memory" for missed in one.not_compared) and counts:
        counts = ["counts"]  # all counts were compared
    return listed(["memory"] * (one.memory is not None) + counts)


def _without_quantities(results: Sequence[Result]) -> list[str]:
    many: dict[Uncompared, int] = {}
    for result in results:
        for missed in result.judgement.not_compared:
            if result.saved:
                missed = changed(missed, can_be_saved=False)
            many[missed] = many.get(missed, 0) + 1
    lines = []
    for reason in dict.fromkeys(missed.reason for missed in many):
        same: dict[int, list[str]] = {}
        here = {missed: count for missed, count in many.items() if missed.reason == reason}
        for missed, count in here.items():
            same.setdefault(count, []).append(in_words(missed.quantity))
        said = ", ".join(f"{listed(names)} of {format_count(count, 'case')}" for count, names in same.items())
        save = "save here too" if any(missed.elsewhere for missed in here) else "save"
        remedy = f" ({save}: --perf-update-new)" if any(missed.can_be_saved for missed in here) else ""
        lines.append(f"{said} not compared: {reason}{remedy}")
    return lines


def reasons_of(judgement: Judgement) -> list[tuple[str, list[str]]]:
    """Return the reasons why exact quantities of a case were not compared, each with the quantities."""
    reasons = dict.fromkeys(missed.reason for missed in judgement.not_compared)
    return [(why, [one.quantity for one in judgement.not_compared if one.reason == why]) for why in reasons]


def listed(names: Sequence[str]) -> str:
    """Join names into a list in words: ``memory, allocations and operators``."""
    return " and ".join(filter(None, [", ".join(names[:-1]), *names[-1:]]))


def in_words(quantity: str) -> str:
    """Return a quantity's name in words: ``graph_breaks`` -> ``graph breaks``."""
    return quantity.replace("_", " ")
