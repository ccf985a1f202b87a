"""The machine over a run: how its calibration workloads and its counters read beside the cases. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import median

from perflab.report.contents import CALIBRATION, Case, MachineReading


def machine_readings(cases: Sequence[Case]) -> list[MachineReading]:
    """Each reading over all cases that have it: workloads whose code never changes, and counters."""
    read: dict[tuple[str, str], list[float]] = {}
    for case in cases:
        for of, unit, value in _readings(case):
            read.setdefault((of, unit), []).append(value)
    return [
        MachineReading(of=of, unit=unit, least=min(values), median=median(values), most=max(values), cases=len(values))
        for (of, unit), values in read.items()
    ]


def _readings(case: Case) -> Iterator[tuple[str, str, float]]:
    """What each reading is of, its unit, and its value."""
    for name, one in case.quantities.items():
        if name.startswith(CALIBRATION):
            yield name, one.unit, one.now
    evidence = case.evidence
    if evidence is None:
        return
    counters = (
        ("cores that other processes used", "cores", evidence.neighbours_cores),
        ("time stolen by the hypervisor", "share", evidence.steal_share),
        ("time waiting for a core", "share", evidence.pressure_share),
        ("load average", "load", evidence.load_average),
    )
    for of, unit, value in counters:
        if value is not None:
            yield of, unit, value
