"""Adds results to pytest-benchmark's session, so that pytest-benchmark's JSON, storage and compare contain them."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from perflab.base.identity import parameters_of
from perflab.results.measurement import Measurement, Record, per_call_ns
from perflab.results.result import Result


def add_to_benchmark_session(config: pytest.Config, result: Result) -> None:
    """Add a measured case to pytest-benchmark's session; do nothing without pytest-benchmark."""
    session = getattr(config, "_benchmarksession", None)
    record = result.record
    if session is None or record is None or record.measurement is None:
        return
    from pytest_benchmark.stats import Metadata

    measurement = record.measurement
    name = result.identity.split("::")[-1]
    source = SimpleNamespace(
        name=name,
        fullname=result.identity,
        group="perflab",
        param=parameters_of(name) or None,
        params=dict(record.parameters) or None,
        extra_info=_extra_info(record, measurement, result),
        cprofile_stats=None,
        has_error=False,
    )
    options = {"timer": measurement.clock, "warmup": measurement.warmup_calls, "disable_gc": False}
    # The statistics are of seconds per call, as pytest-benchmark's own are.
    entry: Any = Metadata(source, iterations=1, options=options)  # type: ignore[no-untyped-call]
    for call_ns in per_call_ns(measurement.samples_ns, measurement.repetitions):
        entry.update(call_ns / 1e9)
    entry.iterations = measurement.repetitions
    earlier = [b for b in session.benchmarks if not (b.fullname == result.identity and b.group == "perflab")]
    session.benchmarks[:] = [*earlier, entry]  # a test that was run again appears once


def _extra_info(record: Record, measurement: Measurement, result: Result) -> dict[str, Any]:
    memory = measurement.memory
    info: dict[str, Any] = {
        "perflab_verdict": str(result.judgement.verdict),
        "device": record.environment.device,
    }
    if memory is not None and memory.exact_bytes is not None:
        info["peak_bytes"] = memory.exact_bytes
    more: dict[str, Mapping[str, Any]] = {"counts": measurement.counts, "work": record.work, "facts": record.facts}
    return info | {name: dict(known) for name, known in more.items() if known}


def spare_second_table(config: pytest.Config) -> None:
    """Remove perflab's results from pytest-benchmark's table, since perflab's own table shows them.

    They stay if one of pytest-benchmark's options was given.
    """
    session = getattr(config, "_benchmarksession", None)
    if session is None or not session.groups:
        return
    if any(str(argument).startswith("--benchmark") for argument in config.invocation_params.args):
        return
    kept = [(name, [b for b in group if b["group"] != "perflab"]) for name, group in session.groups]
    session.groups = [(name, group) for name, group in kept if group]
