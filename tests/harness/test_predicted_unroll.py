"""A trace of a few layers made one of many: held to what the whole would have done, and refused where it cannot be."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest

import perflab.predicted.trace.unroll as unrolling
from perflab.predicted.trace.patterns import NotPeriodic
from perflab.predicted.trace.trace import Alloc, Event, Free, Layer, Op, Place, Trace, Use
from perflab.predicted.trace.unroll import same, unroll
from tests.harness.layered_runs import Program, Tape, Work, drawn, run

WORK = (
    Work("norm", 64, True, False, True, 16),
    Work("mm", 128, True, True, False, 64),
    Work("silu", 64, True, False, False, 0),
)
STEP = Program(WORK, optimizer="foreach", zero_grad="after")
FORWARD = Program(WORK, call="no_grad")


def unrolled(program: Program, layers: int | Mapping[str, int]) -> Trace:
    few, more = run(program, 3), run(program, 4)
    return unroll(few, more, dict.fromkeys(few.layers, layers) if isinstance(layers, int) else layers)


def taped(model: Callable[[Tape, int], None], layers: int) -> Trace:
    tape = Tape({"blocks": layers})
    model(tape, layers)
    return tape.trace()


# --- what comes out


@pytest.mark.parametrize("seed", [*range(40), 546])  # the last one's graph goes to and fro, and is no list
def test_a_trace_of_few_layers_becomes_what_the_whole_would_have_done(seed: int) -> None:
    program = drawn(seed)
    for layers in (4, 5, 8, 33):
        assert same(unrolled(program, layers), run(program, layers))


def gated(tape: Tape, layers: int) -> None:
    """The parent's own gate between the layers, whose gradient is complete only before the first."""
    for number in range(layers):
        tape.op("mm", Layer("blocks", number), 32)
        tape.op("gate", None, 16)
    tape.phase, summed = "backward", -1
    for number in reversed(range(layers)):
        (part,) = tape.op("gate", None, 16)
        if number < layers - 1:
            (new,) = tape.op("add", None, 16)
            tape.drop(part, summed)
            part = new
        summed = part
        tape.op("mm", Layer("blocks", number), 32)
    tape.uses[summed] = Use("gradients")


def let_go_to_and_fro(tape: Tape, layers: int) -> None:
    """A graph: of each layer first what it kept of the one before, then its own, the last layer first."""
    made = [tape.op("mm", Layer("blocks", number), 32, 4) for number in range(layers)]
    tape.inside = False
    for number in reversed(range(layers)):
        tape.drop(*([made[number - 1][0]] if number else []), made[number][1])


def all_but_the_last_let_go(tape: Tape, layers: int) -> None:
    """A list of outputs, let go inside of the module when the last one is returned."""
    for block in [tape.op("mm", Layer("blocks", number), 32)[0] for number in range(layers)][:-1]:
        tape.drop(block)


def all_let_go(tape: Tape, layers: int) -> None:
    """A list of outputs, let go inside of the module."""
    tape.drop(*[tape.op("mm", Layer("blocks", number), 32)[0] for number in range(layers)])


def held_over(tape: Tape, layers: int) -> None:
    """A variable that holds what was made for one layer while work on the next has begun."""
    before: list[int] = []
    tape.inside = False
    for number in range(layers):
        now = tape.op("sqrt", Layer("blocks", number), 32)
        tape.drop(*before)
        tape.op("add_", Layer("blocks", number))
        before = now


@pytest.mark.parametrize("model", [gated, let_go_to_and_fro, all_but_the_last_let_go, all_let_go, held_over])
def test_what_tags_alone_do_not_say_is_read_from_what_is_around(model: Callable[[Tape, int], None]) -> None:
    assert same(unroll(taped(model, 3), taped(model, 4), {"blocks": 10}), taped(model, 10))


def test_blocks_are_numbered_in_the_order_in_which_they_come() -> None:
    trace = unrolled(STEP, 6)
    blocks = [event.block for event in (*trace.held, *trace.events) if isinstance(event, Alloc)]
    assert blocks == list(range(len(blocks)))
    assert set(trace.uses) == set(blocks)


def test_what_grows_outside_of_layers_grows_by_the_layer() -> None:
    trace = unrolled(replace(STEP, features="stack"), 20)
    (stacked,) = [event for event in trace.events if isinstance(event, Alloc) and event.operator == "aten::stack"]
    (update,) = [event for event in trace.events if isinstance(event, Op) and event.name == "aten::_foreach_1"]
    assert stacked.size_bytes == 20 * 64
    assert update.launches == 2 + 20 * 2
    assert update.flops == 96 + 48 + 20 * (16 + 64)


def test_a_saved_tensor_with_a_side_a_layer_gets_its_shape() -> None:
    def model(tape: Tape, layers: int) -> None:
        for number in range(layers):
            tape.op("mm", Layer("blocks", number), 32)
        (stacked,) = tape.op("stack", None, 32 * layers)
        tape.save(stacked)

    use = list(unroll(taped(model, 3), taped(model, 4), {"blocks": 9}).uses.values())[-1]
    assert use.saved is not None
    assert use.saved.shape == (2, 32 * 9 // 8)


def test_deeper_traces_do_as_well() -> None:
    assert same(unroll(run(STEP, 5), run(STEP, 6), {"blocks": 11}), run(STEP, 11))


# --- several stacks


SEQ = Program(WORK, stacks=("encoder", "decoder"), optimizer="foreach", zero_grad="after")


def test_stacks_of_different_lengths_are_unrolled_together_where_nothing_grows_outside_of_them() -> None:
    program, wanted = replace(FORWARD, stacks=("encoder", "decoder")), {"encoder": 12, "decoder": 7}
    assert same(unrolled(program, wanted), run(program, wanted))


def test_what_grows_with_stacks_of_different_lengths_is_shared_out_one_after_another_alone() -> None:
    with pytest.raises(NotPeriodic):
        unrolled(SEQ, {"encoder": 12, "decoder": 7})

    def encoders(decoders: int) -> Trace:
        few, more = (run(SEQ, {"encoder": number, "decoder": decoders}) for number in (3, 4))
        return unroll(few, more, {"encoder": 12, "decoder": decoders})

    wanted = {"encoder": 12, "decoder": 7}
    assert same(unroll(encoders(3), encoders(4), wanted), run(SEQ, wanted))


# --- what is refused


def edited(trace: Trace, index: int, *events: Event) -> Trace:
    return replace(trace, events=(*trace.events[:index], *events, *trace.events[index + 1 :]))


@pytest.mark.parametrize("seed", range(20))
def test_whatever_is_changed_in_one_layer_of_one_trace_is_refused(seed: int) -> None:
    draw, program = random.Random(seed), drawn(seed)
    traces = [run(program, 3), run(program, 4)]
    which = draw.randrange(2)
    trace = traces[which]
    index = draw.choice([index for index, event in enumerate(trace.events) if event.layer])
    event = trace.events[index]
    changed: list[tuple[Event, ...]] = [(), (event, Op("aten::mul", Place(), 0, 8, "float32", 1, event.layer))]
    if isinstance(event, Op):
        changed += [(replace(event, flops=event.flops + 1),), (replace(event, dtype="bfloat16"),)]
    elif isinstance(event, Alloc):
        changed = [(replace(event, size_bytes=event.size_bytes + 4),), (replace(event, operator="aten::mul"),)]
    traces[which] = edited(trace, index, *draw.choice(changed))
    with pytest.raises(NotPeriodic):
        unroll(traces[0], traces[1], dict.fromkeys(trace.layers, 8))


def test_states_that_are_let_go_every_other_first_are_refused() -> None:
    with pytest.raises(NotPeriodic):
        unrolled(replace(FORWARD, features="shuffled"), 8)


def test_a_pattern_that_does_not_lay_out_what_was_traced_is_not_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    lay_out = unrolling._laid_out

    def with_a_slip(patterns: Any, sweeps: Any, few: Trace, more: Trace, layers: Mapping[str, int]) -> Trace:
        trace = lay_out(patterns, sweeps, few, more, layers)
        return edited(trace, 0) if layers == more.layers else trace

    unrolled(STEP, 8)
    monkeypatch.setattr(unrolling, "_laid_out", with_a_slip)
    with pytest.raises(NotPeriodic, match="in no reading"):
        unrolled(STEP, 8)


def densely_connected(tape: Tape, layers: int) -> None:
    """A layer that reads all the ones before it."""
    for number in range(layers):
        tape.op("cat", Layer("blocks", number), 32 * (number + 1))


def growing_between(tape: Tape, layers: int) -> None:
    """Work between layers that grows with every layer."""
    for number in range(layers):
        tape.op("mm", Layer("blocks", number), 32)
        tape.op("cat", None, 32 * (number + 1))


def u_net(tape: Tape, layers: int) -> None:
    """Skips from the first half to the second."""
    skips = []
    for number in range(layers):
        (out,) = tape.op("mm", Layer("blocks", number), 32)
        if number < layers // 2:
            skips.append(out)
        elif skips:
            tape.drop(skips.pop())


def shrinking(tape: Tape, layers: int) -> None:
    """What would shrink below nothing."""
    for number in range(layers):
        tape.op("mm", Layer("blocks", number), 32)
    tape.op("rest", None, 500 - 100 * layers)


@pytest.mark.parametrize("model", [densely_connected, growing_between, u_net, shrinking])
def test_what_one_more_layer_changes_otherwise_each_time_is_refused(model: Callable[[Tape, int], None]) -> None:
    with pytest.raises(NotPeriodic):
        unroll(taped(model, 3), taped(model, 4), {"blocks": 8})


def two_armed(tape: Tape, down: int, up: int) -> None:
    skips = [tape.op("mm", Layer("down", number), 32)[0] for number in range(down)]
    for number in range(up):
        tape.op("mm", Layer("up", number), 64)
        if skips:
            tape.drop(skips.pop())


def test_skips_from_one_stack_to_its_mirror_image_are_understood() -> None:
    def trace(down: int, up: int) -> Trace:
        tape = Tape({"down": down, "up": up})
        two_armed(tape, down, up)
        return tape.trace()

    assert same(unroll(trace(3, 3), trace(4, 4), {"down": 9, "up": 9}), trace(9, 9))
    with pytest.raises(NotPeriodic):
        unroll(trace(3, 3), trace(4, 4), {"down": 9, "up": 10})


def test_stacks_that_take_turns_layer_by_layer_are_refused() -> None:
    def trace(layers: int) -> Trace:
        tape = Tape({"attention": layers, "mlp": layers})
        for number in range(layers):
            tape.op("mm", Layer("attention", number), 32)
            tape.op("mm", Layer("mlp", number), 32)
        return tape.trace()

    with pytest.raises(NotPeriodic):
        unroll(trace(3), trace(4), {"attention": 8, "mlp": 8})


def test_one_step_cannot_tell_a_square_from_a_line() -> None:
    """What the module's docstring says of its limits: the caller knows that layers are alike, and no more is known."""

    def model(tape: Tape, layers: int) -> None:
        for number in range(layers):
            tape.op("mm", Layer("blocks", number), 32)
        tape.op("pairs", None, layers**2)

    trace = unroll(taped(model, 3), taped(model, 4), {"blocks": 8})
    assert not same(trace, taped(model, 8))
    assert isinstance(trace.events[-1], Alloc)
    assert trace.events[-1].size_bytes == 16 + 4 * (16 - 9)


# --- what is asked wrongly


@pytest.mark.parametrize(
    ("few", "more", "layers"),
    [(3, 4, {"blocks": 2}), (3, 4, {"layers": 9}), (3, 5, {"blocks": 9}), (3, 3, {"blocks": 9}), (2, 3, {"blocks": 9})],
)
def test_numbers_of_layers_that_do_not_fit_are_refused(few: int, more: int, layers: dict[str, int]) -> None:
    ((stack, wanted),) = layers.items()
    said = f"{wanted} layers of {stack} are wanted, and it was traced with"
    with pytest.raises(ValueError, match=f"{said}.*; trace it with as many as are wanted, or with three or more and"):
        unroll(run(FORWARD, few), run(FORWARD, more), layers)


def test_more_layers_of_a_stack_that_both_traces_have_alike_are_refused() -> None:
    few, more = (run(SEQ, {"encoder": number, "decoder": 3}) for number in (3, 4))
    with pytest.raises(ValueError, match="7 layers of decoder are wanted, and it was traced with 3 and 3"):
        unroll(few, more, {"encoder": 9, "decoder": 7})
    assert unroll(few, more, {"encoder": 9}).layers == {"encoder": 9, "decoder": 3}


def test_a_trace_that_frees_what_never_was_is_no_trace() -> None:
    few, more = run(FORWARD, 3), run(FORWARD, 4)
    with pytest.raises(ValueError, match="frees block 999, which it has not allocated before"):
        unroll(few, replace(more, events=(*more.events, Free(999))), {"blocks": 8})


# --- same


def test_traces_are_the_same_whatever_their_blocks_are_called() -> None:
    trace = run(STEP, 3)
    assert same(trace, trace)
    assert same(unrolled(STEP, 3), trace)


def test_whatever_differs_makes_traces_unlike() -> None:
    trace = run(FORWARD, 3)
    op, work = next((index, event) for index, event in enumerate(trace.events) if isinstance(event, Op))
    frees = [index for index, event in enumerate(trace.events) if isinstance(event, Free)]
    first, second = trace.events[frees[0]], trace.events[frees[-1]]
    block = next(event for event in trace.events if isinstance(event, Alloc))
    assert isinstance(first, Free)
    assert isinstance(second, Free)
    others = [
        replace(trace, layers={"blocks": 4}),
        replace(trace, held=(replace(trace.held[0], size_bytes=97), *trace.held[1:])),
        edited(trace, op, replace(work, launches=2)),
        replace(trace, uses={**trace.uses, block.block: replace(trace.uses[block.block], category="buffers")}),
        edited(trace, frees[0], Free(second.block, first.layer)),
        edited(trace, frees[0], Free(first.block, Layer("others", 0))),
        replace(trace, events=trace.events[:-1]),
        replace(trace, result_blocks=frozenset()),
        replace(trace, held=(*trace.held, block), events=tuple(one for one in trace.events if one is not block)),
    ]
    for other in others:
        assert not same(trace, other)
        assert not same(other, trace)
