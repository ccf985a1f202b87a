"""Perf cases among other tests run once and untimed, unless measuring was asked for; four options choose by name."""

from __future__ import annotations

import os

import pytest

from tests.plugin.conftest import REFUSED, Project
from tests.plugin.test_kernels import KERNELS

PLAIN = "def test_plain():\n    pass\n"

BODIES = """
import pytest
import torch

calls = []

def test_call(perf, device):
    x = torch.ones(4, device=device)
    perf.work(tokens=4)
    perf.note(loss=1.0)
    assert perf(lambda y: calls.append("call") or x + y, x).tolist() == [2.0] * 4
    assert not perf.predicts

def test_step(perf):
    forward = iter(["first", "second"])
    loss = perf.step(
        forward=lambda: calls.append("forward") or next(forward),
        backward=lambda loss: calls.append(f"backward {loss}"),
        optimizer=lambda: calls.append("optimizer"),
        micro_batches=2,
    )
    assert loss == "second"

def test_warm_up(perf, warmup):
    assert warmup(lambda: calls.append("warm")).calls == 1
    perf(calls.append, "measured")

def test_every_callable_ran_once():
    assert calls == [
        "call", "forward", "backward first", "forward", "backward second", "optimizer", "warm", "measured"
    ]
"""

WRONG = """
import pytest

def test_nan(perf):
    perf(lambda: float("nan"))

@pytest.mark.perf(allow_nan=True)
def test_nan_that_is_meant(perf):
    perf(lambda: float("nan"))

def test_nothing(perf):
    pass

def test_twice(perf):
    perf(int)
    perf(int)

def test_own_failure(perf):
    assert perf(int) == 1

def test_out_of_memory(perf):
    perf(lambda: (_ for _ in ()).throw(MemoryError()))

def test_plain():
    pass
"""

REFERRED = """
import pytest
import torch

def plain(x, scale=1.0):
    return scale * x.exp() / x.exp().sum(-1, keepdim=True)

def wrong_in_one_row(x, scale=1.0):
    out = scale * torch.softmax(x, -1)
    out[2] *= 1.001
    return out

def in_place(x):
    return x.relu_()

@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.complex64], ids=str)
def test_right(perf, dtype):
    perf.reference(plain)
    perf(lambda x, scale: scale * x.exp() / x.exp().sum(-1, keepdim=True), torch.randn(4, 8).to(dtype), scale=2.0)

def doubled_into(x, out):
    out.copy_(x * 2)

@pytest.mark.parametrize("fn, right", [
    (in_place, True), (torch.zero_, False), (lambda x: x.relu(), False)
], ids=["right", "wrong", "elsewhere"])
def test_in_place(perf, fn, right):
    perf.reference(in_place)
    perf(fn, torch.randn(4, 8))

def test_undeclared(perf):
    perf.reference(torch.relu)
    perf(in_place, torch.randn(4, 8))

@pytest.mark.parametrize("fn", [doubled_into, lambda x, out: None], ids=["right", "wrong"])
def test_out_argument(perf, fn):
    perf.reference(doubled_into)
    perf(fn, torch.randn(4, 8), torch.empty(4, 8))

def test_right_module_of_a_leaf(perf):
    layer = torch.nn.Linear(8, 8)
    perf.reference(layer)
    perf(lambda x: torch.addmm(layer.bias, x, layer.weight.T), torch.randn(4, 8, requires_grad=True))

@pytest.mark.parametrize("number", [1.0, 1.01], ids=["right", "wrong"])
def test_named_and_numbers(perf, number):
    perf.reference(lambda x: {"a": x * 2, "b": x.new_ones(()).item()})
    perf(lambda x: {"b": number, "a": x + x}, torch.randn(0 + 4))

def test_right_of_nothing(perf):
    perf.reference(plain)
    perf(lambda x: torch.softmax(x, -1), torch.randn(0, 8))

def test_right_of_two(perf):
    perf.reference(torch.frexp)
    perf(torch.frexp, torch.randn(9))

def test_wrong(perf):
    perf.reference(plain)
    perf(wrong_in_one_row, torch.randn(4, 8), scale=2.0)

def test_allowed(perf):
    perf.reference(plain, multiple=1e6)
    perf(wrong_in_one_row, torch.randn(4, 8))

def test_too_many(perf):
    perf.reference(plain)
    perf(lambda x: (plain(x), x), torch.randn(4, 8))

def test_phases(perf):
    perf.reference(plain)
    perf.phases(a=lambda: torch.ones(3), b=plain)

def test_no_tensor(perf):
    perf.reference(abs)
    perf(abs, -1)

def test_undefined(perf):
    perf.reference(torch.log)
    perf(torch.abs, -torch.ones(3))

def test_late(perf):
    perf(plain, torch.randn(4, 8))
    perf.reference(plain)

def test_plain():
    pass
"""

NEEDS = """
import pytest

def test_long(perf):
    perf.requires(seconds=2)  # seven calls would not fit into the budget, one does
    perf(int)

def test_longer(perf):
    perf.requires(seconds=20)
    perf(int)

def test_trained(perf):
    perf.requires(seconds=1, setup_calls=20, setup_seconds=5)
    perf(int)

def test_large(perf):
    perf.requires(memory_bytes=2**60)
    perf(int)

def test_plain():
    pass
"""


def mixed(project: Project) -> Project:
    """The case among other tests."""
    project.pytester.makepyfile(test_plain=PLAIN)
    return project


def test_among_other_tests_a_case_runs_once_and_nothing_is_read_judged_or_left_behind(project: Project) -> None:
    project.save("--perf-replicates=1")
    project.baseline_file().write_text("damaged: whoever reads this fails")
    before = sorted(os.listdir(project.pytester.path / ".perflab" / "runs"))
    project.cost(ms=900)
    result = mixed(project).pytest(passed=2)
    result.stdout.fnmatch_lines(["perf: 1 case ran once, untimed (measure them: pytest -m perf)"])
    result.stdout.no_fnmatch_line("*= perf =*")
    assert sorted(os.listdir(project.pytester.path / ".perflab" / "runs")) == before


def test_calls_steps_and_warm_ups_run_once_and_return_what_they_return(project: Project) -> None:
    project.pytester.makepyfile(test_story=BODIES)
    project.pytest(passed=4).stdout.fnmatch_lines(["perf: 3 cases ran once, untimed (measure them: pytest -m perf)"])
    assert not (project.pytester.path / ".perflab").exists()


def test_what_is_wrong_with_a_case_fails_without_measuring_too(project: Project) -> None:
    project.pytester.makepyfile(test_story=WRONG)
    project.pytest("-rs", passed=2, failed=4, skipped=1).stdout.fnmatch_lines(
        [
            "*test_nan: the measured callable returned NaN*",
            "*test_nothing is marked perf, but measures nothing*",
            "*test_twice: perf was called twice in one case*",
            "*assert 0 == 1*",
            "perf: 5 cases ran once, untimed (*",
            "SKIPPED*: out of memory",
        ]
    )


def test_a_result_is_compared_with_the_reference_that_the_case_states(project: Project) -> None:
    project.pytester.makepyfile(test_story=REFERRED)
    project.pytest(passed=11, failed=11).stdout.fnmatch_lines_random(
        [
            "*wrong for argument 0 float32 (4, 8) of *",
            "out is wrong: shape (4, 8), float32",
            "*all of them within [[]2, *",
            "*it changed argument 0",
            "it returned 2 tensors, wanted 1",
            "*perf.reference() checks one call, not phases, set-up or coroutines",
            "*perf.reference() needs dense tensors among the arguments of the measured call",
            "*the reference returned NaN for these arguments",
            "*perf.reference() after perf()",
        ]
    )


def test_a_case_is_skipped_if_it_has_no_room_or_one_call_with_its_set_up_takes_too_long(project: Project) -> None:
    project.pytester.makepyfile(test_story=NEEDS)
    project.pytest("-rs", passed=2, skipped=3).stdout.fnmatch_lines_random(
        [
            "SKIPPED*: needs 20.0 s of 10.0 s",
            "SKIPPED*: needs 26.0 s of 10.0 s",
            "SKIPPED*: needs 1.05e+06 TiB of *",
            "perf: 1 case ran once, untimed (measure them: pytest -m perf)",
        ]
    )


def test_workers_decide_as_one_process_does_and_one_line_counts_for_all(project: Project) -> None:
    project.pytester.makepyfile(test_story=BODIES.replace("def test_every_callable_ran_once", "def not_here"))
    result = mixed(project).pytest("-n2", "-p", "xdist.plugin", passed=4)
    result.stdout.fnmatch_lines(["perf: 3 cases ran once, untimed (measure them: pytest -m perf)"])


@pytest.mark.parametrize(
    "arguments",
    [("--perf",), ("--perf-only",), ("-m", "perf or plain"), ("--perf-budget=5",), ("test_story.py",), ("-k", "work")],
)
def test_what_asks_for_measuring_measures(project: Project, arguments: tuple[str, ...]) -> None:
    result = mixed(project).pytest(*arguments)
    result.stdout.re_match_lines([r"work .* 100 ms .* new"])
    result.stdout.no_fnmatch_line("*untimed*")


def test_perf_only_skips_other_tests_and_perf_skip_skips_cases_and_both_say_why(project: Project) -> None:
    mixed(project)
    only = project.pytest("--perf-only", "-rs", passed=1, skipped=1)
    only.stdout.fnmatch_lines(["SKIPPED*: not a perf case (--perf-only)"])
    skip = project.pytest("--perf-skip", "-rs", passed=1, skipped=1)
    skip.stdout.fnmatch_lines(["SKIPPED*: a perf case (--perf-skip)"])
    skip.stdout.no_fnmatch_line("*= perf =*")
    project.pytest("--perf-only", "test_plain.py").assert_outcomes(skipped=1)


@pytest.mark.parametrize("option", ["--perf", "--perf-only"])
def test_cases_that_were_asked_for_and_chosen_away_are_not_passed_over_in_silence(
    project: Project, option: str
) -> None:
    mixed(project).pytester.makeini("[pytest]\naddopts = -p perflab.plugin -m 'not perf'\n")
    project.pytest(option, ret=REFUSED).stderr.fnmatch_lines(
        [f"*{option}: no perf case is selected (collected: 1)", "  -> add -m perf; now 'not perf' selects the tests"]
    )
    project.pytest(option, "-m", "perf").assert_outcomes(passed=1, deselected=1)


def test_a_limit_of_the_runs_time_changes_no_order_where_nothing_is_measured(project: Project) -> None:
    project.pytester.makeini("[pytest]\naddopts = -p perflab.plugin\nperf_total_budget = 60\n")
    project.pytester.makepyfile(
        test_story="""
import pytest

@pytest.mark.parametrize("size", [1, 2])
def test_first(perf, size):
    perf(sorted, range(1000))

@pytest.mark.parametrize("size", [1, 2])
def test_second(perf, size):
    perf(sorted, range(1000))

def test_plain():
    pass
"""
    )
    project.pytest("-v").stdout.fnmatch_lines(
        ["*::test_first?1? PASSED*", "*::test_first?2? PASSED*", "*::test_second?1? PASSED*", "*::test_second?2? *"]
    )
    project.pytest().stdout.fnmatch_lines(["test_story.py ....*"])


def test_perf_disable_measures_nothing_whatever_is_selected(project: Project) -> None:
    result = project.run("--perf-disable", passed=1)
    said = "perf: 1 case ran once, untimed (--perf-disable; measure them: pytest -m perf, without it)"
    result.stdout.fnmatch_lines([said])
    project.pytester.makeini("[pytest]\naddopts = -p perflab.plugin -p no:cacheprovider\nperf_disable = true\n")
    project.run().stdout.fnmatch_lines(
        ["perf: 1 case ran once, untimed (ini key perf_disable; measure them: pytest --perf -m perf)"]
    )
    project.run("--perf").stdout.re_match_lines([r"work .* 100 ms .* new"])


def test_kernels_among_other_tests_are_not_compiled_and_the_line_counts_them(project: Project) -> None:
    project.pytester.makepyfile(
        my_kernels=KERNELS, test_story="def test_kernel(compiled_kernel):\n    raise AssertionError\n"
    )
    project.pytester.makeini(
        "[pytest]\naddopts = -p perflab.plugin -p no:cacheprovider\n"
        "perf_kernels = my_kernels:EXAMPLES\nperf_arch = 80,90\n"
    )
    mixed(project).pytest("-rs", passed=1, skipped=2).stdout.fnmatch_lines(
        [
            "perf: 2 kernels were not compiled (measure them: pytest -m perf)",
            "SKIPPED*: not compiled in a run that does not measure: pytest -m perf, or --perf",
        ]
    )


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--perf-only", "--perf-skip"), "--perf-skip and --perf-only contradict each other"),
        (("--perf-disable", "--perf-update"), "--perf-disable and --perf-update contradict each other"),
        (("--perf-disable", "--perf-skip"), "--perf-skip and --perf-disable contradict each other"),
        (("--perf-skip", "--perf-against=main"), "--perf-skip and --perf-against contradict each other"),
        (("-o", "perf_skip=1", "-o", "perf_disable=1"), "ini key perf_skip and ini key perf_disable contradict *"),
        (("-o", "perf_skip=perhaps"), "ini key perf_skip: 'perhaps' is neither true nor false"),
    ],
)
def test_options_that_contradict_each_other_are_refused(
    pytester: pytest.Pytester, arguments: tuple[str, ...], said: str
) -> None:
    pytester.makepyfile(PLAIN + "def test_x(perf):\n    perf(int)\n")
    result = pytester.runpytest_inprocess(*arguments)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"*{said}"])


def test_a_bad_marker_is_refused_before_anything_runs_untimed(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(f"import pytest\n{PLAIN}@pytest.mark.perf(treshold=1)\ndef test_x(perf):\n    perf(int)\n")
    result = pytester.runpytest_inprocess()
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*@pytest.mark.perf has no argument 'treshold'*"])
