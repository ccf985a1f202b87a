"""Records trials of the self-test: the same code measured as both gates would, in a log.

A trial is the process pairs of a screen for each kind of workload; of the mixed ones also two runs of pytest-benchmark,
and a session with the fresh processes that a stored baseline would ask for. Nothing is judged while it is recorded, so
that every rule sees the same data.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NoReturn

import msgspec

from perflab.base.data import Data
from perflab.base.errors import RivalError, UsageError
from perflab.base.files import read_regular
from perflab.judging.paired import SCREEN_PAIRS
from perflab.measurement.measurement import replicate_of
from perflab.options import REPLICATE_OPTION
from perflab.processes.child import Child, Start
from perflab.results.measurement import Replicate
from perflab.running.case.fresh_process import results_from
from perflab.tiers.job import Job, Serve
from perflab.turns.comparison import WEIGHING_ROUNDS
from perflab.turns.rounds import Round, RoundPlan
from perflab.turns.start_sides import witness_of_host
from tests.studies.gate.workloads import CHANGED, KINDS, MIXED, name_of

REPLICATES = 3
"""Number of fresh processes of a baseline, and of a suspect."""
ROUND_BUDGET_NS = 1.2e9
"""Nanoseconds that a case's turns take in a round under the default budget."""
_PATIENCE_S = 3600.0
"""Seconds after which a session of the workloads is stopped: it takes a minute or two on a machine that can judge."""
_LINES_SHOWN = 15


class Pair(Data, frozen=True, tag=True):
    """One round: log-ratios of two processes of the same code, by case."""

    began_s: float
    start_s: float
    """Seconds until both processes had collected their cases, and from the last case until both had ended."""
    case_s: dict[str, float]
    """Seconds that each case took."""
    head_over_base: dict[str, float]
    twin_over_base: dict[str, float] = {}
    own_error: dict[str, float] = {}
    """Standard error of ``head_over_base``, estimated from the pair's own blocks."""
    excess: dict[str, tuple[float, float, float, float, bool]] = {}
    """Fields of a ``Reading`` about mean calls: excess over ``head_over_base`` and its error, excess of all calls and
    its error, and whether blocks are one-sided."""
    twin_excess: dict[str, tuple[float, float, float, float, bool]] = {}
    kind: str = MIXED


class Benchmarked(Data, frozen=True, tag=True):
    """One run of pytest-benchmark: medians in nanoseconds, by case."""

    began_s: float
    seconds: float
    medians_ns: dict[str, float]


class Session(Data, frozen=True, tag=True):
    """Replicates of a session, and then of fresh processes, by case: the first replicate is the session's own."""

    began_s: float
    seconds: list[float]
    replicates: dict[str, list[Replicate]]


class Parent(Data, frozen=True, tag=True):
    """Time that a paired run takes before its first pair: pytest, PyTorch, collecting."""

    began_s: float
    seconds: float


Line = Pair | Benchmarked | Session | Parent


def record_trial(folder: Path, number: int, kinds: Sequence[str]) -> Iterator[Line]:
    """Record the ``number``-th trial of some kinds. Not every trial has the slower parts: pairs are needed most.

    Raises:
        RivalError: the workloads do not run here.
    """
    if number == 0:
        began_s, began = time.time(), time.monotonic()
        _run(folder, KINDS[MIXED], "--collect-only")
        yield Parent(began_s=began_s, seconds=time.monotonic() - began)
    for kind in kinds:
        for pair in range(SCREEN_PAIRS):
            yield record_pair(folder, kind, twin=pair == SCREEN_PAIRS - 1, weigh=pair < WEIGHING_ROUNDS)
    if MIXED not in kinds:
        return
    if number % 2 == 0:
        yield record_benchmark(folder)
        yield record_benchmark(folder)
    if number % 3 == 0:
        yield record_session(folder)


def record_pair(folder: Path, kind: str, *, twin: bool, weigh: bool) -> Pair:
    """Record one round of two processes, or of three with a ``twin``, as in a comparison in turns."""
    sides = ["head", "base", *(["twin"] if twin else [])]
    job_file = _job_file(folder, Job(cases=None, serve=Serve()))
    began_s, began = time.time(), time.monotonic()
    found, case_s = {}, {}
    starts = {
        side: _start(folder / CHANGED if side == "head" else folder, side, job_file, KINDS[kind]) for side in sides
    }
    with Round(starts, witness_of_host()) as running:
        start_s = time.monotonic() - began
        cases = running.cases["base"]
        for number, case in enumerate(cases):
            began = time.monotonic()
            plan = RoundPlan(ROUND_BUDGET_NS, memory=weigh, either_first=not weigh)
            found[name_of(case)] = running.run(case, cases[number + 1 :], plan, lambda _what: None)
            case_s[name_of(case)] = time.monotonic() - began
        ending = time.monotonic()
    start_s += time.monotonic() - ending
    head, control = ({name: case.reading(side, "base") for name, case in found.items()} for side in ("head", "twin"))
    readings = [{name: one for name, one in side.items() if one is not None} for side in (head, control)]
    logs = [{name: round(one.log, 6) for name, one in side.items()} for side in readings]
    excesses = [
        {
            name: (one.excess, one.excess_error, one.excess_of_all, one.excess_of_all_error, one.one_sided)
            for name, one in side.items()
        }
        for side in readings
    ]
    return Pair(
        began_s=began_s,
        start_s=start_s,
        case_s=case_s,
        head_over_base=logs[0],
        twin_over_base=logs[1],
        own_error={name: round(one.error, 6) for name, one in readings[0].items()},
        excess=excesses[0],
        twin_excess=excesses[1],
        kind=kind,
    )


def record_benchmark(folder: Path) -> Benchmarked:
    """Record one run of pytest-benchmark, as its users run it."""
    out = folder / "benchmark.json"
    began_s, began = time.time(), time.monotonic()
    _run(folder, "test_benchmark_gate.py", f"--benchmark-json={out}", "-p", "no:cacheprovider")
    seconds = time.monotonic() - began
    document = json.loads(out.read_text())
    medians = {name_of(one["name"]): one["stats"]["median"] * 1e9 for one in document["benchmarks"]}
    return Benchmarked(began_s=began_s, seconds=seconds, medians_ns=medians)


def record_session(folder: Path) -> Session:
    """Record the most that the gate over a stored baseline measures: a session, and its fresh processes."""
    began_s = time.time()
    seconds: list[float] = []
    replicates: dict[str, list[Replicate]] = {}
    for _ in range(1 + REPLICATES):
        start = _start(folder, "a fresh process", _job_file(folder, Job(cases=None)), KINDS[MIXED])
        began = time.monotonic()
        results, ending = results_from(start, _PATIENCE_S)
        if ending.status != 0:
            _refuse(ending.told, ending.last_lines(_LINES_SHOWN))
        seconds.append(time.monotonic() - began)
        for result in results:
            if result.measurement is not None:
                replicates.setdefault(name_of(result.case), []).append(replicate_of(result.measurement))
    return Session(began_s=began_s, seconds=seconds, replicates=replicates)


def append(log: Path, line: Line) -> None:
    """Add a line to the log at once, since a recording may be stopped at any time."""
    with log.open("ab") as file:
        file.write(msgspec.json.encode(line) + b"\n")


def read(log: Path) -> list[Line]:
    """Return the lines of a log. A last line that was cut off when the recording was stopped is skipped.

    Raises:
        UsageError: the log holds something else.
    """
    whole = read_regular(log).rpartition(b"\n")[0]
    try:
        return [msgspec.json.decode(line, type=Line) for line in whole.splitlines()]
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UsageError(f"{log} is no log of trials: {error}", "name another one with --log=FILE") from error


def _start(folder: Path, label: str, job_file: Path, module: str) -> Start:
    command = [sys.executable, "-m", "pytest", module, f"{REPLICATE_OPTION}={job_file}"]
    return Start(label, command, _environment(), folder)


def _job_file(folder: Path, job: Job) -> Path:
    path = folder / "job.json"
    path.write_bytes(msgspec.json.encode(job))
    return path


def _run(folder: Path, *arguments: str) -> None:
    command = [sys.executable, "-m", "pytest", "-q", *arguments]
    with Child(Start("the workloads", command, _environment(), folder)) as child:
        status = child.wait(_PATIENCE_S)
        if status != 0:
            ended = "were stopped" if status is None else f"ended with status {status}"
            _refuse(ended, child.output().decode("utf-8", "replace").splitlines()[-_LINES_SHOWN:])


def _refuse(how: str, output: Sequence[str]) -> NoReturn:
    """Raise the error for workloads that did not run to their end."""
    said = "\n".join([f"the workloads do not run: they {how}", *output])
    raise RivalError(said, "see what they need: pip install 'perflab[benchmark]'; and what keeps this machine busy")


def _environment() -> dict[str, str]:
    """Return this process's environment with its import path: workloads use the lab, wherever perflab comes from."""
    path = os.pathsep.join(entry for entry in sys.path if entry)
    return {**os.environ, "PYTHONPATH": path}
