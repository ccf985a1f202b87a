"""Launches over lists of any number of layers, from those of few."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import nn

from perflab.predicted.cuda.as_cuda import as_cuda
from perflab.predicted.cuda.fake import fake_tensors
from perflab.predicted.cuda.kernels import ON_CUDA
from perflab.predicted.prediction import Work, traced
from perflab.predicted.trace.trace import CHUNK, MOST_BLOCKS, MOST_TENSORS, Lists, Part
from tests.harness.traced import ops, phased

SIZES = (3 * CHUNK, 40 * CHUNK + 1, 5)
"""Of the tensors of a layer."""


def model(layers: dict[str, int], depth: int = 2) -> Lists:
    """An embedding, stacks of layers one after another, a head."""
    parts = [Part(7 * CHUNK)]
    for stack, number in layers.items():
        parts += [Part(size, stack, layer) for layer in range(number) for size in SIZES]
    return Lists((*parts, Part(9), Part(2 * CHUNK)), depth, scalars=True, besides=1)


@pytest.mark.parametrize("wanted", [3, 4, 5, 17, 100])
def test_lists_grow_by_a_layer_s_tensors_in_their_place(wanted: int) -> None:
    assert model({"blocks": 4}).with_layers({"blocks": 4}, {"blocks": wanted}) == model({"blocks": wanted})


def test_stacks_grow_by_themselves_and_together() -> None:
    few = {"encoder": 3, "decoder": 4}
    for wanted in ({"encoder": 3, "decoder": 9}, {"encoder": 12, "decoder": 6}):
        assert model(few).with_layers(few, wanted) == model(wanted)


def test_lists_that_are_sorted_otherwise_keep_their_order() -> None:
    """All weights of all layers, then all biases."""

    def by_kind(layers: int) -> Lists:
        return Lists(tuple(Part(size, "blocks", layer) for size in SIZES for layer in range(layers)), 1)

    assert by_kind(4).with_layers({"blocks": 4}, {"blocks": 11}) == by_kind(11)


def test_launches_are_no_straight_line_over_the_layers() -> None:
    counts = [model({"blocks": number}).launches for number in range(3, 200)]
    assert counts == sorted(counts)
    assert len({later - sooner for sooner, later in itertools.pairwise(counts)}) > 1
    chunks = sum(-(-part.numbers // CHUNK) for part in model({"blocks": 199}).parts)
    assert -(-chunks // MOST_BLOCKS) <= counts[-1] - 1 <= chunks


def test_a_launch_is_full_with_so_many_tensors_or_so_many_chunks() -> None:
    small = Lists((Part(1),) * (MOST_TENSORS[0] + 1), 1)
    assert small.launches == 2
    assert Lists(small.parts[1:], 1).launches == 1
    assert Lists((Part(CHUNK * MOST_BLOCKS),), 1).launches == 1
    assert Lists((Part(CHUNK * MOST_BLOCKS + 1),), 1).launches == 2
    assert Lists((), 1, besides=1).launches == 1


class Deep(nn.Module):
    """(4, 256) -> (4, 256): layers large enough that launches over all parameters are many."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(2048, 2048) for _ in range(layers))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return x


def trained(layers: int) -> Work:
    net, x = Deep(layers), torch.zeros(4, 2048)
    adam = torch.optim.AdamW(net.parameters())

    def update() -> None:
        adam.step()
        adam.zero_grad()

    return phased(backward=lambda: net(x).sum().backward(), optimizer=update)


def test_a_prediction_from_few_layers_has_the_launches_of_all_of_them() -> None:
    with fake_tensors(), as_cuda():
        few = traced(trained(90), ON_CUDA)
        every = traced(trained(90), ON_CUDA, whole=True)
    assert few.layers_run
    over_lists = [[op.launches for op in ops(one.trace) if "_foreach_" in op.name] for one in (few, every)]
    assert over_lists[0] == over_lists[1]
    assert max(over_lists[0]) > 2
