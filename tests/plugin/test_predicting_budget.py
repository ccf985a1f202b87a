"""A prediction heeds its budget and the run's, told on a virtual clock that only the traced code moves."""

from __future__ import annotations

import pytest

from tests.plugin.conftest import CONFTEST, Folder, one_line

pytestmark = pytest.mark.skipif("__import__('torch').cuda.is_available()", reason="measured, where there is a GPU")

LINES_AT_ONCE = """
import perflab.running.case.progress as progress
progress._LOG_AFTER_S = 0.0
"""
ONE_CLOCK = """
from perflab.settings.settings import TotalBudget
TotalBudget.left_s = lambda self: self._total_s and self._total_s - Virtual.now_ns / 1e9
"""
CASES = """
import pytest, torch
from conftest import Virtual
from torch import nn
from torch.overrides import _get_current_function_mode_stack
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

class Slow(torch.autograd.Function):
    \"\"\"A function that takes its time, forward or backward: on the virtual clock, and between operators.\"\"\"

    @staticmethod
    def forward(ctx, x, forward_s, backward_s):
        ctx.backward_s = backward_s
        Virtual.now_ns += int(forward_s * 1e9)
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        Virtual.now_ns += int(ctx.backward_s * 1e9)
        return grad * 2, None, None

class Layer(nn.Module):
    def __init__(self, forward_s=0.0, backward_s=0.0):
        super().__init__()
        self.linear = nn.Linear(16, 16)
        self.seconds = forward_s, backward_s

    def forward(self, x):
        try:
            return Slow.apply(self.linear(x), *self.seconds)
        except Exception:
            return x

def steps(layers, device, forward_s=0.0, backward_s=0.0, rows=4):
    model = nn.Sequential(*(Layer(forward_s, backward_s) for _ in range(layers))).to(device)
    x = torch.randn(rows, 16, device=device)
    return {"forward": lambda: model(x).sum(), "backward": torch.Tensor.backward}
"""


@pytest.fixture
def python(python_with_compiler: str) -> str:
    return python_with_compiler


class Budgeted(Folder):
    """A project whose cases take as long to trace as they say."""

    def __init__(self, pytester: pytest.Pytester, python: str) -> None:
        super().__init__(pytester, python)
        self.conftest("")

    def conftest(self, more: str) -> None:
        self.pytester.makeconftest(CONFTEST + more)

    def cases(self, source: str) -> None:
        (self.pytester.path / "test_slow.py").write_text(CASES + source)

    def run(self, *arguments: str, **expected: int) -> pytest.RunResult:
        return self.pytest("-m", "perf", *arguments, **expected)

    def predict(self, *arguments: str, **expected: int) -> pytest.RunResult:
        return self.run("--perf-predict", *arguments, **expected)


@pytest.fixture
def project(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, python: str) -> Budgeted:
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    return Budgeted(pytester, python)


def test_past_its_budget_a_case_is_skipped_with_its_operators_and_the_next_is_as_if_alone(project: Budgeted) -> None:
    project.cases(
        """
@pytest.fixture(scope="module")
def shared(device):
    return nn.Sequential(*(Layer() for _ in range(8))).to(device)

def test_in_backward(perf, shared, device):
    x = torch.randn(4, 16, device=device)

    def backward(loss):
        loss = Slow.apply(loss, 0, 3.0)
        loss.backward()

    perf.step(forward=lambda: shared(x).sum(), backward=backward)
    raise AssertionError("must not get here")

def test_next(perf, shared, device):
    assert len(shared) == 8
    x = torch.randn(4, 16, device=device)
    perf.step(forward=lambda: shared(x).sum(), backward=torch.Tensor.backward)

def test_in_forward(perf, device):
    perf.step(**steps(2, device, forward_s=1.5))
"""
    )
    project.predict("-k", "next", "--perf-update").assert_outcomes(passed=1)
    result = project.predict("--perf-budget=2.5", "-rs", passed=1, skipped=2)
    text = one_line(result)
    assert text.count("tracing took longer than --perf-budget=2.5 s; ") == 4  # in our table, and in pytest's
    assert text.count("operators so far (more: --perf-budget=15)") == 4
    assert "; 0 operators so far" not in text
    result.stdout.fnmatch_lines(["next *ok"])
    enough = project.predict("--perf-budget=15", "-k", "not next")
    enough.stdout.fnmatch_lines(["in_forward *new"])
    assert "must not get here" in enough.stdout.str()


def test_a_markers_budget_is_named_as_what_to_raise(project: Budgeted) -> None:
    project.cases(
        """
@pytest.mark.perf(budget=2)
def test_slow(perf, device):
    perf.step(**steps(2, device, forward_s=1.5))
"""
    )
    result = project.predict("--perf-budget=100", skipped=1)
    assert "tracing took longer than @pytest.mark.perf(budget=2); " in one_line(result)
    assert "operators so far (more: budget=12)" in one_line(result)


def test_progress_tells_operators_and_time_as_measuring_does(project: Budgeted) -> None:
    project.conftest(LINES_AT_ONCE)
    project.cases(
        """
def test_slow(perf, device):
    def build(rows):
        return steps(40, device, forward_s=0.01, rows=rows)

    perf.fits(build, sizes={"rows": 4})
    perf.step(**build(4))
"""
    )
    result = project.predict(passed=1)
    result.stdout.re_match_lines(
        [
            r"predicting slow: 100 operators, 0 s of 10 s, \d+ s so far",
            r"predicting slow: every layer: 100 operators, 0 s of 10 s, \d+ s so far",
            r"predicting slow: other sizes: 100 operators, 0 s of 10 s, \d+ s so far",
        ]
    )
    assert "measuring slow" not in result.stdout.str()


OTHER_SIZES = """
def test_slow(perf, device):
    def build(rows):
        return steps(2, device, forward_s=0.2 * (rows > 4), rows=rows)

    perf.fits(build, sizes={"rows": 4})
    perf.step(**build(4))
"""


def test_other_sizes_that_take_longer_than_the_budget_are_left_out_and_the_case_stands(project: Budgeted) -> None:
    project.cases(OTHER_SIZES)
    project.predict("--perf-update").stdout.fnmatch_lines(["  h100 takes rows *"])
    short = project.predict("--perf-budget=500ms", passed=1)
    short.stdout.fnmatch_lines(["slow *yes  ok"])
    assert "h100 takes rows" not in short.stdout.str()
    assert "note: no larger sizes are known: tracing them took longer than --perf-budget=0.5 s; " in one_line(short)
    assert "operators so far (more: --perf-budget=3)" in one_line(short)


def test_few_layers_are_believed_where_running_all_takes_longer_than_the_budget_and_it_says_so(
    project: Budgeted,
) -> None:
    project.cases(
        """
@pytest.mark.parametrize("rows", [4, 8])
def test_slow(perf, device, rows):
    perf.step(**steps(40, device, forward_s=0.1, rows=rows))
"""
    )
    project.predict("--perf-update", "--perf-budget=60").assert_outcomes(passed=2)
    short = project.predict("--perf-budget=2", passed=2)  # 11 layers are run for few, 80 for all
    short.stdout.fnmatch_lines(["slow[[]4] *ok", "slow[[]8] *ok"])
    assert (
        "note: few layers were traced, and it is not proven that all do the same: tracing every layer took longer than "
        "--perf-budget=2 s; " in one_line(short)
    )
    assert "not proven" not in project.predict("--perf-budget=60").stdout.str()


def test_what_the_run_has_left_ends_a_prediction_and_the_next_does_not_begin(project: Budgeted) -> None:
    project.conftest(ONE_CLOCK)
    project.cases(
        """
@pytest.mark.parametrize("which", [1, 2, 3])
def test_slow(perf, device, which):
    perf.step(**steps(2, device, forward_s=1.0))
"""
    )
    result = project.predict("--perf-total-budget=5", passed=1, skipped=2)  # one case runs its two layers twice
    result.stdout.fnmatch_lines(["slow[[]1] *new", "1 not run: the run's 5.00 s were over (slow[[]3])"])
    assert "tracing took longer than the run had left (--perf-total-budget); " in one_line(result)


def test_a_case_predicted_by_itself_is_skipped_with_both_reasons_and_the_next_is_measured(project: Budgeted) -> None:
    project.cases(
        """
def test_large(perf, device):
    perf.requires(memory_bytes=2**60)
    perf.step(**steps(2, device, forward_s=1.5))

def test_small(perf, device):
    assert not _get_current_dispatch_mode_stack() and not _get_current_function_mode_stack()
    x = torch.ones(4, device=device)

    def work():
        Virtual.now_ns += 100_000_000
        return x * 2

    assert perf(work).sum().item() == 8
"""
    )
    result = project.run("--perf-budget=2", "-rs", passed=1, skipped=1)
    assert "TiB of" in one_line(result)
    assert "; cannot be predicted, tracing took longer than --perf-budget=2 s; " in one_line(result)
    result.stdout.fnmatch_lines(["small * 100 ms * new"])
