"""Predictions as text: a table of what each case would need on a GPU that is not here. Pure.

A line has the numbers; below it stands what a person asks next: what fills the memory, whether and how it fits, what to
checkpoint first. Sizes are exact; a time is no shorter than it says, and an estimate is called one.
"""

from __future__ import annotations

import re
import textwrap
from collections import Counter
from collections.abc import Sequence

from perflab.predictions import Fit, PeakPart, Prediction, SavedTensors
from perflab.records import Change, Result, Verdict
from perflab.report.counts import changed
from perflab.report.table import Line, Row, names_of, shorten, verdict_text, wrap_facts
from perflab.units import format_bytes, format_flops, format_ns, format_si

WIDTH = 80
QUANTITIES = {
    "memory": "peak memory",
    "saved": "saved for backward",
    "flops": "FLOPs",
    "bytes": "bytes moved",
    "operators": "operators",
}
"""What is judged, as people call it."""
_COLUMNS = (("params", 8), ("FLOPs", 8), ("peak", 10), ("time ≥", 9), ("fits", 5))
_TIME, _FITS = "time ≥", "fits"
_LEAST_NAME_WIDTH = 19
"""What 80 columns leave beside the longest verdict."""
_MOST_REASONS = 3
_MOST_KINDS = 3
_UNIT = re.compile(r"(?<=\d) (?=[KMGT]iB|B\b|[kMGT]?FLOP)")


def by_gpu(results: Sequence[Result]) -> dict[str, list[Result]]:
    """Predicted cases by the GPU that was asked for: numbers of two GPUs never share a table."""
    found: dict[str, list[Result]] = {}
    for result in results:
        if result.predicted is not None:
            found.setdefault(result.predicted.now.gpu, []).append(result)
    return found


def prediction_facts(results: Sequence[Result]) -> list[str]:
    """What the predictions of one GPU rest on: ``predicted for h100 (79.1 GiB)``, ``torch 2.13.0``."""
    predictions = _predictions(results)
    rooms = [format_bytes(one.fit.room_bytes) for one in predictions if one.fit is not None]
    room = f" ({rooms[0]})" if rooms else ""
    versions = sorted({one.torch for one in predictions})
    return [f"predicted for {predictions[0].gpu}{room}", "nothing was run", f"torch {', '.join(versions)}"]


def prediction_table(results: Sequence[Result], width: int = WIDTH) -> list[Line]:
    """Predicted cases of one GPU as lines no longer than ``width`` (80 at least)."""
    width = max(width, WIDTH)
    found = prediction_rows(results, width - 2)
    columns = [(title, size) for title, size in _COLUMNS if title in found[0].cells]
    fixed = sum(size for _, size in columns) + 2 + max(len(row.verdict) for row in found)
    room = max(_LEAST_NAME_WIDTH, width - fixed)
    names = min(room, max(len(name) for name in ["case", *(row.name for row in found)]))
    lines = [Line(f"{'case'.ljust(names)}{''.join(title.rjust(size) for title, size in columns)}  verdict")]
    for row, result in zip(found, results, strict=True):
        cells = "".join(row.cells[title].rjust(size) for title, size in columns)
        lines.append(Line(f"{shorten(row.name, names).ljust(names)}{cells}  {row.verdict}", result.judgement.verdict))
        lines += [Line(f"  {text}") for text in row.details]
    return [*lines, *(Line(text) for note in prediction_notes(results) for text in wrapped(note, width))]


def prediction_rows(results: Sequence[Result], width: int = 10_000) -> list[Row]:
    """The table cell by cell. A column that no case has anything for is left out."""
    predictions = _predictions(results)
    empty = {
        _TIME: all(one.bound_ns is None for one in predictions),
        _FITS: all(one.fit is None for one in predictions),
    }
    return [
        Row(
            name,
            {title: cell for title, cell in _cells(now).items() if not empty.get(title, False)},
            verdict_text(result),
            _details(result, now, width),
        )
        for name, result, now in zip(names_of(results), results, predictions, strict=True)
    ]


def prediction_notes(results: Sequence[Result]) -> list[str]:
    """What is to be known of predictions, each thing once, with the number of cases where it is not all."""
    notes = Counter(note for one in _predictions(results) for note in dict.fromkeys(one.notes))
    return [
        f"note: {note}" if many == len(results) else f"note ({many} of {len(results)} cases): {note}"
        for note, many in notes.items()
    ]


def fit_facts(fit: Fit) -> list[str]:
    """On which GPUs a case fits, up to which sizes, and what would make it fit where it does not."""
    facts = []
    if not fit.fits and fit.remedies:
        enough = {name: peak for name, peak in fit.remedies.items() if peak <= fit.room_bytes}
        told = [f"{name} ({format_bytes(peak)})" for name, peak in (enough or fit.remedies).items()]
        facts.append(f"would fit with {' or '.join(told)}" if enough else f"would not fit with {' nor '.join(told)}")
    facts.append(f"fits {', '.join(fit.fits_on)}" if fit.fits_on else "fits no GPU that is known here")
    largest = [f"{name} {size}" for name, size in fit.largest.items() if size is not None]
    facts += [f"largest {', '.join(largest)}"] if largest else []
    return facts + [f"not even the smallest {name} fits" for name, size in fit.largest.items() if size is None]


def change_fact(name: str, change: Change) -> str:
    """``peak memory +1.25 GiB``."""
    return f"{QUANTITIES[name]} {signed(name, int(change.now) - int(change.before))}"


def amount(name: str, value: int) -> str:
    """A quantity with its unit."""
    if name == "operators":
        return f"{value:,}"
    return format_flops(value) if name == "flops" else format_bytes(value)


def signed(name: str, difference: int) -> str:
    """A difference of a quantity."""
    return f"{'-' if difference < 0 else '+'}{amount(name, abs(difference))}" if difference else "same"


def wrapped(text: str, width: int, indent: str = "") -> list[str]:
    """Text in lines no longer than ``width`` that part no number from its unit; those after the first are indented."""
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


def _predictions(results: Sequence[Result]) -> list[Prediction]:
    return [result.predicted.now for result in results if result.predicted is not None]


def _cells(now: Prediction) -> dict[str, str]:
    fit = now.fit
    return {
        "params": _short(now.parameters) if now.parameters else "–",
        "FLOPs": format_si(now.flops) if now.flops else "–",
        "peak": format_bytes(now.peak_bytes),
        _TIME: format_ns(now.bound_ns) if now.bound_ns is not None else "–",
        _FITS: "–" if fit is None else "yes" if fit.fits else "no",
    }


def _short(parameters: int) -> str:
    """As models are named: ``3.41B``, ``124M``."""
    return format_si(parameters).replace(" ", "").replace("G", "B")


def _details(result: Result, now: Prediction, width: int) -> list[str]:
    lines = _compared(result, width)
    filled, first = _filled_by(now), _first_to_checkpoint(now)
    lines += wrapped(f"peak: {filled}", width) if filled else []
    lines += _facts(fit_facts(now.fit), width) if now.fit is not None else []
    lines += wrapped(f"checkpoint first: {first}", width) if first else []
    return lines + _facts(_estimates(now), width)


def _compared(result: Result, width: int) -> list[str]:
    """What is not as it was, and why the verdict is no plain ok."""
    judgement = result.judgement
    if judgement.verdict is Verdict.NEW:  # that says it all
        return []
    changes: dict[str, Change] = {"memory": judgement.memory} if judgement.memory is not None else {}
    lines = _facts([change_fact(*item) for item in changed(changes | judgement.counts).items()], width)
    left = len(judgement.reasons) - _MOST_REASONS
    told = judgement.reasons[:_MOST_REASONS] if left > 1 else judgement.reasons
    lines += [text for reason in told for text in wrapped(reason, width)]
    return lines + ([f"and {left} more reasons"] if left > 1 else [])


def _filled_by(now: Prediction) -> str | None:
    """What fills the memory at the worst moment, the most first; of that, what has the most."""
    kinds = sorted(((size, kind) for kind, size in now.composition.items() if size), key=lambda pair: -pair[0])
    if not kinds:
        return None
    most = max(
        (part for part in now.at_peak if part.kind == kinds[0][1]), key=lambda part: part.size_bytes, default=None
    )
    told = [
        f"{kind}\u00a0{format_bytes(size)}"
        for size, kind in kinds[: _MOST_KINDS if len(kinds) > _MOST_KINDS + 1 else None]
    ]
    rest = sum(size for size, _ in kinds[len(told) :])
    if most is not None and (most.module or most.operator):
        told[0] += f" ({_named(most)} {format_bytes(most.size_bytes)})"
    return ", ".join([*told, *([f"other {format_bytes(rest)}"] if rest else [])])


def _named(part: PeakPart | SavedTensors) -> str:
    return " ".join(filter(None, [part.module, part.operator]))


def _first_to_checkpoint(now: Prediction) -> str | None:
    """The largest that is kept for backward, where memory is short or that is what most of it is for."""
    most = max(now.saved, key=lambda one: one.size_bytes, default=None)
    if most is None or not most.size_bytes:
        return None
    is_short = now.fit is not None and not now.fit.fits
    if not is_short and max(now.composition, key=lambda kind: now.composition[kind], default="") != "activations":
        return None
    shape = f"({', '.join(map(str, most.shape))}) {most.dtype} x{most.count}"
    where = f", {most.line}" if most.line else ""
    return f"{most.module or most.operator} {shape} {format_bytes(most.size_bytes)}{where}"


def _estimates(now: Prediction) -> list[str]:
    facts = [f"roofline {format_ns(now.roofline_ns)}"] if now.roofline_ns is not None else []
    if now.estimate_ns is not None:
        rests = f", {now.estimate_from}" if now.estimate_from else ""
        facts.append(f"estimate {format_ns(now.estimate_ns)}{rests}")
    if now.keeping_output_bytes is not None:
        facts.append(f"{format_bytes(now.keeping_output_bytes)} while the result of the call before is alive")
    if now.reserved_bytes:
        facts.append(f"about {format_bytes(now.reserved_bytes)} reserved")
    return facts


def _facts(facts: Sequence[str], width: int) -> list[str]:
    """Facts joined by dots; lines after the first are indented, and a fact that is longer than a line is broken."""
    lines = wrap_facts(facts, width - 2)
    return [text for at, line in enumerate(lines) for text in wrapped(line, width, indent="  " if at else "")]
