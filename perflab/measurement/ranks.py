"""One measurement of the ranks of a group: the time of the slowest, the highest peak, and what differs between them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import median
from typing import TYPE_CHECKING

from perflab.base.data import changed
from perflab.measure.clocks import clock
from perflab.measure.clocks.clock import Sample
from perflab.measure.stopping import Plan
from perflab.ranks.group import Together
from perflab.results.measurement import Measurement, Memory, RankFigures, per_call_ns

if TYPE_CHECKING:
    from perflab.measure.calls.workload import Workload


class Agreed:
    """The readings and limits of a workload's measurement, on which all ranks agree; alone, this process's own."""

    def __init__(self, workload: Workload, plan: Plan, in_step: Together) -> None:
        self._workload, self._in_step = workload, in_step
        self.plan = plan
        """The plan, with the budget of the rank that has least time left."""
        if in_step.world_size > 1:
            self.plan = replace(plan, budget_ns=-in_step.most(-plan.budget_ns)[0])

    def read_ns(self) -> float:
        """Read the clock, in nanoseconds."""
        return self._in_step.most(clock.read_ns())[0]

    def most_calls(self, budget_ns: float) -> float:
        """Return how many calls a sample may have within a budget."""
        return -self._in_step.most(-self._workload.most_calls(budget_ns))[0]


def slowest(sample: Sample, in_step: Together) -> Sample:
    """Return a sample with the longest times of all ranks, on which they agree; alone, the sample itself."""
    if in_step.world_size == 1:
        return sample
    names = sorted(sample.phases_ns)
    total, apart, set_up, *phases = map(
        int,
        in_step.most(sample.total_ns, sample.apart_ns, sample.set_up_ns, *(sample.phases_ns[name] for name in names)),
    )
    by_name = dict(zip(names, phases, strict=True))
    return replace(
        sample,
        total_ns=total,
        apart_ns=apart,
        set_up_ns=set_up,
        phases_ns={name: by_name[name] for name in sample.phases_ns},
    )


def of_all_ranks(own_ns: Sequence[int], in_step: Together, measurement: Measurement) -> Measurement:
    """Return a measurement with the figures of all ranks; alone, the measurement itself.

    Memory becomes that of the rank with the highest peak, each count the largest of all ranks, and a leak the largest.

    Args:
        own_ns: the durations of the samples in this rank, in nanoseconds.
        in_step: the ranks.
        measurement: the measurement in this rank, whose samples have the times of the slowest one.
    """
    if in_step.world_size == 1:
        return measurement
    own = median(per_call_ns(list(own_ns), measurement.repetitions))
    found = in_step.gathered((own, measurement.memory, measurement.counts, measurement.leak))
    leaks = [leak for _, _, _, leak in found if leak is not None]
    values = _by_name([counts for _, _, counts, _ in found])
    differing = [name for name in values if len(set(values[name])) > 1]
    return changed(
        measurement,
        memory=_hungriest([memory for _, memory, _, _ in found]),
        counts={name: max(of_ranks) for name, of_ranks in values.items()},
        leak=max(leaks, key=lambda leak: sum(leak.grown_bytes), default=None),
        ranks=[
            RankFigures(
                median_ns=round(one_ns, 3),
                peak_bytes=memory.exact_bytes if memory is not None else None,
                counts={name: values[name][rank] for name in differing},
            )
            for rank, (one_ns, memory, _, _) in enumerate(found)
        ],
    )


def largest(
    memory: Memory | None, counts: Mapping[str, int], in_step: Together
) -> tuple[Memory | None, dict[str, int]]:
    """Return the memory of the rank with the highest peak, and the largest of all ranks' counts; alone, its own."""
    found = in_step.gathered((memory, dict(counts)))
    values = _by_name([counts for _, counts in found])
    return _hungriest([memory for memory, _ in found]), {name: max(of_ranks) for name, of_ranks in values.items()}


def _hungriest(memories: Sequence[Memory | None]) -> Memory | None:
    return max((one for one in memories if one is not None), key=lambda one: one.peak_bytes, default=None)


def _by_name(counts: Sequence[Mapping[str, int]]) -> dict[str, list[int]]:
    """Return the values of each count by rank; 0 for a rank that does not have it."""
    return {name: [one.get(name, 0) for one in counts] for name in sorted({name for one in counts for name in one})}
