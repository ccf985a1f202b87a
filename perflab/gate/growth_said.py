"""What grew of a prediction, in sentences that name the module, the operator and how much. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from perflab.gate.growth import Amounts, Grown, Row
from perflab.units import format_bytes, format_flops

MOST = 5
"""Rows of one kind that are told; the baselines' diff has them all."""
_COSTS = ("flops", "bytes", "operators")
"""As they stand in a cost's amounts."""


def explain_growth(grown: Grown, worse: Sequence[str]) -> list[str]:
    """Sentences for what is known to have grown.

    Args:
        grown: the rows.
        worse: of ``memory``, ``saved``, ``flops``, ``bytes``, ``operators``.
    """
    said = _layers_said(grown, worse)
    if "memory" in worse:
        said += _peak_said(grown.peak.rows)
    if "saved" in worse:
        said += _saved_said(grown.saved.rows)
    said += _costs_said(grown.costs.rows, [_COSTS.index(name) for name in worse if name in _COSTS])
    return said or (["the totals grew, and no row did"] if worse else [])


def _layers_said(grown: Grown, worse: Sequence[str]) -> list[str]:
    if not (grown.stacks and worse):
        return []
    changed = [f"{stack} has {now} layers instead of {before}" for stack, (before, now) in grown.stacks.items()]
    peak, saved, costs = grown.peak.by_layers, grown.saved.by_layers, grown.costs.by_layers
    told = [
        *([f"{_signed(peak[0], format_bytes)} at the peak"] if any(peak[:1]) else []),
        *([f"{_signed(saved[0], format_bytes)} saved for backward"] if any(saved[:1]) else []),
        *(_costs_told(costs) if costs else []),
        *([f"{costs[2]:+,} operators"] if any(costs[2:]) else []),
    ]
    return [": ".join(filter(None, [" and ".join(changed), ", ".join(told)]))]


def _peak_said(rows: Sequence[Row]) -> list[str]:
    more = sorted((row for row in rows if row.amounts[0] > 0), key=lambda row: -row.amounts[0])
    said = []
    for row in more[:MOST]:
        size_bytes, blocks = row.amounts
        tensors = f"{blocks} more tensor{'s' * (blocks != 1)}" if blocks > 0 else "larger tensors"
        what = f"{row.key.group} of {row.key.operator}" if row.key.operator else row.key.group
        said.append(f"{_who(row)} keeps {tensors} at the peak: {what}, +{format_bytes(size_bytes)}{_at(row)}")
    against = []
    less_bytes = -sum(row.amounts[0] for row in rows if row.amounts[0] < 0)
    if more and less_bytes:
        most = min(rows, key=lambda row: row.amounts[0])
        what = " ".join(filter(None, [most.key.module, most.key.operator])) or most.key.group
        against = [f"against that {format_bytes(less_bytes)} less at the peak, most of it {what}"]
    return [*said, *_and_more(more), *against]


def _saved_said(rows: Sequence[Row]) -> list[str]:
    more = sorted((row for row in rows if row.amounts[0] > 0), key=lambda row: -row.amounts[0])
    said = []
    for row in more[:MOST]:
        size_bytes, count = row.amounts
        tensors = f"{count} more tensor{'s' * (count != 1)}" if count > 0 else "larger tensors"
        what = " ".join(filter(None, [row.key.operator, row.shown]))
        said.append(f"{_who(row)} saves {tensors} for backward: {what}, +{format_bytes(size_bytes)}{_at(row)}")
    return [*said, *_and_more(more)]


def _costs_said(rows: Sequence[Row], at: Sequence[int]) -> list[str]:
    """The rows with most of what got worse (``at`` those amounts); no quantity counts more than another."""
    grown = {i: sum(max(0, row.amounts[i]) for row in rows) for i in at}
    shares = [(max((row.amounts[i] / grown[i] for i in at if grown[i]), default=0.0), row) for row in rows]
    more = [row for share, row in sorted(shares, key=lambda pair: -pair[0]) if share > 0]
    said = []
    for row in more[:MOST]:
        phase = f", {row.key.group}" if row.key.group else ""
        calls = row.amounts[2]
        many = f"{abs(calls):,} {'more' if calls > 0 else 'fewer'}" if calls else "larger"
        told = [f"{many} {row.key.operator}", *_costs_told(row.amounts)]
        said.append(f"{_who(row)}{phase}: {', '.join(told)}{_at(row)}")
    return [*said, *_and_more(more)]


def _costs_told(amounts: Amounts) -> list[str]:
    flops, bytes_moved, _ = amounts
    return [
        *([_signed(flops, format_flops)] if flops else []),
        *([f"{_signed(bytes_moved, format_bytes)} moved"] if bytes_moved else []),
    ]


def _who(row: Row) -> str:
    return row.key.module or "code outside of modules"


def _at(row: Row) -> str:
    return f" ({row.line})" if row.line else ""


def _and_more(rows: Sequence[Row]) -> list[str]:
    left = len(rows) - MOST
    return [f"and {left} more row{'s' * (left != 1)} like these grew"] if left > 0 else []


def _signed(amount: int, written: Callable[[int], str]) -> str:
    return f"{'-' if amount < 0 else '+'}{written(abs(amount))}"
