"""Names of modules, stacks of alike layers, and layers that are left out for a while."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable

import torch
from torch import nn

from perflab.attribution.places import module_names
from perflab.predicted.trace.modules import ModuleBook, book_of
from perflab.predicted.trace.trace import Layer


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
