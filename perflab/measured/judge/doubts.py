"""Reasons to doubt a difference of times, or the lack of one. Pure.

A slowdown and an improvement are doubted by the same evidence, in opposite directions: of two groups of replicates one
came out slower, and the question is what else than the code can have made it so. What passes without a difference is
doubted too, where that evidence says that one is hidden, or where the replicates differ too much to show one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from perflab.measure.records import Replicate
from perflab.measured.judge.interference import disturbances
from perflab.records import Change, Environment, Policy
from perflab.units import format_change, format_interval, format_ns, format_percent

MACHINE_SLACK = 1.02
"""A reading of the calibration workload up to this much above the other group's is its own noise."""
SEVERAL_CORES = 1.2
"""A case that keeps more cores busy than this works in several threads, and waits when one of them has to."""
SHARING_AT_MOST = 4.0
"""Work in one thread that keeps its core shares caches, memory and clock with neighbours, and is not slowed more."""
KEPT_CORE = 0.9
"""A thread that gets this share of the CPU time that it got in the other group was not pushed aside."""
SEEN_AT_LEAST = 2.0
"""Thresholds: what lets a slowdown of so many pass unseen, says nothing."""

TOO_NOISY = "these readings are too noisy for a 95 % interval"


@dataclass(frozen=True)
class Sides:
    """What is compared: replicates of now, and of the baseline or its anchor, and what their medians come to."""

    now: Sequence[Replicate]
    before: Sequence[Replicate]
    change: Change
    environment: Environment
    name: str
    """What ``before`` is: ``baseline`` or ``anchor``."""
    first: float
    """The ratio of the session's own reading. It may be among ``now``, or have given the reason for them."""

    @property
    def is_faster(self) -> bool:
        """Whether the case came out faster than it was."""
        return self.change.ratio < 1.0

    @property
    def slow(self) -> Sequence[Replicate]:
        """The group that came out slower."""
        return self.before if self.is_faster else self.now

    @property
    def fast(self) -> Sequence[Replicate]:
        """The other one."""
        return self.now if self.is_faster else self.before

    def as_change(self, slower: float) -> str:
        """By how much the slow group is slower, seen from the baseline."""
        return format_change(1.0 / slower if self.is_faster else slower)


def single_process(sides: Sides) -> list[str]:
    """A baseline that does not know its noise proves nothing, however large the difference."""
    if len(sides.before) > 1:
        return []
    remedy = "--perf-update" if sides.name == "baseline" else "--perf-update --perf-reason=TEXT"
    return [f"the {sides.name} is a single process, so its noise is unknown; save it again ({remedy})"]


def difference_doubts(sides: Sides, policy: Policy) -> list[str]:
    """Why a difference past the limit that fresh processes show may still not be the code's, beside one process."""
    change, bound = sides.change, 1.0 + policy.threshold
    assert change.low is not None
    assert change.high is not None
    doubts = []
    reaches = change.high >= 1.0 / bound if sides.is_faster else change.low <= bound
    if reaches:
        interval = format_interval(change.low, change.high)
        where = "reaches" if sides.is_faster else "reaches below"
        bounds = (
            TOO_NOISY
            if change.is_vague
            else f"the 95 % interval ({interval}) {where} the threshold of {format_percent(policy.threshold)}"
        )
        doubts.append(f"{format_change(change.ratio)}, but {bounds}")
    if (sides.first < 1.0) is not sides.is_faster:
        doubts.append(
            f"fresh processes took {format_change(change.ratio)}, but the first reading {format_change(sides.first)}: "
            "this case differs that much from process to process"
        )
    if sides.is_faster:
        doubts += _too_far_apart(sides)
    return doubts + evidence_against(sides, policy)


def _too_far_apart(sides: Sides) -> list[str]:
    """Code that runs at one of several speeds looks faster by chance, and by little more than they are apart.

    By the range, and not by a spread that a few of many do not move: all processes have to agree about an improvement.
    """
    fastest, slowest = min(r.median_ns for r in sides.now), max(r.median_ns for r in sides.now)
    gap, span = min(r.median_ns for r in sides.before) / slowest, slowest / fastest
    if gap > span**2:
        return []
    return [f"{format_change(sides.change.ratio)}, but fresh processes differ by {format_percent(span - 1.0)}"]


def evidence_against(sides: Sides, policy: Policy) -> list[str]:
    """What says that the machine made the slow group slower, or the processes themselves; one reading has that too."""
    ratio = 1.0 / sides.change.ratio if sides.is_faster else sides.change.ratio
    bound = 1.0 + policy.threshold
    doubts = []
    lowest, highest = min(r.median_ns for r in sides.slow), max(r.median_ns for r in sides.fast)
    if lowest <= highest:
        doubts.append(
            f"the slowest of the fresh processes ({format_ns(highest)}) was no faster than the fastest of the "
            f"{sides.name}'s ({format_ns(lowest)}): this case differs that much from process to process"
            if sides.is_faster
            else f"the fastest of the fresh processes ({format_ns(lowest)}) was no slower than the slowest of the "
            f"{sides.name}'s ({format_ns(highest)}): this case differs that much from process to process"
        )
    fastest = min(r.fastest_ns for r in sides.slow) / min(r.fastest_ns for r in sides.fast)
    if fastest <= bound:
        busy = f"a {sides.name} from a busy machine" if sides.is_faster else "a busy machine"
        doubts.append(
            f"typical calls took {format_change(sides.change.ratio)}, but the fastest ones "
            f"{sides.as_change(fastest)}: that is typical of {busy}"
        )
    workload, machine = _machine_ratios(sides.slow, sides.fast)[-1]
    if machine > MACHINE_SLACK and ratio / machine <= bound:
        doubts.append(f"the calibration workload ({workload}) took {sides.as_change(machine)} too")
    if sides.environment.device != "cpu" or not _beyond_sharing(sides):
        doubts += disturbances(sides.slow, sides.fast, sides.environment, earlier=sides.is_faster)
    return doubts


def hidden(sides: Sides, noise: float, policy: Policy) -> list[str]:
    """Why a slowdown may be there though the medians show none.

    Args:
        sides: what is compared; the difference is within the threshold.
        noise: by how much a reading may be off, as a share.
        policy: what counts as worse.
    """
    change, bound = sides.change, 1.0 + policy.threshold
    unseen = SEEN_AT_LEAST * policy.threshold
    if unseen * change.now <= policy.floor_ns:
        return []  # what could be hidden does not count
    doubts = []
    if change.ratio * (1.0 + noise) > 1.0 + unseen:
        doubts.append(
            f"{format_change(change.ratio)}, but readings differ by {format_percent(noise)}: "
            f"a slowdown of {format_percent(unseen)} would not be seen"
        )
    fastest_ns, before_ns = (min(r.fastest_ns for r in group) for group in (sides.now, sides.before))
    # Not where the fastest calls are as typical calls are: then nothing is hidden, and the threshold is the threshold.
    fastest = fastest_ns / before_ns
    if fastest > max(bound, MACHINE_SLACK * change.ratio) and fastest_ns - before_ns > policy.floor_ns:
        doubts.append(
            f"typical calls took {format_change(change.ratio)}, but the fastest ones "
            f"{format_change(fastest)}: a {sides.name} from a busy machine hides a slowdown"
        )
    # Of several workloads the middle one: an excuse may rest on one alone, a doubt of what looks well may not.
    ratios = _machine_ratios(sides.before, sides.now)
    workload, machine = ratios[len(ratios) // 2]
    hides = change.ratio * machine > bound and change.now - change.before / machine > policy.floor_ns
    if machine > MACHINE_SLACK and hides:
        doubts.append(
            f"{format_change(change.ratio)}, but the calibration workload ({workload}) took "
            f"{format_change(1.0 / machine)}: a faster machine hides a slowdown"
        )
    return doubts + disturbances(sides.before, sides.now, sides.environment, earlier=True)


def _machine_ratios(slow: Sequence[Replicate], fast: Sequence[Replicate]) -> list[tuple[str, float]]:
    """By how much the machine was slower at fixed work such as this case needs, by workload; ascending."""
    ratios = {"": 1.0}
    for name in ("interpreter", "memory", "threads") if _several(slow, fast) else ("interpreter", "memory"):
        old = [r.calibration_ns[name] for r in fast if name in r.calibration_ns]
        new = [r.calibration_ns[name] for r in slow if name in r.calibration_ns]
        if old and new:
            ratios[name] = median(new) / median(old)
    return sorted(ratios.items(), key=lambda item: item[1])


def _several(*groups: Sequence[Replicate]) -> bool:
    return any(r.cores_busy is not None and r.cores_busy > SEVERAL_CORES for group in groups for r in group)


def _beyond_sharing(sides: Sides) -> bool:
    """Whether no neighbour can have done this: without it, a busy machine would excuse any slowdown at all."""
    kept = [[r.cores_busy for r in group if r.cores_busy is not None] for group in (sides.slow, sides.fast)]
    low, high = sides.change.low, sides.change.high
    if _several(sides.slow, sides.fast) or not all(kept) or low is None or high is None:
        return False
    at_least = 1.0 / high if sides.is_faster else low
    return at_least > SHARING_AT_MOST and median(kept[0]) >= KEPT_CORE * median(kept[1])
