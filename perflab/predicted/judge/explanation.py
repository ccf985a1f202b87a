"""Describes what grew in a prediction, the cause first; of a dry run also kernels, lines that wait or copy, and races.

One change of the code shows in many rows: one more operator, its backward, a peak at another moment. The *cause* is
described first: the first operator of forward that is called more often than before, else the first one that is larger.
Nothing before the cause in time has grown, so the cause follows from no other row. If no operator grew, memory is kept
that was freed before, and the largest row of the peak shows which.

A dry run in which streams race, or whose ranks make collectives that do not match, has failed, whatever its counts.
Pure."""

from __future__ import annotations

from collections.abc import Sequence

from perflab.base.data import changed
from perflab.predicted.judge.growth import Amounts, Grown, Row
from perflab.results.predicted import (
    TO_DEVICE,
    TO_HOST,
    WAIT,
    DryRun,
    Mismatch,
    PredictedBaseline,
    Prediction,
    Race,
)
from perflab.results.profile import BACKWARD, OPTIMIZER
from perflab.results.records import Judgement, Verdict
from perflab.units import format_bytes, format_count, format_flops, format_signed

MOST = 5
"""The most rows, kernels or lines of code of one kind that are named; the diff of the baseline files has all rows."""
_COSTS = ("flops", "bytes", "operators")
"""The quantities of a cost's amounts, in their order."""
_CALLS = _COSTS.index("operators")
MOST_RACES = 3
_Said = tuple[str, bool]
"""A sentence of the explanation, and whether it is about the cause."""
_WHAT = {"waits": WAIT, "to_device": TO_DEVICE, "to_host": TO_HOST}
_REMEDY = {
    "access": "let the second stream wait: stream.wait_stream(first), or an event that is recorded after the first use",
    "freed": "call tensor.record_stream(stream), or let its own stream wait for that one before the tensor is freed",
}


def explain_growth(grown: Grown, worse: Sequence[str]) -> list[str]:
    """Return sentences for what grew: changed numbers of layers first, then the cause, then the rest.

    Args:
        grown: the comparison's rows.
        worse: the quantities that grew: ``memory``, ``saved``, ``flops``, ``bytes``, ``operators``.
    """
    cause = _cause(grown.costs.rows)
    said: list[_Said] = []
    if "memory" in worse:
        said += [*_memory_said(grown.peak.rows, cause, "keeps", "at the peak"), *_against(grown.peak.rows)]
    if "saved" in worse:
        said += _memory_said(grown.saved.rows, cause, "saves", "for backward")
    said += _costs_said(grown.costs.rows, [_COSTS.index(name) for name in worse if name in _COSTS], cause)
    told = [*_layers_said(grown, worse), *(text for text, _ in sorted(said, key=lambda one: not one[1]))]
    return told or (["the totals grew, but no single row did"] if worse else [])


def _cause(costs: Sequence[Row]) -> Row | None:
    """Return the row that all others may follow from; None if no cost grew. Rows are in the order of first calls."""

    def rank(row: Row) -> int:
        is_called_more = row.amounts[_CALLS] > 0
        if row.key.group == OPTIMIZER:
            return 2 if is_called_more else 5
        if row.key.group == BACKWARD:
            return 3 if is_called_more else 4
        return 0 if is_called_more else 1

    return min((row for row in costs if max(row.amounts) > 0), key=rank, default=None)


def _is_of(row: Row, cause: Row | None) -> bool:
    """Whether a row has the module and the operator of the cause."""
    return cause is not None and (row.key.module, row.key.operator) == (cause.key.module, cause.key.operator)


def _layers_said(grown: Grown, worse: Sequence[str]) -> list[str]:
    if not (grown.stacks and worse):
        return []
    changed = [f"{stack} has {now} layers instead of {before}" for stack, (before, now) in grown.stacks.items()]
    peak, saved, costs = grown.peak.by_layers, grown.saved.by_layers, grown.costs.by_layers
    told = [
        *([f"{format_signed(peak[0], format_bytes)} at the peak"] if any(peak[:1]) else []),
        *([f"{format_signed(saved[0], format_bytes)} saved for backward"] if any(saved[:1]) else []),
        *(_costs_told(costs) if costs else []),
        *([f"{costs[2]:+,} operator{'s' * (abs(costs[2]) != 1)}"] if any(costs[2:]) else []),
    ]
    return [": ".join(filter(None, [" and ".join(changed), ", ".join(told)]))]


def _memory_said(rows: Sequence[Row], cause: Row | None, does: str, when: str) -> list[_Said]:
    """Describe the rows whose bytes grew: rows of the cause first, then the others, both by size."""
    more = [row for row in rows if row.amounts[0] > 0]
    more.sort(key=lambda row: (not _is_of(row, cause), -row.amounts[0]))
    said = []
    for row in more[:MOST]:
        size_bytes, count = row.amounts
        tensors = f"{count} more tensor{'s' * (count != 1)}" if count > 0 else "larger tensors"
        of_peak, saved = (row.key.group, row.key.operator), (row.key.operator, row.shown)
        what = " of ".join(filter(None, of_peak)) if row.key.group else " ".join(filter(None, saved))
        text = f"{_who(row)} {does} {tensors} {when}: {what}, +{format_bytes(size_bytes)}{_at(row)}"
        said.append((text, _is_of(row, cause)))
    return [*said, *_and_more(more)]


def _against(rows: Sequence[Row]) -> list[_Said]:
    """Describe what is less at the peak, if anything is more."""
    less_bytes = -sum(row.amounts[0] for row in rows if row.amounts[0] < 0)
    if not less_bytes or all(row.amounts[0] <= 0 for row in rows):
        return []
    most = min(rows, key=lambda row: row.amounts[0])
    where = " ".join(filter(None, [most.key.module, most.key.operator])) or most.key.group
    return [(f"against that {format_bytes(less_bytes)} less at the peak, most of it {where}", False)]


def _costs_said(rows: Sequence[Row], at: Sequence[int], cause: Row | None) -> list[_Said]:
    """Describe the cause, and the rows with the largest shares of the growth; all quantities count alike.

    ``at`` has the positions of the grown quantities in a row's amounts.
    """
    grown = {i: sum(max(0, row.amounts[i]) for row in rows) for i in at}
    shares = [(max((row.amounts[i] / grown[i] for i in at if grown[i]), default=0.0), row) for row in rows]
    more = [row for share, row in sorted(shares, key=lambda pair: (pair[1] is not cause, -pair[0])) if share > 0]
    said = []
    for row in more[:MOST]:
        phase = f", {row.key.group}" if row.key.group else ""
        calls = row.amounts[2]
        many = f"{abs(calls):,} {'more' if calls > 0 else 'fewer'}" if calls else "larger"
        instead = _instead_of(row, rows) if row is cause else ""
        told = [f"{many} {row.key.operator}{instead}", *_costs_told(row.amounts)]
        said.append((f"{_who(row)}{phase}: {', '.join(told)}{_at(row)}", row is cause))
    return [*said, *_and_more(more)]


def _instead_of(cause: Row, rows: Sequence[Row]) -> str:
    """Return words for the operator that the cause's module called instead before; empty if there is none."""
    here = [row for row in rows if row.key[:2] == cause.key[:2] and row.amounts[_CALLS] < 0]
    most = min(here, key=lambda row: row.amounts[_CALLS], default=None)
    return f" instead of {-most.amounts[_CALLS]:,} {most.key.operator}" if most is not None else ""


def _costs_told(amounts: Amounts) -> list[str]:
    flops, bytes_moved, _ = amounts
    return [
        *([format_signed(flops, format_flops)] if flops else []),
        *([f"{format_signed(bytes_moved, format_bytes)} moved"] if bytes_moved else []),
    ]


def _who(row: Row) -> str:
    return row.key.module or "code outside of modules"


def _at(row: Row) -> str:
    return f" ({row.line})" if row.line else ""


def _and_more(rows: Sequence[Row]) -> list[_Said]:
    left = len(rows) - MOST
    return [(f"and {left} more row{'s' * (left != 1)} like these grew", False)] if left > 0 else []


def explain_dry_run(now: Prediction, baseline: PredictedBaseline, worse: Sequence[str]) -> list[str]:
    """Return sentences for what grew: kernels with more launches, and the current lines that wait or copy.

    A baseline has no lines of code, which move with every edit, so lines cannot be compared.

    Args:
        now: the dry run.
        baseline: the dry run's baseline.
        worse: the quantities that grew; only those of ``Prediction.real`` are explained here.
    """
    if now.dry_run is None:
        return []
    said = _kernels(now.dry_run.kernels, baseline.kernels) if "launches" in worse else []
    for name, what in _WHAT.items():
        if name in worse:
            found = [one for one in now.dry_run.traffic if one.what == what]
            for one in found[:MOST]:
                does = "the host waits for the device" if what == WAIT else f"{format_bytes(one.size_bytes)} {what}"
                said.append(f"{one.line}: {does}, {format_count(one.calls, 'time')} ({one.function})")
            said += _more(len(found))
    return said


def explain_collectives(now: Prediction, worse: Sequence[str]) -> list[str]:
    """Return sentences for collectives that became more: the current lines that make those kinds."""
    kinds = [name.split(":")[1] for name in worse if name.startswith("collectives:")]
    if not kinds and any(name.startswith("collective") for name in worse):
        kinds = list(dict.fromkeys(one.kind for one in now.exchanged))
    found = [one for one in now.exchanged if one.kind in kinds]
    told = [
        f"{one.line}: {one.kind} of {format_bytes(one.size_bytes)}, {format_count(one.calls, 'time')}"
        for one in found[:MOST]
    ]
    return told + _more(len(found))


def _kernels(now: dict[str, int], before: dict[str, int]) -> list[str]:
    more = [name for name, many in now.items() if many > before.get(name, 0)]
    more.sort(key=lambda name: before.get(name, 0) - now[name])
    told = [f"launches of {name}: {before.get(name, 0)} -> {now[name]}" for name in more[:MOST]]
    return told + _more(len(more))


def _more(found: int, told: int = MOST) -> list[str]:
    return [f"and {found - told} more"] if found > told else []


def unless_broken(judgement: Judgement, now: Prediction) -> Judgement:
    """Return the judgement; with the verdict FAILED and the reasons if streams race or ranks do not match."""
    races, mismatches = (now.dry_run.races, now.dry_run.mismatches) if now.dry_run is not None else ([], [])
    if not races and not mismatches:
        return judgement
    said = [_mismatch_said(one) for one in mismatches[:MOST_RACES]]
    said += [_race_said(one, one.first_lines[0], one.second_lines[0]) for one in races[:MOST_RACES]]
    more = _more(len(races) + len(mismatches), len(said))
    return changed(judgement, verdict=Verdict.FAILED, reasons=[*said, *more])


def explain_broken(case: str, dry_run: DryRun) -> str:
    """Return the text of a failure: the first mismatches and races, each with the lines of both sides."""
    blocks = []
    if dry_run.mismatches:
        blocks.append(f"{case}: the collectives of its ranks do not match, so a group of them hangs")
        blocks += [f"- {_mismatch_said(one)}" for one in dry_run.mismatches[:MOST_RACES]]
    if dry_run.races:
        blocks.append(f"{case}: streams race, so the contents of its tensors are undefined")
    for race in dry_run.races[:MOST_RACES]:
        first, second = (" <- ".join(lines) for lines in (race.first_lines, race.second_lines))
        blocks.append(f"- {_race_said(race, first, second)}\n  -> {_REMEDY[race.what]}")
    return "\n".join(blocks)


def _mismatch_said(one: Mismatch) -> str:
    def side(rank: int, collective: str, line: str) -> str:
        return f"rank {rank} calls {collective} ({line})" if collective else f"rank {rank} calls no more"

    mine = side(one.rank, one.collective, one.line)
    return f"collective {one.number}: {mine}, {side(one.other_rank, one.other_collective, one.other_line)}"


def _race_said(race: Race, first: str, second: str) -> str:
    if race.what == "freed":
        return f"a tensor is freed at {second} while {race.first} may still use it ({first})"
    return f"{race.second} ({second}) does not wait for {race.first} ({first}), and one of them writes"
