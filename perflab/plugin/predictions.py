"""Predictions that are saved as baselines."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path

from perflab.gate.predicted import baseline_of
from perflab.gate.predicted_store import PredictedStore
from perflab.predictions import PredictedBaseline
from perflab.records import Result


def save_predictions(
    store: PredictedStore, results: Iterable[Result], *, commit: str | None, reason: str | None
) -> list[Path]:
    """Save predicted cases as baselines. Returns the files.

    Raises:
        BaselineError: a file cannot be read first, or cannot be written.
    """
    now = f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}"
    by_gpu: dict[str, dict[str, PredictedBaseline]] = {}
    for result in results:
        assert result.predicted is not None
        what = result.predicted
        by_gpu.setdefault(what.now.gpu, {})[result.case] = baseline_of(
            what.now, recorded=now, parameters=what.parameters, commit=commit, reason=reason
        )
    return [path for gpu, baselines in sorted(by_gpu.items()) for path in store.save(gpu, baselines)]
