"""Names of modules, stacks of alike layers, layers left out for a while, and what is there before a call."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from perflab.attribution.held import held_by_address, held_tensors
from perflab.attribution.places import module_names
from perflab.attribution.reachable import reachable
from perflab.predicted.cuda.as_cuda import as_cuda
from perflab.predicted.cuda.fake import fake_tensors
from perflab.predicted.trace.modules import Holding, ModuleBook, book_of, holdings
from perflab.predicted.trace.trace import Layer
from tests.harness.traced import exact, traced_as_is, work


def layer() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.1))


def model(layers: int = 8) -> nn.Module:
    return nn.ModuleDict({"embed": nn.Linear(4, 4), "blocks": nn.ModuleList(layer() for _ in range(layers))})


def names(book: ModuleBook, modules: Iterable[nn.Module]) -> list[str]:
    return [book.of(module)[0] for module in modules]


def test_a_layers_number_is_a_star_in_its_modules_names() -> None:
    whole = model()
    book = book_of([whole, 7, "text"])
    blocks = whole["blocks"]  # type: ignore[index]
    assert names(book, [whole, whole["embed"], blocks]) == ["", "embed", "blocks"]  # type: ignore[index]
    assert [book.of(block) for block in blocks] == [("blocks.*", Layer("blocks", number)) for number in range(8)]
    assert book.of(blocks[5][0]) == ("blocks.*.0", Layer("blocks", 5))
    assert book.layers == book.long_stacks == {"blocks": 8}


def test_a_short_stack_has_a_star_and_is_not_worth_cutting() -> None:
    whole = model(5)
    book = book_of([whole])
    assert book.of(whole["blocks"][4][0]) == ("blocks.*.0", None)  # type: ignore[index]
    assert book.layers == {"blocks": 5}
    assert book.long_stacks == {}


def test_modules_of_all_models_but_the_largest_begin_with_their_classes() -> None:
    first, second, other = nn.Linear(2, 2), nn.Linear(2, 2), nn.Sequential(nn.ReLU())
    largest = nn.Sequential(nn.Linear(3, 3))
    book = book_of([first, other, largest, second])
    modules = [first, second, other, other[0], largest, largest[0]]
    told = ["Linear1", "Linear2", "Sequential", "Sequential.0", "", "0"]
    assert names(book, modules) == told
    measured = module_names([first, other, largest, second])
    assert [measured[id(one)] for one in modules] == told


def test_a_module_in_two_places_has_the_name_of_the_first_and_one_made_meanwhile_its_class() -> None:
    shared = nn.Linear(4, 4)
    whole = nn.ModuleDict({"a": shared, "b": nn.Sequential(shared)})
    book = book_of([whole, shared])
    assert names(book, [shared, nn.GELU()]) == ["a", "GELU"]
    assert len(book.modules) == len(set(map(id, book.modules))) == 3


def test_a_module_that_all_layers_share_is_no_layers_own() -> None:
    shared = nn.Linear(4, 4)
    whole = nn.ModuleList(nn.ModuleDict({"own": nn.Linear(4, 4), "shared": shared}) for _ in range(8))
    book = book_of([whole])
    assert book.of(shared) == ("*.shared", None)
    assert book.of(whole[3]["own"]) == ("*.own", Layer("", 3))  # type: ignore[index]


def test_long_stacks_are_cut_for_a_while_and_whole_again_whatever_happens() -> None:
    whole = model()
    blocks = whole["blocks"]  # type: ignore[index]
    before = list(blocks)
    book = book_of([whole])
    with book.cut(3) as left_out:
        assert list(blocks) == before[:3]
        assert left_out == before[3:]
        assert book.layers == {"blocks": 3}
        assert len(list(whole.parameters())) == 2 + 2 * 3
    assert list(blocks) == before
    with contextlib.suppress(ZeroDivisionError), book.cut(3):
        raise ZeroDivisionError
    assert list(blocks) == before
    assert book.layers == {"blocks": 8}


def test_layers_with_hooks_of_their_own_are_alike_if_the_hooks_are() -> None:
    def hook(module: nn.Module, inputs: object, output: torch.Tensor) -> torch.Tensor:
        return output * 2

    whole = model()
    for number, block in enumerate(whole["blocks"]):  # type: ignore[index]
        for _ in range(number % 3):  # hooks are counted over all modules
            whole["embed"].register_forward_hook(hook)  # type: ignore[index]
        block.register_forward_hook(hook)
    assert book_of([whole]).layers == {"blocks": 8}
    whole["blocks"][2].register_forward_hook(lambda module, inputs, output: output)  # type: ignore[index]
    assert book_of([whole]).layers == {}


def held(*roots: Any, left_out: tuple[nn.Module, ...] = ()) -> list[Holding]:
    found = list(reachable(roots))
    return list(holdings(found, book_of(found), left_out))


def told(found: list[Holding]) -> Counter[tuple[str, str, int]]:
    """How many there are of each kind, module and size."""
    return Counter((one.category, one.module, one.tensor.numel()) for one in found)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(3, 5)
        self.norm = nn.BatchNorm1d(5)
        self.cache = [torch.zeros(7), {"key": torch.zeros(9)}]

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.norm(self.inner(x))
        return out


def test_everything_is_told_with_what_it_is_for_and_where() -> None:
    net, x, free = Net(), torch.randn(4, 3), nn.Parameter(torch.zeros(11))
    adam = torch.optim.Adam([*net.parameters(), free], amsgrad=True)
    (net(x).sum() + free.sum()).backward()
    adam.step()
    found = told(held(net, x, adam))
    own = {("inner", 15): 1, ("inner", 5): 1, ("norm", 5): 2, ("", 11): 1}
    for (module, count), times in own.items():
        assert found.pop(("parameters", module, count)) == times
        assert found.pop(("gradients", module, count)) == times
        assert found.pop(("optimizer state", module, count)) == 3 * times
    assert found.pop(("optimizer state", "inner", 1)) == 2  # how many steps there were: a number each
    assert found.pop(("optimizer state", "norm", 1)) == 2
    assert found.pop(("optimizer state", "", 1)) == 1
    assert found == {
        ("buffers", "norm", 5): 2,
        ("buffers", "norm", 1): 1,
        ("inputs", "", 7): 1,
        ("inputs", "", 9): 1,
        ("inputs", "", 12): 1,
    }


def test_what_a_module_has_kept_for_itself_is_its_own() -> None:
    found = told(held(nn.Sequential(Net())))
    assert found[("inputs", "0", 7)] == 1
    assert found[("inputs", "0", 9)] == 1


def test_a_profile_says_the_same_of_them_as_a_prediction() -> None:
    net, x = Net(), torch.randn(4, 3)
    adam = torch.optim.Adam(net.parameters(), amsgrad=True)
    net(x.requires_grad_()).sum().backward()
    adam.step()
    found = list(reachable((net, x, adam)))
    profiled = held_by_address(found, module_names(found), torch.device("cpu"))
    predicted = [(one.category, one.module, one.tensor.untyped_storage().nbytes()) for one in held(net, x, adam)]
    assert Counter((one.category, one.module, one.size_bytes) for one in profiled.values()) == Counter(predicted)
    assert ("gradients", "", 48) in predicted  # the input's
    assert ("inputs", "", 36) in predicted  # the module's cache


def test_a_container_that_holds_itself_is_entered_once() -> None:
    net = Net()
    net.cache.append(net.cache)
    assert told(held(net))["inputs", "", 7] == 1
    assert [one.tensor.numel() for one in held_tensors([net], [net]) if one.category == "inputs"] == [7, 9]


def test_tied_weights_are_there_once() -> None:
    model = nn.ModuleDict({"embed": nn.Embedding(10, 4), "head": nn.Linear(4, 10, bias=False)})
    model["head"].weight = model["embed"].weight
    assert told(held(model)) == {("parameters", "embed", 40): 1}
    x = torch.zeros(2, dtype=torch.int64)
    trace = traced_as_is(work(lambda: model["head"](model["embed"](x)), model, x))
    assert trace.parameters == 40
    assert exact(trace).held_bytes == 40 * 4 + 2 * 8


def test_a_weight_that_all_layers_have_is_no_layers_own() -> None:
    layers = nn.ModuleList(nn.Linear(3, 3) for _ in range(8))
    for layer in layers:
        layer.weight = layers[0].weight
    assert {one.tensor.numel(): one.layer for one in held(layers)} == {9: None, 3: Layer("", 7)}


def test_views_of_one_storage_are_there_once_with_all_of_it() -> None:
    whole = torch.zeros(100)
    trace = traced_as_is(work(lambda: None, (whole[:10], whole[20:30].view(2, 5), whole)))
    assert [alloc.size_bytes for alloc in trace.held] == [400]


def test_parameters_that_are_views_of_one_flat_tensor_are_parameters() -> None:
    flat = torch.zeros(20)
    model = nn.Linear(3, 5)
    model.weight.data, model.bias.data = flat[:15].view(5, 3), flat[15:]
    assert exact(traced_as_is(work(lambda: None, flat, model))).composition == {"parameters": 80}


def test_of_layers_that_are_left_out_nothing_is_there() -> None:
    layers = nn.ModuleList(Net() for _ in range(8))
    x = torch.randn(4, 3)
    adam = torch.optim.Adam(layers.parameters())
    sum(layer(x).sum() for layer in layers).backward()  # type: ignore[union-attr]
    adam.step()
    found = list(reachable((layers, adam)))
    book = book_of(found)
    with book.cut(3) as left_out:
        few = list(holdings(list(reachable((layers, adam))), book, left_out))
    everything = list(holdings(found, book))
    assert {one.layer for one in few} == {Layer("", number) for number in range(3)}
    assert len(everything) * 3 == len(few) * 8


def test_what_other_layers_have_too_stays_when_some_are_left_out() -> None:
    layers, table = nn.ModuleList(Net() for _ in range(8)), nn.BatchNorm1d(5)
    for layer in layers:
        layer.norm = table
    book = book_of(list(reachable((layers,))))
    with book.cut(3) as left_out:
        few = list(holdings(list(reachable((layers,))), book, left_out))
    assert [one.layer for one in few if one.module == "*.norm"] == [None] * 5


def test_steps_that_an_optimizer_counts_on_the_host_take_no_memory_of_the_gpu() -> None:
    with fake_tensors(), as_cuda((9, 0)):
        model = nn.Linear(3, 5, device="cuda")
        adam = torch.optim.Adam(model.parameters())
        model(torch.randn(4, 3, device="cuda")).sum().backward()
        adam.step()
        found = told(held(model, adam))
    assert found == {
        **{("parameters", "", count): 1 for count in (15, 5)},
        **{("gradients", "", count): 1 for count in (15, 5)},
        **{("optimizer state", "", count): 2 for count in (15, 5)},
    }


@pytest.mark.parametrize("frozen", [False, True])
def test_a_frozen_parameter_is_one_too(frozen: bool) -> None:
    model = nn.Linear(3, 5).requires_grad_(not frozen)
    assert {one.category for one in held(model)} == {"parameters"}
