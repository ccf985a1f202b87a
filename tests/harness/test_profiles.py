"""Profiles from events that are made up: times divided, places, categories. No profiler and no clock."""

from __future__ import annotations

import base64
import json
import zlib

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from syrupy.assertion import SnapshotAssertion

from perflab.attribution.places import MARK, Where
from perflab.base.data import changed, to_json, to_plain
from perflab.base.errors import UsageError
from perflab.measured.baselines import packed, unpacked
from perflab.profiles.categories import BACKWARD_SCOPE, categories, flops_where_done
from perflab.profiles.difference import explain
from perflab.profiles.divided import (
    STRANGER,
    Cost,
    Kernel,
    Known,
    Sum,
    aligned,
    device_sums,
    host_sums,
    matched,
)
from perflab.profiles.events import (
    CALL,
    NODE,
    PHASE,
    RANGE_SCOPE,
    Event,
    Phase,
    name_and_scope,
    nested,
    operators,
    placed,
    within,
)
from perflab.profiles.reading import Reading, known_of, summed_up
from perflab.profiles.recording import Recorded
from perflab.profiles.take import LEAST_CALLS, _turns, chrome_trace, folded_stacks
from perflab.profiles.text import by_category, explanation_texts, lines, notes_of
from perflab.results.profile import Profile, ProfileRow


def call(name: str, start: int, end: int, **fields: int) -> Event:
    """An operator."""
    return Event(name, start, end, **fields)


def opened(name: str, start: int, end: int) -> Event:
    """A range."""
    return Event(name, start, end, scope=RANGE_SCOPE)


def known_by_id(calls: list[Event], category: str = "copies") -> tuple[object, dict[int, Known]]:
    """The outermost call of some events, and what is known of the operators in it."""
    root = nested(calls)[0]
    return root, {id(one): Known(one.name, category, "", Where(f"of {one.name}")) for one in operators([root])}


# --- the host's time ---------------------------------------------------------------------------------------------


def test_events_nest_as_they_were_called_and_none_outlives_its_caller() -> None:
    (root,) = nested([call("aten::mm", 20, 70), call("aten::linear", 10, 80), opened("call", 0, 100)])
    assert [one.name for one in root.walk()] == ["call", "aten::linear", "aten::mm"]
    assert [one.self_ns for one in root.walk()] == [30, 20, 50]
    (root,) = nested([call("aten::linear", 10, 80), call("aten::mm", 20, 85)])
    assert sum(one.self_ns for one in root.walk()) == 70


def test_operators_and_python_add_up_to_the_call_and_python_has_the_place_of_the_operator_that_ends_it() -> None:
    (root,) = nested([opened("call", 0, 100), call("a", 10, 40), call("b", 20, 30), call("c", 50, 90)])
    known = {id(one): Known(one.name, "copies", "", Where("m", f"{one.name}.py:1")) for one in operators([root])}
    sums = host_sums(root, known, ())
    assert sum(one.time_ns for one in sums.values()) == 100
    gaps = {key.line: one.time_ns for key, one in sums.items() if key.category == "python"}
    assert gaps == {"a.py:1": 10, "c.py:1": 10, "": 10}  # nothing ends what comes after the last one


def test_what_the_profiler_adds_is_taken_from_the_caller() -> None:
    root, known = known_by_id([opened("call", 0, 100), call("a", 10, 40), call("b", 20, 30)])
    told = summed_up("cpu", [host_sums(root, known, ())], [100], [0], 96, cost=Cost(event_ns=2.0))
    assert (told.cost_ns, told.explained_ns, told.unexplained_ns) == (4, 96, 0)
    assert {row.operator: row.time_ns for row in told.rows if row.operator} == {"a": 18, "b": 10}


def test_what_marks_around_phases_add_is_taken_from_the_python_beside_them() -> None:
    phases = [opened(PHASE + "forward", 10, 40), opened(PHASE + "backward", 50, 90)]
    root, known = known_by_id([opened(CALL, 0, 100), *phases, call("a", 20, 30), call("b", 60, 80)])
    sums = host_sums(root, known, [Phase("forward", 10, 40), Phase("backward", 50, 90)])
    assert {(key.phase, key.module): one.sides for key, one in sums.items() if key.category == "python"} == {
        ("forward", "of a"): 4,  # of the call's begin, both of the phase's, and of its end the one within
        ("forward", "of b"): 2,  # between the phases
        ("backward", "of b"): 4,
    }
    told = summed_up("cpu", [sums], [100], [0], 90, cost=Cost(side_ns=1.0))
    assert (told.cost_ns, told.explained_ns) == (10, 90)


def test_what_an_event_costs_is_seen_in_the_calls_where_they_tell_it() -> None:
    call = [Sum(events=100)]
    hot = Cost(event_ns=1.0, side_ns=5.0)
    assert hot.as_seen([200.0, 210.0], [call] * 2).event_ns == pytest.approx(2.05)
    assert hot.as_seen([-100.0, 500.0], [call] * 2) == hot  # noise
    assert hot.as_seen([900.0, 910.0], [call] * 2).event_ns == 3.0  # no event costs so much: something else is slower
    assert hot.as_seen([-90.0, -100.0], [call] * 2).event_ns == pytest.approx(1 / 3)
    marked = [*call, Sum(sides=6)]
    assert hot.as_seen([230.0, 240.0], [marked] * 2).event_ns == pytest.approx(2.05)
    for told_nothing in ([call], []):
        assert hot.as_seen([500.0] * len(told_nothing), [call] * len(told_nothing)) == hot
    assert hot.as_seen([500.0, 500.0], [[Sum(sides=2)]] * 2) == hot


def test_calls_in_the_same_order_are_matched_one_by_one_and_others_by_name() -> None:
    known = [Known("a", "copies", "", Where("first")), Known("b", "other", "", Where()), Known("a", "x", "", Where())]
    calls = operators(nested([call("a", 0, 1), call("b", 2, 3), call("a", 4, 5)]))
    assert matched(calls, known) == (known, 0)
    calls = operators(nested([call("a", 0, 1), call("c", 2, 3), call("a", 4, 5)]))
    found, strangers = matched(calls, known)
    assert [one.category for one in found] == ["copies", "other", "x"]
    assert strangers == 1


def test_one_operator_more_leaves_all_others_where_they_are_however_many_there_are() -> None:
    names = [("aten::mm", "aten::add", "aten::mul", "aten::mm", "aten::view")[at * at % 5] for at in range(20_000)]
    known = [Known(name, "copies", "", Where(f"layer {at}")) for at, name in enumerate(names)]
    edits = {0: "aten::mm", 7000: "aten::new", 7003: "aten::mm", 15000: "aten::mul"}
    longer, expected = list[Event](), list[int | None]()
    for at, name in enumerate(names):
        if at in edits:
            longer.append(call(edits[at], 2 * len(longer), 2 * len(longer) + 1))
            expected.append(None)
        longer.append(call(name, 2 * len(longer), 2 * len(longer) + 1))
        expected.append(at)
    found, strangers = matched(operators(nested(longer)), known)
    assert strangers == len(edits)
    moved = [one for one, at in zip(found, expected, strict=True) if at is not None and one is not known[at]]
    assert len(moved) <= 2 * len(edits)  # of equal ones side by side, nothing says which is new


def test_calls_that_have_nothing_in_common_are_all_strangers() -> None:
    known = [Known(f"a{at}", "copies", "", Where()) for at in range(5000)]
    other = operators(nested([call(f"b{at}", 2 * at, 2 * at + 1) for at in range(5000)]))
    assert matched(other, known)[1] == 5000


@given(st.lists(st.sampled_from("abc"), max_size=40), st.lists(st.sampled_from("abc"), max_size=40))
def test_an_alignment_pairs_equal_names_operators(names: list[str], others: list[str]) -> None:
    found = aligned(names, others)
    paired = [(name, others[at], at) for name, at in zip(names, found, strict=True) if at != STRANGER]
    assert all(name == other for name, other, _ in paired)
    places = [at for _, _, at in paired]
    assert places == sorted(set(places))
    assert aligned(names, names) == list(range(len(names)))


# --- places and categories ---------------------------------------------------------------------------------------


def test_a_backward_node_belongs_to_the_module_and_line_that_made_it() -> None:
    places = {f"{MARK}0": Where("blocks.*.q"), f"{MARK}1": Where("blocks.*.q", "model.py:8")}
    events = [
        opened("call", 0, 1000),
        opened(f"{MARK}0", 10, 100),
        opened(f"{MARK}1", 15, 90),
        call("aten::mm", 20, 80, sequence=7),
        call(f"{NODE}MmBackward0", 200, 300, sequence=7, forward_thread=1),
        call("aten::mm", 210, 290, sequence=-1),
        call(f"{NODE}torch::autograd::AccumulateGrad", 300, 320, forward_thread=1),
    ]
    phases = (Phase("forward", 0, 150), Phase("backward", 150, 1000))
    found = placed(nested(events), phases, places.__getitem__)
    told = [(one.call.name.removeprefix(NODE), one.phase, one.where) for one in found]
    where = Where("blocks.*.q", "model.py:8")
    assert told == [
        ("aten::mm", "forward", where),
        ("MmBackward0", "backward", where),
        ("aten::mm", "backward", where),
        ("torch::autograd::AccumulateGrad", "backward", where),
    ]


def test_a_backward_on_a_thread_of_its_own_finds_its_forward_too() -> None:
    forward = nested([opened(f"{MARK}0", 0, 50), call("aten::mm", 10, 40, sequence=3)])
    backward = nested([call(f"{NODE}MmBackward0", 60, 90, sequence=3, forward_thread=1, thread=2)])
    found = placed([*forward, *backward], (), lambda _name: Where("head"))
    assert [(one.phase, one.where.module) for one in found] == [("", "head"), ("backward", "head")]


def test_a_backward_node_with_hooks_belongs_to_the_module_that_made_it_too() -> None:
    events = [
        opened(f"{MARK}0", 0, 20),
        call("aten::mul", 5, 15, sequence=7),
        call(f"{NODE}MulBackward0", 30, 60),  # autograd's number stands on the node alone
        call("aten::neg", 32, 36),
        call("MulBackward0", 40, 55, sequence=7, forward_thread=1),
    ]
    found = placed(nested(events), (), lambda _name: Where("head"))
    assert [one.where.module for one in found] == ["head"] * 4


def test_a_forward_that_a_checkpoint_runs_again_belongs_to_the_module_that_runs() -> None:
    events = [
        call(f"{NODE}CheckpointBackward", 0, 100, sequence=1, forward_thread=1),
        opened(f"{MARK}0", 10, 50),
        call("aten::mm", 20, 40, sequence=9),
        call(f"{NODE}MmBackward0", 60, 90, sequence=9, forward_thread=1),
    ]
    found = placed(nested(events), (), lambda _name: Where("blocks.*.up"))
    assert [one.where.module for one in found] == ["", "blocks.*.up", "blocks.*.up"]


def test_a_forward_that_a_checkpoint_runs_again_has_no_line_of_the_node_that_asked_for_it() -> None:
    places = {
        f"{MARK}0": Where("blocks.*", "model.py:30", ("model.py:30", "train.py:5")),
        f"{MARK}1": Where("blocks.*.up"),
        f"{MARK}2": Where("blocks.*.up", "model.py:8"),
    }
    events = [
        opened(f"{MARK}0", 0, 20),
        call("aten::mul", 5, 15, sequence=1),
        call(f"{NODE}MulBackward0", 30, 100, sequence=1, forward_thread=1),
        opened(f"{MARK}1", 40, 80),
        call("aten::sin", 45, 50, sequence=9),
        opened(f"{MARK}2", 55, 70),
        call("aten::cos", 60, 65, sequence=10),
        call("aten::mul", 85, 95),
    ]
    found = {one.call.event.start_ns: one.where for one in placed(nested(events), (), places.__getitem__)}
    node = places[f"{MARK}0"]
    assert found == {5: node, 30: node, 45: Where("blocks.*.up"), 60: Where("blocks.*.up", "model.py:8"), 85: node}


def test_a_call_without_phases_has_those_that_autograd_and_the_optimizer_tell() -> None:
    events = [
        opened(CALL, 0, 100),
        call("aten::zero_", 0, 5),
        call("aten::to", 10, 20, sequence=3),
        call("aten::copy_", 12, 18),
        call("aten::argmax", 21, 25),  # without a number: under ``no_grad``
        call(f"{NODE}ToCopyBackward0", 30, 60, sequence=3, forward_thread=1),
        call("aten::copy_", 40, 50),
        call("aten::sin", 52, 55, sequence=9),  # a checkpoint's
        call("aten::norm", 61, 65, sequence=4),
        opened("Optimizer.step#AdamW.step", 70, 90),
        call("aten::_fused_adamw_", 75, 85),
    ]

    def phases(*its_own: Phase, of: list[Event] = events) -> list[str]:
        return [one.phase for one in known_of(Recorded(nested(of)[0], phases=its_own), lambda _name: Where())]

    assert phases() == ["", "forward", "forward", "", "backward", "backward", "backward", "", "optimizer"]
    assert phases(Phase("forward", 0, 100)) == ["forward"] * 9
    assert phases(of=events[:5]) == [""] * 4  # no backward, no forward


def test_a_call_that_autocast_enters_twice_counts_once_in_the_type_that_it_computes_in() -> None:
    events = [
        opened(CALL, 0, 100),
        Event("aten::conv2d", 10, 90, shapes="2x3 float32"),
        Event("aten::to", 20, 30, shapes="2x3 float32"),
        Event("aten::conv2d", 40, 80, shapes="2x3 bfloat16"),
        Event("aten::mkldnn_convolution", 50, 70),
    ]
    recorded = Recorded(nested(events)[0])
    reading = Reading(known_of(recorded, lambda _name: Where()))
    reading.add("cpu", [recorded])
    told = reading.profile("cpu", [100.0], [])
    assert {
        (one.operator, one.shapes, one.within): (one.instances, one.time_ns) for one in told.rows if one.operator
    } == {
        ("aten::conv2d", "2x3 bfloat16", ""): (1, 50),
        ("aten::to", "2x3 float32", "aten::conv2d"): (1, 10),
        ("aten::mkldnn_convolution", "", "aten::conv2d"): (1, 20),
    }
    often = {name: instances for name, _, instances, _ in by_category(told)}
    assert (often["products forward"], often["copies"]) == (1, 1)


@pytest.mark.parametrize(
    ("inner", "entries", "shapes"),
    [
        (["8x8, 0 float32"], 2, "8x8 float32"),  # the variant that writes into ``out``
        (["4x4 float32"] * 2, 1, "8x8 float32"),  # two calls, of which neither is the outer one
    ],
)
def test_an_operator_that_calls_itself_once_is_one_call(inner: list[str], entries: int, shapes: str) -> None:
    own = [Event("aten::mean", 20 * at, 20 * at + 10, shapes=one) for at, one in enumerate(inner, start=1)]
    recorded = Recorded(nested([opened(CALL, 0, 100), Event("aten::mean", 10, 90, shapes="8x8 float32"), *own])[0])
    outer, *_ = known_of(recorded, lambda _name: Where())
    assert (outer.entries, outer.shapes) == (entries, shapes)


@pytest.mark.parametrize(
    ("name", "phase", "category"),
    [
        ("aten::addmm", "forward", "products forward"),
        ("aten::mm", "backward", "products backward"),
        ("aten::convolution_backward", "backward", "products backward"),
        ("aten::_scaled_dot_product_flash_attention_for_cpu", "", "attention"),
        ("aten::_efficient_attention_backward", "backward", "attention"),
        ("aten::copy_", "forward", "copies"),
        ("aten::embedding_dense_backward", "backward", "embedding and loss"),
        ("aten::logsumexp", "forward", "embedding and loss"),
        ("aten::_log_softmax", "forward", "embedding and loss"),
        ("aten::native_layer_norm", "forward", "element-wise and norms"),
        ("aten::mul", "optimizer", "optimizer"),
        ("aten::_fused_adamw_", "optimizer", "optimizer"),
        ("aten::view", "forward", "dispatch"),
        ("detach", "forward", "dispatch"),
        (f"{NODE}MulBackward0", "backward", "dispatch"),
        ("c10d::allreduce_", "backward", "communication"),
        ("Torch-Compiled Region", "", "compiled code"),
        ("compiled graph", "backward", "compiled code"),
        ("TorchDynamo Cache Lookup", "", "compiled code"),
        ("mylib::kernel", "forward", "your operators"),
    ],
)
def test_a_category_comes_from_the_operator_and_its_phase(name: str, phase: str, category: str) -> None:
    found = placed(nested([call(name, 0, 10)]), (Phase(phase, 0, 10),) if phase else (), lambda _name: Where())
    assert categories(found) == [category]


@pytest.mark.parametrize("loss", ["Logsumexp", "BinaryCrossEntropyWithLogits"])
def test_a_loss_s_backward_is_of_the_category_of_the_loss_though_its_operators_are_those_of_anything(loss: str) -> None:
    events = [
        call(f"{NODE}{loss}Backward0", 20, 90),
        call(f"{loss}Backward0", 21, 89, scope=BACKWARD_SCOPE),
        call("aten::exp", 30, 40),
        call(f"{NODE}MulBackward0", 100, 120),
        call("aten::exp", 101, 119),
    ]
    found = placed(nested(events), (Phase("backward", 0, 200),), lambda _name: Where())
    assert categories(found) == [*["dispatch"] * 2, "embedding and loss", "dispatch", "element-wise and norms"]


def test_products_of_a_backward_that_runs_within_another_phase_are_products_backward() -> None:
    """``perf.step(forward=lambda: model(x).sum().backward(), optimizer=...)``."""
    events = [
        call("aten::mm", 0, 10, sequence=1),
        call(f"{NODE}MmBackward0", 20, 90, sequence=1, forward_thread=1),
        call("aten::mm", 30, 80),
    ]
    found = placed(nested(events), (Phase("forward", 0, 100),), lambda _name: Where())
    assert categories(found) == ["products forward", "dispatch", "products backward"]
    assert {one.phase for one in found} == {"forward"}


def test_written_out_attention_is_a_module_with_a_softmax_between_batched_products() -> None:
    names = ["aten::mm", "aten::bmm", "aten::mul", "aten::_softmax", "aten::bmm"]
    events = [call(name, 10 * at, 10 * at + 9) for at, name in enumerate(names)]
    inside = placed(nested([opened(f"{MARK}0", 0, 100), *events]), (), lambda _name: Where("attention"))
    assert categories(inside) == ["products forward", "attention", "attention", "attention", "attention"]
    without = placed(nested([opened(f"{MARK}0", 0, 100), *events[:3]]), (), lambda _name: Where("experts"))
    assert categories(without) == ["products forward", "products forward", "element-wise and norms"]


def test_embedding_norms_and_loss_of_a_module_that_writes_attention_out_are_no_attention() -> None:
    names = ["aten::embedding", "aten::native_layer_norm", "aten::bmm", "aten::_softmax", "aten::bmm", "aten::add"]
    names += ["aten::_log_softmax", "aten::nll_loss_forward"]
    events = [call(name, 10 * at, 10 * at + 9) for at, name in enumerate(names)]
    inside = placed(nested([opened(f"{MARK}0", 0, 100), *events]), (), lambda _name: Where("Net"))
    assert categories(inside) == [
        "embedding and loss",
        "element-wise and norms",
        *["attention"] * 4,
        *["embedding and loss"] * 2,
    ]


@pytest.mark.parametrize(
    ("taken", "category"), [("8x16x64, 8x64x32", "products forward"), ("8x100x8, 8x8x32", "attention")]
)
def test_a_router_s_softmax_makes_no_attention_of_its_experts_products(taken: str, category: str) -> None:
    """Of the second layer on, a product stands before the softmax too."""
    for text in (taken, f"[[{taken.replace(', ', '], [').replace('x', ', ')}]]"):
        events = [
            Event("aten::bmm", 0, 5),
            Event("aten::_softmax", 10, 15, shapes="100x8 float32" if "x" in text else "[[100, 8], [], []]"),
            Event("aten::bmm", 20, 25, shapes=text),
        ]
        found = placed(nested([opened(f"{MARK}0", 0, 100), *events]), (), lambda _name: Where("moe"))
        assert categories(found)[-1] == category


@pytest.mark.parametrize("copy_ends", [12, 88], ids=["a short one", "a long one"])
@pytest.mark.parametrize(
    ("caller", "called", "category"),
    [
        ("aten::stft", "aten::mm", "products forward"),
        ("aten::mul_", "aten::to", "element-wise and norms"),  # of a number of another type: it is cast
        ("aten::repeat", "aten::expand", "copies"),
        ("mylib::kernel", "aten::mm", "your operators"),
    ],
)
def test_a_category_is_that_of_the_code_however_long_what_an_operator_calls_takes(
    caller: str, called: str, category: str, copy_ends: int
) -> None:
    events = [call(caller, 0, 100), call("aten::copy_", 10, copy_ends), call(called, copy_ends, 90)]
    assert categories(placed(nested(events), (), lambda _name: Where()))[0] == category


def test_what_an_operator_runs_within_is_the_outermost_one_up_to_the_backward_s_node() -> None:
    (root,) = nested(
        [
            opened("call", 0, 100),
            call(f"{NODE}RepeatBackward0", 1, 99),
            call("aten::repeat", 10, 90),
            call("aten::cat", 20, 80),
            call("aten::copy_", 30, 70),
        ]
    )
    assert [within(one) for one in root.walk()] == ["", "", "", "aten::repeat", "aten::repeat"]


def test_flops_count_once_and_where_the_work_is_done() -> None:
    events = [
        call("aten::convolution", 0, 100, flops=90),
        call("aten::_convolution", 5, 95, flops=90),
        call("aten::contiguous", 6, 8),
        *(call("aten::slow_conv2d", at, at + 10) for at in (10, 30, 50)),
        call("aten::mm", 200, 300, flops=7),
    ]
    calls = operators(nested(events))
    flops = flops_where_done(calls)
    assert [(one.name, flops[id(one)]) for one in calls if id(one) in flops] == [
        *[("aten::slow_conv2d", 30)] * 3,
        ("aten::mm", 7),
    ]


# --- the device's time -------------------------------------------------------------------------------------------


def test_kernels_and_gaps_add_up_whatever_overlaps() -> None:
    kernels = [
        Kernel("a", 100, 200, operator=1, launched_ns=50),
        Kernel("b", 150, 300, operator=2, launched_ns=60),
        Kernel("c", 400, 450, operator=3, launched_ns=370, launch_ended_ns=390),
    ]
    known = {at: Known(f"op{at}", "copies", "", Where(f"m{at}"), flops=10) for at in (1, 2, 3)}
    sums = device_sums(kernels, {0: (80, 450)}, known)
    by_kernel = {key.kernel: one.time_ns for key, one in sums.items() if key.kernel}
    assert by_kernel == {"a": 75, "b": 125, "c": 50}  # they share the 50 ns in which both run
    gaps = {(key.category, key.module): one.time_ns for key, one in sums.items() if not key.kernel}
    assert gaps == {
        ("kernel wait", "m1"): 20,
        ("host wait", "m3"): 70,
        ("launches", "m3"): 20,
        ("kernel wait", "m3"): 10,
    }
    assert sum(one.time_ns for one in sums.values()) == 450 - 80


def test_another_thread_s_kernels_have_the_time_in_which_none_of_the_call_s_runs_and_are_no_gap() -> None:
    kernels = [
        Kernel("copy", 50, 120, launched_ns=40, is_foreign=True),  # since the call before
        Kernel("a", 100, 200, operator=1, launched_ns=90),
        Kernel("copy", 150, 260, launched_ns=140, is_foreign=True),
        Kernel("copy", 300, 320, launched_ns=270, is_foreign=True),
        Kernel("b", 400, 450, operator=1, launched_ns=310, launch_ended_ns=350),
        Kernel("copy", 440, 900, launched_ns=430, is_foreign=True),
    ]
    sums = device_sums(kernels, {0: (80, 450)}, {1: Known("op", "copies", "forward", Where("m"))})
    told = {(key.category, key.kernel): one.time_ns for key, one in sums.items()}
    assert told == {
        ("another thread", "copy"): 20 + 60 + 20,
        ("copies", "a"): 100,
        ("copies", "b"): 50,
        ("host wait", ""): 40,  # 260-300: b is launched at 310
        ("launches", ""): 30,
        ("kernel wait", ""): 50,
    }
    often = {key.category: one.instances for key, one in sums.items() if key.kernel == "copy"}
    assert often == {"another thread": 3}  # the first counts in the call before
    assert sum(one.time_ns for one in sums.values()) == 450 - 80


def test_work_of_another_thread_that_takes_longer_is_said_and_its_number_is_no_fact(
    snapshot: SnapshotAssertion,
) -> None:
    def beside(time_ns: float, often: float) -> Profile:
        foreign = row("", time_ns, often, "", category="another thread", kernel="copy", line="", phase="")
        return on_cuda(row("aten::mm", 5e6, 3, category="products forward"), foreign)

    found = explain(beside(1e6, 2), beside(4e6, 8), "main", 3e6)
    assert explanation_texts(found, timed=True)[0] == snapshot
    assert explanation_texts(explain(beside(1e6, 2), beside(4e6, 8), "main", None), timed=False) == snapshot


def test_a_call_whose_kernels_are_all_another_thread_s_is_refused_for_that_reason() -> None:
    root = nested([opened(CALL, 0, 100)])[0]
    kernel = Kernel("mm", 10, 90, launched_ns=5, is_foreign=True)
    for foreign, said in (((kernel,), "by threads that PyTorch's profiler does not follow"), ((), "saw no kernels")):
        with pytest.raises(UsageError, match=said):
            Reading([]).add("cuda", [Recorded(root, foreign=foreign)] * 2)


def test_a_device_that_only_other_threads_use_is_named_as_not_shown(snapshot: SnapshotAssertion) -> None:
    root = nested([opened(CALL, 0, 100), call("aten::mm", 5, 20, correlation=1)])[0]
    kernels = (Kernel("mm", 10, 90, operator=1, launched_ns=6),)

    def notes(*foreign: Kernel) -> list[str]:
        reading = Reading([Known("aten::mm", "products forward", "", Where())])
        reading.add("cuda", [Recorded(root, kernels=one, foreign=foreign) for one in (kernels, (later,))])
        return reading.profile("cuda", [90.0], []).notes

    later = Kernel("mm", 110, 190, operator=1, launched_ns=106)
    beside = Kernel("copy", 120, 150, launched_ns=110, device=1, is_foreign=True)
    said = "work of other threads on cuda:1 is not shown: the call launches nothing there"
    assert notes(beside, beside._replace(device=0)) == [said]
    assert notes(beside._replace(device=0)) == []
    assert notes(beside, beside._replace(device=3))[0] == snapshot


def test_a_profile_cannot_tell_what_another_thread_s_work_is_for(snapshot: SnapshotAssertion) -> None:
    def said(time_ns: float) -> str:
        foreign = row("", time_ns, 4, "", category="another thread", kernel="sgemm", line="", phase="")
        return " ".join(lines("case", on_cuda(row("aten::mm", 1e6 - time_ns), foreign), 200))

    assert "can't tell" not in said(49e3)
    assert said(510e3) == snapshot


def test_a_kernel_of_no_operator_has_no_category_and_flops_count_once() -> None:
    kernels = [Kernel("split", 0, 10, operator=1), Kernel("reduce", 10, 20, operator=1)]
    sums = device_sums(kernels, {0: (0, 20)}, {1: Known("aten::mm", "products forward", "", Where(), flops=64)})
    assert sum(one.flops for one in sums.values()) == 64
    (key,) = device_sums([Kernel("k", 0, 10)], {0: (0, 10)}, {})
    assert (key.category, key.operator) == ("other", "")


def test_each_of_several_devices_has_a_timeline_and_gaps_of_its_own() -> None:
    kernels = [
        Kernel("a", 100, 200, operator=1, launched_ns=50, device=0),
        Kernel("b", 210, 300, operator=2, launched_ns=60, device=1),
        Kernel("c", 310, 400, operator=3, launched_ns=390, device=0),
    ]
    known = {at: Known(f"op{at}", "copies", "", Where(f"m{at}")) for at in (1, 2, 3)}
    sums = device_sums(kernels, {0: (100, 400), 1: (90, 360)}, known)
    found = {(key.device, key.category, key.operator, key.module): one.time_ns for key, one in sums.items()}
    assert found == {
        (0, "copies", "op1", "m1"): 100,
        (0, "host wait", "", "m3"): 110,  # although the other device is at work
        (0, "copies", "op3", "m3"): 90,
        (1, "kernel wait", "", "m2"): 120,
        (1, "copies", "op2", "m2"): 90,
        (1, "host wait", "", ""): 60,  # after its last kernel
    }


def test_rows_of_several_devices_add_up_to_the_time_of_each(snapshot: SnapshotAssertion) -> None:
    kernels = [Kernel("a", 0, 600_000, device=0), Kernel("b", 0, 200_000, device=1)]
    known = {0: Known("aten::mm", "products forward", "", Where())}
    sums = device_sums(kernels, {0: (0, 1_000_000), 1: (0, 1_000_000)}, known)
    told = summed_up("cuda", [sums], [1e6], [0], 1e6)
    assert (told.devices, told.explained_ns, told.unexplained_ns) == (2, 2e6, 0)
    assert lines("case", told, 120) == snapshot


# --- the profile -------------------------------------------------------------------------------------------------


def profile(*rows: ProfileRow, timer: float = 0.0) -> Profile:
    """A profile of these rows, which add up to its time unless ``timer`` is given."""
    whole = sum(row.time_ns for row in rows)
    return Profile(device="cpu", calls=6, timer_ns=timer or whole, profiled_ns=whole, rows=list(rows))


def on_cuda(*rows: ProfileRow) -> Profile:
    """The same of a GPU, as profiles are now."""
    return changed(profile(*rows), device="cuda")


def row(operator: str, time_ns: float, instances: float = 1, module: str = "m", **fields: object) -> ProfileRow:
    """One row."""
    given = {"category": "element-wise and norms", "line": "model.py:8", "phase": "forward", **fields}
    return ProfileRow(operator=operator, module=module, time_ns=time_ns, instances=instances, **given)  # type: ignore[arg-type]


def test_rows_and_timer_are_of_the_same_pairs_of_calls() -> None:
    reading = Reading([Known("aten::mm", "products forward", "", Where())])
    for length in (100, 90):
        root = nested([opened(CALL, 0, length), call("aten::mm", 0, length)])[0]
        reading.add("cpu", [Recorded(root)])
    told = reading.profile(
        "cpu", [100.0, 200.0], []
    )  # each alone, the 90 of one pair would be set beside the 100 of the other
    assert (told.calls, told.timer_ns, told.profiled_ns, told.explained_ns) == (1, 100, 100, 100)


def test_long_calls_take_turns_more_often_and_need_none_before_them() -> None:
    turns = [_turns(3e9, call_ns, on_cuda=False) for call_ns in (1e6, 99e6, 101e6, 2e9)]
    assert turns == [(8, 5, True), (8, 1, True), (8, 1, False), (4, 1, False)]
    fewest = [_turns(0.0, call_ns, on_cuda=False) for call_ns in (1e6, 2e9)]
    assert [4 + 3 + 2 * one.rounds * (one.calls + one.has_first) for one in fewest] == [LEAST_CALLS] * 2
    assert _turns(0.0, 2e9, on_cuda=True) == (2, 5, True)


def test_a_profile_is_the_mean_of_the_faster_half_and_adds_up_to_it() -> None:
    found = []
    for length in (100, 110, 500):
        root, known = known_by_id([opened("call", 0, length), call("a", 10, length - 10)])
        found.append(host_sums(root, known, ()))
    told = summed_up("cpu", found, [100, 110, 500], [0, 1], 95)
    assert (told.calls, told.timer_ns, told.explained_ns) == (2, 95, 105)
    assert told.unexplained_ns == -10


def test_a_profile_that_does_not_explain_the_time_says_that_it_cannot_tell() -> None:
    right = lines("case", profile(row("aten::mul", 970e3), timer=1e6), 120)
    wrong = lines("case", profile(row("aten::mul", 900e3), timer=1e6), 120)
    assert any(line.split() == ["unexplained", "30.0", "µs", "3.0%"] for line in right)
    assert "can't tell" not in " ".join(right)
    assert "can't tell where all of the time goes: 10.0% of it" in " ".join(wrong)


def test_an_operator_of_every_fourth_call_is_shown_with_its_own_mean() -> None:
    told = lines("case", profile(row("aten::sort", 1e6, 0.25), row("aten::mm", 9e6, 3)), 120)
    (found,) = (line.split() for line in told if line.startswith("  aten::sort"))
    assert found[:7] == ["aten::sort", "1.00", "ms", "10.0%", "0.25", "4.00", "ms"]


def test_what_the_profiler_adds_to_a_call_on_cuda_is_said(snapshot: SnapshotAssertion) -> None:
    sums = device_sums([Kernel("k", 0, 100)], {0: (0, 120)}, {})
    told = summed_up("cuda", [sums], [120], [0], 100, cuda_calls=[{"cudaLaunchKernel": Sum(3, 90)}])
    assert lines("c", told, 120)[0] == snapshot


@pytest.mark.parametrize(
    ("others_ns", "timer_ns", "device"),
    [
        pytest.param(0.0, 125e3, "cpu", id="unexplained"),
        pytest.param(20e3, 100e3, "cpu", id="operators of no category"),
        pytest.param(20e3, 100e3, "cuda", id="kernels of no operator"),
        pytest.param(20e3, 125e3, "cuda", id="both"),
    ],
)
def test_a_profile_that_cannot_tell_says_why(
    others_ns: float, timer_ns: float, device: str, snapshot: SnapshotAssertion
) -> None:
    rows = (row("aten::mm", 100e3 - others_ns), row("mylib::new", others_ns, category="other"))
    assert notes_of(changed(profile(*rows, timer=timer_ns), device=device)) == snapshot


def test_compiled_code_that_the_call_with_places_did_not_have_is_compiled_code_still() -> None:
    calls = nested([call("aten::mm", 0, 10), call("compiled graph", 20, 30), call("mylib::new", 40, 50)])
    found, strangers = matched(calls, [known_by_id([call("aten::mm", 0, 10)], "products forward")[1].popitem()[1]])
    assert [one.category for one in found] == ["products forward", "compiled code", "other"]
    assert strangers == 2


@pytest.mark.parametrize(
    ("name", "scope", "wanted"),
    [
        ("## Call CompiledFxGraph fzcz7paw ##", 0, ("compiled graph", 0)),
        ("## Call CompiledFxGraph fbdnuqj2 ##", RANGE_SCOPE, ("compiled graph", 0)),
        ("Torch-Compiled Region: 3/1", 0, ("Torch-Compiled Region", 0)),
        ("aten::mm", 0, ("aten::mm", 0)),
        ("of the user's", RANGE_SCOPE, ("of the user's", RANGE_SCOPE)),
    ],
)
def test_compiled_code_has_one_name_and_is_an_operator_however_it_is_recorded(
    name: str, scope: int, wanted: tuple[str, int]
) -> None:
    assert name_and_scope(name, scope) == wanted


def test_cudas_calls_on_the_host_stand_beside_the_sum(snapshot: SnapshotAssertion) -> None:
    calls = [{"cudaLaunchKernel": Sum(3, 3000), "cuLaunchKernelEx": Sum(1, 500), "cudaStreamSynchronize": Sum(1, 9e6)}]
    sums = device_sums([Kernel("k", 0, 100)], {0: (0, 100)}, {})
    told = summed_up("cuda", [sums], [100], [0], 100, cuda_calls=calls)
    assert [one.name for one in told.cuda_calls] == ["cudaStreamSynchronize", "cudaLaunchKernel", "cuLaunchKernelEx"]
    assert lines("c", told, 120) == snapshot
    assert told.explained_ns == 100


def test_the_table_names_what_takes_most_time_first_and_keeps_to_the_width() -> None:
    rows = [row(f"aten::operator_with_a_long_name_{at}", 1000.0 - at, module="m" * 40) for at in range(30)]
    told = lines("case", profile(*rows), 80)
    assert all(len(line) <= 80 for line in told[1:])
    first, second = (next(at for at, line in enumerate(told) if f"_{n} " in line) for n in (0, 1))
    assert first < second


BASE = profile(
    row("aten::mm", 5e6, 4, "head"),
    row("aten::mul", 4e6, 8, "blocks.*.norm"),
    *(row(f"aten::{name}", 1e6, 2) for name in ("add", "sub", "div", "exp")),
)


# --- kept in a baseline ------------------------------------------------------------------------------------------


def test_a_stored_profile_has_all_rows_with_times_of_three_digits() -> None:
    whole = changed(
        profile(*(row("aten::a", 1234.5 * at, 2, f"blocks.{at}") for at in range(1, 101))),
        called={"blocks.1": ["net.py:9 < train.py:5"]},
    )
    kept = packed(whole)
    assert len(kept) < len(to_json(whole)) / 4
    back = unpacked(kept)
    assert back is not None
    assert back.rows[0].time_ns == 1230
    assert [changed(one, time_ns=0) for one in back.rows] == [changed(one, time_ns=0) for one in whole.rows]
    assert back.called == whole.called
    assert explain(back, whole, "stored", 0.0, (-1000.0, 1000.0)).parts == []


@pytest.mark.parametrize(
    "damaged",
    ["", "no base64!", base64.b64encode(b"no stream").decode(), base64.b64encode(zlib.compress(b"{}")).decode()],
)
def test_a_stored_profile_that_is_damaged_or_of_an_older_version_explains_nothing(damaged: str) -> None:
    assert unpacked(damaged) is None
    assert unpacked(packed(BASE)[:-8]) is None


def test_a_stored_profile_that_would_fill_the_memory_is_not_read() -> None:
    assert unpacked(base64.b64encode(zlib.compress(b" " * (1 << 25))).decode()) is None


def test_a_saved_run_with_fields_of_an_older_version_is_read() -> None:
    assert msgspec.convert({**to_plain(BASE), "is_compact": True, "gaps_apart": []}, Profile) == BASE


# --- for other tools ---------------------------------------------------------------------------------------------


def test_a_trace_has_every_operator_with_its_place_and_every_kernel() -> None:
    root = nested([opened("call", 1000, 2000), call("aten::mm", 1100, 1900, correlation=5)])[0]
    known = {id(root.children[0]): Known("aten::mm", "products forward", "forward", Where("head", "m.py:3"))}
    trace = json.loads(chrome_trace([root], [Kernel("gemm", 1500, 2500, operator=5)], known))
    events = {one["name"]: one for one in trace["traceEvents"] if one["ph"] == "X"}
    assert (events["aten::mm"]["ts"], events["aten::mm"]["dur"]) == (0.1, 0.8)
    assert events["gemm"]["args"]["module"] == "head"
    assert events["gemm"]["pid"] != events["aten::mm"]["pid"]


def test_kernels_that_overlap_stand_on_tracks_of_their_own() -> None:
    """Events of one track have to nest, or Perfetto drops them."""
    kernels = [
        Kernel("gemm", 0, 10_000, stream=7),
        Kernel("ncclAllReduce", 5000, 15_000, stream=13),
        Kernel("there", 5000, 15_000, device=1, stream=7),
    ]
    trace = json.loads(chrome_trace([], kernels, {}))["traceEvents"]
    tracks = {one["name"]: (one["pid"], one["tid"]) for one in trace if one["ph"] == "X"}
    assert len(set(tracks.values())) == 3
    names = {(one["pid"], one["tid"]): one["args"]["name"] for one in trace if one["name"] == "thread_name"}
    assert [names[tracks[name]] for name in ("gemm", "ncclAllReduce", "there")] == ["stream 7", "stream 13", "stream 7"]


def test_a_user_s_ranges_are_frames_within_their_phase_and_around_modules(snapshot: SnapshotAssertion) -> None:
    events = [
        opened(CALL, 0, 100),
        opened(f"{PHASE}forward", 10, 60),
        opened("my; part", 15, 55),
        call("aten::linear", 20, 50),
        opened("inner", 25, 45),
        call("aten::mm", 30, 40),
    ]
    (root,) = nested(events)
    known = {id(one): Known(one.name, "products forward", "forward", Where("head")) for one in operators([root])}
    assert folded_stacks([root], known).splitlines() == snapshot


def test_what_has_no_place_stands_within_the_phase_that_is_open_or_in_the_backward() -> None:
    node = f"{NODE}CompiledFunctionBackward"
    for around, phase in (([opened(f"{PHASE}optimizer", 0, 100)], "optimizer"), ([], "backward")):
        (root,) = nested([*around, call(node, 0, 100), call("mylib::new", 0, 100)])
        assert folded_stacks([root], {}) == f"{phase};{node};mylib::new 100\n"


@pytest.mark.parametrize("name", ["odd;name\n", "", " ", "a\rb\u2028c\x0bd", "x 12"])
def test_folded_stacks_add_up_to_the_call_and_hold_one_line_a_stack_whatever_the_names(name: str) -> None:
    root = nested([opened(name, 0, 100), call(name, 10, 90)])[0]
    known = {id(root.children[0]): Known(name, "other", "forward", Where("a;b"))}
    found = [line.rpartition(" ") for line in folded_stacks([root], known).splitlines()]
    assert sorted(int(time) for _, _, time in found) == [20, 80]
    assert sorted(stack.count(";") for stack, _, _ in found) == [1, 3]
    assert all(frame == frame.strip() != "" for stack, _, _ in found for frame in stack.split(";"))
