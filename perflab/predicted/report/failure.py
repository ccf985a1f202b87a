"""The text of a failing prediction: before and now, what grew, and how to accept it. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from perflab.predicted.report.facts import first_to_checkpoint, fit_facts
from perflab.predicted.report.table import WIDTH, amount, quantity_name, signed, wrapped
from perflab.results.predicted import PredictedBaseline, PredictedCase, Prediction
from perflab.results.records import Change, Verdict
from perflab.results.result import Result
from perflab.tables.escaping import lines_of
from perflab.tables.failing import IMPROVED, Quantity, failing_table
from perflab.tables.lines import short_name, wrap_facts
from perflab.units import format_bytes, format_change, format_ns, format_percent, format_signed


def explain_prediction(result: Result, accept: str | None) -> str:
    """Return the text of a failure. ``accept`` is the command that saves the prediction as the new baseline, if any."""
    assert isinstance(result.outcome, PredictedCase)
    case, judgement = result.outcome, result.judgement
    name, regressed = short_name(result.case), result.judgement.verdict is Verdict.REGRESSED
    if regressed:
        told = ", ".join(quantity_name(one).replace(" ", "\u00a0") for one in judgement.worse)
        how = "as predicted" if case.now.dry_run is None else "in a dry run"
        lines = wrapped(f"{name} needs more on {case.now.gpu} than its baseline, {how}: {told}", WIDTH)
    elif judgement.verdict is Verdict.FAILED:
        lines = wrapped(f"{name} on {case.now.gpu}: {judgement.reasons[0]}", WIDTH)
    elif judgement.verdict is Verdict.IMPROVED:
        lines = wrapped(f"{name} {IMPROVED}", WIDTH)
    else:
        said = f"{name} could not be judged ({judgement.verdict}), and --perf-check fails such cases"
        lines = wrapped(said, WIDTH)
    if judgement.memory is not None:
        lines += _numbers({"memory": judgement.memory} | judgement.counts, judgement.worse, case)
    if regressed:
        lines += _saved_at(case.before)
        lines += ["what grew:", *(text for reason in judgement.reasons for text in wrapped(f"- {reason}", WIDTH))]
        lines += _no_room(case) if "memory" in judgement.worse else []
    else:
        reasons = judgement.reasons[judgement.verdict is Verdict.FAILED :]
        lines += [text for reason in reasons for text in wrapped(f"why: {reason}", WIDTH)]
    if accept is not None:
        lines.append(f"if intended: {accept}")
    return lines_of("\n".join(lines))


def _numbers(changes: dict[str, Change], worse: Sequence[str], case: PredictedCase) -> list[str]:
    rows: list[Quantity] = []
    for name, change in changes.items():
        before, now = int(change.before), int(change.now)
        limit = "none" if change.limit is None else "exact"
        if change.limit is not None and change.limit > 1.0:
            limit = f"+{format_percent(change.limit - 1.0)}"
        by = format_change(change.ratio) if before and now != before else ""
        told = signed(name, now - before)
        cells = (quantity_name(name), amount(name, before), amount(name, now), told, by, limit)
        rows.append(Quantity(cells, failed=name in worse))
    rows += _time_row(case.now, case.before)
    return failing_table(("", "before", "now", "change", "", "limit"), rows)


def _time_row(now: Prediction, before: PredictedBaseline | None) -> list[Quantity]:
    """Return the row of the roofline time, if known; the time follows from other quantities, so it is not judged."""
    if now.roofline_ns is None or before is None or before.roofline_ns is None:
        return []
    more_ns = now.roofline_ns - before.roofline_ns
    shown = format_signed(more_ns, format_ns) if more_ns else "same"
    by = format_change(now.roofline_ns / before.roofline_ns) if more_ns else ""
    return [Quantity(("roofline time", format_ns(before.roofline_ns), format_ns(now.roofline_ns), shown, by, "none"))]


def _saved_at(before: PredictedBaseline | None) -> list[str]:
    if before is None or (before.commit is None and before.reason is None):
        return []
    commit = f" at {before.commit}" if before.commit is not None else ""
    reason = f": {before.reason}" if before.reason is not None else ""
    return wrapped(f"its baseline was saved {before.recorded[:10]}{commit}{reason}", WIDTH)


def _no_room(case: PredictedCase) -> list[str]:
    """Return lines that say that a case does not fit, whether its baseline fitted, and what would help; else none."""
    now, before = case.now, case.before
    if now.fit is None or now.fit.fits:
        return []
    did = before is not None and before.peak_bytes + now.workspace_bytes <= now.fit.room_bytes
    said = f"{'no longer fits' if did else 'does not fit'} {now.gpu}, which has {format_bytes(now.fit.room_bytes)}"
    first = first_to_checkpoint(now)
    facts = [text for line in wrap_facts(fit_facts(now), WIDTH) for text in wrapped(line, WIDTH)]
    return [*wrapped(said, WIDTH), *facts, *(wrapped(str(first), WIDTH) if first is not None else [])]
