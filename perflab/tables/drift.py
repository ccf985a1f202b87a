"""Texts about a case that is worse than its anchor, although no single accepted step was worse. Pure."""

from __future__ import annotations

from perflab.results.records import Drift, Judgement
from perflab.units import format_bytes, format_change

REASON_TO_FILL_IN = '--perf-reason="…"'
"""The option with a reason to fill in; it is refused as it stands, since the reason must be in the user's words."""

WORSE = {"latency": "is slower", "memory": "needs more memory", "counts": "has higher counts"}
_BRIEFLY = {"latency": "slower", "memory": "more memory", "counts": "higher counts"}


IMPROVED = "is better than its baseline, and --perf-fail-improved fails such cases: save the new numbers"


def headline(judgement: Judgement, base: str) -> str:
    """Return in words how a case is worse: ``is slower than its baseline``.

    A quantity whose drift decides is worse than its anchor, by the sum of its accepted steps. Time and memory may both
    be named, one against the baseline and the other against the anchor.

    ``base`` is what the case was compared with: ``its baseline``, or ``in main (8009b65)``.
    """
    deciding = _deciding(judgement)
    plain = [WORSE[name] for name in judgement.worse if name not in deciding]
    parts = [f"{' and '.join(plain)} than {base}"] if plain else []
    parts += [f"{WORSE[name]} than {_since(name, drift)}" for name, drift in deciding.items()]
    return " and ".join(parts) or f"is worse than {base}"


def drift_sentences(judgement: Judgement) -> list[str]:
    """Return why a case is ``regressed`` although it passes against its last baseline; empty for every other case."""
    return [f"{_BRIEFLY[name]} than {_since(name, drift)}" for name, drift in _deciding(judgement).items()]


def _deciding(judgement: Judgement) -> dict[str, Drift]:
    drift = judgement.drift
    return {name: drift[name] for name in judgement.worse if name in drift and drift[name].decides}


def _since(name: str, drift: Drift) -> str:
    change = drift.change
    much = f"+{format_bytes(int(change.now - change.before))}" if name == "memory" else format_change(change.ratio)
    steps = (
        "1 accepted step, which did not pass the limit"
        if drift.steps == 1
        else f"{drift.steps} accepted steps, none of which passed the limit"
    )
    return f"its anchor of {drift.recorded[:10]} by {much}, in {steps}"
