"""The gate's self-test, on made-up logs: it must see a gate that is good, and one that is not."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from perflab.base.errors import UsageError
from perflab.cli import checkup
from perflab.results.measurement import Memory
from tests.harness.make import MS, replicate
from tests.studies.gate.rates import Rate, benchmark_rate, cases_of, memory_rate, paired_rate, stored_rate
from tests.studies.gate.table import gate_table, measure_gate
from tests.studies.gate.trials import Benchmarked, Line, Pair, Parent, Session, append, read

NAMES = ("one", "two")


def recorded(noise: float, trials: int = 40) -> list[Line]:
    """A log of a machine whose processes differ by so much."""
    draw = random.Random(20261120)

    def session(began_s: float) -> Session:
        memory = Memory(peak_bytes=4096, held_bytes=0, growth_bytes=4096)
        replicates = {
            name: [replicate(100 * MS * (1.0 + draw.gauss(0.0, noise)), memory=memory) for _ in range(4)]
            for name in NAMES
        }
        return Session(began_s=began_s, seconds=[2.0] * 4, replicates=replicates)

    lines: list[Line] = [Parent(began_s=0.0, seconds=3.0)]
    for trial in range(trials):
        for number in range(3):
            logs = [{name: draw.gauss(0.0, noise) for name in NAMES} for _ in range(2)]
            twin = logs[1] if number == 2 else {}
            case_s = dict.fromkeys(NAMES, 1.0 + 0.5 * bool(twin))
            lines.append(
                Pair(began_s=60.0 * trial, start_s=2.0, case_s=case_s, head_over_base=logs[0], twin_over_base=twin)
            )
        for _ in range(2):
            medians = {name: 1e8 * (1.0 + draw.gauss(0.0, noise)) for name in NAMES}
            lines.append(Benchmarked(began_s=60.0 * trial, seconds=5.0, medians_ns=medians))
        lines.append(session(60.0 * trial))
    return lines


def test_a_quiet_machine_s_gate_is_silent_on_unchanged_code_and_finds_what_is_slower() -> None:
    lines = recorded(0.005)
    assert paired_rate(lines, 0.0).found == 0
    assert paired_rate(lines, 0.05).share == 1.0
    assert stored_rate(lines, 0.0).found == 0
    assert stored_rate(lines, 0.30).share > 0.9
    assert benchmark_rate(lines, 0.0).found == 0
    assert benchmark_rate(lines, 0.10).share == 1.0


def test_what_stored_numbers_cannot_tell_their_commit_does() -> None:
    lines = recorded(0.03, trials=15)
    alone, settled = stored_rate(lines, 0.10), stored_rate(lines, 0.10, settle=True)
    assert alone.share < 0.5
    assert settled.share > 0.9
    assert settled.cost_s > alone.cost_s
    assert stored_rate(lines, 0.0, settle=True).share <= 0.01


def test_memory_that_grew_is_always_found_and_memory_that_did_not_never() -> None:
    lines = recorded(0.01)
    assert memory_rate(lines, 0).found == 0
    grown = memory_rate(lines, 1 << 20)
    assert (grown.found, grown.tried) == (grown.tried, 39 * 2 * 4)


def test_costs_are_of_whole_runs_and_suspects_cost_more() -> None:
    lines = recorded(0.005)
    unchanged, slower = paired_rate(lines, 0.0), paired_rate(lines, 0.05)
    # The session's own start, and two rounds of two processes and two cases; sometimes a third.
    assert 3.0 + 2 * 4.0 <= unchanged.cost_s < 3.0 + 3 * 4.0
    # Four more rounds of three processes, the third of which measures one case.
    assert slower.cost_s == pytest.approx(3.0 + 3 * 4.0 + 4 * 4.5, rel=0.1)
    assert benchmark_rate(lines, 0.0).cost_s == 10.0


def test_kinds_are_judged_apart_and_in_runs_of_any_size() -> None:
    alike = recorded(0.008, 12)
    long = [msgspec.structs.replace(line, kind="long") if isinstance(line, Pair) else line for line in alike]
    lines = [*recorded(0.2, 12), *long]
    quiet, slower = (paired_rate(lines, slowdown, kind="long", cases=30) for slowdown in (0.0, 0.05))
    assert quiet.found == 0
    assert (slower.share >= 0.98, slower.tried) == (True, 12 * 30)
    assert paired_rate(lines, 0.05, kind="mixed", cases=30).share < 0.5
    one = paired_rate(lines, 0.05, kind="long", cases=30, slow=1)
    assert (one.share >= 0.95, one.tried) == (True, 12)
    assert one.cost_s <= 3.0 * quiet.cost_s


def test_costs_in_some_calls_are_counted_by_case_and_need_no_injected_slowdown() -> None:
    def uneven(pair: Pair, excess: float) -> Pair:
        return msgspec.structs.replace(
            pair, kind="uneven", excess=dict.fromkeys(pair.head_over_base, (excess, 0.01, excess, 0.01, False))
        )

    plain = [line for line in recorded(0.008) if isinstance(line, Pair)]
    lines: list[Line] = [uneven(pair, 0.05 + 0.01 * (number % 3 - 1)) for number, pair in enumerate(plain)]
    one, *_ = cases_of(lines, "uneven")
    found = paired_rate(lines, 0.0, kind="uneven", only=one)
    assert (found.share >= 0.95, found.tried) == (True, len(lines) // 3)
    assert paired_rate([uneven(pair, 0.0) for pair in plain], 0.0, kind="uneven", only=one).share == 0.0
    assert any(f"uneven, {one.replace('_', ' ')} call" in row for row in gate_table(lines))


def test_pairs_that_were_ruined_are_taken_again_by_the_self_test_too() -> None:
    def ruin(pair: Pair) -> Pair:
        off = {name: log - 0.15 for name, log in pair.head_over_base.items()}
        return msgspec.structs.replace(pair, head_over_base=off, own_error=dict.fromkeys(off, 0.1))

    clean = recorded(0.005)
    disturbed = [ruin(line) if isinstance(line, Pair) and n % 5 == 0 else line for n, line in enumerate(clean)]
    assert paired_rate(disturbed, 0.05).share >= 0.95
    assert paired_rate(disturbed, 0.05).cost_s > paired_rate(clean, 0.05).cost_s


@pytest.mark.parametrize(
    ("found", "tried", "low", "high"), [(0, 300, 0.0, 0.0127), (5, 10, 0.2366, 0.7634), (10, 10, 0.7225, 1.0)]
)
def test_the_interval_is_wilson_s(found: int, tried: int, low: float, high: float) -> None:
    assert Rate(found, tried).interval() == pytest.approx((low, high), abs=1e-3)


def test_a_log_that_was_cut_off_is_read_up_to_there(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    lines = recorded(0.01, trials=2)
    for line in lines:
        append(log, line)
    log.write_bytes(log.read_bytes() + b'{"type":"Pair","beg')
    assert read(log) == lines
    table = measure_gate(0, log, print)
    assert table == gate_table(lines)
    assert "perflab, A/B" in table[2]
    assert all(len(line) == len(table[0]) for line in table[:-2])


def test_an_empty_log_and_no_trials_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"no trial was recorded"):
        measure_gate(0, tmp_path / "new.jsonl", print)


def test_a_log_of_pairs_alone_without_a_control_is_judged() -> None:
    pairs: list[Line] = [
        Pair(began_s=0.0, start_s=1.0, case_s={"one": 1.0}, head_over_base={"one": 0.001 * n}) for n in range(6)
    ]
    assert paired_rate(pairs, 0.0).tried == 2
    assert gate_table(pairs)


@pytest.mark.parametrize(("load", "fewer"), [(4.5, 3), (9.0, 1), (1.0, None)])
def test_on_a_busy_machine_the_checkup_says_first_to_use_fewer_threads_than_cores(
    load: float, fewer: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.getloadavg", lambda: (load, 0.5, 0.5))
    monkeypatch.setattr("perflab.results.environment.usable_cores", lambda: 8)
    monkeypatch.setattr("perflab.results.environment.thread_count", lambda: 8)
    said = "\n".join(checkup())
    busy = "threads: PyTorch uses 8 on 8 cores while others are busy: each operator waits for all"
    remedy = f"  -> use fewer, before anything else: OMP_NUM_THREADS={fewer}"
    assert (busy in said, remedy in said) == (fewer is not None, fewer is not None)
    monkeypatch.setattr("perflab.results.environment.thread_count", lambda: 1)
    assert "threads:" not in "\n".join(checkup())


def test_the_checkup_names_what_is_there_and_how_to_get_what_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    lines = checkup()
    assert any(line.startswith("torch: 2.") for line in lines)
    assert "git: missing (--perf-against=COMMIT: install git)" in lines


def test_a_pytorch_that_cannot_be_imported_is_said_and_the_checkup_goes_on(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise ImportError('libcudnn.so.9: cannot open shared object file')")
    asked = "import os; os.getloadavg = lambda: (99.0,) * 3; from perflab.cli import main; main(['doctor'])"
    path = os.pathsep.join([str(tmp_path), *sys.path])
    said = subprocess.check_output([sys.executable, "-c", asked], env={**os.environ, "PYTHONPATH": path}, text=True)
    assert "accelerator: unknown (PyTorch cannot be imported: libcudnn.so.9: cannot open shared object file)" in said
    assert said.splitlines()[-1].startswith("load: 99.00")
