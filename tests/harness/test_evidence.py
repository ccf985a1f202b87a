"""What the machine's counters are read to mean. The texts are those that Linux gives (proc(5), psi)."""

from __future__ import annotations

import os
import sys

import pytest
import torch

from perflab.measure.machine import evidence
from perflab.measure.machine.evidence import (
    SHORTEST_SPAN_NS,
    CpuTime,
    Host,
    Witness,
    between,
    parse_cpu_time,
    parse_pressure,
    parse_process,
    read_linux_host,
)
from perflab.measurement.measurement import replicate_of
from perflab.results.measurement import Evidence, GpuState, Measurement
from tests.harness.make import MS

TICK_NS = 10 * MS
S = 1_000 * MS

STAT = """\
cpu  300 20 100 5000 50 1 30 40 7 3
cpu0 100 10 40 2500 20 1 10 15 7 0
cpu1 200 10 60 2500 30 0 20 25 0 3
intr 123456 0 9
ctxt 987654
btime 1700000000
"""


def test_cpu_times_are_read_of_the_cores_in_use_without_counting_guests_twice() -> None:
    assert parse_cpu_time(STAT, {0, 1}, TICK_NS) == CpuTime(
        cores=2, total_ns=(2696 + 2845) * TICK_NS, busy_ns=(161 + 290) * TICK_NS, stolen_ns=40 * TICK_NS
    )
    one = parse_cpu_time(STAT, {1}, TICK_NS)
    assert (one.cores, one.busy_ns, one.stolen_ns) == (1, 290 * TICK_NS, 25 * TICK_NS)
    assert parse_cpu_time("cpu0 1 2 3 4", {0}, 10) == CpuTime(cores=1, total_ns=100, busy_ns=60, stolen_ns=0)


@pytest.mark.parametrize("text", ["", "cpu  1 2 3 4 5 6 7 8\n", "cpu7 1 2 3 4 5 6 7 8\n", "\n\n"])
def test_a_text_without_these_cores_says_nothing(text: str) -> None:
    assert parse_cpu_time(text, {0, 1}, TICK_NS) is None


def test_pressure_and_the_times_of_a_process_are_read() -> None:
    text = "some avg10=0.24 avg60=0.24 avg300=0.65 total=2390\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=7\n"
    assert parse_pressure(text) == 2_390_000
    assert parse_pressure("full avg10=0.00 total=7\n") is None
    assert parse_pressure("") is None
    fields = [str(number) for number in range(3, 53)]
    assert parse_process(f"4711 (a (b) c) {' '.join(['S', *fields[1:]])}") == (4, 14 + 15 + 16 + 17, 39)


def host(at_ns: int, busy_ns: int, own_ns: int | None = 0, *, stolen_ns: int = 0, total_ns: int | None = None) -> Host:
    """A machine of two cores."""
    total_ns = 2 * at_ns if total_ns is None else total_ns
    return Host(at_ns=at_ns, cpu=CpuTime(2, total_ns, busy_ns, stolen_ns), own_ns=own_ns)


def test_neighbours_are_what_the_cores_did_less_what_this_process_did() -> None:
    found = between(host(5 * S, 900 * MS, 400 * MS), host(7 * S, 900 * MS + 3 * S, 400 * MS + 2 * S))
    assert found.span_ns == 2 * S
    assert found.neighbours_cores == 0.5
    assert found.steal_share == 0.0
    finer = between(host(0, 0), host(S, 990 * MS, 995 * MS))  # its own time is counted in less than the machine's ticks
    assert finer.neighbours_cores == 0.0


def test_neighbours_and_stolen_time_are_told_of_spans_long_enough() -> None:
    assert between(host(0, 0), host(S, 900 * MS, 900 * MS, stolen_ns=100 * MS)).steal_share == 0.1
    assert between(host(0, 0), host(S, 0, 0)).steal_share == 0.0
    short = between(host(0, 0), host(SHORTEST_SPAN_NS - 1, 10 * MS, 0))
    assert (short.neighbours_cores, short.steal_share, short.pressure_share) == (None, None, None)
    assert short.span_ns == SHORTEST_SPAN_NS - 1
    still = between(host(0, 0, total_ns=0), host(S, 0, S, total_ns=0))
    assert (still.neighbours_cores, still.steal_share) == (None, None)


@pytest.mark.parametrize("end", [Host(at_ns=S), host(S, S, None)])
def test_what_a_system_does_not_tell_is_none(end: Host) -> None:
    found = between(Host(at_ns=0, cpu=CpuTime(2, 0, 0, 0)), end)
    assert found.neighbours_cores is None
    assert found.pressure_share is None
    assert found.involuntary_switches is None


def test_pressure_switches_load_and_frequency_are_of_the_span() -> None:
    begin = Host(at_ns=0, waited_ns=10 * MS, switches=3, load_average=0.5, mhz=2400.0)
    found = between(begin, Host(at_ns=S, waited_ns=260 * MS, switches=10, load_average=0.9, mhz=1800.0))
    assert (found.pressure_share, found.involuntary_switches, found.load_average) == (0.25, 7, 0.5)
    assert (found.cpu_mhz_before, found.cpu_mhz_after) == (2400.0, 1800.0)


def test_a_system_without_any_of_this_gives_readings_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_file(path: str) -> str:
        raise FileNotFoundError(path)

    monkeypatch.setattr(evidence, "_text", no_file)
    monkeypatch.delattr(os, "getloadavg")
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setitem(sys.modules, "resource", None)  # as on Windows
    found = read_linux_host()
    assert found == Host(at_ns=found.at_ns)


def test_this_machine_can_be_read_and_a_cpu_has_no_gpus_state() -> None:
    end = Witness(torch.device("cpu")).begin()
    found = end()
    assert found.span_ns >= 0
    assert (found.gpu_before, found.gpu_after) == (None, None)


def test_a_replicate_keeps_what_the_judge_asks_for_and_of_the_gpu_the_worse_of_both_readings() -> None:
    told = Evidence(
        span_ns=S,
        neighbours_cores=0.4,
        steal_share=0.01,
        gpu_before=GpuState(temperature_c=60, neighbours=1, throttle=["idle"]),
        gpu_after=GpuState(temperature_c=81, neighbours=0, throttle=["power cap"]),
    )
    measurement = Measurement(
        samples_ns=[1, 2, 3], repetitions=1, warmup_calls=0, settled=True, clock="host", evidence=told
    )
    found = replicate_of(measurement)
    assert (found.neighbours_cores, found.steal_share) == (0.4, 0.01)
    assert (found.gpu_neighbours, found.temperature_c, found.throttle) == (1, 81, ["idle", "power cap"])
