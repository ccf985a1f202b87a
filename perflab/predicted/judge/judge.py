"""Judges a prediction against its baseline: totals decide, exactly. Pure.

A prediction is arithmetic: there is no noise, and nothing to measure again. A case fails by any growth of

- ``memory``, the peak, and ``saved``, the bytes saved for backward, past the slack for memory (none by default);
- ``flops``, and if counts are gated ``bytes`` moved and ``operators``, without slack;
- in dry runs, memory that is requested, allocated and reserved, with the slack for memory; and if counts are gated
  launches, waits of the host and bytes copied between host and device;
- of a rank, if counts are gated, its collectives: their number, bytes, order and place, by kind, dtype and group.

Totals decide; ``growth`` explains from the rows what grew. Predictions are compared only if they are of one version of
PyTorch, because every version has its own operators.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from operator import itemgetter
from typing import TypeVar

from perflab.base.data import Parameters, changed
from perflab.base.grouping import groups_of
from perflab.predicted.judge.explanation import explain_collectives, explain_dry_run, explain_growth
from perflab.predicted.judge.growth import find_growth
from perflab.results.peak import PeakPart
from perflab.results.predicted import Cost, PredictedBaseline, PredictedCase, Prediction, SavedTensors
from perflab.results.records import Change, Judgement, Policy, Verdict
from perflab.results.result import Result

_Row = TypeVar("_Row", Cost, PeakPart, SavedTensors)
_ALLOWING_SLACK = ("memory", "saved", "asked", "allocated", "reserved")
_EXPLAINED = ("memory", "saved", "flops", "bytes", "operators")
"""The quantities that are sums over rows."""
_COUNTED = ("bytes", "operators", "launches", "waits", "to_device", "to_host")
"""The quantities that ``--perf-counts`` gates. Equal numbers of operators need not be the same operators."""


def judge_predicted(now: Prediction, baseline: PredictedBaseline | None, policy: Policy) -> Judgement:
    """Judge a prediction by its baseline; without a baseline the verdict is NEW."""
    if baseline is None:
        return Judgement(verdict=Verdict.NEW, reasons=["no baseline yet"])
    if now.torch != baseline.torch:
        said = f"baseline from another PyTorch: torch {baseline.torch} then, {now.torch} now"
        return Judgement(verdict=Verdict.INCOMPARABLE, reasons=[said])
    then, played = (baseline.rank, baseline.world_size), (now.rank or 0, now.world_size)
    if then != played:
        said = f"baseline of rank {then[0]} of {then[1]}, and this is rank {played[0]} of {played[1]}"
        return Judgement(verdict=Verdict.INCOMPARABLE, reasons=[said])
    totals = _totals(now, baseline)
    counted = {*_COUNTED, *now.collectives, *baseline.collectives}
    gated = [name for name in totals if policy.gate_counts or name not in counted]
    # The difference is of integers: FLOPs of large models are beyond the integers that a float holds exactly.
    worse = [name for name in gated if totals[name][1] - totals[name][0] > totals[name][0] * _slack(name, policy)]
    fell = any(totals[name][1] < totals[name][0] for name in gated)
    changes = {
        name: Change.exact(before, after, 1.0 + _slack(name, policy) if name in gated else None)
        for name, (before, after) in totals.items()
    }
    return Judgement(
        verdict=Verdict.REGRESSED if worse else Verdict.IMPROVED if fell else Verdict.OK,
        memory=changes.pop("memory"),
        counts=changes,
        worse=worse,
        reasons=[
            *explain_growth(find_growth(now, baseline), [one for one in worse if one in _EXPLAINED]),
            *explain_dry_run(now, baseline, worse),
            *explain_collectives(now, worse),
        ]
        if worse
        else [],
    )


def judge_runs(before: Result, now: Result, policy: Policy) -> Judgement | None:
    """Judge a prediction by another run's; None if a run has no prediction, or the two are not for the same place."""
    base, head = before.outcome, now.outcome
    if not isinstance(base, PredictedCase) or not isinstance(head, PredictedCase) or base.place != head.place:
        return None
    return judge_predicted(head.now, baseline_of(base.now, recorded=""), policy)


def baseline_of(
    prediction: Prediction,
    *,
    recorded: str,
    parameters: Parameters | None = None,
    commit: str | None = None,
    reason: str | None = None,
) -> PredictedBaseline:
    """Return the baseline to store: without what changes when a file is edited elsewhere, or operators change places.

    Args:
        prediction: the prediction that becomes the baseline.
        recorded: the date, ISO 8601.
        parameters: the parameters of the test case.
        commit: the project's commit.
        reason: the reason given for saving the baseline, if one was given.
    """
    return PredictedBaseline(
        torch=prediction.torch,
        recorded=recorded,
        peak_bytes=prediction.peak_bytes,
        held_bytes=prediction.held_bytes,
        at_peak=_merged(prediction.at_peak, ("category", "module", "operator"), ("size_bytes", "blocks")),
        costs=_merged(
            [changed(cost, roofline_ns=0.0) for cost in prediction.costs],
            ("phase", "module", "operator"),
            ("calls", "flops", "bytes_moved"),
        ),
        saved_bytes=prediction.saved_bytes,
        roofline_ns=prediction.roofline_ns,
        saved=_merged(prediction.saved, ("module", "operator", "shape", "dtype"), ("count", "size_bytes")),
        layers=dict(sorted(prediction.layers.items())),
        parameters=parameters or {},
        real=prediction.real,
        kernels=dict(sorted(prediction.dry_run.kernels.items())) if prediction.dry_run is not None else {},
        world_size=prediction.world_size,
        rank=prediction.rank or 0,
        collectives=dict(sorted(prediction.collectives.items())),
        commit=commit,
        reason=reason,
    )


def _totals(now: Prediction, before: PredictedBaseline) -> dict[str, tuple[int, int]]:
    """Return each quantity before and now, the quantities that matter most to a reader first."""
    return {
        "memory": (before.peak_bytes, now.peak_bytes),
        "saved": (before.saved_bytes, now.saved_bytes),
        "flops": (before.flops, now.flops),
        "bytes": (before.bytes_moved, now.bytes_moved),
        "operators": (before.operators, now.operators),
        **{name: (before.real[name], value) for name, value in now.real.items() if name in before.real},
        **{
            name: (before.collectives.get(name, 0), now.collectives.get(name, 0))
            for name in dict.fromkeys([*now.collectives, *before.collectives])
        },
    }


def _slack(name: str, policy: Policy) -> float:
    return policy.memory_threshold if name in _ALLOWING_SLACK else 0.0


def _merged(rows: Iterable[_Row], key: Sequence[str], amounts: Sequence[str]) -> list[_Row]:
    """Merge rows with equal keys into one row with the sums of their amounts and no line; sort the rows by key."""

    def values(row: _Row) -> tuple[object, ...]:
        found = (getattr(row, name) for name in key)
        return tuple(tuple(one) if isinstance(one, list) else one for one in found)

    return [
        changed(same[0], line="", **{name: sum(getattr(row, name) for row in same) for name in amounts})
        for _, same in sorted(groups_of(rows, values).items(), key=itemgetter(0))
    ]
