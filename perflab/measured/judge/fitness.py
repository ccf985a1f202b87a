"""Judges whether replicates are fit for a baseline: interference, and the slowdown that they could show. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from perflab.measure.records import Replicate
from perflab.measured.judge.doubts import SEEN_AT_LEAST
from perflab.measured.judge.interference import disturbances
from perflab.measured.judge.judge import latency_change
from perflab.records import Environment, Policy
from perflab.units import format_percent


@dataclass(frozen=True)
class Fitness:
    """What is to be known of replicates before they become a baseline."""

    disturbed: list[str]
    """What disturbed the typical one, as sentences."""
    sees: float
    """The smallest slowdown that counts against them, as a share."""
    is_blind: bool
    """Whether a slowdown of twice the threshold would pass unseen."""
    is_alone: bool = False
    """Whether it is one process, whose noise nobody knows: no slowdown counts against it."""

    @property
    def is_calm(self) -> bool:
        """Whether nothing is wrong with them."""
        return not (self.disturbed or self.is_blind)

    @property
    def marks(self) -> list[str]:
        """As sentences, empty for a baseline that nothing is wrong with."""
        differ = f"its replicates differ so much that only slowdowns above {format_percent(self.sees)} count"
        return [*([differ] if self.is_blind else []), *self.disturbed]


def fitness(replicates: Sequence[Replicate], environment: Environment, policy: Policy) -> Fitness:
    """How fit replicates are, of which there is one at least."""
    change = latency_change(replicates, replicates, policy)
    assert change.limit is not None
    sees = change.limit - 1.0
    counts = sees * median(r.median_ns for r in replicates) > policy.floor_ns
    is_blind = counts and sees > SEEN_AT_LEAST * policy.threshold
    return Fitness(disturbances(replicates, [], environment), sees, is_blind, is_alone=len(replicates) == 1)


def calmest(replicates: Sequence[Replicate], wanted: int, environment: Environment) -> list[Replicate]:
    """All that nothing disturbed; where they are fewer than ``wanted``, the disturbed ones that came first too."""
    disturbed = [bool(disturbances([one], [], environment)) for one in replicates]
    calm = [one for one, is_disturbed in zip(replicates, disturbed, strict=True) if not is_disturbed]
    others = [one for one, is_disturbed in zip(replicates, disturbed, strict=True) if is_disturbed]
    return [*calm, *others[: max(0, wanted - len(calm))]]
