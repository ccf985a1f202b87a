"""The profile of real calls: operators, modules, phases and FLOPs as they are; times only as far as they add up."""

from __future__ import annotations

import contextlib
import copy
import itertools
import json
import threading
import time
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import checkpoint

from perflab.attribution.places import Places
from perflab.base.data import changed
from perflab.base.errors import UsageError
from perflab.lab.models import build_model, model_cost, size_config
from perflab.lab.train import PRECISIONS, TrainingConfig, TrainingStep, random_tokens
from perflab.measure.calls.workload import Step, Workload
from perflab.measurement.measurement import stopwatch_for, try_profile
from perflab.profiles.difference import explain
from perflab.profiles.recording import recorded_calls, recording, run_marked
from perflab.profiles.take import ProfilePlan, take_profile
from perflab.profiles.text import by_category, explanation_texts
from perflab.results.profile import Profile
from tests.perf.setup import Setup
from tests.studies import profile_sums

CPU = torch.device("cpu")
B, T = 2, 32


def profiled(workload: Workload, files: Path | None = None, device: torch.device = CPU) -> Profile:
    """As few calls as a profile takes."""
    workload.run()
    return take_profile(workload, device, stopwatch_for(device), ProfilePlan(0.0, files), lambda _what: None)


def training_step(attention: str = "sdpa", precision: str = "fp32", **switches: object) -> Step:
    """A step of the smallest model."""
    torch.manual_seed(0)
    model = build_model("tiny", vocab_size=512, context_length=T, attention=attention)
    tokens = random_tokens(B, T, vocab_size=512, seed=0)
    step = TrainingStep(model, tokens, TrainingConfig(precision=precision, **switches))  # type: ignore[arg-type]
    return Step(step.forward, step.backward, step.optimizer)


def instances(profile: Profile, **wanted: str) -> dict[str, float]:
    """How often each operator runs in the rows that have these values."""
    found: dict[str, float] = defaultdict(float)
    for row in profile.rows:
        if all(getattr(row, name) == value for name, value in wanted.items()):
            found[row.operator] += row.instances
    return dict(found)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_flops_of_a_training_step_are_those_of_the_closed_form(precision: str) -> None:
    found = profiled(training_step("naive", precision))
    config = size_config("tiny", vocab_size=512, context_length=T, attention="naive")
    wanted = model_cost(
        config,
        batch_size=B,
        seq_len=T,
        mode="train_step",
        param_dtype=torch.float32,
        autocast_dtype=PRECISIONS[precision].autocast,
    )
    assert sum(row.flops for row in found.rows) == wanted.flops
    backward = sum(row.flops for row in found.rows if row.phase == "backward")
    assert backward == 2 * sum(row.flops for row in found.rows if row.phase == "forward")


ATTENTION_FLOPS = 2 * (2 * B * 4 * T * T * 16)
"""Two products of B x 4 heads, T tokens and 16 numbers a head; a backward has five, since it computes scores anew."""


def attention_step(device: torch.device, dtype: torch.dtype) -> Step:
    """Attention and its backward, four heads of 16 numbers."""
    q, k, v = torch.randn(3, B, 4, T, 16, device=device, dtype=dtype).requires_grad_()
    return Step(lambda: F.scaled_dot_product_attention(q, k, v, is_causal=True).sum(), Tensor.backward)


CONVOLUTIONS = {
    # By hand: 2 * batch * steps * weight. Each of the two gradients costs as much again.
    "padded and grouped": (
        nn.Conv2d(4, 8, 3, padding=1, stride=2, groups=2),
        (2, 4, 11, 9),
        2 * 2 * (6 * 5) * 8 * 2 * 9,
    ),
    "dilated, in one dimension": (nn.Conv1d(4, 8, 3, dilation=2), (2, 4, 10), 2 * 2 * 6 * 8 * 4 * 3),
    "in three dimensions": (nn.Conv3d(2, 3, 2), (1, 2, 4, 5, 6), 2 * 1 * (3 * 4 * 5) * 3 * 2 * 8),
    "transposed": (nn.ConvTranspose2d(4, 8, 3, stride=2), (2, 4, 5, 6), 2 * 2 * (5 * 6) * 4 * 8 * 9),
    "in double precision": (nn.Conv2d(4, 8, 3).double(), (2, 4, 10, 10), 2 * 2 * (8 * 8) * 8 * 4 * 9),
}


def convolution_step(name: str, device: torch.device) -> tuple[Step, int]:
    """A convolution and its backward, and the FLOPs of its forward."""
    made, shape, flops = CONVOLUTIONS[name]
    layer = copy.deepcopy(made).to(device)
    x = torch.randn(shape, device=device, dtype=layer.weight.dtype).requires_grad_()
    return Step(lambda: layer(x).sum(), Tensor.backward), flops


def flops_by_phase(profile: Profile) -> dict[str, int]:
    """Of those that have any."""
    found: dict[str, int] = defaultdict(int)
    for row in profile.rows:
        found[row.phase] += row.flops
    return {phase: flops for phase, flops in found.items() if flops}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_fused_attention_has_the_flops_of_its_products(dtype: torch.dtype) -> None:
    found = profiled(attention_step(CPU, dtype))
    assert flops_by_phase(found) == {"forward": ATTENTION_FLOPS, "backward": 5 * ATTENTION_FLOPS // 2}


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolutions_have_the_flops_of_their_closed_form(name: str) -> None:
    step, flops = convolution_step(name, CPU)
    assert flops_by_phase(profiled(step)) == {"forward": flops, "backward": 2 * flops}


def test_a_gradient_that_nobody_wants_has_no_flops() -> None:
    layer, x = nn.Conv2d(4, 8, 3), torch.randn(2, 4, 10, 10)  # the input's is not computed
    found = profiled(Step(lambda: layer(x).sum(), Tensor.backward))
    assert flops_by_phase(found) == {"forward": 2 * 2 * 64 * 8 * 36, "backward": 2 * 2 * 64 * 8 * 36}


def test_backward_and_optimizer_belong_to_their_phase_and_to_the_forwards_module() -> None:
    found = profiled(training_step())
    (layers,) = {row.instances for row in found.rows if "flash" in row.operator and row.phase == "forward"}
    assert instances(found, module="blocks.*.feed_forward.gate", phase="forward")["aten::mm"] == layers
    assert instances(found, module="blocks.*.feed_forward.gate", phase="backward")["aten::mm"] == 2 * layers
    attention = instances(found, module="blocks.*.attention", category="attention", phase="backward")
    assert attention["aten::_scaled_dot_product_flash_attention_for_cpu_backward"] == layers
    assert instances(found, category="optimizer", phase="optimizer")["aten::_fused_adamw_"] == 1
    assert {row.phase for row in found.rows if not row.within} == {"forward", "backward", "optimizer"}


def test_a_backward_row_has_the_forwards_line() -> None:
    found = profiled(training_step())
    lines = {row.line.partition(":")[0] for row in found.rows if row.operator == "aten::mm"}
    assert lines == {"perflab/lab/models/transformer.py"}


class Doubled(torch.autograd.Function):
    """Its backward casts there and back, on a line of its own."""

    @staticmethod
    def forward(_ctx: object, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(_ctx: object, grad: Tensor) -> Tensor:  # type: ignore[override]
        return grad.double().float() * 2


class Doubling(nn.Module):
    """Doubles, and doubles what comes back."""

    def forward(self, x: Tensor) -> Tensor:
        """Element by element, with a hook on the result."""
        doubled: Tensor = Doubled.apply(x)  # type: ignore[no-untyped-call]
        doubled.register_hook(lambda grad: grad.neg())
        return doubled


def lines_in_backward(device: torch.device) -> dict[str, set[tuple[str, str]]]:
    """Module and line of each operator that Python calls in a backward."""
    x, net = torch.randn(4, 8, device=device).requires_grad_(), nn.Sequential(Doubling())
    wholes = (Workload(lambda: net(x).sum().backward(), (), {}), Step(lambda: net(x).sum(), torch.autograd.backward))
    profiles = [profiled(one, device=device) for one in wholes]
    found, other = (
        {
            name: {(row.module, row.line) for row in one.rows if (row.operator, row.phase) == (name, "backward")}
            for name in ("aten::copy_", "aten::neg")
        }
        for one in profiles
    )
    assert found == other
    return found


def line_with(code: str) -> str:
    """The line of this file that has this code first."""
    lines = Path(__file__).read_text(encoding="utf-8").splitlines()
    number = next(at for at, line in enumerate(lines) if code in line)
    return f"tests/correctness/{Path(__file__).name}:{number + 1}"


IN_BACKWARD = {
    "aten::copy_": {("0", line_with("return grad.double().float() * 2"))},
    "aten::neg": {("0", line_with("lambda grad: grad.neg()"))},
}


def test_python_in_a_backward_has_its_own_line_and_the_forward_s_module() -> None:
    assert lines_in_backward(CPU) == IN_BACKWARD


class Penalised(nn.Module):
    """Has a backward within its forward."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = Doubling()

    def forward(self, x: Tensor) -> Tensor:
        """``y + dy/dx``."""
        y = self.inner(x)
        (gradient,) = torch.autograd.grad(y.sum(), x)
        return y.detach() + gradient


def test_a_backward_within_a_module_belongs_to_the_modules_of_its_forward() -> None:
    found = profiled(Workload(Penalised(), (torch.randn(4, 8).requires_grad_(),), {}))
    negated = {(row.module, row.line, row.phase) for row in found.rows if row.operator == "aten::neg"}
    assert negated == {("inner", line_with("lambda grad: grad.neg()"), "backward")}


def test_written_out_attention_is_a_category_with_its_backward() -> None:
    written = instances(profiled(training_step("naive")), category="attention")
    assert {"aten::bmm", "aten::_softmax", "aten::_softmax_backward_data"} <= set(written)
    assert "aten::mm" not in written
    assert written["aten::bmm"] == 3 * written["aten::_softmax"] * 2


def test_a_recomputed_forward_is_of_the_backward_phase_and_its_own_modules() -> None:
    plain, recomputed = profiled(training_step()), profiled(training_step(checkpointing="every-block"))
    up = {"module": "blocks.*.feed_forward.up", "phase": "backward"}
    layers = instances(plain, **up)["aten::mm"] / 2
    assert instances(recomputed, **up)["aten::mm"] == 3 * layers


class Waves(nn.Module):
    """Three operators on a line each, and a module within."""

    def __init__(self) -> None:
        super().__init__()
        self.q = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        """``x`` ``[B, 8]``."""
        y = self.q(x)
        z = y.exp()
        return z.cos() * y


def test_a_recomputed_operator_has_its_own_line_and_not_that_of_the_node_that_asked_for_it() -> None:
    waves, x = nn.ModuleList([Waves(), Waves()]), torch.ones(4, 8)

    def forward() -> Tensor:
        y = x
        for one in waves:
            y = checkpoint(one, y, use_reentrant=False)
        return y.sum()

    found = profiled(Step(forward=forward, backward=Tensor.backward))
    lines = {
        phase: {row.line for row in found.rows if (row.operator, row.phase) == ("aten::exp", phase)}
        for phase in ("forward", "backward")
    }
    first = Waves.forward.__code__.co_firstlineno
    own = {f"tests/correctness/test_profile_of_a_call.py:{first + 3}"}
    assert lines == {"forward": own, "backward": own}
    assert {row.module for row in found.rows if row.operator == "aten::exp"} == {"*"}


def test_blocks_that_a_checkpoint_computes_again_are_one_cause() -> None:
    plain, recomputed = profiled(training_step()), profiled(training_step(checkpointing="every-block"))
    found = explain(plain, recomputed, "main", None)
    first = explanation_texts(found, timed=False)[0]
    _, is_called, rest = first.partition("all of blocks.* and rope computed once more in backward, called at ")
    assert is_called
    file, number = rest.split()[0].split(":")
    assert "checkpoint(" in Path(file).read_text().splitlines()[int(number) - 1]
    assert [part.module for part in found.parts if part.category != "dispatch"] == ["blocks.*"]
    less = explain(recomputed, plain, "main", None)
    assert [part.again for part in less.parts] == [0] * len(less.parts)


def test_rows_and_gaps_add_up_to_the_profiled_calls_less_what_the_profiler_costs() -> None:
    found = profiled(training_step())
    assert found.explained_ns <= found.profiled_ns
    # Not less either, but for what is cut off where an operator is shorter than the profiler's cost.
    assert found.explained_ns >= found.profiled_ns - 1.2 * found.cost_ns - 1e3


def test_a_plain_callable_has_a_backward_phase_only_where_one_runs() -> None:
    linear, x = nn.Linear(8, 8), torch.randn(4, 8)

    def both() -> Tensor:
        out: Tensor = linear(x).sum()
        out.backward()  # type: ignore[no-untyped-call]
        return out

    assert {row.phase for row in profiled(Workload(linear, (x,), {})).rows} == {""}
    rows = profiled(Workload(both, (), {})).rows
    assert {row.phase for row in rows} == {"", "forward", "backward"}
    assert {row.phase for row in rows if row.operator == "aten::addmm"} == {"forward"}


def test_operators_that_autocast_calls_twice_count_once() -> None:
    model, x = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(144, 8)), torch.randn(2, 3, 8, 8)

    def forward() -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            out: Tensor = model(x)
        return out

    found = profiled(Workload(forward, (), {}))
    counted = instances(found)
    assert (counted["aten::conv2d"], counted["aten::linear"]) == (1, 1)
    assert {name: often for name, _, often, _ in by_category(found)}["products forward"] == 2


OPTIMIZERS = {
    "AdamW": lambda parameters: torch.optim.AdamW(parameters, foreach=False),
    "AdamW of lists": lambda parameters: torch.optim.AdamW(parameters, foreach=True),
    "SGD": lambda parameters: torch.optim.SGD(parameters, lr=0.1),
}


def optimizer_work(name: str, device: torch.device) -> list[dict[str, float]]:
    """What a training step has in the category ``optimizer``: with phases, and in one plain call."""
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8)).to(device)
    optimizer = OPTIMIZERS[name](model.parameters())
    x = torch.randn(4, 8, device=device)

    def forward() -> Tensor:
        out: Tensor = model(x).sum()
        return out

    def call() -> None:
        Tensor.backward(forward())
        optimizer.step()

    workloads = (Step(forward, Tensor.backward, optimizer.step), Workload(call, (), {}))
    return [instances(profiled(one, device=device), category="optimizer") for one in workloads]


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_an_optimizer_s_work_is_its_own_in_a_step_without_phases_too(name: str) -> None:
    with_phases, plain = optimizer_work(name, CPU)
    assert plain == with_phases
    assert len(plain) >= 1


def test_what_was_written_for_other_tools_reads_and_names_modules(tmp_path: Path) -> None:
    profiled(training_step(), tmp_path / "step")
    trace = json.loads((tmp_path / "step.trace.json").read_text())
    assert "blocks.*.attention.q" in {one["args"].get("module") for one in trace["traceEvents"] if one["ph"] == "X"}
    folded = (tmp_path / "step.folded").read_text().splitlines()
    assert any(line.startswith("forward;blocks.*.attention.q;aten::linear;aten::matmul;aten::mm ") for line in folded)


def test_what_is_written_is_a_call_like_the_rows_and_not_one_that_was_disturbed(tmp_path: Path) -> None:
    a = torch.ones(16)
    calls: list[Tensor] = []

    def run() -> None:
        if len(calls) == slow:
            time.sleep(0.2)
        calls.append(a * a)

    def written_ns() -> int:
        calls.clear()
        take_profile(Workload(run, (), {}), CPU, stopwatch_for(CPU), plan, lambda _what: None)
        return sum(int(line.rpartition(" ")[2]) for line in (tmp_path / "case.folded").read_text().splitlines())

    slow, plan = -1, ProfilePlan(0.0, tmp_path / "case")
    written_ns()
    slow = len(calls) - 4  # the last of as many that is profiled: three are watched for lines of Python
    assert written_ns() < 200e6
    assert len(calls) == slow + 4


def test_a_range_of_the_user_s_has_what_runs_in_it(tmp_path: Path) -> None:
    x = torch.randn(8, 8)

    def call() -> None:
        with torch.profiler.record_function("my; part"):
            x @ x
        x + x

    profiled(Workload(call, (), {}), tmp_path / "call")
    stacks = [line.rpartition(" ")[0] for line in (tmp_path / "call.folded").read_text().splitlines()]
    assert [stack for stack in stacks if stack.endswith("aten::mm")] == ["my: part;aten::matmul;aten::mm"]
    assert "aten::add" in stacks


def test_a_range_of_the_user_s_is_as_long_under_the_marks_of_lines() -> None:
    x = torch.randn(8, 8)

    def call() -> None:
        with torch.profiler.record_function("part"):
            x @ x

    with recording("cpu") as profiler, Places({}).marking():
        run_marked(Workload(call, (), {}))
    (root,) = recorded_calls(profiler, 1)[0].roots
    above = {one.name: [other.name for other in one.above()] for one in root.walk()}
    assert "part" in above["aten::mm"]


@pytest.mark.filterwarnings("ignore:.*script_method:DeprecationWarning")  # of what the compiler imports
def test_fused_work_of_compiled_code_is_compiled_code() -> None:
    def waves(x: Tensor) -> Tensor:
        return x.sin().cos().sum()

    compiled, x = torch.compile(waves), torch.randn(64, 64).requires_grad_()
    found = profiled(Step(lambda: compiled(x), Tensor.backward))
    assert {row.category for row in found.rows} <= {"compiled code", "element-wise and norms", "dispatch", "python"}
    graphs = {(row.phase, row.instances) for row in found.rows if row.operator == "compiled graph"}
    assert graphs == {("forward", 1), ("backward", 1)}


def test_profiling_leaves_the_model_as_it_was() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU())
    hooks = dict(nn.modules.module._global_forward_hooks)
    profiled(Workload(model, (torch.randn(2, 8),), {}))
    assert dict(nn.modules.module._global_forward_hooks) == hooks


def test_a_workload_that_fails_fails_with_its_own_error() -> None:
    calls = itertools.count()

    def fails() -> None:
        if next(calls) >= 2:
            raise ZeroDivisionError("of the user's")

    with pytest.raises(ZeroDivisionError, match="of the user's"):
        profiled(Workload(fails, (), {}))


def test_code_that_refuses_the_marks_of_lines_is_profiled_with_its_modules() -> None:
    net = nn.Sequential(nn.Linear(8, 8))

    def run(x: Tensor) -> Tensor:
        if torch._C._len_torch_function_stack():
            raise TypeError("no torch function here")
        out: Tensor = net(x)
        return out

    found = profiled(Workload(run, (torch.rand(4, 8),), {}))
    products = [row for row in found.rows if row.operator == "aten::addmm"]
    assert [(row.module, row.line) for row in products] == [("0", "")]


def test_a_folder_that_cannot_be_written_costs_the_files_and_not_the_profile(tmp_path: Path) -> None:
    (tmp_path / "profiles").write_text("a file")
    found = profiled(Workload(torch.add, (torch.rand(4), 1), {}), tmp_path / "profiles" / "case")
    assert any(row.operator == "aten::add" for row in found.rows)
    assert any(note.startswith("could not write ") and "case.trace.json" in note for note in found.notes)


def test_code_that_fails_in_one_call_more_has_no_profile_and_keeps_its_measurement() -> None:
    calls = iter(range(3))
    profile, problem = try_profile(Workload(lambda: next(calls), (), {}), CPU, ProfilePlan(0.0), lambda _what: None)
    assert profile is None
    assert problem is not None
    assert problem.startswith("StopIteration")


def test_a_workload_with_a_profiler_of_its_own_is_refused_by_name() -> None:
    def profiles() -> Tensor:
        with torch.profiler.profile():
            return torch.ones(4).sum()

    with pytest.raises(UsageError, match="the workload runs a profiler of its own"):
        profiled(Workload(profiles, (), {}))


def test_waiting_for_another_thread_is_time_in_which_no_operator_runs() -> None:
    def threaded() -> None:
        thread = threading.Thread(target=lambda: torch.ones(8, 8) @ torch.ones(8, 8))
        thread.start()
        thread.join()

    found = profiled(Workload(threaded, (), {}))
    assert {row.category for row in found.rows} == {"python"}


def test_a_call_that_waits_for_its_own_threads_says_that_it_cannot_tell_where_time_goes() -> None:
    def counted() -> int:
        return sum(range(200_000))

    with ThreadPoolExecutor(1) as pool:
        waiting = profiled(Workload(lambda: pool.submit(counted).result(), (), {}))
    (note,) = (one for one in waiting.notes if "waits" in one)
    assert note.startswith("can't tell where all of the time goes: the calling thread waits for at least ")
    a = torch.ones(512, 512)
    assert not [one for one in profiled(Workload(lambda: a @ a, (), {})).notes if "waits" in one]


def test_a_module_that_raises_leaves_the_modules_after_it_their_own_names() -> None:
    class Broken(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            raise ValueError

    both = nn.ModuleDict({"broken": Broken(), "linear": nn.Linear(4, 4)})

    def run(x: Tensor) -> Tensor:
        with contextlib.suppress(ValueError):
            both["broken"](x)
        out: Tensor = both["linear"](x)
        return out

    found = profiled(Workload(run, (torch.ones(2, 4),), {}))
    assert [row.module for row in found.rows if row.operator == "aten::addmm"] == ["linear"]


def test_the_table_of_sums_has_forward_alone_too_and_fails_where_rows_and_timer_or_flops_disagree() -> None:
    for attention in ("naive", "sdpa"):
        setup = Setup("tiny", 1, 64, CPU, TrainingConfig(precision="bf16"), {"attention": attention})
        for mode in profile_sums.WORK:
            (found,) = profile_sums.profiles_of(setup, mode, 1, 0.0)
            rows_ns, flops = found.explained_ns, profile_sums.closed_form(setup, mode)
            assert ("products backward" in {row.category for row in found.rows}) == (mode == "train_step")
            told, is_right = profile_sums.cells([changed(found, timer_ns=1.02 * rows_ns)], flops)
            assert (told[0], told[-1], is_right) == ("+2.0%", "as computed", True)
            assert not profile_sums.cells([changed(found, timer_ns=1.05 * rows_ns)], flops)[1]
            assert not profile_sums.cells([changed(found, timer_ns=rows_ns)], flops + 2)[1]


# --- on CUDA: kernels, gaps and places; with nothing computed, no times -------------------------------------------

CUDA = torch.device("cuda")
needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA here; `make cuda` runs it without a GPU")


@pytest.fixture(scope="module")
def on_cuda() -> Profile:
    """A training step of the smallest model."""
    return profiled_on_cuda()


def profiled_on_cuda(**switches: object) -> Profile:
    """The same with another configuration."""
    torch.manual_seed(0)
    model = build_model("tiny", vocab_size=512, context_length=T, attention="naive", device=CUDA)
    tokens = random_tokens(B, T, vocab_size=512, seed=0, device=CUDA)
    step = TrainingStep(model, tokens, TrainingConfig(**switches))  # type: ignore[arg-type]
    return profiled(Step(step.forward, step.backward, step.optimizer), device=CUDA)


@needs_cuda
def test_kernels_on_cuda_belong_to_operators_modules_and_phases(on_cuda: Profile) -> None:
    kernels = [row for row in on_cuda.rows if row.kernel]
    assert on_cuda.device == "cuda"
    assert {row.phase for row in kernels} == {"forward", "backward", "optimizer"}
    assert [row.operator for row in kernels if row.category == "other"] == []
    assert [row.kernel for row in kernels if not row.operator] == []
    gate = [row for row in kernels if row.module == "blocks.*.feed_forward.gate" and row.operator == "aten::mm"]
    often = {phase: sum(row.instances for row in gate if row.phase == phase) for phase in ("forward", "backward")}
    assert often["backward"] == 2 * often["forward"] > 0


@needs_cuda
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_an_optimizer_s_kernels_are_its_own_in_a_step_without_phases_too(name: str) -> None:
    with_phases, plain = optimizer_work(name, CUDA)
    assert plain == with_phases
    assert len(plain) >= 1


@needs_cuda
def test_python_in_a_backward_on_a_thread_of_the_engine_s_has_its_own_line() -> None:
    assert lines_in_backward(CUDA) == IN_BACKWARD


@needs_cuda
def test_blocks_that_a_checkpoint_computes_again_on_cuda_are_one_cause(on_cuda: Profile) -> None:
    found = explain(on_cuda, profiled_on_cuda(checkpointing="every-block"), "main", None)
    (text,) = explanation_texts(found, timed=False)
    assert text.startswith("all of blocks.* and rope computed once more in backward but for blocks.*.feed_forward.down")


@needs_cuda
def test_kernels_and_gaps_on_cuda_add_up_to_the_calls(on_cuda: Profile) -> None:
    assert on_cuda.explained_ns == pytest.approx(on_cuda.profiled_ns, rel=1e-3)
    assert {row.category for row in on_cuda.rows if row.time_ns and not row.kernel} <= {
        "host wait",
        "launches",
        "kernel wait",
    }


@needs_cuda
def test_operators_that_launch_nothing_on_cuda_are_counted_and_one_more_of_them_is_named() -> None:
    def found(views: int) -> Profile:
        linear = nn.Linear(8, 8, device=CUDA)

        def run(x: Tensor) -> Tensor:
            for _ in range(views):
                x = x.view(2, 4, 8).view(8, 8)
            return linear(x)  # type: ignore[no-any-return]

        work = Workload(run, (torch.ones(8, 8, device=CUDA),), {})
        return take_profile(work, CUDA, stopwatch_for(CUDA), ProfilePlan(0.0), lambda _what: None)

    base, head = found(1), found(4)
    assert {row.operator: row.instances for row in base.rows if row.time_ns == 0}["aten::view"] == 2
    assert explanation_texts(explain(base, head, "main", None), timed=False) == ["6 more aten::view on the host"]


@needs_cuda
def test_flops_on_cuda_are_those_of_the_closed_form(on_cuda: Profile) -> None:
    config = size_config("tiny", vocab_size=512, context_length=T, attention="naive")
    wanted = model_cost(config, batch_size=B, seq_len=T, mode="train_step", param_dtype=torch.float32)
    assert sum(row.flops for row in on_cuda.rows) == wanted.flops


@needs_cuda
@pytest.mark.parametrize(
    ("backend", "kind"),
    [
        (SDPBackend.FLASH_ATTENTION, "flash"),
        (SDPBackend.EFFICIENT_ATTENTION, "efficient"),
        (SDPBackend.CUDNN_ATTENTION, "cudnn"),
    ],
)
def test_fused_attention_on_cuda_has_its_flops_where_its_kernels_are(backend: SDPBackend, kind: str) -> None:
    step = attention_step(CUDA, torch.bfloat16)
    with sdpa_kernel(backend):
        found = profiled(step, device=CUDA)
    assert {row.operator: row.flops for row in found.rows if row.flops} == {
        f"aten::_{kind}_attention_forward": ATTENTION_FLOPS,
        f"aten::_{kind}_attention_backward": 5 * ATTENTION_FLOPS // 2,
    }


@needs_cuda
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolutions_on_cuda_have_the_flops_of_their_closed_form(name: str) -> None:
    step, flops = convolution_step(name, CUDA)
    assert flops_by_phase(profiled(step, device=CUDA)) == {"forward": flops, "backward": 2 * flops}


def test_lines_are_known_though_calls_differ_or_modules_leave_their_fast_path() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.MultiheadAttention(16, 4, batch_first=True).eval(), nn.LayerNorm(16))
    seen: list[Tensor] = []

    def run(x: Tensor) -> Tensor:
        seen.append(x)
        y, _ = net[0](x, x, x)
        for one in seen:
            y = y + one
        return torch.tanh(net[1](y))

    with torch.inference_mode():
        found = profiled(Workload(run, (torch.randn(2, 8, 16),), {}))
    lines = {(row.operator, row.line.rpartition(":")[2]) for row in found.rows}
    begin = run.__code__.co_firstlineno
    assert {("aten::add", f"{begin + 4}"), ("aten::tanh", f"{begin + 5}")} <= lines
    assert ("aten::_native_multi_head_attention", "") in lines  # under marks for lines it does not run
    assert not any("not known" in note for note in found.notes)
