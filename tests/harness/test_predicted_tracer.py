"""What a trace tells of a run: operators, blocks, where each was asked for, what it was for. Nothing stays behind."""

from __future__ import annotations

import gc
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from perflab.predicted.prediction import Work, traced
from perflab.predicted.trace.operators import Hidden
from perflab.predicted.trace.trace import Alloc, Free, Place, Saved, Trace
from tests.harness.traced import allocs, exact, frees, line_with, named, ops, phased, traced_as_is, traced_fake, work


class Net(nn.Module):
    """(4, 8) -> (4, 2), with 16 features between."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(8, 16)
        self.outer = nn.Linear(16, 2, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.inner(x)
        hidden = hidden.tanh()  # the net's own line
        out: Tensor = self.outer(hidden)
        return out


def lines_of(trace: Trace) -> set[str]:
    return {op.place.line.partition(":")[0] for op in ops(trace)}


def trained() -> Work:
    """A step in phases."""
    net, x = Net(), torch.randn(4, 8)
    sgd = torch.optim.SGD(net.parameters(), momentum=0.9, foreach=False)

    def run(mark: Callable[[], None]) -> Tensor:
        loss = net(x).sum()
        mark()
        loss.backward()
        mark()
        sgd.step()
        sgd.zero_grad()
        mark()
        return loss

    return Work(run, (net, x, sgd), ("forward", "backward", "optimizer"))


def test_each_operator_has_its_phase_its_module_and_its_line() -> None:
    trace = traced_as_is(trained())
    seen = [(op.name, *op.place[:2]) for op in ops(trace)]
    assert seen[:4] == [
        ("aten::addmm", "forward", "inner"),
        ("aten::tanh", "forward", ""),
        ("aten::mm", "forward", "outer"),
        ("aten::sum", "forward", ""),
    ]
    assert seen[4:11] == [
        ("aten::ones_like", "backward", ""),
        ("aten::mm", "backward", "outer"),
        ("aten::mm", "backward", "outer"),
        ("aten::tanh_backward", "backward", ""),
        ("aten::mm", "backward", "inner"),
        ("aten::sum", "backward", "inner"),
        ("aten::mul_", "optimizer", ""),
    ]
    own = line_with("# the net's own line", __file__)
    assert [op.place.line for op in ops(trace) if op.name.startswith("aten::tanh")] == [own, own]
    assert lines_of(trace) == {"tests/harness/test_predicted_tracer.py"}


def test_a_fake_run_and_a_real_one_leave_the_same_trace() -> None:
    fake, real = traced_fake(trained), traced_as_is(trained())
    assert fake.events == real.events
    assert fake.held == real.held
    assert fake.uses == real.uses
    assert fake.result_blocks == real.result_blocks


def test_what_is_saved_for_backward_is_told_with_shape_dtype_module_and_line() -> None:
    trace = traced_as_is(trained())
    saved = {use.saved for use in trace.uses.values() if use.saved is not None}
    assert {one.shape for one in saved} == {(4, 16)}  # parameters and the input are there anyway
    (one,) = saved
    assert one == Saved((4, 16), "float32", Place("forward", "", line_with("# the net's own line", __file__)))
    (row,) = exact(trace).saved
    assert (row.operator, row.shape, row.count, row.size_bytes) == ("aten::tanh", [4, 16], 1, 4 * 16 * 4)


def test_gradients_are_told_from_what_is_in_passing() -> None:
    trace = traced_as_is(trained())
    made = {alloc.block: alloc for alloc in allocs(trace)}
    kinds = {kind: [made[block].size_bytes for block in made if trace.uses[block].category == kind] for kind in KINDS}
    assert sorted(kinds["gradients"]) == [4 * 16, 4 * 2 * 16, 4 * 8 * 16]
    assert kinds["activations"] == [4 * 4 * 16]
    assert not kinds["parameters"]


KINDS = ("parameters", "gradients", "activations", "temporaries")


def test_views_are_no_work_and_no_memory() -> None:
    x = torch.randn(4, 6)

    def call() -> Tensor:
        y = x.view(6, 4).t()[1:].unsqueeze(0).expand(3, 3, 6).detach()
        return y.reshape(3, 18).contiguous()  # of an expanded one: a copy

    trace = traced_as_is(work(call))
    assert [op.name for op in ops(trace)] == ["aten::clone"]
    assert [alloc.size_bytes for alloc in allocs(trace)] == [3 * 18 * 4]


def test_work_in_place_takes_no_memory_and_is_work() -> None:
    x, out = torch.randn(4, 6), torch.empty(4, 6)

    def call() -> None:
        x.add_(1.0)
        torch.mul(x, 2.0, out=out)
        torch._foreach_mul_([x, out], 0.5)

    trace = traced_as_is(work(call))
    assert [op.name for op in ops(trace)] == ["aten::add_", "aten::mul", "aten::_foreach_mul_"]
    assert allocs(trace) == []


def test_memory_that_an_operator_fills_is_allocated_and_no_work() -> None:
    x = torch.randn(4, 6)

    def call() -> Tensor:
        out = torch.empty(0)
        with torch.no_grad():
            return torch.mul(x, 2.0, out=out)

    (alloc,) = allocs(traced_as_is(work(call)))
    assert (alloc.size_bytes, alloc.operator) == (4 * 6 * 4, "aten::mul")
    trace = traced_as_is(work(lambda: torch.empty(8).fill_(1.0)))
    assert [op.name for op in ops(trace)] == ["aten::fill_"]
    assert [alloc.operator for alloc in allocs(trace)] == ["aten::empty"]


def test_blocks_die_where_their_last_view_does() -> None:
    x = torch.randn(8)

    def call() -> Tensor:
        y = x + 1.0
        view = y[:2]
        del y
        z = view * 2.0
        del view
        return z.sum()

    trace = traced_as_is(work(call))
    kinds = [type(event) for event in trace.events if not isinstance(event, Alloc)]
    assert [op.name for op in ops(trace)] == ["aten::add", "aten::mul", "aten::sum"]
    assert kinds.index(Free) == 2  # y lives until z is made
    assert len(frees(trace)) == 2


def test_the_result_is_what_dies_when_it_is_dropped_with_the_graph_behind_it() -> None:
    net, x = Net(), torch.randn(4, 8)
    trace = traced_as_is(work(lambda: net(x), net, x))
    sizes = {alloc.block: alloc.size_bytes for alloc in allocs(trace)}
    assert sorted(sizes[block] for block in trace.result_blocks) == [4 * 4 * 2, 4 * 4 * 16]  # the result, and tanh's
    account = exact(trace)
    assert account.keeping_output_bytes == account.peak_bytes + 4 * 4 * 2 + 4 * 4 * 16


@pytest.mark.parametrize("function", [torch.sigmoid, torch.exp, torch.softmax, torch.rsqrt, torch.tanh])
def test_an_operator_that_saves_its_own_result_does_not_keep_it_for_ever(function: Callable[..., Tensor]) -> None:
    weight = torch.rand(8, requires_grad=True)

    def call() -> Tensor:
        dims = (0,) if function is torch.softmax else ()
        for _ in range(3):
            out = function(weight, *dims) * 1.0
        return out.detach()

    trace = traced_as_is(work(call))
    assert {alloc.block for alloc in allocs(trace)} == {free.block for free in frees(trace)} | trace.result_blocks
    assert exact(trace).peak_bytes <= (1 + 4) * 8 * 4


class Squared(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, x: Tensor) -> Tensor:
        context.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> Tensor:
        (x,) = context.saved_tensors
        return gradients[0] * x * 2.0  # backward, by hand


class OwnDerivative(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(8, 8, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = Squared.apply(self.inner(x))  # type: ignore[no-untyped-call]
        return out


def test_a_backward_that_is_written_by_hand_belongs_to_its_forwards_module_and_to_its_own_line() -> None:
    model, x = nn.Sequential(OwnDerivative()), torch.randn(4, 8)
    trace = traced_as_is(work(lambda: model(x).sum().backward(), model, x))
    written = [op for op in ops(trace) if op.place.phase == "backward" and op.name == "aten::mul"]
    assert len(written) == 2
    assert {op.place for op in written} == {
        Place("backward", "0", line_with("# backward, by hand", __file__), in_backward=True)
    }
    saved = [use.saved for use in trace.uses.values() if use.saved is not None]
    assert [(one.shape, one.place.module) for one in saved] == [((4, 8), "0")]


def test_what_runs_again_in_backward_belongs_to_its_module_there() -> None:
    net, x = Net(), torch.randn(4, 8)

    def call() -> None:
        checkpoint(net, x, use_reentrant=False).sum().backward()

    trace = traced_as_is(work(call, net, x))
    phases = [(op.place.phase, op.place.module) for op in named(trace, "addmm")]
    assert phases == [("", "inner"), ("backward", "inner")]
    assert [op.place.phase for op in named(trace, "tanh")] == ["", "backward"]


def test_composite_operators_are_what_they_are_made_of_in_inference_mode_too() -> None:
    net, x = Net().eval(), torch.randn(4, 8)

    def call(mode: Callable[[], Any]) -> Tensor:
        with mode():
            out: Tensor = net(x)
        return out

    plain, inference = (
        traced_as_is(work(partial(call, mode), net, x)) for mode in (torch.no_grad, torch.inference_mode)
    )
    assert [op.name for op in ops(inference)] == ["aten::addmm", "aten::tanh", "aten::mm"]
    assert inference.events == plain.events


def test_a_module_whose_error_was_caught_is_left() -> None:
    class Failing(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            raise ZeroDivisionError

    class Trying(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.failing, self.inner = Failing(), nn.Linear(8, 8)

        def forward(self, x: Tensor) -> Tensor:
            try:
                return self.failing(x)  # type: ignore[no-any-return]
            except ZeroDivisionError:
                return self.inner(x) + 1.0  # type: ignore[no-any-return]

    model, x = nn.ModuleDict({"trying": Trying()}), torch.randn(4, 8)
    trace = traced_as_is(work(lambda: model["trying"](x), model, x))
    assert [(op.name, op.place.module) for op in ops(trace)] == [
        ("aten::addmm", "trying.inner"),
        ("aten::add", "trying"),
    ]


def test_a_run_that_fails_leaves_nothing_behind() -> None:
    hooks = nn.modules.module
    net, x = Net(), torch.randn(4, 8)
    calls = []

    def call() -> None:
        calls.append(None)
        net(x).sum().backward()
        if len(calls) == 2:  # the first one warms up
            raise ZeroDivisionError("of the user")

    gc.enable()
    with pytest.raises(ZeroDivisionError, match="of the user"):
        traced(work(call, net, x), Hidden())
    assert gc.isenabled()
    assert not hooks._global_forward_hooks
    assert not hooks._global_forward_pre_hooks
    assert all(not parameter._post_accumulate_grad_hooks for parameter in net.parameters())  # type: ignore[attr-defined]
    assert torch.utils._python_dispatch._get_current_dispatch_mode() is None
    assert torch._C._autograd._top_saved_tensors_default_hooks(True) is None  # type: ignore[attr-defined]
    assert net(x).grad_fn is not None


def test_the_collector_is_left_as_it_was_and_the_first_call_is_not_looked_at() -> None:
    gc.disable()
    try:
        traced_as_is(work(lambda: torch.ones(1)))
        assert not gc.isenabled()
    finally:
        gc.enable()
    made: list[Tensor] = []

    def call() -> None:
        if not made:
            made.append(torch.randn(100))
        made[0].add_(1.0)

    trace = traced_as_is(work(call))
    assert [op.name for op in ops(trace)] == ["aten::add_"]
    assert [alloc.size_bytes for alloc in trace.held] == [400]


def test_what_a_kernel_takes_inside_comes_and_goes_with_its_call() -> None:
    class Taking(Hidden):
        def blocks_of(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[int, ...]:
            return (1000, 0) if name == "aten::mul" else ()

        def launches_of(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
            return 3

    x = torch.randn(8)
    trace = traced(work(lambda: x * 2.0 + 1.0), Taking()).trace
    assert [(alloc.operator, alloc.size_bytes) for alloc in allocs(trace)] == [
        ("aten::mul", 32),
        ("aten::mul", 1000),
        ("aten::mul", 0),
        ("aten::add", 32),
    ]
    assert exact(trace).peak_bytes == 32 + 32 + 1000
    assert exact(trace).launches == 6


def test_transforms_of_torch_func_are_traced() -> None:
    x, weight = torch.randn(4, 8), torch.randn(8)

    def loss(weight: Tensor, row: Tensor) -> Tensor:
        return (weight * row).sum().tanh()

    each = torch.func.vmap(torch.func.grad(loss), (None, 0))
    trace = traced(work(lambda: each(weight, x), x, weight), Hidden()).trace
    assert "aten::tanh_backward" in [op.name for op in ops(trace)]
    assert (allocs(trace)[-1].operator, allocs(trace)[-1].size_bytes) == ("aten::mul", x.nbytes)


def test_transforms_of_torch_func_within_others_are_traced_and_what_follows_is_saved_again() -> None:
    x, weight = torch.randn(4), torch.randn(4, requires_grad=True)

    def cubes(x: Tensor) -> Tensor:
        return (x**3).sum()

    def run() -> Tensor:
        for function in (
            torch.func.grad(lambda x: torch.func.grad(cubes)(x).sum()),
            torch.func.jacrev(torch.func.grad(cubes)),
        ):
            function(x)
        torch.func.vmap(torch.func.grad(lambda x: torch.func.grad(cubes)(x).sum()))(x.expand(4, 4))
        return weight.exp()

    trace = traced(work(run, x, weight), Hidden()).trace
    assert "aten::exp" in [op.name for op in ops(trace)]
    assert [use.saved.shape for use in trace.uses.values() if use.saved is not None] == [(4,)]


def test_two_gradients_of_one_operand_are_added_up_in_place() -> None:
    x = torch.randn(1024, requires_grad=True)
    squared = traced(work(lambda: torch.autograd.grad((x * x).sum(), x), x), Hidden()).trace
    assert [op.name for op in ops(squared)].count("aten::add") == 1
    assert "aten::add" not in [alloc.operator for alloc in allocs(squared)]


def test_a_sum_that_is_a_nodes_own_work_is_not_in_place() -> None:
    """``atan2``'s ``x * x + y * y``, although both gradients go to one place."""
    x = torch.randn(1024, requires_grad=True)
    trace = traced(work(lambda: torch.autograd.grad(torch.atan2(x, x).sum(), x), x), Hidden()).trace
    names = [event.operator if isinstance(event, Alloc) else "" for event in trace.events]
    assert "aten::add" in names[: names.index("aten::reciprocal")]


def test_phases_are_told_apart_and_changing_a_view_in_place_is_no_work() -> None:
    x = torch.randn(4, 8)
    trace = traced(work(lambda: (x * 2).t_().unsqueeze_(0), x), Hidden()).trace
    assert [op.name for op in ops(trace)] == ["aten::mul"]
    x = torch.randn(4)
    trace = traced_as_is(phased(first=x.exp, second=x.sin))
    assert [(op.name, op.place.phase) for op in ops(trace)] == [("aten::exp", "first"), ("aten::sin", "second")]


def test_what_goes_at_once_goes_in_the_order_in_which_it_came() -> None:
    model, x = nn.Sequential(*(nn.Linear(8, 8, bias=False) for _ in range(20))), torch.randn(4, 8)

    def call() -> Tensor:
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
            out: Tensor = model(x)  # autocast keeps the weights that it has cast until here
        return out

    trace = traced_as_is(work(call, model, x))
    weights = [alloc.block for alloc in allocs(trace) if alloc.size_bytes == 8 * 8 * 2]
    gone = [free.block for free in frees(trace) if free.block in weights]
    assert len(gone) == 20
    assert gone == weights


def test_a_module_that_layers_share_works_for_the_one_that_called_it() -> None:
    shared = nn.Tanh()
    layers = nn.Sequential(*(nn.Sequential(shared, nn.Linear(8, 8)) for _ in range(6)))
    x = torch.randn(4, 8)
    trace = traced_as_is(work(lambda: layers(x).sum().backward(), layers, x))
    numbers = [op.layer.number for op in ops(trace) if op.layer and op.name.startswith("aten::tanh")]
    assert numbers == [0, 1, 2, 3, 4, 5, 5, 4, 3, 2, 1]  # the first one's input wants no gradient
