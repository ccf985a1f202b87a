"""One measurement of the ranks of a group: the time of the slowest, the highest peak, and what differs between them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from statistics import median

from perflab.base.data import changed
from perflab.measure.clocks.clock import Sample
from perflab.ranks.together import Together
from perflab.results.measurement import Measurement, RankFigures, per_call_ns


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
    memories = [memory for _, memory, _, _ in found if memory is not None]
    leaks = [leak for _, _, _, leak in found if leak is not None]
    names = sorted({name for _, _, counts, _ in found for name in counts})
    values = {name: [counts.get(name, 0) for _, _, counts, _ in found] for name in names}
    differing = [name for name in names if len(set(values[name])) > 1]
    return changed(
        measurement,
        memory=max(memories, key=lambda memory: memory.peak_bytes, default=None),
        counts={name: max(values[name]) for name in names},
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
