"""What a callable has in its hands: everything that it can reach by itself, once, and nothing that it cannot."""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from perflab.attribution.held import held_by_address, held_bytes
from perflab.measure.calls.workload import Workload
from perflab.measure.memory.peak import measure_memory

CPU = torch.device("cpu")
KIB = 1024


def kib(size: int = 1) -> torch.Tensor:
    return torch.zeros(size * KIB, dtype=torch.uint8)


WEIGHT = kib(7)
"""A global that some functions of this file name."""


def held(*roots: object) -> int:
    """Held KiB; the tensors of these tests are whole ones."""
    whole, rest = divmod(held_bytes(roots, CPU), KIB)
    assert rest == 0
    return whole


# --- ways to reach a tensor --------------------------------------------------------------------------------------


class Attributed:
    def __init__(self) -> None:
        self.tensor = kib()

    def method(self) -> torch.Tensor:
        return self.tensor

    def __call__(self) -> torch.Tensor:
        return self.tensor


class Slotted:
    __slots__ = ("empty", "tensor")

    def __init__(self) -> None:
        self.tensor = kib()


class SlottedBelow(Slotted):
    __slots__ = ()


def closure() -> Callable[[], torch.Tensor]:
    tensor = kib()
    return lambda: tensor


def closure_of_closure() -> Callable[[], torch.Tensor]:
    inner = closure()
    return lambda: inner()


def decorated() -> Callable[[], torch.Tensor]:
    inner = closure()

    @functools.wraps(inner)
    def wrapper() -> torch.Tensor:
        return inner()

    return wrapper


def with_default() -> Callable[..., Any]:
    default = kib()

    def work(x: torch.Tensor = default) -> torch.Tensor:
        return x

    return work


def with_keyword_default() -> Callable[..., Any]:
    default = kib()

    def work(*, x: torch.Tensor = default) -> torch.Tensor:
        return x

    return work


def closure_with_an_empty_cell() -> Callable[[], Any]:
    """A function of a variable that is gone, or is only set later on."""
    tensor, gone = kib(), None

    def work() -> Any:
        return tensor, gone  # noqa: F821

    del gone
    return work


HOLDERS: dict[str, Callable[[], object]] = {
    "itself": kib,
    "a list": lambda: [kib()],
    "nested containers": lambda: (1, "text", {"a": [kib()]}),
    "a set": lambda: {kib()},
    "a key": lambda: {kib(): 1},
    "a deque": lambda: deque([kib()]),
    "an attribute": Attributed,
    "a namespace": lambda: SimpleNamespace(x=kib()),
    "a bound method": lambda: Attributed().method,
    "a tensor's own method": lambda: kib().sum,
    "a slot": Slotted,
    "a slot of the base class": SlottedBelow,
    "a closure": closure,
    "a closure's closure": closure_of_closure,
    "a decorated function": decorated,
    "a default": with_default,
    "a keyword default": with_keyword_default,
    "a closure with an empty cell": closure_with_an_empty_cell,
    "a partial's argument": lambda: functools.partial(torch.add, kib()),
    "a partial's keyword": lambda: functools.partial(torch.add, other=kib()),
    "a partial's function": lambda: functools.partial(closure()),
    "a cached function": lambda: functools.lru_cache(closure()),
    "a parameter": lambda: nn.Parameter(torch.zeros(KIB // 4)),
    "a module": lambda: nn.Linear(16, 16, bias=False),
    "a module's method": lambda: nn.Sequential(nn.Linear(16, 16, bias=False)).forward,
    "modules of containers": lambda: nn.ModuleDict({"a": nn.ParameterList([torch.zeros(KIB // 4)])}),
    "an optimizer's method": lambda: torch.optim.SGD([torch.zeros(KIB // 4, requires_grad=True)]).step,
}


@pytest.mark.parametrize("make", HOLDERS.values(), ids=HOLDERS)
def test_a_kibibyte_is_found_wherever_the_callable_has_it(make: Callable[[], object]) -> None:
    assert held(make()) == 1


def test_state_of_modules_and_optimizers_is_held() -> None:
    module = nn.Module()
    module.register_buffer("table", kib(3))
    assert held(module) == 3
    weight = nn.Parameter(torch.zeros(KIB // 4))
    optimizer = torch.optim.SGD([weight], momentum=0.9)
    torch.autograd.backward(weight.sum())
    optimizer.step()
    assert held(optimizer.step) == 3  # weight, gradient, momentum


def test_a_global_that_a_function_names_is_held_and_an_attribute_of_its_name_is_not() -> None:
    def work() -> torch.Tensor:
        return WEIGHT + 1

    assert held(work) == 7

    def work() -> list[torch.Tensor]:
        return [WEIGHT + n for n in range(3)]

    def outer() -> Callable[[], torch.Tensor]:
        return lambda: WEIGHT

    assert held(work) == 7
    assert held(outer) == 7


# --- each once ---------------------------------------------------------------------------------------------------


def test_a_storage_counts_once_and_whole() -> None:
    x = kib()
    assert held(x, [x, x], functools.partial(torch.add, x)) == 1
    x = kib(4)
    assert held(x[:10], x[5:], x.view(2, -1), x.t()) == 4
    assert held(kib(4)[:1]) == 4
    assert held(torch.zeros(KIB, 1, dtype=torch.uint8).expand(-1, 1000)) == 1


def test_things_that_hold_each_other_or_lie_very_deep_come_to_an_end() -> None:
    ring: list[object] = [kib()]
    ring.append(ring)
    assert held(ring) == 1
    nested: list[object] = [kib()]
    for _ in range(20_000):
        nested = [nested]
    assert held(nested) == 1


# --- what it does not have in its hands --------------------------------------------------------------------------


class ClassHolder:
    shared = kib(9)


class ReachesThePluginManager:
    """Stands for a fixture value, from which the whole session can be reached."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config


def test_what_merely_lives_or_hangs_on_classes_and_modules_or_is_elsewhere_is_not_held() -> None:
    bystander = kib(100)
    assert held(lambda: None) == 0
    assert bystander.numel() == 100 * KIB
    assert held(ClassHolder, ClassHolder(), torch, [nn]) == 0
    assert held(torch.zeros(1000, device="meta")) == 0
    assert held() == 0
    assert held(None, 1, "text", b"bytes", (), {}) == 0


def test_a_global_of_the_name_of_an_attribute_is_not_held() -> None:
    model = SimpleNamespace(WEIGHT=kib())

    def work() -> Any:
        return model.WEIGHT

    assert held(work) == 1


def test_batches_that_a_loader_received_out_of_turn_are_not_held() -> None:
    loader = DataLoader(TensorDataset(kib(3)), batch_size=KIB, num_workers=1)
    batches: Any = iter(loader)

    class Prefetching(type(batches)):  # type: ignore[misc]
        """An iterator of one's own, as some libraries make them."""

    for kind in (type(batches), Prefetching):
        batches.__class__ = kind
        batches._task_info[7] = (0, kib(64))
        assert held(batches) == held(loader) == 3


def test_pytests_own_objects_are_not_followed(request: pytest.FixtureRequest, pytestconfig: pytest.Config) -> None:
    request.node.stowaway = pytestconfig.stowaway = kib(50)  # type: ignore[attr-defined]
    try:
        assert held(request, request.node, pytestconfig, ReachesThePluginManager(pytestconfig)) == 0
        assert held(lambda: request.node) == 0
    finally:
        del request.node.stowaway, pytestconfig.stowaway  # type: ignore[attr-defined]


# --- tensors that are made of others ---------------------------------------------------------------------------------


class Wrapper(torch.Tensor):
    """Int8 weights behind a float32 face, as quantized weights have it; PyTorch is not told what it is made of."""

    @staticmethod
    def __new__(cls, inner: torch.Tensor) -> Wrapper:
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=torch.float32)  # type: ignore[attr-defined, no-any-return]

    def __init__(self, inner: torch.Tensor) -> None:
        self.inner = inner

    @classmethod
    def __torch_dispatch__(cls, function: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return function(*(one.inner.float() if isinstance(one, Wrapper) else one for one in args), **(kwargs or {}))


class FlatWrapper(Wrapper):
    """The same as ``torch.compile`` wants it."""

    def __tensor_flatten__(self) -> tuple[list[str], None]:
        return ["inner"], None


def _rows(layout: torch.layout) -> torch.Tensor:
    return torch.nested.nested_tensor([torch.zeros(3, 128), torch.zeros(5, 128)], layout=layout)


def _compressed(layout: Callable[..., torch.Tensor], size: int, *block: int) -> torch.Tensor:
    return layout(torch.arange(size + 1), torch.arange(size), torch.ones(size, *block))


MADE_OF: dict[str, tuple[Callable[[], torch.Tensor], int]] = {
    "coo": (lambda: torch.eye(128).to_sparse(), 128 * (4 + 2 * 8)),
    "csr": (lambda: _compressed(torch.sparse_csr_tensor, 128), 128 * (4 + 8) + 129 * 8),
    "csc": (lambda: _compressed(torch.sparse_csc_tensor, 128), 128 * (4 + 8) + 129 * 8),
    "bsr": (lambda: _compressed(torch.sparse_bsr_tensor, 2, 64, 64), 2 * 64 * 64 * 4 + 2 * 8 + 3 * 8),
    "nested": (lambda: _rows(torch.strided), 8 * 128 * 4),
    "jagged": (lambda: _rows(torch.jagged), 8 * 128 * 4 + 3 * 8),
    "wrapper": (lambda: Wrapper(kib()), KIB),
    "wrapper of wrappers": (lambda: FlatWrapper(FlatWrapper(kib())), KIB),
}


@pytest.mark.parametrize("kind", MADE_OF)
def test_a_tensor_that_is_made_of_others_holds_what_they_hold(kind: str) -> None:
    make, size_bytes = MADE_OF[kind]
    made = make()
    assert held_bytes((made,), CPU) == size_bytes
    memory, _ = measure_memory(Workload(lambda: made * 1, (), {}), CPU)
    assert memory.held_bytes == size_bytes


def test_a_distributed_parameter_holds_its_local_part_as_a_parameter() -> None:
    from torch.distributed.tensor import Replicate, distribute_tensor, init_device_mesh

    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    try:
        module = nn.Linear(128, 2, bias=False)
        whole = distribute_tensor(module.weight, init_device_mesh("cpu", (1,)), [Replicate()])
        module.weight = nn.Parameter(whole)
        (part,) = held_by_address([module, module.weight], {}, CPU).values()
        assert (part.category, part.size_bytes) == ("parameters", KIB)
    finally:
        torch.distributed.destroy_process_group()


def test_on_cuda_a_tensor_takes_whole_blocks_as_what_a_call_allocates_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("perflab.attribution.held._is_there", lambda _tensor, _device: True)
    small, exact, large = (torch.zeros(size, dtype=torch.uint8) for size in (1, 512, 1025))
    assert held_bytes((small, exact, large, small[:0]), torch.device("cuda", 0)) == 512 + 512 + 1536
    assert held_bytes((small, exact, large), CPU) == 1 + 512 + 1025
