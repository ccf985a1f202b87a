"""The long texts on one prediction: in full, and of a failure. Pure.

In full, it has the memory at the peak, tensors saved for backward, modules and operators. A run of several predicted
cases shows only their table; a run of one case has room for the full detail. The text of a failure has the numbers
before and now, what grew, and how to accept it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from perflab.base.grouping import groups_of
from perflab.predicted.report.facts import first_to_checkpoint, fit_facts, intensity, rank_of
from perflab.predicted.report.table import WIDTH, amount, quantity_name, signed, wrapped, wrapped_facts
from perflab.results.predicted import Cost, Exchanged, PredictedBaseline, PredictedCase, Prediction, Traffic
from perflab.results.profile import BACKWARD, FORWARD, OPTIMIZER
from perflab.results.records import Change, Verdict
from perflab.results.result import Result
from perflab.tables.escaping import lines_of
from perflab.tables.failing import IMPROVED, Quantity, failing_table
from perflab.tables.lines import percent, short_name, shorten, wrap_facts
from perflab.units import format_bytes, format_change, format_ns, format_percent, format_si, format_signed

MOST = 10
"""The most rows that a table shows; the file of ``--perf-json`` has all rows."""
_SHORT = {FORWARD: "fwd", BACKWARD: "bwd", OPTIMIZER: "opt"}
_COLUMNS = (("calls", 7), ("FLOPs", 8), ("bytes", 10), ("FLOP/B", 7), ("time", 7))
_LEAST_WIDTH, _MOST_WIDTH = 5, 10
"""The limits of the width of a phase's column."""


def prediction_detail(now: Prediction, width: int = 80) -> list[str]:
    """Return one prediction in full, in lines of at most ``width`` columns (80 at least)."""
    width = max(width, 80)
    at_peak = [
        (
            f"{format_bytes(part.size_bytes):>10}{_share(part.size_bytes, now.peak_bytes):>7}{part.blocks:>7,}",
            f"{part.category} of {part.module}" if part.module else part.category,
            part.operator,
            part.line,
        )
        for part in now.at_peak
    ]
    saved = [  # the largest first: the first to checkpoint
        (
            f"{format_bytes(one.size_bytes):>10}{one.count:>7,}",
            f"{one.module} ({', '.join(map(str, one.shape))}) {one.dtype}".lstrip(),
            one.operator,
            one.line,
        )
        for one in now.saved
        if one.size_bytes
    ]
    blocks = [
        _memory(now, width),
        _table("alive at the peak", "      size  share blocks  what", at_peak, width),
        _table(f"saved for backward, {format_bytes(now.saved_bytes)} in all", "      size  count  what", saved, width),
    ]
    if now.costs:
        blocks.append(_work(now, "module", lambda cost: cost.module or "outside of modules", width))
        blocks.append(_work(now, "operator", lambda cost: cost.operator, width))
        blocks.append(_said_of_work(now, width))
    if now.exchanged:
        blocks.append(_exchanged(now, width))
    if now.dry_run is not None:
        kernels, total = now.dry_run.kernels.items(), sum(now.dry_run.kernels.values())
        launches = [(f"{many:>7,}", shorten(name, width - 9), "", "") for name, many in kernels]
        traffic = [(_calls(one), one.what, one.function, one.line) for one in now.dry_run.traffic]
        blocks.append(_table(f"launches by kernel, {total:,} in all", "  count  kernel", launches, width))
        blocks.append(_table("between host and device", _CALLS, traffic, width))
    return [line for block in blocks if block for line in ("", *block)]


def _memory(now: Prediction, width: int) -> list[str]:
    """Return the peak by category, what a real process takes beyond the peak, and every GPU that the case fits."""
    lines = [
        f"peak memory {'at least ' if now.is_bound else ''}{format_bytes(now.peak_bytes)}, "
        f"{format_bytes(now.held_bytes)} of it before the call"
    ]
    for kind, size in sorted(now.composition.items(), key=lambda pair: -pair[1]):
        lines.append(f"{format_bytes(size):>10}{_share(size, now.peak_bytes):>7}  {kind}")
    alive_bytes, fit = now.keeping_output_bytes or now.peak_bytes, now.fit
    alive = format_bytes(alive_bytes)
    about = "about " if now.dry_run is None else ""
    facts = [
        *([f"{about}{format_bytes(now.allocated_bytes)} allocated"] if now.allocated_bytes else []),
        *([f"{format_bytes(now.workspace_bytes)} of that workspaces of cuBLAS"] if now.workspace_bytes else []),
        *([f"{about}{format_bytes(now.reserved_bytes)} reserved"] if now.reserved_bytes else []),
        *([f"{alive} with the last result alive"] if alive != format_bytes(now.peak_bytes) else []),
    ]
    lines += wrapped_facts(facts, width)
    if fit is not None and fit.worlds:
        of_each = [f"{format_bytes(peak_bytes)} of {world}" for world, peak_bytes in fit.worlds.items()]
        lines += wrapped(f"about, for one rank {', '.join(of_each)}", width)
    if fit is not None and fit.rooms:
        by_room = sorted(fit.fits_on, key=lambda name: fit.rooms.get(name, 0))
        told = [f"{name}\u00a0({format_bytes(fit.rooms[name])})" for name in by_room if name in fit.rooms]
        lines += wrapped(f"fits {', '.join(told) or 'none of the known cards'}", width)
    return lines


def _exchanged(now: Prediction, width: int) -> list[str]:
    """Return the table of a rank's collectives by line, and what they take at least on the network."""
    rows = [(_calls(one), f"{one.kind} {one.dtype}".rstrip(), "", one.line) for one in now.exchanged]
    lines = _table(f"collectives of {rank_of(now)} of {now.world_size}", _CALLS, rows, width)
    known = now.communication
    if known is not None and known.bound_ns and now.roofline_ns is not None:
        parts = " + ".join(f"{kind} {format_ns(ns)}" for kind, ns in known.by_kind.items() if ns)
        exposed = f"max(0, {format_ns(known.bound_ns)} - {format_ns(now.roofline_ns)})"
        told = f"on {known.network} at least {parts}; exposed beside the roofline time at least {exposed}"
        lines += wrapped(told, width)
    return lines


_CALLS = "  calls      size  what"


def _calls(one: Exchanged | Traffic) -> str:
    return f"{one.calls:>7,}{format_bytes(one.size_bytes) if one.size_bytes else '–':>10}"


def _table(title: str, head: str, rows: Sequence[tuple[str, str, str, str]], width: int) -> list[str]:
    """Return the largest rows below their title: numbers, what they are of, the operator and the line; else nothing."""
    most = rows[:MOST]
    of = f", the largest {len(most)} of {len(rows)}" if len(most) < len(rows) else ""
    return [f"{title}{of}", head, *(line for row in most for line in _row(*row, width))] if rows else []


def _row(left: str, what: str, operator: str, line: str, width: int) -> list[str]:
    """Return a row: numbers and their subject, then the operator and line, on one line if there is room, else below."""
    indent = " " * (len(left) + 2)
    made = ", ".join(filter(None, [operator, line]))
    joined = f"{left}  {what}{f', {made}' if made else ''}"
    if len(joined) <= width:
        return [joined]
    room = width - len(indent)
    told = [
        line
        for text in (what, made)
        for line in wrapped(" ".join(shorten(word, room - 2) for word in text.split(" ")), room)
    ]
    return [f"{left}  {told[0]}", *(f"{indent}{text}" for text in told[1:])]


def _work(now: Prediction, title: str, key: Callable[[Cost], str], width: int) -> list[str]:
    """Return the table of costs by group, the most roofline time first; bytes decide if there are no times."""
    ordered = grouped(now, key)
    most, rest = ordered[:MOST], ordered[MOST:]
    if len(rest) == 1:
        most, rest = ordered, []
    phases = _phases(now)
    fixed = sum(size for _, size in _COLUMNS) + sum(phases.values())
    shown = [*most, *([(f"{len(rest)} more", [one for _, ones in rest for one in ones])] if rest else [])]
    shown += [("all", list(now.costs))] if len(shown) > 1 else []
    names = min(width - fixed, max(len(name) for name in [f"by {title}", *(name for name, _ in shown)]))
    head = "".join(name.rjust(size) for name, size in _COLUMNS)
    head += "".join(shorten(_SHORT.get(phase, phase), size - 1).rjust(size) for phase, size in phases.items())
    return [
        f"{f'by {title}'.ljust(names)}{head}",
        *(f"{shorten(name, names).ljust(names)}{_numbers(costs, now.costs, phases)}" for name, costs in shown),
    ]


def grouped(now: Prediction, key: Callable[[Cost], str]) -> list[tuple[str, list[Cost]]]:
    """Group costs by ``key``, the group with the most roofline time first; bytes decide if there are no times."""
    groups = groups_of(now.costs, key).items()
    return sorted(groups, key=lambda pair: (-_time(pair[1]), -sum(one.bytes_moved for one in pair[1])))


def sums_of(costs: Sequence[Cost]) -> tuple[int, int, int, float]:
    """Return the calls, FLOPs, bytes moved and roofline time in ns of all costs together."""
    return (
        sum(one.calls for one in costs),
        sum(one.flops for one in costs),
        sum(one.bytes_moved for one in costs),
        _time(costs),
    )


def _numbers(costs: Sequence[Cost], everything: Sequence[Cost], phases: Mapping[str, int]) -> str:
    (calls, flops, bytes_moved, time_ns), whole = sums_of(costs), _time(everything)
    shown = format_si(flops) if flops else "–"
    cells = [f"{calls:,}", shown, format_bytes(bytes_moved), intensity(flops, bytes_moved), _share(time_ns, whole)]
    text = "".join(cell.rjust(size) for cell, (_, size) in zip(cells, _COLUMNS, strict=True))
    parts = [(_time([one for one in costs if one.phase == phase]), size) for phase, size in phases.items()]
    return text + "".join((_share(part, whole, 0) if part else "–").rjust(size) for part, size in parts)


def _phases(now: Prediction) -> dict[str, int]:
    """Return the width of each phase's column, in order of the phases; empty unless there are several phases."""
    begun = now.timeline.phases if now.timeline is not None else {}
    found = {cost.phase for cost in now.costs if cost.phase}
    names = sorted(found, key=lambda name: [*begun, *_SHORT].index(name) if name in (*begun, *_SHORT) else len(begun))
    widths = {name: min(_MOST_WIDTH, max(_LEAST_WIDTH, 1 + len(_SHORT.get(name, name)))) for name in names}
    return widths if len(widths) > 1 else {}


def _said_of_work(now: Prediction, width: int) -> list[str]:
    """Explain the tables' terms for this case: the repeated layers, and the time that shares refer to."""
    modules = " ".join(f"{cost.module} " for cost in now.costs)
    facts = [f"{stack}.* is {many} layers" for stack, many in now.layers.items() if f"{stack}.*" in modules]
    if now.traced_layers:
        facts.append(f"made of traces with {' and '.join(map(str, now.traced_layers))} of them")
    if now.roofline_ns is not None:
        facts.append(f"time is a share of the roofline's {format_ns(now.roofline_ns)}")
    return wrapped_facts(facts, width) if facts else []


def _time(costs: Sequence[Cost]) -> float:
    return sum(one.roofline_ns for one in costs)


def _share(part: float, whole: float, digits: int = 1) -> str:
    return percent(part / whole, digits) if whole else "–"


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
        lines += _before_and_now({"memory": judgement.memory} | judgement.counts, judgement.worse, case)
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


def _before_and_now(changes: dict[str, Change], worse: Sequence[str], case: PredictedCase) -> list[str]:
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
