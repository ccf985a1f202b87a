"""The table of predictions for one GPU. Pure.

Each case has one line of numbers; the lines below it state what fills the memory, what else fits and what the time
consists of. Facts that all cases share stand once, above or below the table. Sizes are exact; the time is the roofline
time, no less than the lower bound beside it; an estimate is labelled as one.
"""

from __future__ import annotations

import re
import textwrap
from collections import Counter
from collections.abc import Sequence

from perflab.predicted.report.facts import (
    dry_run_facts,
    filled_by,
    first_to_checkpoint,
    fit_facts,
    memory_facts,
    rank_facts,
    time_facts,
)
from perflab.results.predicted import PredictedCase, Prediction, gpu_of
from perflab.results.records import Change, Verdict
from perflab.results.result import Result
from perflab.tables.failing import changed
from perflab.tables.lines import Line, Row, names_of, shorten, shown_verdict, verdict_text, wrap_facts
from perflab.units import format_bytes, format_flops, format_names, format_ns, format_si

WIDTH = 80
QUANTITIES = {
    "memory": "peak memory",
    "saved": "saved for backward",
    "flops": "FLOPs",
    "bytes": "bytes moved",
    "operators": "operators",
    "asked": "memory asked for",
    "allocated": "allocated",
    "reserved": "reserved",
    "launches": "launches",
    "waits": "waits of the host",
    "to_device": "copied to the device",
    "to_host": "copied to the host",
}
"""The names in reports of the judged quantities; a count of collectives is named by itself (``quantity_name``)."""
_COUNTS = ("operators", "launches", "waits")
"""The quantities that are counts, without a unit."""
_COLUMNS = (("params", 8), ("FLOPs", 8), ("peak", 10), ("roofline", 10), ("fits", 5))
_PARAMETERS, _TIME, _FITS = "params", "roofline", "fits"
_LEAST_NAME_WIDTH = 19
"""The columns that 80 columns leave for a name beside the longest verdict."""
_MOST_REASONS = 3
_UNIT = re.compile(r"(?<=\d) (?=[KMGT]iB|B\b|[kMGT]?FLOP|[mµn]?s\b)")


def by_gpu(results: Sequence[Result]) -> dict[str, list[Result]]:
    """Group predicted cases by the requested GPU, with dry runs apart: numbers of two groups never share a table."""
    found: dict[str, list[Result]] = {}
    for result in results:
        now = _prediction(result)
        place = now.place if now is not None else result.place
        if place is not None:
            found.setdefault(place, []).append(result)
    return found


def prediction_head(results: Sequence[Result]) -> list[str]:
    """Return the facts shared by all predictions of a GPU: ``predicted for h100 (78.3 GiB), not run``, parameters."""
    predictions = _predictions(results)
    rooms = [format_bytes(one.fit.room_bytes) for one in predictions if one.fit is not None]
    room = f" ({rooms[0]})" if rooms else ""
    versions = sorted({one.torch for one in predictions})
    gpu, dry_run = gpu_of(next(iter(by_gpu(results))))
    return [
        f"dry run on {gpu}{room}: CUDA without a GPU, nothing computed"
        if dry_run
        else f"predicted for {gpu}{room}, not run{': bounds' if any(one.is_bound for one in predictions) else ''}",
        *([f"{short_count(predictions[0].parameters)} parameters"] if _one_model(predictions) else []),
        *([f"torch {', '.join(versions)}"] if versions else []),
    ]


def prediction_table(results: Sequence[Result], width: int = WIDTH, *, brief: bool = False) -> list[Line]:
    """Return the table of one GPU's predicted cases, in lines of at most ``width`` columns (80 at least).

    A ``brief`` table has only changes and reasons below a case, and no notes.
    """
    width = max(width, WIDTH)
    found = prediction_rows(results, width - 2)
    longest = {title: max(len(row.cells[title]) for row in found) for title in found[0].cells}
    columns = [(title, max(size, longest[title] + 1)) for title, size in _COLUMNS if title in longest]
    fixed = sum(size for _, size in columns) + 2 + max(len(row.verdict) for row in found)
    room = max(_LEAST_NAME_WIDTH, width - fixed)
    names = min(room, max(len(name) for name in ["case", *(row.name for row in found)]))
    lines = [Line(f"{'case'.ljust(names)}{''.join(title.rjust(size) for title, size in columns)}  verdict")]
    for row, result in zip(found, results, strict=True):
        cells = "".join(row.cells[title].rjust(size) for title, size in columns)
        lines.append(Line(f"{shorten(row.name, names).ljust(names)}{cells}  {row.verdict}", shown_verdict(result)))
        details = _compared(result, width - 2) if brief else row.details
        lines += [Line(f"  {text}") for text in details]
    if brief:
        return lines
    return [*lines, *(Line(text) for note in prediction_notes(results) for text in wrapped(note, width))]


def prediction_rows(results: Sequence[Result], width: int = 10_000) -> list[Row]:
    """Return the table cell by cell.

    Times and fits are left out if no case has them, parameters if no case has a prediction or all have the same number.
    """
    predictions = _predictions(results)
    left_out = {
        _PARAMETERS: _one_model(predictions) or not predictions,
        _TIME: all(one.roofline_ns is None for one in predictions),
        _FITS: all(one.fit is None for one in predictions),
    }
    return [
        Row(
            name,
            {title: cell for title, cell in _cells(now).items() if not left_out.get(title, False)},
            verdict_text(result),
            _details(result, now, width),
        )
        for name, result, now in zip(names_of(results), results, map(_prediction, results), strict=True)
    ]


def prediction_notes(results: Sequence[Result]) -> list[str]:
    """Return the notes below the table: modules to checkpoint first, the sources of estimates, and each note once."""
    predictions = _predictions(results)
    notes = Counter(note for one in predictions for note in dict.fromkeys(one.notes))
    timelines = list(dict.fromkeys(one.snapshot for one in predictions if one.snapshot is not None))
    notes.update(f"timeline: {file}" for file in timelines if len(timelines) == 1)
    return [
        *_to_checkpoint(results),
        *(f"estimates are from {rests}" for rests in dict.fromkeys(one.estimate_from for one in predictions) if rests),
        *(
            f"note: {note}" if many == len(predictions) else f"note ({many} of {len(predictions)} cases): {note}"
            for note, many in notes.items()
        ),
        *([f"note: timelines {format_names(timelines)}"] if len(timelines) > 1 else []),
    ]


def quantity_name(name: str) -> str:
    """Return the name in reports of a judged quantity."""
    return QUANTITIES.get(name) or name.replace("_", " ")


def amount(name: str, value: int) -> str:
    """Format a quantity with its unit."""
    if name in _COUNTS or (name.startswith("collective") and name != "collective_bytes"):
        return f"{value:,}"
    return format_flops(value) if name == "flops" else format_bytes(value)


def signed(name: str, difference: int) -> str:
    """Format a difference of a quantity with its sign; ``same`` for 0."""
    return f"{'-' if difference < 0 else '+'}{amount(name, abs(difference))}" if difference else "same"


def short_count(parameters: int) -> str:
    """Format a number of parameters as in models' names: ``3.41B``, ``124M``."""
    return format_si(parameters).replace(" ", "").replace("G", "B")


def wrapped(text: str, width: int, indent: str = "") -> list[str]:
    """Wrap text to ``width`` columns, never between a number and its unit; lines after the first are indented."""
    kept = _UNIT.sub("\u00a0", text)
    lines = textwrap.wrap(
        kept,
        width,
        initial_indent=indent,
        subsequent_indent=indent or "  ",
        break_long_words=False,
        break_on_hyphens=False,
    )
    return [line.replace("\u00a0", " ") for line in lines]


def wrapped_facts(facts: Sequence[str], width: int) -> list[str]:
    """Join facts by dots into lines; lines after the first are indented, and a fact longer than a line is wrapped."""
    lines = wrap_facts(facts, width)
    return [text for at, line in enumerate(lines) for text in wrapped(line, width, indent="  " if at else "")]


def _prediction(result: Result) -> Prediction | None:
    """Return the case's prediction; None if the case failed, was skipped, or ran out of memory."""
    return result.outcome.now if isinstance(result.outcome, PredictedCase) else None


def _predictions(results: Sequence[Result]) -> list[Prediction]:
    return [now for now in map(_prediction, results) if now is not None]


def _one_model(predictions: Sequence[Prediction]) -> bool:
    """Whether all cases have the same number of parameters, which is then stated once instead of in a column."""
    return len({one.parameters for one in predictions}) == 1 and predictions[0].parameters > 0


def _cells(now: Prediction | None) -> dict[str, str]:
    if now is None:
        return {title: "–" for title, _ in _COLUMNS}
    fit = now.fit
    return {
        _PARAMETERS: short_count(now.parameters) if now.parameters else "–",
        "FLOPs": format_si(now.flops) if now.flops else "–",
        "peak": f"{'≥' if now.is_bound else ''}{format_bytes(now.peak_bytes)}",
        _TIME: format_ns(now.roofline_ns) if now.roofline_ns is not None else "–",
        _FITS: "–" if fit is None else "yes" if fit.fits else "no",
    }


def _details(result: Result, now: Prediction | None, width: int) -> list[str]:
    if now is None:
        return _compared(result, width)
    filled = filled_by(now)
    return [
        *_compared(result, width),
        *(wrapped(f"peak: {filled}", width) if filled else []),
        *wrapped_facts(fit_facts(now), width),
        *wrapped_facts([*time_facts(now), *memory_facts(now), *dry_run_facts(now)], width),
        *wrapped_facts(rank_facts(now), width),
    ]


def _compared(result: Result, width: int) -> list[str]:
    """Return the changes since the baseline, and the reasons for the verdict; empty for a new case."""
    judgement = result.judgement
    if judgement.verdict is Verdict.NEW:  # the verdict says it all
        return []
    changes: dict[str, Change] = {"memory": judgement.memory} if judgement.memory is not None else {}
    told_of = changed(changes | judgement.counts).items()
    facts = [f"{quantity_name(name)} {signed(name, int(one.now) - int(one.before))}" for name, one in told_of]
    lines = wrapped_facts(facts, width)
    left = len(judgement.reasons) - _MOST_REASONS
    told = judgement.reasons[:_MOST_REASONS] if left > 1 else judgement.reasons
    lines += [text for reason in told for text in wrapped(reason, width)]
    return lines + ([f"and {left} more, listed in the failure"] if left > 1 else [])


def _to_checkpoint(results: Sequence[Result]) -> list[str]:
    """Return a line for each module to checkpoint, with the case in which running the module again frees most."""
    most: dict[str, tuple[int, int, str]] = {}
    for name, now in zip(names_of(results), map(_prediction, results), strict=True):
        found = first_to_checkpoint(now) if now is not None else None
        if found is not None:
            one = (found.frees_bytes, found.peak_bytes, f"{found}{f' in {name}' if len(results) > 1 else ''}")
            most[found.module] = max(one, most.get(found.module, one))
    return [said for _, _, said in sorted(most.values(), reverse=True)]
