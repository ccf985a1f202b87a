"""Finds interference that the baseline did not have: other processes, stolen time, a throttled GPU. Pure.

The result depends only on the figures that replicates carry. A figure that a replicate lacks (older baselines, other
systems, samples that were too short) counts as undisturbed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import median

from perflab.results.measurement import Replicate
from perflab.results.records import Environment
from perflab.units import format_percent

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


def disturbances(
    group: Sequence[Replicate], other: Sequence[Replicate], environment: Environment, *, earlier: bool = False
) -> list[str]:
    """Return the disturbances of ``group`` that ``other`` did not have as much, as sentences with figures.

    ``earlier``: ``group`` is the baseline, so that a disturbance that has ceased made the baseline's times too long.
    """
    found = []
    when, otherwise = ("while the baseline was taken", "now") if earlier else ("meanwhile", "in the baseline")
    then = f" {when}" if earlier else ""
    cores, cores_other = (_typical(r.neighbours_cores for r in one) for one in (group, other))
    own = _typical(r.cores_busy if r.cores_busy is not None else environment.cores for r in group)
    has_room = own + cores < ROOMY * environment.cores
    if cores > NEIGHBOURS_CORES and cores > cores_other + NEIGHBOURS_CORES and not has_room:
        found.append(f"other processes used {cores:.1f} cores {when}{_instead_of(cores_other, '.1f', otherwise)}")
    steal, steal_other = (_typical(r.steal_share for r in one) for one in (group, other))
    if steal > STEAL_SHARE and steal > steal_other + STEAL_SHARE:
        found.append(f"the hypervisor kept {format_percent(steal)} of the CPU time for other machines (steal){then}")
    reasons = [reason for reason in SLOWED_DOWN if _mostly(reason, group) and not _mostly(reason, other)]
    if reasons:
        heat = max((r.temperature_c for r in group if r.temperature_c is not None), default=None)
        degrees = f" at {heat} °C" if heat is not None else ""
        found.append(f"the GPU slowed itself down{degrees}{then} ({', '.join(reasons)})")
    others, others_then = (_typical(r.gpu_neighbours for r in one) for one in (group, other))
    if others > others_then:
        many = f"{others:.0f} other processes were" if others > 1 else "another process was"
        found.append(f"{many} on this GPU {when}{_instead_of(others_then, '.0f', otherwise)}")
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
