"""Every verdict, and what each way of going wrong leaves behind."""

from __future__ import annotations

import json

import pytest

from tests.plugin.conftest import Project, interrupted, run_pytest


def test_times_of_another_environment_are_refused_by_name_and_the_rest_is_judged(project: Project) -> None:
    project.save("--perf-replicates=1")
    file = project.baseline_file()
    file.write_text(file.read_text().replace('"threads": ', '"threads": 9'))
    project.cost(ms=300)
    project.run(passed=1).stdout.re_match_lines(
        [r"work .* – .* ok", r"this machine's times come from another environment: threads 9\d+ -> \d+: of 1 case.*"]
    )
    project.cost(ms=300, kib=1024)
    project.run().assert_outcomes(failed=1)


def test_a_baseline_of_another_environment_is_refused_by_name(project: Project) -> None:
    project.save("--perf-replicates=1")
    for file in (project.baseline_file(), project.exact_file()):
        file.write_text(file.read_text().replace('"torch": "', '"torch": "0.'))
        file.parent.rename(file.parent.with_name(f"{file.parent.name}-of-old"))
    result = project.run(passed=1)
    result.stdout.re_match_lines([r"work .* incomparable", r"\s+baseline from another environment: torch 0\..*"])
    project.run("--perf-check=strict").assert_outcomes(failed=1)


def test_check_off_measures_without_judging(project: Project) -> None:
    project.save("--perf-replicates=1")
    project.cost(ms=200)
    result = project.run("--perf-check=off", passed=1)
    result.stdout.re_match_lines([r"work .* \+100\.0% .* unchecked", "1 unchecked.*"])


PLACES = """
import time
import pytest
from conftest import failing

@pytest.mark.perf(memory_limit="1KiB")
def test_large(perf):
    perf(work)

def test_own(perf):
    perf(work)
    failing()

@pytest.mark.perf(timeout=1)
def test_hangs(perf):
    perf(work)
    time.sleep(600)

def test_none(perf):
    pass

@pytest.mark.perf(predict=False)
def test_too_large(perf):
    perf.requires(memory_bytes=1e18)
"""


def test_the_place_of_a_failing_verdict_or_a_skip_is_the_test_and_its_text_is_shown_once(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CI", "true")  # pytest shows messages whole in its summary
    project.save("--perf-replicates=2")
    story = project.test_file
    story.write_text(story.read_text() + PLACES)
    with (project.pytester.path / "conftest.py").open("a") as conftest:
        conftest.write("\ndef failing():\n    import pytest\n    pytest.fail('its own', pytrace=False)\n")
    project.cost(ms=200)
    said = project.run("--tb=line", "--perf-replicates=2", "--perf-evidence=off", "-rs", failed=5, skipped=1).stdout
    places = {line: number for number, line in enumerate(story.read_text().splitlines(), start=1)}
    said.fnmatch_lines_random(
        [
            f"{story}:{places['def test_work(perf):']}: Failed: work is slower than its baseline",
            f"{story}:{places['def test_large(perf):'] - 1}: Failed: large: a peak of *",
            f"{story.with_name('conftest.py')}:*: Failed: its own",
            f"{story}:{places['    time.sleep(600)']}: Failed: *hangs*",
            f"SKIPPED [[]1[]] {story.name}:{places['    perf.requires(memory_bytes=1e18)']}: *",
            f"{story}:{places['def test_none(perf):']}: test_story.py::test_none is marked perf, but measured nothing",
        ]
    )
    for once in ("95 % interval", "-> call perf(fn, *args) in it"):
        assert said.str().count(once) == 1


SEVERAL = """
import math
import pytest, torch
from conftest import Virtual

def tick(result=None):
    Virtual.now_ns += 50_000_000
    return result

def test_before(perf):
    perf(tick)

def test_too_large(perf):
    perf(lambda: tick(torch.empty(2**50, dtype=torch.uint8)))

def test_raises(perf):
    perf(lambda: 1 / 0)

def test_nan(perf):
    perf(lambda: tick({"loss": [torch.tensor([1.0, math.nan])]}))

@pytest.mark.perf(allow_nan=True)
def test_nan_that_is_meant(perf):
    perf(lambda: tick(math.nan))

@pytest.mark.perf
def test_measures_nothing(perf):
    pass

@pytest.mark.perf
def test_marked_only():
    pass

def test_wrong_result(perf):
    assert perf(lambda: tick(1)) == 2

def test_skips(perf):
    pytest.skip("not today")

def test_needs_much(perf):
    perf.requires(memory_bytes=2**60, seconds=3600)
    assert perf.predicts, "must not get here to measure"
    raise AssertionError("must not get here")

def test_twice(perf):
    perf(tick)
    perf(tick)

def test_not_callable(perf):
    perf(tick())

def test_after(perf):
    perf(tick)
"""


def test_every_way_to_go_wrong_has_its_verdict_and_the_next_case_runs_clean(project: Project) -> None:
    project.test_file.write_text(SEVERAL)
    result = project.run("-v", "--perf-json=out/results.json", passed=3, failed=7, skipped=3)
    result.stdout.re_match_lines(
        [
            r"before .* new",
            r"too_large .* OOM",
            r"\s+out of memory: 1024 TiB asked for",
            r"raises .* FAILED",
            r"nan .* FAILED",
            r"\s+NaN",
            r"nan_that_is_meant .* new",
            r"measures_nothing .* FAILED",
            r"\s+no work",
            r"marked_only .* FAILED",
            r"wrong_result .* FAILED",
            r"skips +skipped: not today",
            r"needs_much .* skipped",
            r"\s+needs 7\.00 h of 10\.0 s, 1\.05e\+06 TiB of .*; .*",
            r"\s+.*AssertionError: must not get here",
            r"twice .* FAILED",
            r"not_callable .* FAILED",
            r"after .* new",
            r"3 new · 1 oom · 2 skipped · 7 failed.*",
        ]
    )
    text = result.stdout.str()
    assert "the measured callable returned NaN; its measurements are discarded" in text
    assert "is marked perf, but measured nothing" in text
    assert "perf was called twice in one case" in text
    assert "pass the function itself and its arguments: perf(model, x), not perf(model(x))" in text
    assert "ZeroDivisionError" in text
    table = text[text.index("= perf =") : text.index("= short test summary info =")]
    assert all(len(line) <= 80 for line in table.splitlines())

    written = json.loads((project.pytester.path / "out/results.json").read_text())
    verdicts = {row["case"].split("::test_")[1]: row["judgement"]["verdict"] for row in written["results"]}
    assert verdicts["too_large"] == "oom"
    assert next(iter(verdicts)) == "before"
    assert list(verdicts)[-1] == "after"


def test_a_long_case_tells_what_is_being_measured_and_how_far_it_is(project: Project) -> None:
    with (project.pytester.path / "conftest.py").open("a") as conftest:
        conftest.write("\nimport perflab.running.case.progress as progress\nprogress._LOG_AFTER_S = 0.0\n")
    project.run().stdout.re_match_lines(
        [
            r"measuring work: warm-up 1, \d+ s so far",
            r"measuring work: sample 3, 0 s of \d+ s, \d+ s so far",
            r"measuring work: memory, \d+ s so far",
        ]
    )


def test_a_run_out_of_its_total_budget_skips_what_says_its_cost(project: Project) -> None:
    project.add("\ndef test_long(perf):\n    perf.requires(seconds=1)\n    perf(work)\n")
    result = project.run("--perf-total-budget=2", "--perf-json=perf.json", "-v", passed=1, skipped=1)
    result.stdout.re_match_lines(
        [
            r"long +skipped: needs 7\.00 s of .* left",
            r"1 not run: the run's 2\.00 s were over$",
            r"  all of them: pytest -m perf --perf-json=perf\.json --perf-total-budget=1min$",
        ]
    )
    project.run("-v", "--perf-total-budget=1min").assert_outcomes(passed=2)
    project.run("--perf-total-budget=").assert_outcomes(passed=2)


OUT_OF_TIME = """
from perflab.settings.settings import TotalBudget

TotalBudget.left_s = lambda self: 1.0 - Virtual.now_ns / 1e9
"""

LATE = """
def test_says(perf):
    perf.requires(seconds=1e-9)
    perf(work)

def test_costs(perf):
    perf.requires(seconds=0.2)
    perf(work)

def test_does_much_first(perf):
    Virtual.now_ns += 2_000_000_000
    perf(work)

def test_does_not_begin(perf):
    Virtual.now_ns += 1_000_000_000_000
    perf(work)

def test_is_much_too_late(perf):
    raise AssertionError("must not get here")
"""


def test_once_a_runs_time_is_over_every_case_is_skipped_and_says_so(project: Project) -> None:
    project.add(OUT_OF_TIME, "conftest.py")
    project.add(LATE)
    project.cost(ms=200)
    result = project.run("-v", "--perf-total-budget=1", "--perf-budget=1", passed=1, skipped=5)
    over = r"skipped: the run's 1\.00 s are over \(--perf-total-budget\)"
    result.stdout.re_match_lines(
        [
            r"work .* new",
            r"says +skipped: needs 7\.00 ns of 0 s left",
            r"costs +skipped: needs 1\.40 s of 0 s left",
            rf"does_much_first +{over}",
            rf"does_not_begin +{over}",
            rf"is_much_too_late +{over}",
            r"5 not run: the run's 1\.00 s were over",
            r"  all of them: pytest -m perf --perf-total-budget=1min",
        ]
    )


def test_a_case_in_a_fresh_process_is_measured_there_and_called_once_here(project: Project) -> None:
    project.test_file.write_text(
        """
import os
import pytest
from pathlib import Path
from conftest import Virtual

def work():
    with open("calls.txt", "a") as file:
        file.write(f"{os.getpid()} ")
    Virtual.now_ns += 10_000_000 if Path("calls.txt").read_text().count(str(os.getpid())) > 1 else 90_000_000
    return "result"

@pytest.mark.perf(fresh_process=True, warmup=0)
def test_cold(perf):
    assert perf(work) == "result"
"""
    )
    project.run(passed=1).stdout.re_match_lines([r"cold .* 10\.0 ms .* new", r"  first 90\.0 ms · mean .*"])
    calls = (project.pytester.path / "calls.txt").read_text().split()
    here = [pid for pid in calls if pid != calls[0]]
    assert len(here) == 1
    assert len(calls) > 5


ODD_ENDS = """
import pytest, torch
from conftest import Virtual

def tick():
    Virtual.now_ns += 50_000_000

def test_runs_out_while_building(perf):
    model = torch.empty(2**50, dtype=torch.uint8)
    perf(tick)

@pytest.mark.xfail(reason="known to be wrong")
def test_expected(perf):
    perf(tick)
    assert False

@pytest.fixture
def measured(perf):
    return perf(lambda: 1 / 0)

def test_fixture_raises(measured):
    pass

def test_after(perf):
    perf(tick)
"""


def test_odd_ends_have_their_verdict_and_leave_the_device_to_the_next_case(project: Project) -> None:
    project.test_file.write_text(ODD_ENDS)
    project.run("-v", passed=1, skipped=1, xfailed=1, errors=1).stdout.re_match_lines(
        [
            r"runs_out_while_building .* OOM",
            r"expected +skipped: expected to fail: known to be wrong",
            r"fixture_raises .* FAILED",
            r"\s+set-up failed",
            r"after .* new",
        ]
    )


@pytest.mark.parametrize(
    ("replicates", "said"),
    [
        (("108", "116"), r"1 of 1 baseline is noisy, and detects only changes above [\d.]+%"),
        (("400", "900"), r"1 of 1 baseline is noisy, and cannot detect a doubled time \(1\)"),
    ],
)
def test_a_noisy_baseline_says_what_it_cannot_see(project: Project, replicates: tuple[str, str], said: str) -> None:
    project.save()
    file = project.baseline_file()
    for ms in replicates:  # two of the three
        file.write_text(file.read_text().replace('"median_ns": 100000000.0', f'"median_ns": {ms}000000.0', 1))
    project.run(passed=1).stdout.re_match_lines([rf"{said}$"])


def test_a_callable_as_fast_as_an_empty_one_has_no_work(pytester: pytest.Pytester, python: str) -> None:
    pytester.makepyfile("def test_nothing(perf):\n    perf(lambda: None)\n")
    result = run_pytest(pytester, python, "-m", "perf", failed=1)
    result.stdout.fnmatch_lines(["*does no work, it is as fast as an empty one*"])


def changed(project: Project, work: str) -> None:
    """Have the case do something else."""
    source = project.test_file.read_text()
    project.test_file.write_text(source.replace("    return block.numel()", f"    {work}\n    return 1"))


def test_a_cache_that_grows_past_the_peak_of_before_fails_until_it_is_accepted(project: Project) -> None:
    project.edit("def work", "cache = []\n\ndef work")
    project.save("--perf-replicates=2")
    changed(project, "cache.append(block)")
    result = project.run()
    result.assert_outcomes(failed=1)
    result.stdout.re_match_lines(
        [
            r"work needs more memory than its baseline",
            r"why: calls differ, and .* MiB held after warm-up is more than the whole peak",
            r"work .* –  REGRESSED",
            r"  calls differ: held memory differs \(.* MiB to .* MiB\); cache is changed by",
            r"  each call; no peak or count is exact -> give each call fresh arguments,",
        ]
    )
    project.save("--perf-replicates=2")
    accepted = project.run()
    accepted.assert_outcomes(passed=1)
    accepted.stdout.re_match_lines([r"work .* –  ok"])


def test_a_queue_that_is_used_up_is_not_called_ok(project: Project) -> None:
    project.save("--perf-replicates=2")
    project.edit("def work", "queue = [1, 2]\n\ndef work")
    changed(project, "queue and queue.pop()")
    project.run(passed=1).stdout.re_match_lines(
        [
            r"work .* –  inconclusive",
            r"  later calls found nothing to do, so this is not the time of the work",
            r"  calls differ: queue is used up; no peak or count is exact -> .*",
        ]
    )


def test_an_iterator_that_runs_out_within_a_call_is_named(project: Project) -> None:
    project.test_file.write_text("def test_next(perf):\n    perf(next, iter([torch.ones(9)]))\n\nimport torch\n")
    project.run(failed=1).stdout.fnmatch_lines(
        [
            "*next: the measured callable takes from an iterator that is exhausted (StopIteration)",
            "*-> give each call an iterator of its own: perf(fn, setup=lambda: (iter(items),))",
        ]
    )


def test_a_case_without_tensors_has_no_peak_and_says_that_it_needs_no_tensor_memory(project: Project) -> None:
    source = project.test_file.read_text()
    project.test_file.write_text(source.replace("torch.empty(1024 * kib, dtype=torch.uint8)", "list(range(9))"))
    changed(project, "block.append(1)")
    project.save("--perf-replicates=2")
    project.run().stdout.re_match_lines([r"work .* –  ok", r"peak –: no tensor memory$"])
    project.cost(ms=200)
    project.run(failed=1).stdout.re_match_lines([r"latency .* failed", r"peak +– +– +no tensor memory +– +–$"])


def test_ctrl_c_keeps_what_was_finished(project: Project) -> None:
    project.add("""
def test_hangs(perf):
    import time
    Path("hanging").touch()
    perf(lambda: time.sleep(600))
""")
    output = interrupted(
        project.pytester.path, project.python, "-m", "perf", "--perf-update", "--perf-json=results.json"
    )
    assert "new, saved" in output
    assert "interrupted: these baselines have one replicate each" in output
    assert list(json.loads(project.baseline_file().read_text())["cases"]) == ["test_work"]
    (row,) = project.results()
    assert row["case"] == "test_story.py::test_work"
    (journal,) = (project.pytester.path / ".perflab/runs").glob("*.jsonl")
    kept = [json.loads(line)["case"] for line in journal.read_text().splitlines()]  # the last result of a case counts
    assert set(kept) == {"test_story.py::test_work"}


def test_an_improvement_fails_until_it_is_saved_where_baselines_must_not_go_stale(project: Project) -> None:
    project.save("--perf-replicates=1")
    project.cost(ms=100, kib=256)
    project.run().assert_outcomes(passed=1)
    project.pytester.makeini("[pytest]\naddopts = -p perflab.plugin -p no:cacheprovider\nperf_fail_improved = true\n")
    result = project.run("--perf-fail-improved")
    result.assert_outcomes(failed=1)
    result.stdout.re_match_lines(
        [
            r"work is better than its baseline, and --perf-fail-improved fails such",
            " +save the new numbers",
            r"peak +512 KiB +256 KiB +-256 KiB.*",
            r"if intended: pytest -m perf .*test_story.py::test_work.*--perf-update$",
            r"work .* improved",
        ]
    )
    result.stdout.no_fnmatch_line("*if intended:*--perf-fail-improved*")
    project.run("--perf-check=off").assert_outcomes(passed=1)
    project.save("--perf-replicates=1")
    project.run().assert_outcomes(passed=1)


LEAKING = """
import pytest, torch
from conftest import Virtual

kept = []

@pytest.mark.perf(leak_calls=3)
def test_keeps(perf):
    def work():
        Virtual.now_ns += 50_000_000
        kept.append(torch.ones(1024))
    perf(work)

def test_large(perf):
    def work():
        Virtual.now_ns += 50_000_000
        torch.empty(2048, dtype=torch.uint8)
    perf(work)

@pytest.mark.perf(memory_limit="1MiB")
def test_may_be_large(perf):
    def work():
        Virtual.now_ns += 50_000_000
        torch.empty(2048, dtype=torch.uint8)
    perf(work)
"""


def test_a_limit_of_memory_and_a_leak_fail_a_case_that_no_option_accepts(project: Project) -> None:
    project.pytester.makepyfile(test_story=LEAKING)
    ini = "[pytest]\naddopts = -p perflab.plugin -p no:cacheprovider\nperf_memory_limit = "
    project.pytester.makeini(f"{ini}1KiB\n")
    for option in ((), ("--perf-update", "--perf-replicates=1")):
        result = project.run(*option, "-k", "not keeps")
        result.assert_outcomes(failed=1, passed=1, deselected=1)
        result.stdout.re_match_lines(
            ["large: a peak of 2.00 KiB is above the limit of 1.00 KiB .by 1.00 KiB.", "large .* FAILED"]
        )
        result.stdout.no_fnmatch_line("*if intended*")
    assert list(project.needs()) == ["test_may_be_large"]
    project.run("-k", "not keeps", "--perf-check=off").assert_outcomes(passed=2, deselected=1)
    result = project.run("-k", "keeps", "--perf-memory-limit=off")
    result.assert_outcomes(failed=1, deselected=2)
    result.stdout.re_match_lines(
        ["keeps: memory held grows in each of 3 calls, by 4.00 KiB a call: 4.00 KiB of", r" .*test_story.py:\d+"]
    )
    project.pytester.makeini(f"{ini}2 GB and more\n")
    project.run().stderr.fnmatch_lines(
        ["*ini key perf_memory_limit: '2 GB and more' is not a size such as 2GiB, 512MiB or 16GB*"]
    )
