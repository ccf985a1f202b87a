"""Describes what grew in a prediction: module, operator and amount; the cause first. Pure.

One change of the code shows in many rows: one more operator, its backward, a peak at another moment. The *cause* is
described first: the first operator of forward that is called more often than before, else the first one that is larger.
Nothing before the cause in time has grown, so the cause follows from no other row. If no operator grew, memory is kept
that was freed before, and the largest row of the peak shows which.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from perflab.predicted.judge.growth import Grown, Row
from perflab.predicted.judge.row_names import Amounts
from perflab.results.profile import BACKWARD, OPTIMIZER
from perflab.units import format_bytes, format_flops, format_signed

MOST = 5
"""The most rows of one kind that are described; the diff of the baseline files has all rows."""
_COSTS = ("flops", "bytes", "operators")
"""The quantities of a cost's amounts, in their order."""
_CALLS = _COSTS.index("operators")


class _Said(NamedTuple):
    """One sentence of the explanation."""

    text: str
    is_cause: bool = False


def explain_growth(grown: Grown, worse: Sequence[str]) -> list[str]:
    """Return sentences for what grew: changed numbers of layers first, then the cause, then the rest.

    Args:
        grown: the comparison's rows.
        worse: the quantities that grew: ``memory``, ``saved``, ``flops``, ``bytes``, ``operators``.
    """
    cause = _cause(grown.costs.rows)
    said: list[_Said] = []
    if "memory" in worse:
        said += _peak_said(grown.peak.rows, cause)
    if "saved" in worse:
        said += _saved_said(grown.saved.rows, cause)
    said += _costs_said(grown.costs.rows, [_COSTS.index(name) for name in worse if name in _COSTS], cause)
    told = [one.text for one in sorted(said, key=lambda one: not one.is_cause)]
    told = [*_layers_said(grown, worse), *told]
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


def _largest(rows: Sequence[Row], cause: Row | None) -> list[Row]:
    """Return the rows whose bytes grew: rows of the cause first, then the others, both by size."""
    more = [row for row in rows if row.amounts[0] > 0]
    return sorted(more, key=lambda row: (not _is_of(row, cause), -row.amounts[0]))


def _peak_said(rows: Sequence[Row], cause: Row | None) -> list[_Said]:
    def what(row: Row) -> str:
        return f"{row.key.group} of {row.key.operator}" if row.key.operator else row.key.group

    more = _largest(rows, cause)
    said = [_memory_said(row, cause, ("keeps", "at the peak"), what(row)) for row in more[:MOST]]
    against: list[_Said] = []
    less_bytes = -sum(row.amounts[0] for row in rows if row.amounts[0] < 0)
    if more and less_bytes:
        most = min(rows, key=lambda row: row.amounts[0])
        where = " ".join(filter(None, [most.key.module, most.key.operator])) or most.key.group
        against = [_Said(f"against that {format_bytes(less_bytes)} less at the peak, most of it {where}")]
    return [*said, *_and_more(more), *against]


def _saved_said(rows: Sequence[Row], cause: Row | None) -> list[_Said]:
    def what(row: Row) -> str:
        return " ".join(filter(None, [row.key.operator, row.shown]))

    more = _largest(rows, cause)
    return [*(_memory_said(row, cause, ("saves", "for backward"), what(row)) for row in more[:MOST]), *_and_more(more)]


def _memory_said(row: Row, cause: Row | None, does: tuple[str, str], what: str) -> _Said:
    size_bytes, count = row.amounts
    tensors = f"{count} more tensor{'s' * (count != 1)}" if count > 0 else "larger tensors"
    text = f"{_who(row)} {does[0]} {tensors} {does[1]}: {what}, +{format_bytes(size_bytes)}{_at(row)}"
    return _Said(text, _is_of(row, cause))


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
        said.append(_Said(f"{_who(row)}{phase}: {', '.join(told)}{_at(row)}", row is cause))
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
    return [_Said(f"and {left} more row{'s' * (left != 1)} like these grew")] if left > 0 else []
