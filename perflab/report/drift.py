"""Texts about a case that is worse than its anchor, although no single step was. Pure."""

from __future__ import annotations

from perflab.records import Drift, Judgement
from perflab.units import format_bytes, format_change

REASON_TO_FILL_IN = '--perf-reason="…"'
"""Refused as it stands: the user's own words belong there."""

WORSE = {"latency": "is slower", "memory": "needs more memory", "counts": "has higher counts"}


IMPROVED = "is better than its baseline, and --perf-fail-improved fails such cases: save the new numbers"


def headline(judgement: Judgement, base: str) -> str:
    """``is slower than its baseline``, or than its anchor with what has added up, or both for time and memory.

    ``base`` is what the case was compared with: ``its baseline``, or ``in main (8009b65)``.
    """
    deciding = _deciding(judgement)
    plain = [WORSE[name] for name in judgement.worse if name not in deciding]
    parts = [f"{' and '.join(plain)} than {base}"] if plain else []
    parts += [f"{WORSE[name]} than {_since(name, drift)}" for name, drift in deciding.items()]
    return " and ".join(parts) or f"is worse than {base}"


def drift_sentences(judgement: Judgement) -> list[str]:
    """Why a case is ``regressed`` that its last baseline would have let pass; empty for every other case."""
    words = {"latency": "slower", "memory": "more memory"}
    return [f"{words[name]} than {_since(name, drift)}" for name, drift in _deciding(judgement).items()]


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
