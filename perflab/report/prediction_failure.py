"""What a predicted case says that needs more than it did: before and now, what grew, and how to accept it. Pure."""

from __future__ import annotations

from perflab.predictions import Prediction
from perflab.records import Change, Result, Verdict
from perflab.report.prediction_facts import fit_facts
from perflab.report.predictions import QUANTITIES, WIDTH, amount, signed, wrapped
from perflab.report.table import short_name, wrap_facts
from perflab.units import format_bytes, format_percent


def explain_prediction(result: Result, accept: str | None) -> str:
    """The text of a failure. ``accept`` is the command that takes what was predicted as the new baseline."""
    assert result.predicted is not None
    now, judgement = result.predicted.now, result.judgement
    name = short_name(result.case)
    if judgement.verdict is Verdict.REGRESSED:
        told = ", ".join(QUANTITIES.get(one, one) for one in judgement.worse)
        lines = wrapped(f"{name} needs more on {now.gpu} than its baseline, as predicted: {told}", WIDTH)
    else:
        said = f"{name} could not be judged ({judgement.verdict}), and --perf-check=strict wants it to be"
        lines = wrapped(said, WIDTH)
    if judgement.memory is not None:
        lines += _numbers({"memory": judgement.memory} | judgement.counts)
    if judgement.verdict is Verdict.REGRESSED:
        lines += ["what grew:", *(text for reason in judgement.reasons for text in wrapped(f"- {reason}", WIDTH))]
        lines += _no_room(now) if "memory" in judgement.worse else []
    else:
        lines += [text for reason in judgement.reasons for text in wrapped(f"why: {reason}", WIDTH)]
    if accept is not None:
        lines.append(f"if this is meant: {accept}")
    return "\n".join(lines)


def _numbers(changes: dict[str, Change]) -> list[str]:
    rows: list[tuple[str, ...]] = [("", "before", "now", "change", "limit")]
    for name, change in changes.items():
        before, now = int(change.before), int(change.now)
        limit = "none" if change.limit is None else "exact"
        if change.limit is not None and change.limit > 1.0:
            limit = f"+{format_percent(change.limit - 1.0)}"
        rows.append((QUANTITIES[name], amount(name, before), amount(name, now), signed(name, now - before), limit))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return [
        "  ".join([row[0].ljust(widths[0]), *(cell.rjust(w) for cell, w in zip(row[1:], widths[1:], strict=True))])
        for row in rows
    ]


def _no_room(now: Prediction) -> list[str]:
    if now.fit is None or now.fit.fits:
        return []
    said = f"does not fit {now.gpu}, which has {format_bytes(now.fit.room_bytes)} for it"
    return [text for line in wrap_facts([said, *fit_facts(now)], WIDTH) for text in wrapped(line, WIDTH)]
