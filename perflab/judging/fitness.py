"""Judges whether replicates are fit for a baseline: interference, and the smallest detectable slowdown. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from perflab.judging.doubts import SEEN_AT_LEAST
from perflab.judging.interference import disturbances
from perflab.judging.judge import latency_change
from perflab.results.measurement import Replicate
from perflab.results.records import Environment, Policy
from perflab.units import format_percent


@dataclass(frozen=True)
class Fitness:
    """The quality of replicates, to know before they become a baseline."""

    disturbed: list[str]
    """Disturbances of the typical replicate, as sentences."""
    sees: float
    """The smallest slowdown that a comparison with these replicates reports, as a share."""
    is_blind: bool
    """Whether the comparison would miss a slowdown of twice the threshold."""
    is_alone: bool = False
    """Whether the replicates are one process, whose noise is unknown: no slowdown is proved against it."""

    @property
    def is_calm(self) -> bool:
        """Whether the replicates are undisturbed and precise enough."""
        return not (self.disturbed or self.is_blind)

    @property
    def marks(self) -> list[str]:
        """The problems of the replicates, as sentences; empty for a faultless baseline."""
        differ = f"its replicates differ so much that only slowdowns above {format_percent(self.sees)} count"
        return [*([differ] if self.is_blind else []), *self.disturbed]


def fitness(replicates: Sequence[Replicate], environment: Environment, policy: Policy) -> Fitness:
    """Return the fitness of replicates, at least one."""
    change = latency_change(replicates, replicates, policy)
    assert change.limit is not None
    sees = change.limit - 1.0
    counts = sees * median(r.median_ns for r in replicates) > policy.floor_ns
    is_blind = counts and sees > SEEN_AT_LEAST * policy.threshold
    return Fitness(disturbances(replicates, [], environment), sees, is_blind, is_alone=len(replicates) == 1)


def calmest(replicates: Sequence[Replicate], wanted: int, environment: Environment) -> list[Replicate]:
    """Return all undisturbed replicates; if they are fewer than ``wanted``, add the first disturbed ones."""
    disturbed = [bool(disturbances([one], [], environment)) for one in replicates]
    calm = [one for one, is_disturbed in zip(replicates, disturbed, strict=True) if not is_disturbed]
    others = [one for one, is_disturbed in zip(replicates, disturbed, strict=True) if is_disturbed]
    return [*calm, *others[: max(0, wanted - len(calm))]]
