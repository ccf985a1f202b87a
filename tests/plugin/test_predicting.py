"""The predicted tier from outside: predict, save, make it hungrier, read what grew, accept it."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import pytest

from tests.plugin.conftest import REFUSED, Folder, one_line

NET = """
import torch
from torch import nn

class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        h = torch.relu(self.up(x))
        return x + self.down(h)

class Net(nn.Module):
    def __init__(self, width=64, layers=2, device=None):
        super().__init__()
        self.blocks = nn.ModuleList([Block(width) for _ in range(layers)])
        self.head = nn.Linear(width, 10)
        self.to(device)

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return self.head(x).sum()
"""

CASE = """
import torch
from net import Net

def test_net(perf, device):
    model, x = Net(device=device), torch.randn(32, 64, device=device)
    optimizer = torch.optim.AdamW(model.parameters())

    def update():
        optimizer.step()
        optimizer.zero_grad()

    loss = perf.step(forward=lambda: model(x), backward=torch.Tensor.backward, optimizer=update)
    assert loss.shape == ()
"""


@pytest.fixture
def python(python_with_compiler: str) -> str:
    return python_with_compiler


class Predicted(Folder):
    """A project of one small model, which nothing here ever runs."""

    def __init__(self, pytester: pytest.Pytester, python: str) -> None:
        super().__init__(pytester, python)
        pytester.makepyfile(net=NET, test_net=CASE)

    def edit(self, old: str, new: str, file: str = "net.py") -> None:
        super().edit(old, new, file)

    def tests(self, source: str) -> None:
        """Other tests in the place of the first one."""
        (self.pytester.path / "test_net.py").write_text(source)

    def predict(self, *arguments: str, **expected: int) -> pytest.RunResult:
        return self.pytest("-m", "perf", "--perf-predict", *arguments, **expected)

    def baseline_file(self, gpu: str = "h100") -> Path:
        return self.pytester.path / "baselines" / f"predicted-{gpu}" / "test_net.json"


@pytest.fixture
def project(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, python: str) -> Predicted:
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    return Predicted(pytester, python)


# --- the gate -------------------------------------------------------------------------------------------------------


def test_a_tensor_kept_per_layer_fails_is_named_and_accepted_by_the_command_it_names(project: Predicted) -> None:
    project.predict(passed=1).stdout.fnmatch_lines(
        [
            "collected 1 item",
            "perf: 1 case predicted for h100 (--perf-gpu), not run",
            "test_net.py *",
            "*= perf =*",
            "predicted for h100 (* GiB)*",
            "baselines/predicted-h100/",
            "net *yes  new",
            "1 predicted new · 0 measured   (save: --perf-update-new)",
        ]
    )
    assert not (project.pytester.path / "baselines").exists()

    saved = project.predict("--perf-update")
    saved.stdout.fnmatch_lines(["net *new, saved", "saved 1 prediction to baselines/predicted-h100/test_net.json"])
    project.predict().stdout.fnmatch_lines(["net *  ok", "1 predicted ok · 0 measured"])

    project.edit("return x + self.down(h)", "self.kept = h * 2.0\n        return x + self.down(h)")
    worse = project.predict(failed=1)
    worse.stdout.fnmatch_lines(
        [
            "net needs more on h100 than its baseline, as predicted: peak memory,*",
            "*before * now * change *limit",
            "peak memory *+64.0 KiB *exact  failed",
            "operators * +* exact  failed",
            "what grew:",
            "- blocks.[*] keeps 2 more tensors at the peak: temporaries of aten::mul, +64.0 KiB",
            "  (net.py:11)",
            "- blocks.[*], forward: 2 more aten::mul, +128 KiB moved (net.py:11)",
            "if intended: pytest -m perf --perf-predict test_net.py::test_net --perf-update",
            "net *REGRESSED",
            "1 predicted regressed · 0 measured   (accept: --perf-update)",
        ]
    )
    assert "Traceback" not in worse.stdout.str()

    project.pytest("-m", "perf", "--perf-predict", "test_net.py::test_net", "--perf-update").assert_outcomes(passed=1)
    project.predict().stdout.fnmatch_lines(["net *  ok"])


def test_a_gpu_whose_kernels_are_not_known_has_bounds_that_are_gated(project: Predicted) -> None:
    project.predict("--perf-gpu=Apple M4 Max", "--perf-update", passed=1).stdout.fnmatch_lines(
        [
            "predicted for m4-max, not run: bounds *",
            "case * FLOPs * peak * roofline * verdict",  # no column "fits": a bound cannot tell
            "net *≥* MiB *new, saved",
            "note: bounds alone: what kernels PyTorch takes on this GPU*",
            "note: no rate of products is published for this GPU*",
        ]
    )
    project.edit("return x + self.down(h)", "self.kept = h * 2.0\n        return x + self.down(h)")
    grown = project.predict("--perf-gpu=m4-max", failed=1).stdout
    grown.fnmatch_lines(["*peak memory*+*"])
    grown.no_fnmatch_line("*reserved*")
    grown.no_fnmatch_line("*fits*")
    grown.no_fnmatch_line("*memory-bound*")


@pytest.mark.parametrize(
    ("more", "told"),
    [("h = torch.relu(self.up(x)) + 0 * self.up(x)", "FLOPs"), ("h = torch.relu(self.up(x)).clone()", "operators")],
)
def test_one_more_product_or_operator_fails_and_is_named(project: Predicted, more: str, told: str) -> None:
    project.predict("--perf-update").assert_outcomes(passed=1)
    project.edit("h = torch.relu(self.up(x))", more)
    text = project.predict(failed=1).stdout.str()
    grew = text[text.index("what grew:") : text.index("if intended")]
    assert "net.py:10" in grew
    assert "blocks.*" in grew
    assert told in text[: text.index("what grew:")]


def test_operators_that_change_places_pass(project: Predicted) -> None:
    project.edit("return x + self.down(h)", "a = self.down(h)\n        b = x * 2\n        return a + b")
    project.predict("--perf-update").assert_outcomes(passed=1)
    project.edit("a = self.down(h)\n        b = x * 2", "b = x * 2\n        a = self.down(h)")
    project.predict().stdout.fnmatch_lines(["net *  ok", "1 predicted ok · 0 measured"])


def test_check_off_and_strict_counts_off_and_a_memory_threshold_are_heeded(project: Predicted) -> None:
    project.predict("--perf-check=strict", failed=1).stdout.fnmatch_lines(
        [
            "net could not be judged (new), and --perf-check fails such cases",
            "if intended: pytest -m perf --perf-predict test_net.py::test_net --perf-update-new",
        ]
    )
    project.predict("--perf-update-new").assert_outcomes(passed=1)
    project.edit("self.down(h)", "self.down(h).clone()")
    project.predict("--perf-check=off", passed=1).stdout.fnmatch_lines(["net *unchecked"])
    project.predict("--perf-update-new").assert_outcomes(failed=1)
    project.edit("def test_net", "@pytest.mark.perf(memory_threshold='50%')\ndef test_net", "test_net.py")
    project.edit("import torch\n", "import pytest, torch\n", "test_net.py")
    project.predict().assert_outcomes(failed=1)  # one more operator
    project.predict("--perf-counts=off").assert_outcomes(passed=1)


def test_each_gpu_has_baselines_of_its_own(project: Predicted) -> None:
    project.predict("--perf-update", "--perf-gpu=h200").assert_outcomes(passed=1)
    assert project.baseline_file("h200").exists()
    project.predict("--perf-gpu=H200").stdout.fnmatch_lines(["net *  ok"])
    project.predict("--perf-gpu=l4").stdout.fnmatch_lines(["predicted for l4*", "net *  new"])


# --- what is shown and kept -----------------------------------------------------------------------------------------


def test_results_are_written_reported_and_merged(project: Predicted) -> None:
    project.predict("--perf-json=one.json", "--perf-update").assert_outcomes(passed=1)
    project.edit("h = torch.relu(self.up(x))", "h = torch.relu(self.up(x)).clone()")
    project.predict("--perf-json=two.json", "--perf-gpu=l4").assert_outcomes(passed=1)
    (row,) = project.results("one.json")
    assert row["outcome"]["now"]["gpu"] == "h100"
    project.perflab("report", "one.json").stdout.fnmatch_lines(["predicted for h100*", "net *new, saved"])
    merged = project.perflab("merge", "one.json", "two.json")
    assert merged.ret == 0
    merged.stdout.fnmatch_lines(["predicted for h100*", "net *", "predicted for l4*", "net *"])
    project.perflab("report", "merged.json", "--format=markdown").stdout.fnmatch_lines(["*predicted for h100*"])


def test_workers_of_xdist_predict_and_one_process_saves(project: Predicted) -> None:
    pytest.importorskip("xdist")
    project.edit(
        "def test_net(perf", "@pytest.mark.parametrize('rows', [32, 64])\ndef test_net(perf, rows", "test_net.py"
    )
    project.edit("import torch\n", "import pytest, torch\n", "test_net.py")
    project.edit("torch.randn(32,", "torch.randn(rows,", "test_net.py")
    result = project.predict("-p", "xdist", "-n2", "--perf-update-new", passed=2)
    result.stdout.fnmatch_lines(["net[[]32] *new, saved", "net[[]64] *new, saved", "saved 2 predictions to *"])
    project.predict("-p", "xdist", "-n2").stdout.fnmatch_lines(["2 predicted ok · 0 measured"])


def test_stale_predicted_baselines_are_told_and_pruned(project: Predicted) -> None:
    project.predict("--perf-update").assert_outcomes(passed=1)
    project.edit("test_net(", "test_other(", "test_net.py")
    project.predict().stdout.fnmatch_lines(["1 stale baseline in baselines/predicted-h100/test_net.json: test_net *"])
    project.predict("--perf-prune").stdout.fnmatch_lines(
        ["removed 1 stale baseline from *test_net.json: test_net;", "  it held no others and was deleted"]
    )
    assert not project.baseline_file().exists()


def test_a_prediction_whose_test_was_moved_is_compared_with_what_it_was(project: Predicted) -> None:
    project.predict("--perf-update").assert_outcomes(passed=1)
    (project.pytester.path / "test_net.py").rename(project.pytester.path / "test_moved.py")
    project.edit("h = torch.relu(self.up(x))", "h = torch.relu(self.up(x)).clone()")
    assert "compared with test_net.py::test_net, moved" in one_line(project.predict(failed=1))


def test_the_timeline_of_a_prediction_is_written_where_it_is_asked_for(project: Predicted) -> None:
    project.predict("--perf-snapshots").stdout.fnmatch_lines(["note: timeline: *test_net*predicted.pickle"])
    (path,) = (project.pytester.path / ".perflab/snapshots").glob("*.pickle")
    assert {"segments", "device_traces"} <= pickle.loads(path.read_bytes()).keys()


def test_an_estimate_is_made_of_what_was_measured_on_such_a_gpu(project: Predicted) -> None:
    project.predict("--perf-gpu=h200", "--perf-update").assert_outcomes(passed=1)
    project.pytest(
        "-m", "perf", "--perf-device=cpu", "--perf-update", "--perf-noisy=accept", "--perf-budget=300ms", passed=1
    )
    (file,) = (project.pytester.path / "baselines").glob("cpu-*/test_net.json")
    stored = json.loads(file.read_text())
    roofline_ns = json.loads(project.baseline_file("h200").read_text())["cases"]["test_net"]["roofline_ns"]
    for environment in stored["environments"].values():
        environment |= {"device": "cuda", "device_name": "NVIDIA H200"}
    for replicate in stored["cases"]["test_net"]["replicates"]:
        scale = 2 * roofline_ns / replicate["median_ns"]
        times = {name: ns for name, ns in replicate.items() if name.endswith("_ns") and isinstance(ns, int | float)}
        replicate |= {name: ns * scale for name, ns in times.items()}
    target = project.pytester.path / "baselines/cuda-nvidia-h200-torch2.13/test_net.json"
    target.parent.mkdir()
    target.write_text(json.dumps(stored))
    told = project.predict("--perf-gpu=h200", passed=1)
    assert "estimate" in told.stdout.str()
    assert "1 of this test's cases measured on NVIDIA H200: 50% of the roofline" in one_line(told)
    target.write_text("{")
    damaged = project.predict("--perf-gpu=h200", passed=1)
    damaged.stdout.fnmatch_lines(["note: no estimate: *", "*is damaged at line 1*"])


# --- what cannot be used ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            ["--perf-gpu=h10"],
            "*--perf-gpu: 'h10' is not a GPU that perflab has a data sheet of; did you mean h100 or *",
        ),
        (
            ["--perf-against=HEAD"],
            "*--perf-against and --perf-predict: an A/B comparison measures both versions, "
            "and a prediction runs nothing*",
        ),
    ],
)
def test_options_that_do_not_go_together_are_refused(project: Predicted, arguments: list[str], said: str) -> None:
    project.predict(*arguments, ret=REFUSED).stderr.fnmatch_lines([said])


def test_a_damaged_predicted_baseline_is_named_before_anything_is_predicted(project: Predicted) -> None:
    project.predict("--perf-update").assert_outcomes(passed=1)
    project.baseline_file().write_text("{")
    for arguments in ([], ["--perf-update"]):
        result = project.predict(*arguments, ret=REFUSED)
        result.stderr.fnmatch_lines(["*predicted baseline file *test_net.json is damaged at line 1*"])
    assert project.baseline_file().read_text() == "{"


def test_baselines_that_cannot_be_written_are_refused_before_predicting(project: Predicted) -> None:
    result = project.predict("--perf-update", "--perf-baselines=/proc/perflab", ret=REFUSED)
    result.stderr.fnmatch_lines(["*cannot write baselines to *"])


def test_beside_pytest_benchmark_its_cases_are_measured_and_ours_predicted(project: Predicted) -> None:
    pytest.importorskip("pytest_benchmark")
    more = """
import pytest

@pytest.mark.perf
def test_theirs(benchmark):
    assert benchmark(lambda: torch.ones(4).sum().item()) == 4
"""
    project.add(more, "test_net.py")
    result = project.predict(
        "-p", "pytest_benchmark.plugin", "--benchmark-max-time=0.1", "--benchmark-json=theirs.json", passed=2
    )
    result.stdout.fnmatch_lines(["net *new", "1 predicted new · 0 measured*"])
    (one,) = json.loads((project.pytester.path / "theirs.json").read_text())["benchmarks"]
    assert one["name"] == "test_theirs"


FLEX = """
import torch
from torch.nn.attention.flex_attention import flex_attention

def test_net(perf, device):
    q, k, v = (torch.randn(1, 2, 64, 16, device=device) for _ in range(3))
    perf(flex_attention, q, k, v)
"""


def test_an_operator_of_higher_order_is_said_not_to_be_predictable(project: Predicted) -> None:
    project.tests(FLEX)
    project.predict(failed=1).stdout.fnmatch_lines(
        ["test_net.py::test_net: cannot be predicted, flex_attention is created by compiling*", "  -> *predict=False*"]
    )
