"""What the study of mixers comes to: advice for each at each context length, against attention. Pure functions."""

from __future__ import annotations

from collections.abc import Sequence

from perflab import Result

from .mixers import NAMES, TWIN
from .recommendation import Outcome, noise_of, outcome_of, recommendation, result_parameters
from .switches import BASELINE, SEEDS


def mixer_findings(results: Sequence[Result]) -> list[str]:
    """By context length: what the advice rests on, then a line for each mixer."""
    by_length: dict[int, dict[str, Outcome]] = {}
    for one in results:
        parameters, outcome = result_parameters(one), outcome_of(one)
        length = parameters.get("context_length")
        if outcome is not None and isinstance(length, int):
            by_length.setdefault(length, {})[str(parameters.get("mixer"))] = outcome
    lines: list[str] = []
    for length, outcomes in sorted(by_length.items()):
        attention = outcomes.get(NAMES[0])
        if attention is None:
            lines.append(f"no advice at {length} tokens: attention was not measured")
            continue
        same = {BASELINE: attention, **({SEEDS[0]: outcomes[TWIN]} if TWIN in outcomes else {})}
        noise = noise_of(same)
        lines.append(
            f"at {length} tokens, against attention: speed counts from ±{noise.time_share:.1%}, loss from "
            f"±{noise.loss:.3f} nats"
        )
        for name, one in outcomes.items():
            if name not in (NAMES[0], TWIN):
                lines.append(f"  {recommendation(name, attention, one, noise)}")
    return lines
