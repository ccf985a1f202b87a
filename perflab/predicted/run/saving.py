"""Saves predictions as baselines."""

from __future__ import annotations

from perflab.predicted.judge.judge import baseline_of
from perflab.predicted.store.predictions import PredictedStore
from perflab.results.predicted import PredictedBaseline, PredictedCase
from perflab.tiers.saving import Saving
from perflab.units import format_count


def save(saving: Saving) -> None:
    """Save the predictions that the run was asked to save.

    Raises:
        BaselineError: a file cannot be read before the change, or cannot be written.
    """
    by_gpu: dict[str, dict[str, PredictedBaseline]] = {}
    for case, result in saving.results.items():
        if isinstance(result.outcome, PredictedCase) and saving.asks_for(result):
            now = result.outcome.now
            by_gpu.setdefault(now.place, {})[case] = baseline_of(
                now,
                recorded=saving.now,
                parameters=result.outcome.parameters,
                commit=saving.commit,
                reason=saving.settings.reason,
            )
    if not by_gpu:
        return
    store, cases = PredictedStore(saving.settings.baselines), [case for found in by_gpu.values() for case in found]
    saving.chosen += len(cases)
    paths = [path for gpu, baselines in sorted(by_gpu.items()) for path in store.save(gpu, baselines)]
    saving.mark(cases)
    saving.say(format_count(len(cases), "prediction"), paths)
