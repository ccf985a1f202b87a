"""Made-up models of alike layers that "run" with any number of them and leave a trace, tagged as the tracer tags.

Blocks are counted by their holders and go when the last lets go, as PyTorch's do; what layers do is drawn.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from perflab.predicted.trace.trace import Alloc, Event, Free, Layer, Op, Place, Saved, Trace, Use


@dataclass
class Tape:
    """Writes a trace. ``inside``: of a forward or backward, where a free is tagged like what was before it."""

    layers: Mapping[str, int]
    phase: str = ""
    inside: bool = True
    held: list[Alloc] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    uses: dict[int, Use] = field(default_factory=dict)
    holders: dict[int, int] = field(default_factory=dict)
    made: dict[int, Alloc] = field(default_factory=dict)
    parameters: int = 0

    def place(self, name: str, layer: Layer | None) -> Place:
        module = f"{layer.stack}.*.{name}" if layer else name
        return Place(self.phase, module, f"{name}.py:{len(name)}")

    def hold(self, name: str, size: int, kind: str, layer: Layer | None = None) -> int:
        made = self._made(Alloc(self._number(), size, self.place(name, layer), "", layer), kind)
        self.held.append(made)
        self.parameters += size // 4 if kind == "parameters" else 0
        return made.block

    def op(self, name: str, layer: Layer | None, *sizes: int, flops: int = 0, launches: int = 1) -> list[int]:
        """One operator and its results."""
        place = self.place(name, layer)
        self.events.append(Op(f"aten::{name}", place, flops, 3 * sum(sizes) + 8, "float32", launches, layer))
        return [self.result(name, size, layer) for size in sizes]

    def result(self, name: str, size: int, layer: Layer | None) -> int:
        made = self._made(Alloc(self._number(), size, self.place(name, layer), f"aten::{name}", layer), "temporaries")
        self.events.append(made)
        return made.block

    def save(self, block: int) -> int:
        """For backward."""
        if self.uses[block].category in ("temporaries", "inputs"):
            size = self.made[block].size_bytes
            self.uses[block] = Use("activations", Saved((2, size // 8), "float32", self.made[block].place))
        return self.keep(block)

    def keep(self, block: int) -> int:
        self.holders[block] += 1
        return block

    def drop(self, *blocks: int) -> None:
        for block in blocks:
            self.holders[block] -= 1
            if self.holders[block] == 0:
                before = self.events[-1].layer if self.events else None
                self.events.append(Free(block, before if self.inside else self.made[block].layer))

    def trace(self, result: Iterable[int] = ()) -> Trace:
        numbers = sorted(self.made, key=lambda block: (block * 7919) % 10007)  # anybody's numbers
        new = {block: number for number, block in enumerate(numbers)}

        def renumbered(event: Event) -> Event:
            if isinstance(event, Alloc):
                return Alloc(new[event.block], event.size_bytes, event.place, event.operator, event.layer)
            return Free(new[event.block], event.layer) if isinstance(event, Free) else event

        held = tuple(event for event in map(renumbered, self.held) if isinstance(event, Alloc))
        return Trace(
            held,
            tuple(map(renumbered, self.events)),
            {new[block]: use for block, use in self.uses.items()},
            dict(self.layers),
            frozenset(new[block] for block in result),
            self.parameters,
        )

    def _number(self) -> int:
        return len(self.made)

    def _made(self, made: Alloc, kind: str) -> Alloc:
        self.made[made.block], self.holders[made.block] = made, 1
        self.uses[made.block] = Use(kind)
        return made


@dataclass(frozen=True)
class Work:
    """An operator of a layer: bytes of its result, which of its tensors it saves, bytes of its weight (0: none)."""

    name: str
    size: int
    saves_input: bool
    saves_output: bool
    saves_statistics: bool
    weight: int


@dataclass(frozen=True)
class Program:
    """What a made-up model does in a call."""

    body: tuple[Work, ...]
    stacks: tuple[str, ...] = ("blocks",)
    unused_stack: bool = False
    residual: str = "layer"
    """Where the stream is added to: in the ``layer``, by its ``parent``, or nowhere (``""``)."""
    dropout: bool = False
    """The parent draws a mask between layers."""
    checkpointing: bool = False
    frozen_embedding: bool = False
    """The first layer makes no gradient of its input."""
    last_is_special: bool = False
    features: str = ""
    """``stack``: hidden states of all layers, stacked at the end; ``shuffled``: and let go every other first."""
    call: str = "step"
    """``step``, ``no_grad``, ``keep`` the result and its graph, ``drop`` it at the end."""
    micro_batches: int = 1
    optimizer: str = ""
    """``single``: parameter by parameter; ``foreach``: lists of all."""
    foreach_ops: int = 2
    lists_go_backwards: bool = False
    zero_grad: str = ""
    """``before`` or ``after``: when gradients are let go."""


def drawn(seed: int) -> Program:
    """A program that nobody thought of."""
    draw = random.Random(seed)
    body = tuple(
        Work(
            draw.choice(("norm", "mm", "softmax", "silu")),
            8 * draw.randint(1, 9),
            draw.random() < 0.5,
            draw.random() < 0.5,
            draw.random() < 0.4,
            draw.choice((0, 16, 24)),
        )
        for _ in range(draw.randint(1, 5))
    )

    def coin(share: float = 0.5) -> bool:
        return draw.random() < share

    return Program(
        body=body,
        stacks=draw.choice((("blocks",), ("encoder", "decoder"))),
        unused_stack=coin(0.2),
        residual=draw.choice(("layer", "parent", "")),
        dropout=coin(0.3),
        checkpointing=coin(0.3),
        frozen_embedding=coin() and any(work.weight for work in body),
        last_is_special=coin(0.3),
        features=draw.choice(("", "", "stack")),
        call=draw.choice(("step", "step", "step", "no_grad", "keep", "drop")),
        micro_batches=draw.randint(1, 3),
        optimizer=draw.choice(("", "single", "foreach")),
        foreach_ops=draw.randint(1, 4),
        lists_go_backwards=coin(),
        zero_grad=draw.choice(("", "before", "after")),
    )


class Model:
    """A program with so many layers, running once."""

    def __init__(self, program: Program, layers: Mapping[str, int]) -> None:
        self.program = program
        self.tape = Tape(layers)
        self.saves = program.call != "no_grad"
        self.all_layers = [Layer(stack, number) for stack in program.stacks for number in range(layers[stack])]
        self.weights: list[tuple[Layer | None, int]] = [(None, 96)]
        self.weights += [(layer, work.weight) for layer in self.all_layers for work in program.body if work.weight]
        self.weights.append((None, 48))
        for layer, size in self.weights:
            self.tape.hold("weight", size, "parameters", layer)
        if program.unused_stack:
            for number in range(layers["unused"]):
                self.tape.hold("weight", 40, "parameters", Layer("unused", number))
        self.states = [
            self.tape.hold("state", size, "optimizer state", layer) for layer, size in self.weights if program.optimizer
        ]
        self.tape.hold("x", 12, "inputs")
        self.gradients: dict[int, int] = {}
        if program.zero_grad == "before":
            for index, (layer, size) in reversed(list(enumerate(self.weights))):
                self.gradients[index] = self.tape.hold("weight", size, "gradients", layer)
        first, self.weight_of = 1, {}
        for layer in self.all_layers:
            self.weight_of[layer] = first
            first += sum(1 for work in program.body if work.weight)

    def run(self) -> Trace:
        program, tape = self.program, self.tape
        if program.zero_grad == "before":
            self.zero_grad()
        if program.call != "step":
            result = self.forward()
            tape.inside = False
            alive = set(tape.holders) - {event.block for event in tape.events if isinstance(event, Free)}
            if program.call != "drop":
                return tape.trace(alive - {made.block for made in tape.held})
            tape.drop(result)
            self.let_go()
            return tape.trace()
        for _ in range(program.micro_batches):
            self.backward(self.forward())
        tape.phase, tape.inside = "optimizer", False
        if program.optimizer == "single":
            self.single()
        elif program.optimizer == "foreach":
            self.foreach()
        if program.zero_grad:
            self.zero_grad()
        return tape.trace(set(self.gradients.values()) - {made.block for made in tape.held})

    def forward(self) -> int:
        program, tape = self.program, self.tape
        tape.phase, tape.inside = "forward", True
        self.saved: dict[Layer, list[list[int]]] = {}
        self.masks: dict[Layer, int] = {}
        self.inputs: dict[Layer, int] = {}
        features: list[int] = []
        (x,) = tape.op("embedding", None, 64)
        for layer in self.all_layers:
            if program.checkpointing and self.saves:
                self.inputs[layer] = tape.save(x)
                y = self.layer_forward(layer, x, saves=False)
            else:
                y = self.layer_forward(layer, x, saves=self.saves)
            if program.residual == "parent":
                (z,) = tape.op("add", None, 64)
                tape.drop(y)
                y = z
            if program.dropout:
                z, mask = tape.op("dropout", None, 64, 8)
                self.masks[layer] = tape.save(mask) if self.saves else mask
                tape.drop(mask, y)
                y = z
            tape.drop(x)
            x = y
            if program.features:
                features.append(tape.keep(x))
        if program.features:
            (stacked,) = tape.op("stack", None, 64 * len(features), flops=5 * len(features))
            if program.features == "shuffled":
                features = [*features[::2], *features[1::2]]
            while features:
                tape.drop(features.pop(0))
            tape.drop(stacked)
        (loss,) = tape.op("loss", None, 4, flops=77)
        tape.drop(x)
        return loss

    def layer_forward(self, layer: Layer, x: int, *, saves: bool) -> int:
        tape, saved = self.tape, []
        h = tape.keep(x)
        for work in self.program.body:
            out, *statistics = tape.op(work.name, layer, work.size, *([4] * work.saves_statistics), flops=work.size**2)
            kept = [h] * work.saves_input + [out] * work.saves_output + statistics
            saved.append([tape.save(block) for block in kept] if saves else [])
            tape.drop(h, *statistics)
            h = out
        if self.program.residual == "layer":
            (out,) = tape.op("add", layer, 64)
            tape.drop(h)
            h = out
        if self.program.last_is_special and layer == self.all_layers[-1]:
            (out,) = tape.op("final", layer, 64)
            tape.drop(h)
            h = out
        self.saved[layer] = saved
        return h

    def backward(self, loss: int) -> None:
        program, tape = self.program, self.tape
        tape.phase = "backward"
        (g,) = tape.op("loss", None, 64)
        tape.drop(loss)
        self.make_gradient(len(self.weights) - 1, None)
        for layer in reversed(self.all_layers):
            if program.dropout:
                (new,) = tape.op("dropout", None, 64)
                tape.drop(self.masks.pop(layer), g)
                g = new
            if program.checkpointing:
                x = self.inputs.pop(layer)
                tape.drop(self.layer_forward(layer, x, saves=True), x)
            stream = [tape.keep(g)] if program.residual else []
            index = self.weight_of[layer] + sum(1 for work in program.body if work.weight)
            for position, (work, saved) in reversed(
                list(enumerate(zip(program.body, self.saved.pop(layer), strict=True)))
            ):
                index -= bool(work.weight)
                self.make_gradient(index, layer) if work.weight else None
                if position or layer != self.all_layers[0] or not program.frozen_embedding:
                    (new,) = tape.op(work.name, layer, work.size, flops=work.size)
                    tape.drop(g)
                    g = new
                tape.drop(*saved)
            for g_stream in stream:
                (new,) = tape.op("add", layer if program.residual == "layer" else None, 64)
                tape.drop(g, g_stream)
                g = new
        self.make_gradient(0, None)
        tape.drop(g)

    def make_gradient(self, index: int, layer: Layer | None) -> None:
        (made,) = self.tape.op("mm", layer, self.weights[index][1], flops=9)
        if index in self.gradients:
            self.tape.op("add_", layer)
            self.tape.drop(made)
        else:
            self.gradients[index] = made

    def single(self) -> None:
        root = None  # a variable: it holds the one before until it is set anew
        for index, (layer, size) in enumerate(self.weights):
            if index in self.gradients:
                (new,) = self.tape.op("sqrt", layer, size)
                if root is not None:
                    self.tape.drop(root)
                root = new
                self.tape.op("addcdiv_", layer)
        if root is not None:
            self.tape.drop(root)

    def foreach(self) -> None:
        tape = self.tape
        weights = [self.weights[index] for index in sorted(self.gradients)]
        total = sum(size for _, size in weights)
        before: list[int] = []
        for number in range(self.program.foreach_ops):
            tape.op(f"_foreach_{number}", None, flops=total, launches=len(weights))
            lists = [tape.result(f"_foreach_{number}", size, layer) for layer, size in weights]
            tape.drop(*before)
            before = lists[::-1] if self.program.lists_go_backwards else lists
        tape.drop(*before)

    def zero_grad(self) -> None:
        self.tape.inside = False
        self.tape.drop(*(self.gradients.pop(index) for index in sorted(self.gradients)))

    def let_go(self) -> None:
        """The graph, from its end."""
        for layer in reversed(self.all_layers):
            if layer in self.masks:
                self.tape.drop(self.masks[layer])
            if layer in self.inputs:
                self.tape.drop(self.inputs[layer])
            for saved in reversed(self.saved[layer]):
                self.tape.drop(*saved)


def run(program: Program, layers: int | Mapping[str, int]) -> Trace:
    """The trace of a program with so many layers in each stack."""
    stacks: Sequence[str] = (*program.stacks, *(["unused"] if program.unused_stack else []))
    return Model(program, {stack: layers if isinstance(layers, int) else layers[stack] for stack in stacks}).run()
