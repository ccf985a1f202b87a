"""The fused kernels as operators that PyTorch knows: compiled, faked, counted, cast, refused.

Shapes: x, gate, up (R, D); weight (D,); logits (N, V); targets (N,). Whether their numbers are right is
test_fused_kernels.py's question.
"""

import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from syrupy.assertion import SnapshotAssertion
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

from perflab.lab import kernels
from perflab.lab.kernels import cross_entropy, rms_norm, swiglu, weighted_sum
from tests.correctness.refusals import refusal_of

from .fused_operators import CROSS_ENTROPY, OPERATORS, RMS_NORM, SWIGLU, WEIGHTED_SUM, Operator

pytestmark = [pytest.mark.correctness, pytest.mark.filterwarnings("ignore::RuntimeWarning:triton")]

every_operator = pytest.mark.parametrize("operator", OPERATORS, ids=str)


def leaves_of(operator: Operator, device: torch.device, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    inputs = operator.make_inputs((6, 20), dtype, device)(0).values()
    return [x.requires_grad_(x.is_floating_point()) for x in inputs]


def gradients(out: Tensor, leaves: list[Tensor]) -> tuple[Tensor, ...]:
    return torch.autograd.grad(out.sum(), [x for x in leaves if x.requires_grad])


def arguments_of(name: str, device: torch.device) -> tuple[Any, ...]:
    """Arguments for torch.ops.perflab.<name>."""

    def floats(*shape: int) -> Tensor:
        numbers = torch.randn(shape, generator=torch.Generator(device).manual_seed(len(shape)), device=device)
        return numbers.requires_grad_(not name.endswith("_backward"))

    x, weight, rows = floats(4, 2, 10), floats(10), floats(4, 2)
    logits, targets, ends = floats(8, 10), torch.arange(8, device=device), floats(8)
    return {
        "weighted_sum": (x, weight),
        "weighted_sum_backward": (rows, x, weight),
        "rms_norm": (x, weight, 1e-5),
        "rms_norm_backward": (x, x, weight, ends.abs()),
        "swiglu": (x, x),
        "swiglu_backward": (x, x.mT.contiguous().mT, x),
        "cross_entropy": (logits, targets, -100),
        "cross_entropy_backward": (ends, logits, targets, ends, ends.abs() + 1, 3),
    }[name]


@pytest.mark.parametrize("suffix", ["", "_backward"], ids=["forward", "backward"])
@every_operator
def test_pytorch_finds_an_operators_schema_fake_and_gradient_in_order(
    operator: Operator, suffix: str, device: torch.device
) -> None:
    name = operator.name + suffix
    torch.library.opcheck(getattr(torch.ops.perflab, name).default, arguments_of(name, device))


@every_operator
def test_a_compiled_graph_has_the_operator_in_it_and_gives_the_same_bits(
    operator: Operator, device: torch.device
) -> None:
    leaves = leaves_of(operator, device)
    compiled = torch.compile(operator.function, backend="aot_eager", fullgraph=True, dynamic=True)
    out = operator.function(*leaves)
    assert torch.equal(compiled(*leaves), out)
    for got, wanted in zip(gradients(compiled(*leaves), leaves), gradients(out, leaves), strict=True):
        assert torch.equal(got, wanted)
    traced = make_fx(lambda *inputs: operator.function(*inputs))(*(x.detach() for x in leaves))
    assert f"torch.ops.perflab.{operator.name}.default" in traced.code


@every_operator
def test_fake_tensors_run_forward_and_backward_without_a_kernel(operator: Operator, device: torch.device) -> None:
    def shapes(leaves: list[Tensor]) -> list[tuple[Any, ...]]:
        out = operator.function(*leaves)
        return [(x.shape, x.dtype, x.stride(), x.device) for x in (out, *gradients(out, leaves))]

    real = leaves_of(operator, device, torch.bfloat16)
    wanted = shapes(real)
    with FakeTensorMode() as mode:
        assert shapes([mode.from_tensor(x) for x in real]) == wanted


@every_operator
def test_meta_tensors_tell_shapes(operator: Operator, device: torch.device) -> None:
    out = operator.function(*(x.to("meta") for x in leaves_of(operator, device)))
    assert (out.device.type, out.shape) == ("meta", operator.function(*leaves_of(operator, device)).shape)


def test_a_weighted_sum_counts_the_flops_of_its_matrix_product(device: torch.device) -> None:
    def count(function: Callable[[Tensor, Tensor], Tensor]) -> int:
        with FlopCounterMode(display=False) as counter:
            leaves = leaves_of(WEIGHTED_SUM, device)
            gradients(function(*leaves), leaves)
        return counter.get_total_flops()

    assert count(weighted_sum) == count(lambda x, weight: (x @ weight[:, None]).squeeze(1)) == 6 * 6 * 20


@pytest.mark.parametrize("operator", [RMS_NORM, SWIGLU, CROSS_ENTROPY], ids=str)
def test_the_others_count_as_many_flops_as_pytorchs_own(operator: Operator, device: torch.device) -> None:
    """None: it counts products of matrices."""
    with FlopCounterMode(display=False) as counter:
        leaves = leaves_of(operator, device)
        gradients(operator.function(*leaves), leaves)
        gradients(operator.plain(*leaves), leaves)
    assert counter.get_total_flops() == 0


@pytest.mark.parametrize("function", [weighted_sum, rms_norm], ids=["weighted_sum", "rms_norm"])
def test_under_autocast_sums_run_in_float32(function: Callable[..., Tensor], device: torch.device) -> None:
    x = torch.randn(6, 20, device=device, dtype=torch.bfloat16, requires_grad=True)
    weight = torch.randn(20, device=device, requires_grad=True)  # two dtypes, which autocast makes one
    with torch.autocast(device.type, torch.bfloat16):
        out = function(x, weight)
    assert torch.equal(out, function(x.float(), weight))
    assert out.dtype == torch.float32
    assert [gradient.dtype for gradient in gradients(out, [x, weight])] == [torch.bfloat16, torch.float32]


def test_under_autocast_swiglu_runs_in_the_dtype_that_it_is_given(device: torch.device) -> None:
    gate = torch.randn(6, 20, device=device)
    with torch.autocast(device.type, torch.bfloat16):
        assert swiglu(gate, gate).dtype == (F.silu(gate) * gate).dtype == torch.float32
        assert swiglu(gate.bfloat16(), gate.bfloat16()).dtype == torch.bfloat16


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=["fp32", "bf16", "fp16"])
def test_a_loss_is_float32_under_autocast_as_without(dtype: torch.dtype, device: torch.device) -> None:
    logits, targets = leaves_of(CROSS_ENTROPY, device, dtype)
    with torch.autocast(device.type, torch.bfloat16):
        loss = cross_entropy(logits, targets)
    assert loss.dtype == torch.float32
    assert torch.equal(loss, cross_entropy(logits, targets))
    assert gradients(loss, [logits])[0].dtype == dtype


@every_operator
def test_activation_checkpointing_changes_no_gradient(operator: Operator, device: torch.device) -> None:
    leaves = leaves_of(operator, device)
    wanted = gradients(operator.function(*leaves), leaves)
    again = checkpoint(operator.function, *leaves, use_reentrant=False)
    for one, other in zip(gradients(again, leaves), wanted, strict=True):
        assert torch.equal(one, other)


@every_operator
def test_a_second_derivative_is_refused_and_not_wrong(operator: Operator, device: torch.device) -> None:
    leaves = leaves_of(operator, device)
    first = leaves[0]
    (gradient,) = torch.autograd.grad(operator.function(*leaves).sum(), first, create_graph=True)
    with pytest.raises(RuntimeError, match=f"so {operator.name} has no second one; call plain_{operator.name} of"):
        gradient.square().sum().backward()


def test_what_the_forward_saves_for_the_backward_has_no_gradient(device: torch.device) -> None:
    _, rstd = torch.ops.perflab.rms_norm(*leaves_of(RMS_NORM, device), 1e-6)
    _, row_max, row_sum = torch.ops.perflab.cross_entropy(*leaves_of(CROSS_ENTROPY, device), -100)
    assert not any(x.requires_grad for x in (rstd, row_max, row_sum))


def test_the_logits_are_the_callers_before_and_after(device: torch.device) -> None:
    logits, targets = leaves_of(CROSS_ENTROPY, device)
    before = logits.detach().clone()
    (gradient,) = gradients(cross_entropy(logits, targets), [logits])
    assert torch.equal(logits, before)
    assert gradient.untyped_storage().data_ptr() != logits.untyped_storage().data_ptr()


def zeros(*shape: int, **options: Any) -> Tensor:
    return torch.zeros(shape, **options)


REFUSED: dict[str, Callable[..., object]] = {
    "a weight of another length": lambda: weighted_sum(zeros(4, 8), zeros(4)),
    "a scalar": lambda: rms_norm(zeros(), zeros(1)),
    "no columns": lambda: rms_norm(zeros(3, 0), zeros(0)),
    "float64": lambda: weighted_sum(zeros(4, 8, dtype=torch.float64), zeros(8, dtype=torch.float64)),
    "two dtypes": lambda: rms_norm(zeros(4, 8).half(), zeros(8)),
    "two devices": lambda: weighted_sum(zeros(4, 8), zeros(8, device="meta")),
    "a negative eps": lambda: rms_norm(zeros(4, 8), zeros(8), eps=-1.0),
    "halves of two sizes": lambda: swiglu(zeros(4, 8), zeros(4, 9)),
    "logits of a batch": lambda: cross_entropy(zeros(2, 3, 8), zeros(2, 3, dtype=torch.int64)),
    "targets that are numbers": lambda: cross_entropy(zeros(2, 8), zeros(2)),
    "an unknown reduction": lambda: cross_entropy(zeros(2, 8), zeros(2, dtype=torch.int64), reduction="max"),
}


def test_an_error_names_what_was_given_what_was_wanted_and_what_to_do(snapshot: SnapshotAssertion) -> None:
    assert {name: refusal_of(call) for name, call in REFUSED.items()} == snapshot


@every_operator
def test_where_nothing_can_run_the_kernel_the_error_names_what_can_be_done(
    operator: Operator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("perflab.lab.launch.is_interpreted", lambda: False)
    leaves = [x.detach() for x in leaves_of(operator, torch.device("cpu"))]
    wanted = rf"{operator.name} wants CUDA tensors, got tensors on cpu: move .*or choose .*plain_{operator.name}"
    with pytest.raises(RuntimeError, match=wanted):
        operator.function(*leaves)


@every_operator
def test_without_triton_the_package_imports_and_its_use_names_the_remedy(
    operator: Operator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "triton", None)
    monkeypatch.delitem(sys.modules, f"perflab.lab.kernels.triton_{operator.name}")
    monkeypatch.delitem(vars(kernels), operator.name)
    with pytest.raises(ImportError, match=f"{operator.name!r} needs Triton.*install.*or call plain_{operator.name} of"):
        getattr(kernels, operator.name)


def test_another_name_is_no_attribute_of_the_package() -> None:
    with pytest.raises(AttributeError, match="no attribute 'layer_norm'"):
        _ = kernels.layer_norm
