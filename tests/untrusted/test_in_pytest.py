"""``--perf-adversarial``, and what every perf case checks of its own results."""

from __future__ import annotations

import contextlib
import itertools
import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from perflab.base.errors import ResultsError
from perflab.measurement.callables import Comparison
from perflab.results.records import Verdict
from perflab.untrusted.in_pytest import _Twin, is_bent_time

SUITE = """
import os
import sys
import time
import pytest
import torch
from perflab.correctness import verify

kept, calls = {}, [0]

def right(x):
    return torch.softmax(x, -1)

def reference(x):
    return torch.softmax(x, -1)

def doubled(x):
    return x * 2  # whose backward pass does not need the output, and so does not keep it

def test_of_an_output_that_nothing_keeps():
    verify(doubled, inputs, reference=doubled, plain=doubled, gradient_of=["out"])

def inputs(seed):
    return {"x": torch.randn(16, 32, generator=torch.Generator().manual_seed(seed))}

def by_shape(x):
    return kept.setdefault(x.shape, right(x))

def for_a_while(x):
    calls[0] += 1
    return right(x) if calls[0] < 6 else torch.zeros_like(x)

def dies(x):
    os._exit(0)

def refuses(x):
    raise NotImplementedError("no such shape")

def finds_the_reference(x):
    return sys.modules[__name__].reference(x)

def changes(x):
    return x.softmax(-1) + x.zero_()

class Spoils(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x.softmax(-1))
        return x.softmax(-1)

    @staticmethod
    def backward(ctx, upstream):
        (out,) = ctx.saved_tensors
        dx = out * (upstream - (upstream * out).sum(-1, keepdim=True))
        upstream.zero_()
        return dx

def spoils(x):
    return Spoils.apply(x)

def counts(x):
    calls[0] += 1
    return x + calls[0] * 37 % 101  # far from the last one however many there were

def in_samples(x):
    frame = sys._getframe()
    while frame is not None:
        if frame.f_code.co_name == "_time":
            return torch.zeros_like(x)
        frame = frame.f_back
    return right(x)

def replaces(x):
    torch.equal = lambda *_: True
    return right(x)

later = [0]

def late(x):
    later[0] += 1
    return right(x) if later[0] < 19 else torch.zeros_like(x)  # both processes turn in the same turn

def unwritten(x):
    return torch.empty_like(x)

def into(x):
    return x.relu_()

def constant(x):
    return torch.full_like(x, 1 / 32)

def of_other_dtype(x):
    return right(x).half()

ended, last = [0.0], {}

def in_rows(x):
    follows = time.perf_counter() - ended[0] < 3e-4
    found = last["out"].clone() if follows and last else right(x)
    last["out"], ended[0] = found, time.perf_counter()
    return found

buffer = torch.empty(16, 32)

def into_one_buffer(x):
    return torch.softmax(x, -1, out=buffer)

turns = [0]

def every_second(x):
    turns[0] += 1
    return buffer.copy_(right(x)) if turns[0] % 2 else buffer

class Answers(torch.overrides.TorchFunctionMode):
    def __torch_function__(self, function, types, args=(), kwargs=None):
        return function(*args, **(kwargs or {}))

entered = []

def enters(x):
    if not entered:
        entered.append(Answers())
        entered[0].__enter__()
    return right(x)

CASES = [right, by_shape, for_a_while, dies, refuses, finds_the_reference, changes, into_one_buffer, spoils]
CASES += [lambda x: right(x)]

@pytest.mark.parametrize("fn", CASES, ids=lambda fn: fn.__name__)
def test_verify(fn):
    verify(fn, inputs, reference=reference, plain=reference, gradient_of=["out"] if fn in (right, spoils) else [])

class Box:
    def __init__(self, inside):
        self.inside = inside

def boxed(x):
    return Box(by_shape(x))

checked = [0]

def right_at_first(x):
    checked[0] += 1
    return right(x) if checked[0] < 8 else torch.full_like(x, 1 / 32)

latched, means = [0], {}

def latches(x):
    latched[0] += 1
    return right(x) if latched[0] < 11 else torch.zeros_like(x)

def drifts(x):
    means["x"] = torch.lerp(means.get("x", x), x, 1e-5)
    return means["x"].clone()

def leaves_a_row(x):
    out = torch.empty(17, 32)
    out[:16] = right(x)
    return out

def with_a_row(x):
    return torch.cat((right(x), x.new_zeros(1, 32)))

MEASURED = [latches, drifts, right, by_shape, counts, late, unwritten, into, in_samples, replaces]
MEASURED += [in_rows, into_one_buffer, every_second, enters, boxed, constant]
REFERRED = [leaves_a_row, right, constant, of_other_dtype, finds_the_reference, into, right_at_first]

@pytest.mark.perf
@pytest.mark.parametrize("fn", REFERRED, ids=lambda fn: fn.__name__)
def test_against_what_is_right(perf, fn):
    perf.reference(torch.relu_ if fn is into else with_a_row if fn is leaves_a_row else reference)
    perf(fn, torch.randn(16, 32))

@pytest.mark.perf
def test_both(perf):
    import both
    perf.reference(both.plain)
    perf(both.fast, torch.randn(8))

@pytest.mark.perf
@pytest.mark.parametrize("fn", MEASURED, ids=lambda fn: fn.__name__)
def test_perf(perf, fn):
    perf(fn, torch.randn(16, 32))

@pytest.mark.perf
def test_of_probabilities(perf):
    perf(lambda x: torch.bernoulli(x) * 0, torch.ones(8))

table = torch.arange(512.0)

@pytest.mark.perf
def test_of_a_table(perf):
    perf(lambda x: (torch.dropout(x, 0.5, True), table), torch.randn(16, 32))

@pytest.mark.perf
def test_of_numbers(perf):
    perf(lambda ids: (table[ids], torch.rand(99)), torch.arange(99))

@pytest.mark.perf
def test_expanded(perf):
    perf(by_shape, torch.randn(32).expand(8, 32))

@pytest.mark.perf
def test_of_a_leaf(perf):
    perf(by_shape, torch.randn(9, 32, requires_grad=True))

@pytest.mark.perf
def test_a_lock(perf):
    import threading
    lock = threading.Lock()
    perf(lambda: (lock, torch.ones(3) + 1)[1])

@pytest.mark.perf
def test_step(perf):
    layer, x = torch.nn.Linear(8, 8), torch.ones(4, 8)
    perf.step(forward=lambda: layer(x).sum(), backward=torch.Tensor.backward)
"""


Results = dict[str, Any]


def run(python: str, folder: Path, *arguments: str) -> tuple[str, Results]:
    (folder / "test_it.py").write_text(SUITE)
    (folder / "both.py").write_text("def fast(x): return x + x\ndef plain(x): return 2 * x\n")
    (folder / "pytest.ini").write_text("[pytest]\n")
    command = [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--perf-device=cpu", "--perf-budget=0.2"]
    command += ["--perf-json=out.json", "--perf-noisy=accept", *arguments]
    both = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    said = subprocess.run(command, cwd=folder, text=True, timeout=400, **both).stdout
    file = folder / "out.json"
    results = json.loads(file.read_text())["results"] if file.exists() else []
    return said, {one["case"].partition("::")[2]: one for one in results}


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory: pytest.TempPathFactory, python: str) -> tuple[str, Results]:
    """What a session says of all candidates in processes of their own, and its results."""
    chosen = "not in_samples and not replaces and not enters and not test_perf[into]"
    return run(python, tmp_path_factory.mktemp("elsewhere"), "-m", "perf or not perf", "-k", chosen, *ELSEWHERE)


ELSEWHERE = ("--perf-adversarial", "-rA")
HELD = {
    "latches": "failed",
    "drifts": "new",
    "right": "new",
    "by_shape": "failed",
    "counts": "new",
    "late": "failed",
    "unwritten": "failed",
    "in_rows": "failed",
    "into_one_buffer": "failed",
    "every_second": "failed",
    "boxed": "new",
    "constant": "new",
}
REFERRED = {
    "right": "new",
    "constant": "failed",
    "of_other_dtype": "failed",
    "into": "new",
    "right_at_first": "failed",
}


def verdicts_of(results: Results, test: str = "") -> dict[str, str]:
    """The verdicts of a test's cases by their parameters; without a test's name, those of cases without any."""
    found = {name: one["judgement"]["verdict"] for name, one in results.items()}
    if not test:
        return {name: verdict for name, verdict in found.items() if "[" not in name}
    return {name.partition("[")[2][:-1]: verdict for name, verdict in found.items() if name.partition("[")[0] == test}


def test_verify_runs_candidates_elsewhere(elsewhere: tuple[str, Results]) -> None:
    said, _ = elsewhere
    passed = {
        line.partition("[")[2].rstrip("]") for line in said.splitlines() if "PASSED test_it.py::test_verify" in line
    }
    assert passed == {"right", "<lambda>"}, said
    assert "PASSED test_it.py::test_of_an_output_that_nothing_keeps" in said
    assert "the candidate's process ended (exit status 0)" in said
    assert "NotImplementedError: no such shape" in said
    assert "is it a constant?" in said
    assert "the candidate changed x" in said
    assert "the candidate changed the gradient of out" in said
    assert "run 2 overwrote what run 1 had returned (out)" in said
    assert re.search(r"FAILED test_it\.py::test_verify\[finds_the_reference\] - (AttributeError|KeyError)", said)


def test_perf_is_held_to_what_two_other_processes_do(elsewhere: tuple[str, Results]) -> None:
    said, results = elsewhere
    assert verdicts_of(results, "test_perf") == HELD, said
    assert verdicts_of(results) == {
        "test_of_probabilities": "new",
        "test_of_a_table": "new",
        "test_of_numbers": "new",
        "test_expanded": "failed",
        "test_of_a_leaf": "failed",
        "test_a_lock": "failed",
        "test_step": "new",
        "test_both": "failed",
    }, said
    assert "two processes return different results for the same inputs" in said
    assert "cannot be sent to a process of its own" in said
    assert "fast and its reference are in one file" in said
    facts = {
        name: results[f"test_perf[{name}]"]["outcome"]["facts"]["adversarial"]
        for name in ("right", "boxed", "counts", "constant")
    }
    assert str(facts["right"]).startswith("agrees in ")
    assert facts["boxed"] == "returns no tensor to compare"
    assert facts["constant"] == "returns the same for all inputs"
    assert facts["counts"] == "results differ from call to call"


def test_results_elsewhere_are_compared_with_the_reference_that_a_case_states(elsewhere: tuple[str, Results]) -> None:
    said, results = elsewhere
    verdicts = verdicts_of(results, "test_against_what_is_right")
    assert verdicts == {**REFERRED, "finds_the_reference": "failed", "leaves_a_row": "failed"}, said
    reasons_are(results, "wrong result")


def reasons_are(results: Results, reason: str) -> None:
    for name in ("constant", "of_other_dtype", "right_at_first"):
        assert results[f"test_against_what_is_right[{name}]"]["judgement"]["reasons"] == [reason]


def test_timed_results_are_compared_with_untimed_ones_and_with_a_reference(tmp_path: Path, python: str) -> None:
    chosen = "test_perf and (right or counts or in_samples or replaces or into or enters) and not buffer"
    said, results = run(python, tmp_path, "-m", "perf", "-k", f"{chosen} or what_is_right or both")
    verdicts = verdicts_of(results, "test_perf")
    caught = {verdicts.pop(name) for name in ("in_samples", "replaces", "enters")}
    assert caught == {"failed"}, said
    assert set(verdicts.values()) == {"new"}, said
    assert "a timed call returned another result than untimed calls of the same arguments" in said
    assert "torch.equal is not PyTorch's any more" in said
    assert "the work has left a mode on, test_it.Answers" in said
    known = {name: results[f"test_perf[{name}]"]["outcome"]["measurement"]["results"] for name in verdicts}
    assert known == {"right": "same", "counts": "not comparable", "into": "same"}
    against = verdicts_of(results, "test_against_what_is_right")
    against.pop("leaves_a_row")  # what the memory of the session holds by chance may be right
    assert against == {**REFERRED, "finds_the_reference": "new"}, said  # the session has the reference
    assert verdicts_of(results) == {"test_both": "new"}
    reasons_are(results, "wrong result")


IN_MODES = """
import pytest
import torch
from perflab.correctness import verify

def product(x, w):
    return x @ w

def plain(x, w):
    return torch.matmul(x, w)

def inputs(seed):
    generator = torch.Generator().manual_seed(seed)
    return {"x": torch.randn(8, 64, generator=generator), "w": torch.randn(64, 64, generator=generator)}

def test_verify_in_autocast():
    with torch.autocast("cpu", torch.bfloat16):
        verify(product, inputs, reference=plain, plain=plain)

@pytest.mark.perf
def test_autocast(perf):
    perf.reference(plain)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        perf(product, *inputs(0).values())

@pytest.mark.perf
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_a_parameter_is_written_to(perf, mode):
    perf.reference(lambda w, g: w.sub_(g))
    with mode():
        in_inference = mode is torch.inference_mode
        perf(
            lambda w, g: w.copy_(w - g if torch.is_inference_mode_enabled() == in_inference else w),
            torch.nn.Parameter(torch.randn(64)),
            torch.randn(64),
        )

@pytest.mark.perf
def test_default_dtype(perf):
    perf.reference(lambda x: x + torch.ones(8, dtype=torch.float64))
    torch.set_default_dtype(torch.float64)
    try:
        perf(lambda x: x + torch.ones(8), torch.randn(8, dtype=torch.float32))
    finally:
        torch.set_default_dtype(torch.float32)

@pytest.mark.perf
def test_random_results_that_skip_elements(perf):
    perf(lambda x: torch.dropout(x, 0.5, True)[:, ::2], torch.randn(16, 32))

@pytest.mark.perf
def test_arguments_that_skip_elements(perf):
    x = torch.randn(64, 128)
    perf.reference(plain)
    perf(product, x[:, ::2], x[:, 1::2])
"""


def test_calls_elsewhere_are_made_in_the_modes_of_the_test(tmp_path: Path, python: str) -> None:
    (tmp_path / "test_modes.py").write_text(IN_MODES)
    said, results = run(python, tmp_path, "test_modes.py", "--perf", "--perf-adversarial", "-rA")
    assert len(results) == 6, said
    assert "PASSED test_modes.py::test_verify_in_autocast" in said
    for one in results.values():
        judgement = one["judgement"]
        is_time = judgement["reasons"] == ["the clocks disagree"]  # type: ignore[index]
        assert judgement["verdict"] == "new" or is_time, said  # type: ignore[index]  # a busy machine bends times


class Stub:
    """A process that calls a function here; what it has returned is its results."""

    def __init__(self, call: Callable[[torch.Tensor], torch.Tensor]) -> None:
        self._call = call

    def span(self, sets: list[list[torch.Tensor]], how: object = None) -> SimpleNamespace:
        """Make the calls."""
        return SimpleNamespace(outputs=[[self._call(*one)] for one in sets])

    def narrow(self) -> list[str]:
        """Give up nothing."""
        return []

    def result(self, told: torch.Tensor) -> torch.Tensor:
        """Return the result itself."""
        return told


@pytest.mark.parametrize("further", [0, 1, 7])
def test_a_process_that_has_turned_wrong_meanwhile_is_asked_for_its_first_call_again(further: int) -> None:
    calls = itertools.count()
    twin = _Twin(Stub(lambda x: x.softmax(-1) if next(calls) < 13 else torch.zeros_like(x)), EXAMPLE, False)  # type: ignore[arg-type]
    for _ in range(further):  # of another process, which has turned before: both return zeros
        assert twin.wrong(EXAMPLE, {"0": torch.zeros(16, 32)}, None, wholly=False) == ""
    with pytest.raises(ResultsError, match="another result after further calls"):
        twin.told(further)


EXAMPLE = {"argument 0": torch.linspace(-2, 2, 512).reshape(16, 32)}


@pytest.mark.parametrize("further", [8, 20, 100])
def test_a_state_that_moves_by_less_than_a_step_of_16_bit_is_no_fault(further: int) -> None:
    calls = itertools.count()
    twin = _Twin(Stub(lambda x: (x.square().mean() * 0.999 ** next(calls)).bfloat16()), EXAMPLE, False)  # type: ignore[arg-type]
    for _ in range(further):
        next(calls)
    assert twin.told(further) in ("results differ from call to call", f"agrees in {further} calls")


def test_a_time_is_bent_where_every_row_and_the_turns_are_far_longer() -> None:
    def bent(fastest_ms: float, here_ms: float = 1.0, verdict: Verdict = Verdict.REGRESSED) -> bool:
        found = Comparison(verdict, 5.0, 4.0, 6.0, base_ns=1e6 * here_ms, candidate_ns=5e6, pairs=9, threshold=2.0)
        return is_bent_time(found, 1e6 * fastest_ms, 1e6)

    assert bent(4.0)
    assert not bent(3.1), "a row that is hardly longer"
    assert not bent(4.0, here_ms=2.0), "calls here take as long now"
    assert not bent(4.0, verdict=Verdict.INCONCLUSIVE)


def test_casts_of_weights_are_kept_from_call_to_call_as_in_the_test(python: str) -> None:
    count = (
        "import torch; from perflab.untrusted.modes import InModes; from torch.profiler import profile\n"
        "layer, x = torch.nn.Linear(8, 8, bias=False), torch.randn(4, 8)\n"
        "for keeps in (False, True):\n"
        "    with torch.autocast('cpu', torch.bfloat16):\n"
        "        call = InModes(layer, 'cpu', keeps_casts=keeps)\n"
        "    with profile() as seen:\n"
        "        for _ in range(3): call(x)\n"
        "    print(sum(one.name == 'aten::_to_copy' for one in seen.events()))\n"
    )
    done = subprocess.run([python, "-u", "-c", count], capture_output=True, text=True, timeout=100)
    assert done.stdout.split() == ["6", "4"], done.stderr  # of the input in each call, and of the weight


def test_a_mode_that_an_import_leaves_on_is_refused(tmp_path: Path, python: str) -> None:
    (tmp_path / "conftest.py").write_text(
        "from torch.overrides import TorchFunctionMode\n"
        "class Answers(TorchFunctionMode):\n"
        "    def __torch_function__(self, function, types, args=(), kwargs=None):\n"
        "        return function(*args, **(kwargs or {}))\n"
        "Answers().__enter__()\n"
    )
    said, results = run(python, tmp_path, "-m", "perf", "-k", "test_step", "--perf-adversarial")
    assert not results
    assert "conftest.Answers" in said


def test_an_attention_kernel_is_held_elsewhere(tmp_path: Path, python: str) -> None:
    (tmp_path / "kernels.py").write_text(
        "import torch.nn.functional as F\n"
        "def right(q, k, v, *, is_causal=False, scale=None):\n"
        "    return F.scaled_dot_product_attention(q, k, v, is_causal=is_causal, scale=scale, enable_gqa=True)\n"
        "kept = {}\n"
        "def cached(q, k, v, *, is_causal=False, scale=None):\n"
        "    return kept.setdefault(q.shape, right(q, k, v, is_causal=is_causal, scale=scale))\n"
    )
    cases = "full and fp32 and q2-k"
    command = [python, "-m", "perflab", "attention", "kernels:right,kernels:cached", "--case", cases]
    command += ["--pytest=--perf-adversarial --perf-device=cpu -q -rA"]
    found = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=400)
    assert found.returncode == 1, found.stdout[-3000:]
    ends = [line.partition(" ") for line in found.stdout.splitlines() if line.startswith(("PASSED", "FAILED", "ERROR"))]
    assert {(end, "cached" in name) for end, _, name in ends} == {("PASSED", False), ("FAILED", True)}, ends


def test_candidates_with_other_secrets_fork_from_one_ancestor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from perflab.processes.child import launch
    from perflab.untrusted import in_pytest

    started: list[object] = []
    monkeypatch.setattr(in_pytest, "forking", lambda: contextlib.nullcontext(started.append(1) or launch))
    running = in_pytest._Running(tmp_path, limit_s=1.0)
    with running.stack:
        held = [running.holding(trusted) for trusted in ([], [run], [])]
        assert held[0] is held[2] is not held[1]
        assert started == [1]


def test_without_cloudpickle_the_remedy_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from perflab.base.errors import UsageError
    from perflab.untrusted.in_pytest import pickler

    monkeypatch.setitem(sys.modules, "cloudpickle", None)
    with pytest.raises(UsageError, match=r"perflab\[adversarial\]"):
        pickler()
