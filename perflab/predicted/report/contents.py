"""What a run's report has of predictions: the tables, one per GPU, and each case's contents. Pure.

A case's contents are its peak, the peak's composition, costs, bounds and a dry run's counts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import PurePath

from perflab.base.data import changed
from perflab.predicted.report.detail import grouped, prediction_detail, sums_of
from perflab.predicted.report.facts import dry_run_facts, filled_by, fit_facts, memory_facts, time_facts
from perflab.predicted.report.table import by_gpu, prediction_head, prediction_notes, prediction_rows, prediction_table
from perflab.results.predicted import Cost, PredictedCase, Prediction, played
from perflab.results.result import Document, Result
from perflab.tables.contents import Case, Quantity, Table, exact_quantities, first_rows, quantity
from perflab.tables.failing import without_skipped
from perflab.tables.lines import Line, Section, wrap_facts
from perflab.tables.view import View

ROWS = 12
_BYTES = ("saved", "bytes", "asked", "allocated", "reserved", "to_device", "to_host")


def describe(result: Result, case: Case) -> Case:
    """Return the case with its prediction; unchanged if the case has none."""
    outcome = result.outcome
    if not isinstance(outcome, PredictedCase):  # the case failed, was skipped, or ran out of memory
        return case
    now = outcome.now
    facts = [*filter(None, [filled_by(now)]), *fit_facts(now), *time_facts(now), *memory_facts(now)]
    facts += [*dry_run_facts(now), *now.notes, *([f"timeline: {now.snapshot}"] if now.snapshot is not None else [])]
    return changed(
        case,
        parameters=outcome.parameters or case.parameters,
        quantities=_quantities(result, now),
        memory={kind: size for kind, size in now.composition.items() if size},
        memory_beside=_beside(now),
        timeline=now.timeline,
        tables=_tables(now),
        facts=facts,
        compared_by={"GPU": played(now.place, now.rank, now.world_size), "torch": now.torch},
    )


def _quantities(result: Result, now: Prediction) -> dict[str, Quantity]:
    judgement = result.judgement
    worse = judgement.worse
    found = {"peak": quantity("bytes", now.peak_bytes, judgement.memory, exact=True, worse="memory" in worse)}
    totals: dict[str, float] = {"saved": now.saved_bytes, "flops": now.flops, "bytes": now.bytes_moved}
    totals |= {"operators": now.operators, **now.real}
    gated = exact_quantities(totals, judgement.counts, dict.fromkeys(_BYTES, "bytes"))
    found |= {name: changed(one, worse=name in worse) for name, one in gated.items()}
    if not now.real and now.launches:
        found["launches"] = quantity("count", now.launches, exact=True)
    for name, ns in (("bound", now.bound_ns), ("roofline", now.roofline_ns), ("estimate", now.estimate_ns)):
        if ns is not None:
            found[name] = quantity("ns", ns, exact=True)
    return found


def _beside(now: Prediction) -> dict[str, int]:
    readings = {
        "allocated, as PyTorch would count": now.allocated_bytes,
        "of that workspaces": now.workspace_bytes,
        "reserved of the GPU": now.reserved_bytes,
        "peak with the last result alive": now.keeping_output_bytes or 0,
        "room on the GPU": now.fit.room_bytes if now.fit is not None else 0,
    }
    return {name: size for name, size in readings.items() if size}


def _tables(now: Prediction) -> list[Table]:
    found = [
        _table(
            "at_peak",
            "Alive at the peak",
            "size:bytes, blocks:count, category, module, operator, line",
            [(one.size_bytes, one.blocks, one.category, one.module, one.operator, one.line) for one in now.at_peak],
        ),
        _table(
            "saved",
            "Saved for backward",
            "size:bytes, tensors:count, module, shape, type, operator, line",
            [
                (one.size_bytes, one.count, one.module, shape, one.dtype, one.operator, one.line)
                for one in now.saved
                for shape in [" × ".join(map(str, one.shape))]
                if one.size_bytes
            ],
        ),
        _work(now, "module", lambda cost: cost.module or "outside of modules"),
        _work(now, "operator", lambda cost: cost.operator),
    ]
    dry = now.dry_run
    if dry is not None:
        launches = [(many, name) for name, many in dry.kernels.items()]
        traffic = [(one.what, one.calls, one.size_bytes, one.function, one.line) for one in dry.traffic]
        races = [
            (one.what, one.first, one.second, ", ".join([*one.first_lines, *one.second_lines])) for one in dry.races
        ]
        found += [
            _table("kernels", "Launches by kernel", "launches:count, kernel", launches),
            _table("traffic", "Between host and device", "what, calls:count, size:bytes, function, line", traffic),
            _table("races", "Streams that race", "what, first, second, lines", races),
        ]
    return [table for table in found if table.rows]


def _work(now: Prediction, title: str, key: Callable[[Cost], str]) -> Table:
    rows = [(name, *sums_of(costs)) for name, costs in grouped(now, key)]
    columns = f"{title}, calls:count, FLOPs:count, bytes moved:bytes, roofline:ns"
    return _table(f"by_{title}", f"Work by {title}", columns, rows)


def _table(key: str, title: str, columns: str, rows: Sequence[Sequence[str | float]]) -> Table:
    """Return a table of the first rows; its columns are given as ``size:bytes, line``: a text has no unit."""
    units = [(name, unit or "text") for name, _, unit in (one.partition(":") for one in columns.split(", "))]
    return first_rows(key, title, units, rows, ROWS)


_DETAIL_WIDTH = 100
"""The width, in columns, of the detail that a page unfolds."""


def lines(document: Document, results: Sequence[Result], width: int, view: View) -> list[Line]:
    """Return each GPU's table with its head; if the run has a single prediction, also the prediction in full."""
    found: list[Line] = []
    for cases in _shown(results, view):
        found += map(Line, wrap_facts(_head(document, cases), width))
        found += prediction_table(cases, width, brief=view.brief)
        found += [] if view.brief else map(Line, _the_only_one(results, width))
    return found


def sections(document: Document, results: Sequence[Result], view: View) -> list[Section]:
    """Return each GPU's table as a page's section; if the run has a single prediction, the detail unfolds."""
    found = []
    for cases in _shown(results, view):
        rows, detail = prediction_rows(cases), _the_only_one(results, _DETAIL_WIDTH)
        unfolded = {f"{rows[0].name}: in full": detail} if detail else {}
        found.append(Section("case", rows, cases, [_head(document, cases)], prediction_notes(cases), unfolded=unfolded))
    return found


def _shown(results: Sequence[Result], view: View) -> Iterable[list[Result]]:
    return by_gpu(results if view.every else without_skipped(results)).values()


def _the_only_one(results: Sequence[Result], width: int) -> list[str]:
    predicted = [result.outcome for result in results if isinstance(result.outcome, PredictedCase)]
    return prediction_detail(predicted[0].now, width) if len(predicted) == 1 else []


def _head(document: Document, cases: Sequence[Result]) -> list[str]:
    """Return the facts of one GPU's predictions; the directory of the baselines (if any) comes last."""
    gpus = by_gpu(cases)
    folders = [PurePath(document.baselines, f"predicted-{gpu}") for gpu in gpus] if document.baselines else []
    return [*prediction_head(cases), *(f"{folder.as_posix()}/" for folder in folders)]
