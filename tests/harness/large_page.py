"""A run of many cases, as a large project has it, for pages and comments."""

from __future__ import annotations

from perflab.base.data import changed
from perflab.results.measured import MeasuredCase
from perflab.results.measurement import Evidence, summarize
from perflab.results.profile import Profile, ProfileRow
from perflab.results.records import Policy, Verdict
from perflab.results.result import Document, Result
from tests.harness.make import MS, document, entry, environment, judge, measurement, memory, quiet

COUNTS = {"operators": 412, "allocations": 88, "kernel_launches": 390, "host_syncs": 2, "graph_breaks": 0}
PHASES = {"forward": 0.4, "backward": 0.5, "optimizer": 0.1}


def large_run(cases: int, profiled: int = 10) -> Document:
    """A run as a large project's: every case with phases, memory, counts, calibration, evidence and a baseline.

    Args:
        cases: how many. One in fifty became slower.
        profiled: how many have a profile, too.
    """
    return document(*(_case(number, number < profiled) for number in range(cases)))


def _case(number: int, profiled: bool) -> Result:
    middle = (1 + number % 37) * MS * 1.37
    samples = [round(middle * (1 + 0.01 * ((7 * at + number) % 11 - 5))) for at in range(60)]
    taken = measurement(
        samples,
        phases_ns={name: [round(share * one) for one in samples] for name, share in PHASES.items()},
        memory=changed(memory(2**24 + 4096 * number), held_bytes=2**20, growth_bytes=2**24 + 4096 * number - 2**20),
        calibration_ns={"matrix products": 1e6 + number, "memory": 2e6 - number},
        counts=COUNTS,
        evidence=Evidence(span_ns=10**9, neighbours_cores=0.1, steal_share=0.0, involuntary_switches=40 + number),
        profile=_profile(middle) if profiled else None,
    )
    summary = summarize(taken, 0.004)
    name = f"tests/perf/test_module{number // 50}.py::test_step[large-{128 * (1 + number % 8)}-bf16-{number}]"
    slower = number % 50 == 3
    record = MeasuredCase(
        case=name,
        environment=environment(machine="8008076d"),
        parameters={"model": "large", "context_length": 128 * (1 + number % 8), "precision": "bf16"},
        measurement=taken,
        summary=summary,
        fresh=[summary] * 3 if slower else [],
    )
    before = middle / (1.5 if slower else 1.0)
    saved = entry(
        quiet(before, peak_bytes=2**24 + 4096 * number, counts=COUNTS, phases_ns={"forward": 0.4 * before}),
        environment=environment(machine="8008076d"),
    )
    judgement = judge(record, saved, Policy())
    failure = "it is slower\n" * 12 if judgement.verdict is Verdict.REGRESSED else None
    return Result(case=name, judgement=judgement, outcome=record, policy=Policy(), failure=failure)


def _profile(whole_ns: float) -> Profile:
    rows = [
        ProfileRow(
            category="products forward",
            operator="aten::mm",
            phase="forward",
            module=f"blocks.*.part{at}",
            line="model.py:88",
            shapes="512x256, 256x768 float32",
            instances=2.0,
            time_ns=whole_ns / 20,
        )
        for at in range(20)
    ]
    return Profile(device="cpu", calls=8, timer_ns=whole_ns, profiled_ns=1.1 * whole_ns, rows=rows)
