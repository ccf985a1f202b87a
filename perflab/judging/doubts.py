"""Reasons to doubt a difference of times, or the lack of one. Pure.

A slowdown and an improvement are doubted by the same evidence, in opposite directions: one of two groups of replicates
came out slower, and the question is whether something other than the code can be the cause. A case without a difference
is doubted too, if that evidence suggests a hidden one, or if the replicates differ too much to show one.

Interference that the baseline did not have is such evidence: other processes, stolen time, a throttled GPU. It depends
only on the figures that replicates carry. A figure that a replicate lacks (older baselines, other systems, samples that
were too short) counts as undisturbed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from statistics import median

from perflab.results.measurement import Replicate
from perflab.results.records import Change, Environment, Policy
from perflab.units import format_change, format_interval, format_ns, format_percent

NEIGHBOURS_CORES = 0.15
"""Cores: the housekeeping of an idle machine, and the error of its counters over a quarter of a second, stay below."""
ROOMY = 0.5
"""Below this share of cores in use, neighbours run on other physical cores: two hardware threads share one."""
STEAL_SHARE = 0.02
"""A smaller share of stolen CPU time cannot cause half of a slowdown of 5 %, the default threshold."""
SLOWED_DOWN = (
    "hardware slowdown",
    "software thermal slowdown",
    "hardware thermal slowdown",
    "power brake",
    "thermal pressure",
    "low power mode",
)
"""Reasons for low clocks whose cause is the machine: heat and its power supply. A power cap is reached by the work."""


class Interference(Enum):
    """The kinds of disturbances of a measurement."""

    NEIGHBOURS = auto()
    STEAL = auto()
    THROTTLE = auto()
    GPU_NEIGHBOURS = auto()


def disturbances(
    group: Sequence[Replicate], other: Sequence[Replicate], environment: Environment, *, earlier: bool = False
) -> list[str]:
    """Return the sentences of ``disturbances_by_kind``."""
    return [*disturbances_by_kind(group, other, environment, earlier=earlier).values()]


def disturbances_by_kind(
    group: Sequence[Replicate], other: Sequence[Replicate], environment: Environment, *, earlier: bool = False
) -> dict[Interference, str]:
    """Return the disturbances of ``group`` that ``other`` did not have as much, each as a sentence with figures.

    ``earlier``: ``group`` is the baseline, so that a disturbance that has ceased made the baseline's times too long.
    """
    found = {}
    when, otherwise = ("while the baseline was taken", "now") if earlier else ("meanwhile", "in the baseline")
    then = f" {when}" if earlier else ""
    cores, cores_other = (_typical(r.neighbours_cores for r in one) for one in (group, other))
    own = _typical(r.cores_busy if r.cores_busy is not None else environment.cores for r in group)
    has_room = own + cores < ROOMY * environment.cores
    if cores > NEIGHBOURS_CORES and cores > cores_other + NEIGHBOURS_CORES and not has_room:
        more = _instead_of(cores_other, ".1f", otherwise)
        found[Interference.NEIGHBOURS] = f"other processes used {cores:.1f} cores {when}{more}"
    steal, steal_other = (_typical(r.steal_share for r in one) for one in (group, other))
    if steal > STEAL_SHARE and steal > steal_other + STEAL_SHARE:
        share = format_percent(steal)
        found[Interference.STEAL] = f"the hypervisor kept {share} of the CPU time for other machines (steal){then}"
    reasons = [reason for reason in SLOWED_DOWN if _mostly(reason, group) and not _mostly(reason, other)]
    if reasons:
        heat = max((r.temperature_c for r in group if r.temperature_c is not None), default=None)
        degrees = f" at {heat} °C" if heat is not None else ""
        found[Interference.THROTTLE] = f"the GPU slowed itself down{degrees}{then} ({', '.join(reasons)})"
    others, others_then = (_typical(r.gpu_neighbours for r in one) for one in (group, other))
    if others > others_then:
        many = f"{others:.0f} other processes were" if others > 1 else "another process was"
        found[Interference.GPU_NEIGHBOURS] = f"{many} on this GPU {when}{_instead_of(others_then, '.0f', otherwise)}"
    return found


def is_witnessed(now: Sequence[Replicate], environment: Environment) -> bool:
    """Whether the replicates carry enough figures for an absence of disturbances to be proved."""
    figures = [r.neighbours_cores is not None and r.steal_share is not None for r in now]
    if environment.device != "cpu":
        figures += [r.temperature_c is not None and r.gpu_neighbours is not None for r in now]
    return bool(figures) and all(figures)


def _typical(figures: Iterable[float | None]) -> float:
    known = [figure for figure in figures if figure is not None]
    return median(known) if known else 0.0


def _mostly(reason: str, group: Sequence[Replicate]) -> bool:
    return 2 * sum(reason in r.throttle for r in group) > len(group)


def _instead_of(before: float, digits: str, otherwise: str) -> str:
    shown = format(before, digits)
    return f" ({otherwise} {shown})" if float(shown) else ""


MACHINE_SLACK = 1.02
"""A ratio of the two groups' calibration times up to this one is the calibration workload's own noise."""
SEVERAL_CORES = 1.2
"""A case that keeps more cores busy than this runs in several threads, and waits for the slowest of them."""
SHARING_AT_MOST = 4.0
"""The largest slowdown from neighbours of a thread that keeps its core: they share its caches, memory and clock."""
KEPT_CORE = 0.9
"""A thread that gets at least this share of the other group's CPU time was not displaced from its core."""
SEEN_AT_LEAST = 2.0
"""A comparison that would miss a slowdown of this many thresholds proves nothing."""

TOO_NOISY = "these readings are too noisy for a 95 % interval"


@dataclass(frozen=True)
class Sides:
    """Two groups of replicates to compare, those of now and those of the baseline or its anchor, with their change."""

    now: Sequence[Replicate]
    before: Sequence[Replicate]
    change: Change
    environment: Environment
    name: str
    """The origin of ``before``: ``baseline`` or ``anchor``."""
    first: float
    """The ratio of the session's own reading, which either is in ``now`` or was the reason to measure ``now``."""

    @property
    def is_faster(self) -> bool:
        """Whether the case came out faster now than before."""
        return self.change.ratio < 1.0

    @property
    def slow(self) -> Sequence[Replicate]:
        """The group that came out slower."""
        return self.before if self.is_faster else self.now

    @property
    def fast(self) -> Sequence[Replicate]:
        """The group that came out faster."""
        return self.now if self.is_faster else self.before

    def as_change(self, slower: float) -> str:
        """Format ``slower``, the slow group's time / the fast group's, as a change seen from the baseline."""
        return format_change(1.0 / slower if self.is_faster else slower)


def single_process(sides: Sides) -> list[str]:
    """Return the doubt about a baseline of one process: its noise is unknown, so no difference is proved."""
    if len(sides.before) > 1:
        return []
    remedy = "--perf-update" if sides.name == "baseline" else "--perf-update --perf-reason=TEXT"
    return [f"the {sides.name} is a single process, so its noise is unknown; save it again ({remedy})"]


def difference_doubts(sides: Sides, policy: Policy) -> list[str]:
    """Return reasons why a difference past the limit, seen in fresh processes, may have another cause than the code.

    ``single_process`` gives the reason that this function leaves out.
    """
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
    """Return the doubt that an improvement is smaller than the differences between fresh processes warrant.

    Code that runs at one of several speeds looks faster by chance, by little more than the speeds differ. The criterion
    is the range of the processes rather than a robust spread, since all processes must agree on an improvement. A
    baseline with a process as fast as any fresh one is another doubt, ``evidence_against``.
    """
    fastest, slowest = min(r.median_ns for r in sides.now), max(r.median_ns for r in sides.now)
    gap, span = min(r.median_ns for r in sides.before) / slowest, slowest / fastest
    if gap <= 1.0 or gap > span**2:
        return []
    return [f"{format_change(sides.change.ratio)}, but fresh processes differ by {format_percent(span - 1.0)}"]


def evidence_against(sides: Sides, policy: Policy) -> list[str]:
    """Return evidence that the machine, or differences between processes, made the slow group slower.

    A single reading gives such evidence too.
    """
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
    """Return reasons why there may be a slowdown although the medians show none.

    Args:
        sides: the two groups; their difference is within the threshold.
        noise: the relative error that a reading may have, as a share.
        policy: what counts as worse.
    """
    change, bound = sides.change, 1.0 + policy.threshold
    unseen = SEEN_AT_LEAST * policy.threshold
    if unseen * change.now <= policy.floor_ns:
        return []  # a slowdown that could be hidden is below the floor
    doubts = []
    if change.ratio * (1.0 + noise) > 1.0 + unseen:
        doubts.append(
            f"{format_change(change.ratio)}, but readings differ by {format_percent(noise)}: "
            f"a slowdown of {format_percent(unseen)} would not be seen"
        )
    fastest_ns, before_ns = (min(r.fastest_ns for r in group) for group in (sides.now, sides.before))
    # If the fastest calls changed as much as the typical ones, nothing is hidden, and the threshold alone decides.
    fastest = fastest_ns / before_ns
    if fastest > max(bound, MACHINE_SLACK * change.ratio) and fastest_ns - before_ns > policy.floor_ns:
        doubts.append(
            f"typical calls took {format_change(change.ratio)}, but the fastest ones "
            f"{format_change(fastest)}: a {sides.name} from a busy machine hides a slowdown"
        )
    # The middle one of several workloads: one alone may excuse a slowdown, but not cast doubt on a good result.
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
    """Return (calibration workload, slow group's time / fast group's) for workloads like this case, by ascending ratio.

    The pair ``("", 1.0)`` is always among them; ``threads`` only if the case runs in several threads.
    """
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
    """Whether the slowdown is too large for neighbours to be its cause.

    Without this bound, a busy machine would excuse any slowdown.
    """
    kept = [[r.cores_busy for r in group if r.cores_busy is not None] for group in (sides.slow, sides.fast)]
    low, high = sides.change.low, sides.change.high
    if _several(sides.slow, sides.fast) or not all(kept) or low is None or high is None:
        return False
    at_least = 1.0 / high if sides.is_faster else low
    return at_least > SHARING_AT_MOST and median(kept[0]) >= KEPT_CORE * median(kept[1])
