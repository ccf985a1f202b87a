"""Cases that run in several processes at once, from outside: one verdict for all ranks, and one failure for all."""

from __future__ import annotations

import contextlib
import re
import subprocess
from pathlib import Path

import pytest

from tests.plugin.conftest import REFUSED, Project, begin_repository, one_line
from tests.plugin.test_recheck import FEW_ROUNDS

EXCHANGE = """
import os
import pytest, torch
import json
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from torch import distributed
from conftest import Virtual

@pytest.fixture
def group(process_group):
    Path(f"set-up-{os.getpid()}").write_text(str(process_group.size()))
    yield process_group
    Path(f"torn-down-{os.getpid()}").touch()

@pytest.mark.perf(world_size=[1, 2])
def test_exchange(perf, group, rank, world_size):
    x, held = torch.ones(256), torch.ones(1024 * (1 + rank))
    cost_ms, dtype = 10, torch.float32

    def call():
        Virtual.now_ns += 1_000_000 * cost_ms * (1 + rank)
        distributed.all_reduce(x.to(dtype))
        return held.numel()

    perf.work(bytes=x.nbytes)
    perf.note(ranks=world_size, owner=rank)
    perf(call)
"""


def of_workers(project: Project) -> list[int]:
    """The processes that measure for another one in the project's folder."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # ended meanwhile
            is_there = (path / "cwd").readlink() == project.pytester.path
            if is_there and b"--perf-replicate" in (path / "cmdline").read_bytes():
                found.append(int(path.name))
    return found


def test_the_slowest_rank_is_timed_the_hungriest_is_weighed_and_a_change_in_what_they_exchange_is_a_regression(
    project: Project,
) -> None:
    project.test_file.write_text(EXCHANGE)
    quick = ("--perf-replicates=2", "--perf-evidence=off", "--perf-json=results.json")
    project.run("--perf-update", *quick, passed=2)
    alone, ranked = (one["outcome"] for one in project.results())
    assert project.results()[1]["mode"] == {"world_size": 2}
    assert [alone["summary"]["median_ns"], ranked["summary"]["median_ns"]] == [1e7, 2e7]
    assert [one["median_ns"] for one in ranked["measurement"]["ranks"]] == [1e7, 2e7]
    assert [one["peak_bytes"] for one in ranked["measurement"]["ranks"]] == [5120, 9216]
    assert ranked["summary"]["memory"]["peak_bytes"] == 9216
    assert "ranks" not in alone["measurement"]
    for one, size in ((alone, 1), (ranked, 2)):
        counts = one["summary"]["counts"]
        assert counts["collectives"] == counts["collectives:all_reduce:float32"] == 1
        assert counts["collective_bytes"] == one["work"]["bytes"] == 1024
        assert one["facts"] == {"ranks": size, "owner": 0}
    assert ranked["environment"]["threads"] == 1, "two cores, shared by two"
    assert set(project.saved_cases()) == {"test_exchange[world1]", "test_exchange[world2] {2 ranks}"}
    sizes = [int(path.read_text()) for path in project.pytester.path.glob("set-up-*")]
    assert sizes.count(1) == 2, "two processes alone: nothing of a case in ranks is set up in the session"
    assert sizes.count(2) == 2 * 2, "two ranks for each of two replicates"
    assert len(list(project.pytester.path.glob("torn-down-*"))) == len(sizes)

    text = project.test_file.read_text()
    project.edit("dtype = 10, torch.float32", "dtype = 10, torch.bfloat16")
    one_dtype = project.run("-k", "world2", *quick, failed=1)
    change = project.result()["judgement"]["counts"]["collectives:all_reduce:bfloat16"]
    assert (change["before"], change["now"]) == (0, 1)
    assert "collectives:all reduce:bfloat16" in one_line(one_dtype)

    project.test_file.write_text(text.replace("cost_ms, dtype = 10", "cost_ms, dtype = 20"))
    slower = project.run("-k", "world2", *quick, failed=1)
    result = project.result()
    assert result["judgement"]["worse"] == ["latency"]
    assert len(result["outcome"]["fresh"]) == 2
    assert "ranks 20.0 ms to 40.0 ms (skew 100%) peak of a rank 5.00 KiB to 9.00 KiB" in one_line(slower)


FAILURES = """
import os, time, unittest
import pytest, torch
from torch import distributed

@pytest.mark.perf(world_size=2)
def test_raises(perf, process_group, rank):
    if rank == 1:
        raise ValueError("of its own")
    perf(distributed.all_reduce, torch.ones(8))

@pytest.mark.perf(world_size=2)
def test_dies(perf, process_group, rank):
    if rank == 1:
        print("last words", flush=True)
        os._exit(3)
    distributed.barrier()
    perf(distributed.all_reduce, torch.ones(8))

@pytest.mark.perf(world_size=2, timeout=10)
def test_stops(perf, process_group, rank):
    if rank == 1:
        pytest.exit("enough")
    perf(distributed.all_reduce, torch.ones(8))

@pytest.mark.perf(world_size=2)
def test_skips(perf):
    pytest.skip("no such thing")

@pytest.mark.perf(world_size=2)
def test_is_checked_after_it_was_measured(perf, process_group, rank):
    perf(distributed.all_reduce, torch.ones(8))
    assert rank == 0

@pytest.mark.perf(world_size=2, timeout=3)
def test_hangs(perf, process_group, rank):
    if rank == 1:
        time.sleep(100)
    perf(distributed.all_reduce, torch.ones(8))

@pytest.mark.perf(world_size=2)
def test_needs_too_much(perf):
    perf.requires(memory_bytes=1 << 50)
"""


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="processes are listed in /proc")
def test_one_rank_that_fails_ends_all_and_is_told_with_where_the_other_was(project: Project) -> None:
    project.pytester.makeconftest("")
    project.test_file.write_text(FAILURES)
    result = project.run("--perf-budget=0.3", "--perf-json=results.json", failed=5, skipped=2)
    failures = {one["case"].rpartition("::")[2]: one for one in project.results()}
    reasons = {name: one["judgement"]["reasons"] for name, one in failures.items()}
    assert all(reasons[f"test_{name}"] == ["rank 1 of 2 failed"] for name in ("raises", "dies", "stops", "hangs"))
    told = result.stdout.str()
    assert "rank 1 of 2 failed\n" in told
    assert "ValueError: of its own\n" in told
    assert "rank 0 was still running:\n" in told  # its stacks are those of a real process: test_ranks.py
    assert "rank 1 of 2 ended (exit status 3)\n" in told
    assert "Exit: enough" in told
    assert "assert 1 == 0" in told
    assert "hung: no progress for 3.00 s, in its call" in told
    assert "time.sleep(100)" in told
    assert reasons["test_skips"] == ["no such thing"]
    assert failures["test_needs_too_much"]["judgement"]["verdict"] == "skipped"
    assert "TiB" in reasons["test_needs_too_much"][0]
    assert of_workers(project) == []


MANY = """
import pytest, torch
from torch import distributed
from conftest import Virtual

@pytest.mark.perf(world_size=3)
def test_three(perf, process_group, world_size):
    def call():
        Virtual.now_ns += 1_000_000 * 10
        distributed.all_reduce(torch.ones(8))

    perf(call)
    assert distributed.get_world_size() == world_size
"""


def test_times_of_more_ranks_than_cores_are_shown_and_not_judged_and_an_option_sets_their_number(
    project: Project,
) -> None:
    project.test_file.write_text(MANY)
    project.run("--perf-update", "--perf-replicates=1", passed=1)
    assert not list((project.pytester.path / "baselines").glob("cpu-*/*.json"))
    assert project.needs()["test_three {3 ranks}"]["counts"]["collectives"] == 1
    project.edit("1_000_000 * 10", "1_000_000 * 30")
    result = project.run(passed=1)
    assert "3 ranks on 2 cores: time is not judged" in one_line(result)
    assert "3 ranks on 2 cores wait for each other" in one_line(result)

    project.run("--perf-world-size=1,2", "--perf-json=results.json", "-k", "world", passed=2)
    assert [one["mode"] for one in project.results()] == [{}, {"world_size": 2}]


def test_a_run_that_measures_nothing_runs_the_bodies_in_their_ranks_too(
    project: Project, python_with_compiler: str
) -> None:
    project.test_file.write_text(
        MANY
        + """
@pytest.mark.perf(world_size=2)
def test_two(perf, process_group, rank):
    total = torch.tensor(float(rank))
    perf(distributed.all_reduce, total)
    if not perf.predicts:
        assert total == 1.0

@pytest.mark.perf(world_size=2)
def test_wrong(perf, process_group, rank):
    perf(distributed.all_reduce, torch.ones(1))
    assert rank == 1

def test_plain(rank, world_size, process_group):
    assert (rank, world_size, process_group.size()) == (0, 1, 1)
"""
    )
    result = project.pytest(passed=3, failed=1)
    assert "rank 0 of 2 failed" in one_line(result)
    project.python = python_with_compiler
    predicted = project.run("--perf-predict", "-k", "two", passed=1)
    assert "rank 0 of 2 · 1 collective of 4 B" in one_line(predicted)


@pytest.mark.parametrize(
    ("argument", "said"),
    [
        ("0", "0 is neither a number of processes (1 or more) nor a list of such numbers"),
        ("'two'", "'two' is neither a number of processes"),
        ("[]", "[] is neither a number of processes"),
        ("True", "True is neither a number of processes"),
    ],
)
def test_what_is_no_number_of_processes_is_refused(project: Project, argument: str, said: str) -> None:
    project.test_file.write_text(MANY.replace("world_size=3", f"world_size={argument}"))
    result = project.run(ret=REFUSED)
    assert said in " ".join(result.stderr.str().split())


def test_a_test_of_unittest_and_an_option_that_is_no_number_are_refused(project: Project) -> None:
    project.test_file.write_text(
        "import pytest, unittest\n\n@pytest.mark.perf(world_size=2)\nclass TestOld(unittest.TestCase):\n"
        "    @pytest.fixture(autouse=True)\n    def take(self, perf):\n        self.perf = perf\n\n"
        "    def test_it(self):\n        self.perf(sum, range(9))\n"
    )
    result = project.run(ret=REFUSED)
    assert "on a test of unittest.TestCase" in " ".join(result.stderr.str().split())
    for wrong in ("0", "two", "1,,2"):
        result = project.run(f"--perf-world-size={wrong}", ret=REFUSED)
        assert "is no list of numbers of processes" in " ".join(result.stderr.str().split())


LAUNCHED = """
import pytest, torch
from torch import distributed

def test_joins_by_itself():
    distributed.init_process_group("gloo")
    distributed.barrier()
    distributed.destroy_process_group()

@pytest.mark.perf(world_size=[1, 4], budget=0.3)
def test_marked(perf, process_group, rank, world_size):
    x = torch.ones(1024)
    perf.note(rank=rank, size=world_size)
    perf(distributed.all_reduce, x)

def test_unmarked(perf):
    perf(torch.ones(100_000).exp)

@pytest.mark.perf
def test_fails(perf, process_group, rank):
    perf(distributed.all_reduce, torch.ones(8))
    assert rank == 0, "of its own"
"""


def test_ranks_that_torchrun_has_started_are_joined_and_the_first_reports(project: Project) -> None:
    pytester = project.pytester
    pytester.makeconftest("")
    project.test_file.unlink()
    pytester.makepyfile(test_launched=LAUNCHED)
    # Without the variables that it sets for PyTorch's import, so that its ranks are warm processes too.
    program = ["env", "-u", "OMP_NUM_THREADS", "-u", "TORCH_NCCL_ASYNC_ERROR_HANDLING", project.python]

    def run(*arguments: str) -> pytest.RunResult:
        command = ["-m", "torch.distributed.run", "--nproc-per-node=2", "--no-python", *program, "-m", "pytest"]
        return pytester.run(project.python, *command, *arguments, timeout=240)

    result = run("-m", "perf", "--perf-budget=0.3", "--perf-json=results.json", "-k", "marked")
    assert result.ret == 0
    assert result.stdout.str().count("2 passed, 2 deselected") == 1, "the second rank prints its header alone"
    results = project.results()
    assert [one["mode"] for one in results] == [{"world_size": 2}] * 2
    assert [len(one["outcome"]["measurement"]["ranks"]) for one in results] == [2, 2]
    assert results[0]["outcome"]["facts"] == {"rank": 0, "size": 2}
    assert results[0]["outcome"]["summary"]["counts"]["collectives"] == 1
    assert results[0]["case"].endswith("[world2]")

    once = run("-k", "marked or joins")
    assert once.stdout.str().count("3 passed, 1 deselected") == 2, "no group is joined before somebody asks for it"

    failed = run("-m", "perf", "-k", "fails")
    assert failed.ret != 0
    said = failed.stdout.str() + failed.stderr.str()
    assert "perf: rank 1 failed in test_launched.py::test_fails, in its call" in said
    assert "AssertionError: of its own" in said

    refused = run("-m", "perf", "--perf-update")
    assert (
        "save, predict or compare without torchrun: --perf-world-size=2" in refused.stdout.str() + refused.stderr.str()
    )


def test_a_case_in_ranks_that_the_runs_time_is_over_for_is_skipped(project: Project) -> None:
    project.test_file.write_text(
        MANY + "\n@pytest.mark.perf(world_size=2)\ndef test_late(perf, process_group):\n    pass\n"
        "\nimport time\n\n@pytest.mark.perf(world_size=2)\ndef test_long(perf):\n    time.sleep(100)\n"
    )
    result = project.run("--perf-total-budget=4", "-k", "long", skipped=1)
    assert "the run's 4.00 s were over" in one_line(result)


def test_cases_in_ranks_share_the_machine_with_workers_and_a_second_session(project: Project) -> None:
    pytest.importorskip("xdist")
    project.pytester.makeconftest("")
    body = "import pytest, torch\nfrom torch import distributed\n"
    for name in ("a", "b"):
        body += (
            f"\n@pytest.mark.perf(world_size=2, budget=0.3)\ndef test_{name}(perf, process_group):\n"
            "    perf(distributed.all_reduce, torch.ones(64))\n"
        )
    project.test_file.write_text(body)
    given = ("-p", "xdist", "-n2", "--perf-check=off")
    command = [project.python, "-m", "pytest", "-m", "perf", *given, "--perf-json=two.json"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as second:
        project.run(*given, "--perf-json=one.json", passed=2)
    assert second.returncode == 0
    for name in ("one", "two"):
        counts = [one["outcome"]["summary"]["counts"]["collectives"] for one in project.results(f"{name}.json")]
        assert counts == [1, 1]


ROWS = """
import pytest, torch
from torch import distributed
from conftest import Virtual

@pytest.mark.perf(world_size=2, study="sizes", versus="size=1", side_by_side="size")
@pytest.mark.parametrize("size", [1, 4])
def test_size(perf, process_group, size):
    def call():
        Virtual.now_ns += 10_000_000 * size
        distributed.all_reduce(torch.ones(size))

    perf(call)
"""

LEAKING = """
import pytest, torch

kept = []

@pytest.mark.perf(world_size=2, budget=0.3, leak_calls=3)
def test_leak(perf, rank):
    perf(lambda: kept.append(torch.ones(1000)) if rank == 1 else torch.ones(1))
"""


TURNS = """
import os
import pytest, torch
from pathlib import Path
from torch import distributed
from conftest import Virtual

now = "now" in Path(__file__).with_name("version.txt").read_text()
pytestmark = pytest.mark.perf(world_size=2)

def call(ms, x, times=1):
    Virtual.now_ns += round(1_000_000 * ms)
    for _ in range(times):
        distributed.all_reduce(x)

def test_slower_in_a_rank(perf, process_group, rank):
    perf(call, 100 + 4 * now * rank, torch.ones(8))

def test_same(perf, process_group, rank):
    perf(call, 10 + rank, torch.ones(8))

def test_more(perf, process_group):
    perf(call, 10, torch.ones(8), 1 + now)

def test_raises(perf, process_group, rank):
    assert not (now and rank), "rank 1 is wrong"
    perf(call, 10, torch.ones(8))

def test_dies(perf, process_group, rank):
    x = torch.ones(8)

    def dies():
        call(10, x)
        if now and rank and Virtual.now_ns > 60_000_000:
            os._exit(3)

    perf(dies)

def test_skips(perf, process_group):
    pytest.skip("not here")
"""

HANGS = """
import time
import pytest, torch
from pathlib import Path
from torch import distributed

now = "now" in Path(__file__).with_name("version.txt").read_text()

@pytest.mark.perf(world_size=2)
def test_hangs(perf, process_group, rank):
    while now and rank:
        time.sleep(0.1)
    perf(distributed.all_reduce, torch.ones(8))
"""


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def in_two_versions(project: Project, source: str) -> None:
    """Commit these tests, whose version is "before", and leave them with the version "now"."""
    version = project.pytester.path / "version.txt"
    version.write_text("before")
    project.test_file.write_text(source)
    begin_repository(project)
    version.write_text("now")


@pytest.mark.usefixtures("own_cache")
def test_two_versions_take_turns_in_ranks_and_the_slowest_rank_is_compared(project: Project) -> None:
    in_two_versions(project, TURNS)
    result = project.run(
        "--perf-against=HEAD", "--perf-evidence=off", "--perf-json=out.json", passed=1, failed=4, skipped=1
    )
    result.stdout.re_match_lines(
        [
            r"slower_in_a_rank.* is slower than in HEAD .*",
            r"latency\s+100 ms\s+104 ms\s+\+4\.0%.*",
            r"more.* has higher counts than in HEAD .*",
            r"collectives\s+1\s+2\s+\+1 .*",
        ]
    )
    said = one_line(result)
    assert "rank 1 of 2 failed" in said
    assert "AssertionError: rank 1 is wrong" in said
    assert "rank 1 of 2 ended (exit status 3)" in said
    assert "not here" in said
    paired = {
        one["case"].partition("::")[2]: one["outcome"]["paired"]
        for one in project.results("out.json")
        if "outcome" in one
    }
    assert set(paired["test_slower_in_a_rank"]["screen"]) == {1.04}
    assert set(paired["test_slower_in_a_rank"]["confirm"]) == {1.04}
    assert set(paired["test_same"]["screen"]) == {1.0}
    assert not of_workers(project)


@pytest.mark.usefixtures("own_cache")
def test_a_rank_that_hangs_in_turns_is_named(project: Project) -> None:
    project.pytester.makeconftest("import perflab.running.case.fresh_process as fresh\nfresh.START_S = 5.0\n")
    in_two_versions(project, HANGS)
    said = one_line(project.run("--perf-against=HEAD", "--perf-timeout=5", failed=1))
    assert re.search(r"rank \d of 2 hung and was stopped: no answer for 10\.0 s", said)
    assert not of_workers(project)


COMPARES = """
import pytest, torch
from torch import distributed
from conftest import Virtual

@pytest.mark.perf(world_size=2)
def test_faster(perf, process_group, rank):
    x = torch.ones(8)

    def call(ms):
        Virtual.now_ns += round(1_000_000 * ms)
        distributed.all_reduce(x)

    # Of one rank the candidate is slower, but it is not the one for which the others wait.
    found = perf.compare(base=lambda: call(10 + 10 * rank), candidate=lambda: call(11 + 5 * rank))
    assert (found.verdict, found.ratio) == ("improved", pytest.approx(16 / 20))
"""


def test_rows_and_two_callables_take_turns_in_ranks(project: Project) -> None:
    # The fastest size is the base of a comparison side by side: the virtual clock says which one that is.
    project.add(FEW_ROUNDS, "conftest.py")
    project.test_file.write_text(ROWS + COMPARES)
    project.run("--perf-json=results.json", passed=3)
    *rows, compared = project.results()
    (beside,) = (beside for one in rows for beside in one.get("beside", []))
    assert beside.get("problem") is None
    assert beside["call"]["value"] == pytest.approx(4.0)
    outcome = compared["outcome"]
    assert outcome["facts"]["compared_ratio"] == pytest.approx(16 / 20)
    assert outcome["summary"]["median_ns"] == pytest.approx(16e6)


def test_memory_that_piles_up_in_one_rank_alone_fails_the_case(project: Project) -> None:
    project.pytester.makeconftest("")
    project.test_file.write_text(LEAKING)
    project.run("--perf-json=results.json", failed=1)
    assert project.result()["outcome"]["measurement"]["leak"]["grown_bytes"] == pytest.approx([4000] * 3, abs=64)
