"""What more computation at test time comes to, in words. Pure functions of a run's results."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

from perflab import Result
from perflab.units import format_ns

from .recommendation import number, result_parameters

STUDY = "test-time compute"
BASE = "thought"
"""The way that the others are held against: one chain of thought, greedily."""


def interval(right: int, asked: int) -> tuple[float, float]:
    """95 % interval of the share of right answers: Wilson's score interval (1927)."""
    z, share = NormalDist().inv_cdf(0.975), right / asked
    middle = (share + z * z / (2 * asked)) / (1 + z * z / asked)
    half = z / (1 + z * z / asked) * math.sqrt(share * (1 - share) / asked + z * z / (4 * asked * asked))
    return max(0.0, middle - half), min(1.0, middle + half)


@dataclass(frozen=True)
class Way:
    """What one way to answer came to: accuracy with its interval, tokens an answer, time of one."""

    name: str
    right: float
    low: float
    high: float
    tokens: float
    median_ns: float

    def against(self, base: Way) -> str:
        """When to use it in place of the base, from these numbers alone."""
        cheaper = self.tokens < base.tokens and self.median_ns < base.median_ns
        if self.low > base.high:
            return "use it: more often right" + ("" if cheaper else ", for what it costs")
        if self.high < base.low:
            return "cheaper, and less often right" if cheaper else "skip here: less often right"
        return "use it: cheaper, no difference seen" if cheaper else "skip here: costs more, no difference seen"


def reasoning_findings(results: Sequence[Result]) -> list[str]:
    """A line for each way: how often it is right, what that costs in multiples of the base, and advice."""
    ways = {way.name: way for one in results if (way := _way(one)) is not None}
    base, lines = ways.get(BASE), []
    for name, way in ways.items():
        told = f"{name}: {way.right:.0%} right ({way.low:.0%}…{way.high:.0%}), {way.tokens:.3g} tokens"
        if base is None or way is base:
            lines.append(f"{told}, {format_ns(way.median_ns)}")
            continue
        costs = f"×{way.tokens / base.tokens:.2g} the tokens, ×{way.median_ns / base.median_ns:.2g} the time of {BASE}"
        lines += [told, f"  {costs}: {way.against(base)}"]
    return lines


def _way(one: Result) -> Way | None:
    record = one.record
    if record is None or record.summary is None:
        return None
    names = ("right_share", "right_low_share", "right_high_share", "tokens_per_answer")
    facts = [number(record.facts.get(name)) for name in names]
    if any(fact is None for fact in facts):
        return None
    right, low, high, tokens = (fact or 0.0 for fact in facts)
    return Way(str(result_parameters(one).get("way")), right, low, high, tokens, record.summary.median_ns)
