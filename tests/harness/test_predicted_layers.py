"""Models of a user's own, predicted from few layers where they are alike, held against the whole; run whole if not."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from syrupy.assertion import SnapshotAssertion
from torch import Tensor, nn

from perflab.predicted.prediction import Traced, Work, traced
from perflab.predicted.trace.operators import Hidden
from perflab.predicted.trace.unroll import same
from tests.harness.traced import stepped, work

WIDTH, LAYERS = 8, 9
"""Some settings are a layer's number by chance: 8 features, the ninth layer."""
Make = Callable[[], nn.Module]


class Block(nn.Module):
    """Settings are what tests make of them."""

    def __init__(self, **settings: Any) -> None:
        super().__init__()
        self.activation: Callable[[Tensor], Tensor] = F.gelu
        self.times = {"activated": (1,)}
        self.norm = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, 2 * WIDTH)
        self.down = nn.Linear(2 * WIDTH, WIDTH)
        for name, value in settings.items():
            setattr(self, name, value)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.up(self.norm(x))
        for _ in range(self.times["activated"][0]):
            hidden = self.activation(hidden)
        out: Tensor = x + self.down(hidden)
        return out


class Model(nn.Module):
    """``over`` says how it goes over its blocks."""

    def __init__(
        self, blocks: Iterable[nn.Module], over: Callable[[nn.ModuleList, Tensor], Tensor] | None = None
    ) -> None:
        super().__init__()
        self.embed = nn.Linear(WIDTH, WIDTH)
        self.blocks = nn.ModuleList(blocks)
        self.head = nn.Linear(WIDTH, WIDTH)
        self.over = over or one_after_another

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.over(self.blocks, self.embed(x)))
        return out


def one_after_another(blocks: nn.ModuleList, x: Tensor) -> Tensor:
    for block in blocks:
        x = block(x)
    return x


def collecting(blocks: nn.ModuleList, x: Tensor) -> Tensor:
    states = [x]
    for block in blocks:
        states.append(block(states[-1]))
    return torch.stack(states).mean(0)


def skipping_over(blocks: nn.ModuleList, x: Tensor) -> Tensor:
    """As a U-net does: what the first half makes goes to the second, in the other direction."""
    states = []
    for number, block in enumerate(blocks):
        if number < len(blocks) // 2:
            x = block(x)
            states.append(x)
        else:
            x = block(x * states.pop() if states else x)
    return x


def every_third(blocks: nn.ModuleList, x: Tensor) -> Tensor:
    for number, block in enumerate(blocks):
        x = block(x).sin() if number % 3 == 2 else block(x)
    return x


def densely(blocks: nn.ModuleList, x: Tensor) -> Tensor:
    states = [x]
    for block in blocks:
        states.append(block(torch.stack(states).sum(0)))
    return states[-1]


def blocks(count: int = LAYERS, odd_one: int | None = None, **settings: Any) -> list[Block]:
    """Alike, but for the settings of one."""
    return [Block(**(settings if number == odd_one else {})) for number in range(count)]


class Numbered(Block):
    """Knows its number, counted from 1, and its name; so does its inner module."""

    def __init__(self, number: int) -> None:
        super().__init__(layer_idx=number + 1, prefix=f"model.layers.{number}", config={"number": number})
        self.up.layer_idx = number


class Sharing(Block):
    """Has a module that all layers share."""

    def __init__(self, table: nn.Module) -> None:
        super().__init__()
        self.table = table

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = super().forward(self.table(x))
        return out


class Table(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("angles", torch.ones(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.angles


class Stages(nn.Module):
    """Stacks of layers, themselves in a list."""

    def __init__(self, *counts: int) -> None:
        super().__init__()
        self.stages = nn.ModuleList(nn.Sequential(*blocks(count)) for count in counts)

    def forward(self, x: Tensor) -> Tensor:
        for stage in self.stages:
            x = stage(x)
        return x


class EncoderDecoder(nn.Module):
    """Every layer of the second stack looks at what the first has made."""

    def __init__(self, encoders: int, decoders: int) -> None:
        super().__init__()
        self.encoder, self.decoder = nn.ModuleList(blocks(encoders)), nn.ModuleList(blocks(decoders))

    def forward(self, x: Tensor) -> Tensor:
        y = x
        for block in self.encoder:
            x = block(x)
        for block in self.decoder:
            y = block(y) + x
        return y


class UNet(nn.Module):
    """What goes down is met again on the way up."""

    def __init__(self) -> None:
        super().__init__()
        self.down, self.up = nn.ModuleList(blocks(7)), nn.ModuleList(blocks(7))

    def forward(self, x: Tensor) -> Tensor:
        states = []
        for block in self.down:
            x = block(x)
            states.append(x)
        for block in self.up:
            x = block(x * states.pop())
        return x


def encoder() -> nn.Module:
    layer = nn.TransformerEncoderLayer(WIDTH, 2, 2 * WIDTH, batch_first=True)
    return nn.TransformerEncoder(layer, 8, enable_nested_tensor=False)


def tied_to_the_first(*numbers: int, module: bool = False) -> nn.Module:
    """Layers whose second projection is the first one's: the module, or its weight alone."""
    made = blocks()
    for number in numbers:
        if module:
            made[number].up = made[0].up
        else:
            made[number].up.weight = made[0].up.weight
    return Model(made)


def tied_ends() -> nn.Module:
    model = Model(blocks())
    model.head.weight = model.embed.weight
    return model


def hooked(number: int) -> nn.Module:
    model = Model(blocks())
    model.blocks[number].register_forward_hook(lambda module, inputs, output: output * 2)
    return model


MOMENTUM = functools.partial(torch.optim.SGD, momentum=0.9)


def trained(model: nn.Module, optimizer: Callable[..., torch.optim.Optimizer] = torch.optim.AdamW) -> Work:
    """A training step, the optimizer's work done over lists as on a GPU."""
    x = torch.randn(4, 5, WIDTH)
    return stepped(model, optimizer(model.parameters(), foreach=True), x, Tensor.sum)


def both(make: Callable[[], Work]) -> tuple[Traced, Traced]:
    """Of few layers if that can be, and whole. On real tensors: as small as these they are quicker than fake ones."""
    return traced(make(), Hidden()), traced(make(), Hidden(), whole=True)


ALIKE: dict[str, Make] = {
    "blocks one after another": lambda: Model(blocks()),
    "nn.Sequential": lambda: nn.Sequential(*blocks()),
    "nn.TransformerEncoder": encoder,
    "layers that know their numbers": lambda: Model(map(Numbered, range(LAYERS))),
    "collecting every state": lambda: Model(blocks(), collecting),
    "two stacks": lambda: EncoderDecoder(7, 7),
    "U-net of two stacks": UNet,
    "stages that are alike": lambda: Stages(6, 6),
    "stages of which one is long": lambda: Stages(2, 2, 8),
    "a table that all layers share": lambda: (lambda table: Model(Sharing(table) for _ in range(LAYERS)))(Table()),
    "tied ends": tied_ends,
    "closures of one function": lambda: Model(blocks(activation=(lambda by: lambda x: F.relu(x) * by)(2.0))),
}
UNLIKE: dict[str, Make] = {
    "one layer that is wider": lambda: Model(
        blocks(odd_one=7, up=nn.Linear(WIDTH, 3 * WIDTH), down=nn.Linear(3 * WIDTH, WIDTH))
    ),
    "a setting in a tuple in a dict": lambda: Model(blocks(odd_one=7, times={"activated": (2,)})),
    "another function": lambda: Model(blocks(odd_one=7, activation=F.relu)),
    "another partial": lambda: Model(
        Block(activation=functools.partial(F.gelu, approximate="tanh" if number == 7 else "none"))
        for number in range(LAYERS)
    ),
    "another closure": lambda: Model(
        Block(activation=(lambda times: lambda x: x.relu() if times == 1 else x.relu().relu())(1 + (number == 7)))
        for number in range(LAYERS)
    ),
    "a hook on one layer": lambda: hooked(7),
    "a layer that is frozen": lambda: Model(blocks(odd_one=7, up=nn.Linear(WIDTH, 2 * WIDTH).requires_grad_(False))),
    "a layer that does not train": lambda: Model([block.train(number != 7) for number, block in enumerate(blocks())]),
    "a module that some layers share": lambda: tied_to_the_first(7, 8, module=True),
    "a weight that some layers share": lambda: tied_to_the_first(7, 8),
    "one block many times": lambda: Model([Block()] * LAYERS),
    "a U-net in one stack": lambda: Model(blocks(), skipping_over),
    "two stacks of unlike lengths, whose lists an optimizer makes one": lambda: EncoderDecoder(6, 8),
    "dense connections": lambda: Model(blocks(), densely),
}


@pytest.mark.parametrize("make", ALIKE.values(), ids=ALIKE)
def test_layers_that_are_alike_are_predicted_from_few_and_come_out_as_the_whole(make: Make) -> None:
    unrolled, whole = both(lambda: trained(make()))
    assert unrolled.layers_run == [3, 4]
    assert same(unrolled.trace, whole.trace)
    assert unrolled.trace.parameters == sum(parameter.numel() for parameter in make().parameters())


class Late(Block):
    """A block that makes a parameter of its own when it is first called."""

    def forward(self, x: Tensor) -> Tensor:
        if not hasattr(self, "scale"):
            self.scale = nn.Parameter(torch.ones(WIDTH))
        return super().forward(x) * self.scale


def test_parameters_that_a_call_gives_its_layers_are_counted_in_those_that_are_left_out_too() -> None:
    def make() -> Work:
        model = Model(Late() for _ in range(LAYERS))
        return work(lambda: model(torch.ones(4, WIDTH)).sum().backward(), model)

    unrolled, whole = both(make)
    assert (unrolled.layers_run, unrolled.trace.parameters) == ([3, 4], whole.trace.parameters)


@pytest.mark.parametrize("make", UNLIKE.values(), ids=UNLIKE)
def test_layers_that_are_not_alike_are_all_run(make: Make) -> None:
    found, whole = both(lambda: trained(make(), MOMENTUM))
    assert found.layers_run == []
    assert same(found.trace, whole.trace)  # and the attempt has left nothing behind
    assert found.trace.parameters == sum(parameter.numel() for parameter in make().parameters())


def test_where_layers_look_alike_and_do_not_do_alike_a_note_says_so(snapshot: SnapshotAssertion) -> None:
    found, whole = both(lambda: trained(Model(blocks(), every_third)))
    assert found.layers_run == []
    assert found.notes == snapshot
    assert same(found.trace, whole.trace)


def test_one_weight_in_all_layers_is_added_up_otherwise_in_the_first_two_of_a_backward(
    snapshot: SnapshotAssertion,
) -> None:
    """The first two gradients are views, and their sum is new memory; the others are added to that."""
    found, whole = both(lambda: trained(tied_to_the_first(*range(1, LAYERS))))
    assert found.layers_run == []
    assert found.notes == snapshot
    assert same(found.trace, whole.trace)


def test_a_generator_and_its_critic_are_two_models_with_layers_of_their_own() -> None:
    def adversarial() -> Work:
        generator, critic = nn.Sequential(*blocks(8)), Model(blocks(8))
        noise, real = torch.randn(4, WIDTH), torch.randn(4, WIDTH)
        adams = [torch.optim.Adam(model.parameters()) for model in (generator, critic)]

        def step() -> Tensor:
            adams[1].zero_grad()
            (critic(generator(noise).detach()) - critic(real)).mean().backward()
            adams[1].step()
            adams[0].zero_grad()
            loss: Tensor = critic(generator(noise)).mean()
            loss.backward()
            adams[0].step()
            return loss.detach()

        return work(step)

    unrolled, whole = both(adversarial)
    assert unrolled.layers_run == [3, 4]
    assert unrolled.trace.layers == {"Sequential": 8, "blocks": 8}  # the critic is the larger one
    assert same(unrolled.trace, whole.trace)


@pytest.mark.parametrize(
    ("mode", "model_name"),
    [
        (torch.no_grad, "nn.Sequential"),
        (torch.inference_mode, "nn.TransformerEncoder"),
        (torch.enable_grad, "collecting every state"),
    ],
)
def test_inference_is_predicted_from_few_layers_too(mode: Callable[[], Any], model_name: str) -> None:
    def inference() -> Work:
        model, x = ALIKE[model_name]().eval(), torch.randn(2, 5, WIDTH)

        def call() -> Tensor:
            with mode():
                out: Tensor = model(x)
            return out

        return work(call)

    unrolled, whole = both(inference)
    assert unrolled.layers_run == [3, 4]
    assert same(unrolled.trace, whole.trace)


def test_short_stacks_are_run_as_they_are() -> None:
    found, _ = both(lambda: trained(Model(blocks(5))))
    assert found.layers_run == []
    assert found.notes == []
    assert found.trace.layers == {"blocks": 5}


def test_a_model_that_fails_with_few_layers_is_run_whole() -> None:
    def picking(layers: nn.ModuleList, x: Tensor) -> Tensor:
        x = one_after_another(layers, x)
        return x + layers[7].norm(x)

    found, whole = both(lambda: trained(Model(blocks(), picking)))
    assert found.layers_run == []
    assert same(found.trace, whole.trace)


def test_an_error_of_the_models_own_comes_through_and_all_layers_are_there_again() -> None:
    def failing(layers: nn.ModuleList, x: Tensor) -> Tensor:
        raise ZeroDivisionError("of the model")

    model = Model(blocks(), failing)
    with pytest.raises(ZeroDivisionError, match="of the model"):
        traced(trained(model), Hidden())
    assert len(model.blocks) == LAYERS
