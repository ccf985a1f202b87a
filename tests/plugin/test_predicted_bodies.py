"""What tests around a predicted callable may do: fixtures, styles, asserts; and what is said of what they may not."""

from __future__ import annotations

import pickle

import pytest

from tests.plugin.conftest import one_line, run_pytest


@pytest.fixture
def python(python_with_compiler: str) -> str:
    return python_with_compiler


@pytest.fixture(autouse=True)
def bare(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    pytester.makeini("[pytest]\naddopts = -p perflab.plugin -p no:cacheprovider\n")


def predict(pytester: pytest.Pytester, python: str, source: str, *arguments: str, **expected: int) -> pytest.RunResult:
    pytester.makepyfile(test_it=source)
    return run_pytest(pytester, python, "--perf-predict", *arguments, **expected)


STYLES = """
import unittest
import pytest, torch
from torch import nn

@pytest.fixture
def own(device):
    return nn.Linear(64, 64, device=device)

@pytest.fixture(scope="session")
def optimizer(shared):
    yield torch.optim.SGD(shared.parameters(), lr=0.1)

@pytest.fixture(scope="session")
def shared():
    return nn.Linear(64, 64).cuda()

def rows():
    return torch.randn(8, 64, device="cuda")

def test_own(perf, own):
    out = perf(own, rows())
    assert out.shape == (8, 64) and out.device.type == "cuda" and out.is_cuda

def test_shared(perf, shared):
    with torch.autocast("cuda", dtype=torch.bfloat16):
        assert perf(shared, rows()).dtype == torch.bfloat16

@pytest.mark.parametrize("width", [32, 64])
class TestClass:
    def test_in_a_class(self, perf, width, shared, optimizer):
        def forward():
            return shared(rows()[:, :width].repeat(1, 64 // width)).sum()

        def update():
            optimizer.step()
            optimizer.zero_grad()

        perf.step(forward=forward, backward=torch.Tensor.backward, optimizer=update, micro_batches=2)

class TestCase(unittest.TestCase):
    @pytest.fixture(autouse=True)
    def take(self, perf):
        self.perf = perf

    def setUp(self):
        self.weight = torch.ones(64, 64, device="cuda")

    def test_in_unittest(self):
        out = self.perf(torch.mm, self.weight, self.weight)
        self.assertEqual(out.shape, (64, 64))
        self.assertEqual(out.sum().item(), 64.0 ** 3)

def test_with_everything_a_measured_case_says(perf, device, shared):
    perf.requires(memory_bytes=2**60, flops=1e30)
    perf.work(flops=2 * 8 * 64 * 64)
    perf.quote("H100", seconds=1e-6)
    perf.note(loss=3.0)
    perf.fits(lambda rows: lambda: shared(torch.randn(rows, 64, device=device)), sizes={"rows": 8})
    perf(shared, rows())
    perf.note(later=1)

@pytest.mark.perf(fresh_process=True, warmup=3, budget=1)
def test_marked(perf, shared):
    perf(shared, rows())

def test_plain(shared):
    torch.testing.assert_close(shared(torch.zeros(1, 64)), shared.bias.unsqueeze(0))
"""


def test_fixtures_classes_and_code_that_says_cuda_are_predicted_without_a_gpu(
    pytester: pytest.Pytester, python: str
) -> None:
    predict(pytester, python, STYLES, "-m", "perf", passed=7, deselected=1).stdout.fnmatch_lines(
        [
            "own *new",
            "shared *new",
            "in_a_class[[]32] *new",
            "in_a_class[[]64] *new",
            "in_unittest *new",
            "with_every*measured_case_says *new",
            "*rows 16,777,216 *",
            "marked *new",
            "7 predicted new · 0 measured*",
        ]
    )


SHARED = """
import pytest, torch

made = []

@pytest.fixture(scope="module")
def model(device):
    model = torch.nn.Linear(4, 4, device=device)
    made.append(type(model.weight.data).__name__)
    yield model
    made.append("gone")

@pytest.fixture(scope="session")
def counted():
    made.append("counted")
    return len(made)

def test_plain_before(model, counted, device):
    assert device.type == "cpu"
    assert model(torch.ones(4)).sum().item() == model(torch.ones(4)).sum().item()

def test_predicted(perf, model, counted, device):
    assert device.type == "cuda"
    perf.step(forward=lambda: model(torch.ones(4, device=device)).sum(), backward=torch.Tensor.backward)

def test_predicted_again(perf, model, counted):
    perf(model, torch.ones(4, device="cuda"))

def test_plain_after(model, counted, device):
    assert model.weight.grad is None and device.type == "cpu"
    assert model(torch.ones(4)).sum().item() == model(torch.ones(4)).sum().item()
    assert made.count("counted") == 1
    assert made == ["counted", "Tensor", "gone", "FakeTensor", "gone", "Tensor"]
"""


def test_what_tests_share_is_made_anew_between_fake_and_real(pytester: pytest.Pytester, python: str) -> None:
    predict(pytester, python, SHARED).assert_outcomes(passed=4)


AFTERWARDS = """
import torch

def test_close(perf):
    out = perf(torch.mm, torch.ones(4, 4), torch.ones(4, 4))
    torch.testing.assert_close(out, 5 * torch.ones(4, 4))

def test_item(perf):
    assert perf(torch.mm, torch.ones(4, 4), torch.ones(4, 4)).sum().item() == 3

def test_shape(perf):
    assert perf(torch.mm, torch.ones(4, 4), torch.ones(4, 4)).shape == (4, 5)

def test_wrong(perf):
    perf(torch.mm, torch.ones(4, 4), torch.ones(4, 4))
    raise RuntimeError("of another kind")
"""


def test_asking_for_numbers_after_the_prediction_ends_the_test_and_other_failures_fail_it(
    pytester: pytest.Pytester, python: str
) -> None:
    predict(pytester, python, AFTERWARDS, passed=2, failed=2).stdout.fnmatch_lines(
        [
            "*assert *Size(*4, 4*) == (4, 5)",
            "*RuntimeError: of another kind",
            "close *new",
            "item *new",
            "shape *FAILED",
            "wrong *FAILED",
            "2 predicted new · 0 measured · 2 failed*",
        ]
    )


INSIDE = """
import pytest, torch

def clipped(x):
    if x.norm() > 1:
        x = x / x.norm()
    return x

def test_branch(perf):
    perf(clipped, torch.ones(4))

def test_item(perf):
    perf(lambda: torch.ones(4).sum().item())

@pytest.fixture
def scale():
    return torch.ones(4).mean().item()

def test_fixture(perf, scale):
    perf(torch.mul, torch.ones(4), scale)

@pytest.fixture
def scale_if_known(perf):
    return 1.0 if perf.predicts else torch.ones(4).mean().item()

def test_guarded(perf, scale_if_known):
    out = perf(torch.mul, torch.ones(4), scale_if_known)
    if not perf.predicts:
        assert out.sum().item() == 4

def test_raises(perf):
    def lookup():
        return {}["missing"] * torch.ones(4)
    perf(lookup)

def test_shapes(perf):
    perf(torch.nn.Linear(4, 4), torch.ones(5))

def test_from(perf):
    try:
        {}["first"]
    except KeyError as error:
        raise ValueError("second") from error

def test_twice(perf):
    perf(torch.mul, torch.ones(4), 2)
    perf(torch.mul, torch.ones(4), 2)

def test_trains_first(perf):
    perf.requires(setup_calls=100)
    raise AssertionError("must not get here")

@pytest.mark.perf
def test_forgets(device):
    torch.ones(4, device=device)
"""


def test_what_needs_numbers_is_named_with_its_line_and_other_errors_are_shown_as_they_are(
    pytester: pytest.Pytester, python: str
) -> None:
    result = predict(pytester, python, INSIDE, passed=1, failed=7, errors=1, skipped=1)
    text = result.stdout.str()
    for line in (
        "test_branch: cannot be predicted, test_it.py:4: `if x.norm() > 1:` needs values, and fake tensors have none",
        "test_item: cannot be predicted, test_it.py:12: `perf(lambda: torch.ones(4).sum().item())` needs values",
        "test_fixture: cannot be predicted, test_it.py:16: `return torch.ones(4).mean().item()` needs values",
        "or out of predictions: `if not perf.predicts: ...`",
        "E       KeyError: 'missing'",
        "must have same reduction dim",
        "The above exception was the direct cause of the following exception:",
        "test_it.py::test_twice: perf was called twice in one case",
        "test_it.py::test_forgets is marked perf, but measured nothing",
    ):
        assert line in text, line
    errors = text[: text.index("= perf =")]
    assert "perflab/p" not in errors, "frames of ours are hidden"
    assert "_subclasses" not in errors, "so are those of fake tensors"
    for row in ("guarded *new", "branch *FAILED", "fixture *FAILED"):
        result.stdout.fnmatch_lines([row])
    result.stdout.fnmatch_lines(
        [
            "1 skipped: trains or compiles before it measures, which cannot be predicted",
            "  (trains_first)",
            "1 predicted new · 0 measured · 1 skipped · 8 failed*",
        ]
    )


NOTHING_TO_PREDICT = """
import pytest, torch
from torch.utils.data import DataLoader, TensorDataset

def test_python(perf):
    perf(sorted, [3, 1, 2])

@pytest.mark.parametrize("shuffle", [False, True])
def test_loader(perf, shuffle):
    loader = DataLoader(TensorDataset(torch.ones(8, 2)), batch_size=4, shuffle=shuffle)
    perf(lambda: [batch for batch in loader])

@pytest.fixture
def a_gpu():
    raise AssertionError("must not get here")

@pytest.mark.perf(predict=False)
def test_marked(perf, a_gpu):
    pass

@pytest.mark.perf(predict=False)
def test_too_large(perf):
    perf.requires(seconds=1e9)
"""


def test_a_case_with_nothing_to_predict_is_skipped_and_says_why(pytester: pytest.Pytester, python: str) -> None:
    predict(pytester, python, NOTHING_TO_PREDICT, skipped=5).stdout.fnmatch_lines(
        [
            "1 skipped: the callable calls no operator of PyTorch, so there is nothing to",
            "2 skipped: nothing to predict: a data loader runs on the host, and",
            "  aten::_local_scalar_dense needs values (loader[[]False], loader[[]True])",
            "2 skipped: not to be predicted: perf(predict=False) (marked, too_large)",
        ]
    )
    measured = run_pytest(pytester, python, "-m", "perf", "-k", "too_large", skipped=1)
    measured.stdout.fnmatch_lines(["1 not run: up to * needed, more than --perf-budget (10.0 s) (too_large)"])


WITHOUT_SHAPES = """
import torch

@torch.library.custom_op("mine::twice", mutates_args=())
def twice(x: torch.Tensor) -> torch.Tensor:
    return x * 2

def draw(chance):
    return torch.binomial(torch.ones_like(chance), chance)

def test_halves(perf):
    perf(lambda x: draw(x.half()), torch.ones(16, 8))

def test_own(perf):
    perf(lambda x: twice(x), torch.ones(16, 8))
"""


def test_an_operator_that_says_nothing_of_shapes_is_named_with_its_line_and_what_to_do(
    pytester: pytest.Pytester, python: str
) -> None:
    text = predict(pytester, python, WITHOUT_SHAPES, failed=2).stdout.str()
    for said in (
        "test_halves: cannot be predicted, test_it.py:8: `return torch.binomial(torch.ones_like(chance), chance)`: "
        "aten::binomial cannot tell its result's shape: ",
        "test_own: cannot be predicted, test_it.py:14: `perf(lambda x: twice(x), torch.ones(16, 8))`: mine::twice ",
        "register shapes for an operator of your own (`@torch.library.register_fake`)",
    ):
        assert said in text, said
    assert "_meta_registrations" not in text
    assert "_subclasses" not in text


TOOLS = """
import pytest, torch

def test_tools(perf, device, sync, warmup, autocast, memory_snapshot, nvtx_range):
    x = torch.ones(256, 256, device=device)
    assert warmup(torch.mm, x, x).calls == 1
    sync()
    with memory_snapshot("two blocks") as snapshot:
        first = torch.empty(2**20, dtype=torch.uint8, device=device)
        del first
        second = torch.empty(3 * 2**20, dtype=torch.uint8, device=device)
    assert snapshot.peak_bytes == 3 * 2**20
    assert snapshot.path.exists()
    with nvtx_range("product"), autocast("bf16"):
        assert (x @ x).dtype == torch.bfloat16
    with autocast("bf16"), nvtx_range("product"):
        assert perf(torch.mm, x, x).dtype == torch.bfloat16
    torch.cuda.synchronize()
"""


def test_the_fixtures_beside_perf_work_in_a_predicted_case(pytester: pytest.Pytester, python: str) -> None:
    predict(pytester, python, TOOLS).assert_outcomes(passed=1)
    (path,) = (pytester.path / ".perflab/snapshots").glob("*two?blocks*.pickle")
    (trace,) = pickle.loads(path.read_bytes())["device_traces"]
    assert [one["size"] for one in trace if one["action"] == "alloc"] == [2**20, 3 * 2**20]


FITS = """
import pytest, torch

def build(rows, wide=True):
    width = 2**13 if wide else 64
    return lambda: torch.mm(torch.empty(rows, width, device="cuda"), torch.empty(width, width, device="cuda"))

def test_fits(perf):
    perf.fits(build, sizes={"rows": 2**22}, remedies={"a narrow one": {"wide": False}})
    perf(build(2**22))

def broken(rows):
    raise ValueError(f"no such size: {rows}")

def test_breaks(perf):
    perf.fits(broken, sizes={"rows": 8})
    perf(torch.mm, torch.ones(8, 8), torch.ones(8, 8))

def test_gives_nothing(perf):
    perf.fits(lambda rows: None, sizes={"rows": 8})
    perf(torch.mm, torch.ones(8, 8), torch.ones(8, 8))

@pytest.mark.parametrize("arguments", [
    (3, {"rows": 1}, {}), (build, {}, {}), (build, {"rows": 0}, {}), (build, {"rows": 1}, {"narrow": "wide=False"})
], ids=["uncallable", "sizeless", "zero", "remedy"])
def test_refuses(perf, arguments):
    build, sizes, remedies = arguments
    perf.fits(build, sizes=sizes, remedies=remedies)
"""


def test_what_fits_is_found_and_what_cannot_be_asked_is_refused_in_words(
    pytester: pytest.Pytester, python: str
) -> None:
    result = predict(pytester, python, FITS, passed=2, failed=5)
    text = one_line(result)
    for said in (
        "would fit with a narrow one (",
        "takes rows 1,",
        "note (1 of 2 cases): no larger sizes are known: build of perf.fits() raised ValueError: no such size: 16",
        "build of perf.fits() gave 'NoneType' -> let it return a callable without arguments, or the phases",
        "perf.fits() got 'int', which cannot be called",
        "perf.fits() without sizes -> name at least one",
        "perf.fits(sizes={'rows': 0}) -> give each size as an int, 1 or more",
        "perf.fits(remedies={'narrow': 'wide=False'}) -> give further arguments of build by name",
    ):
        assert said in text, said
    result.stdout.fnmatch_lines(["fits *no  new", "breaks *yes  new"])
