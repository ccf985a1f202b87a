"""What is alive at the peak of a call: parts that add up to what the gate measures, and what makes two peaks differ."""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
import torch
from syrupy.assertion import SnapshotAssertion
from torch import nn

import perflab.profiles.take_peak as taking
from perflab.attribution.held import held_by_address
from perflab.attribution.places import MARK, Where
from perflab.base.data import changed
from perflab.devices.kinds import backend_of
from perflab.internals.of_torch.machine import BlockEvent
from perflab.measure.calls.workload import Step, Workload
from perflab.measure.memory.peak import measure_memory
from perflab.profiles.events import NODE, RANGE_SCOPE, Event, Phase, nested, placed
from perflab.profiles.peak import Askers, explain_peak, made_by_call, summed
from perflab.profiles.take_peak import take_peak
from perflab.profiles.text import peak_texts
from perflab.results.peak import Peak, PeakPart

CPU = torch.device("cpu")
DATA = torch.randn(256, 32)
PLACES = {f"{MARK}0": Where("blocks.*", "net.py:7"), f"{MARK}1": Where("", "net.py:9")}


def askers(*events: Event, phases: tuple[Phase, ...] = ()) -> Askers:
    """Of one thread that recorded these events."""
    return Askers(placed(nested(events), phases, PLACES.__getitem__), [(one.start_ns, one.name) for one in phases])


def given(time_ns: int, address: int, size_bytes: int, thread: int = 1) -> BlockEvent:
    """A block comes, or goes if its size is negative."""
    return BlockEvent(time_ns, thread, address, size_bytes)


# --- who asked for what ------------------------------------------------------------------------------------------


def test_a_block_belongs_to_the_operator_that_needs_it_and_not_to_the_one_that_allocates() -> None:
    found = askers(
        Event(f"{MARK}0", 0, 100, scope=RANGE_SCOPE),
        Event("aten::linear", 10, 90),
        Event("aten::addmm", 20, 80),
        Event("aten::empty", 30, 40),
    )
    (part,) = made_by_call([given(35, 1, 64)], 0, found)
    assert (part.operator, part.module, part.line) == ("aten::addmm", "blocks.*", "net.py:7")


def test_the_first_of_equal_peaks_counts_and_what_is_made_there_is_its_operators() -> None:
    found = askers(Event("aten::mul", 10, 20), Event("aten::add", 30, 40))
    (part,) = made_by_call([given(15, 1, 64), given(25, 1, -64), given(35, 2, 64), given(45, 2, -64)], 0, found)
    assert part.operator == "aten::mul"
    found = askers(Event(f"{MARK}1", 0, 100, scope=RANGE_SCOPE), Event("aten::empty", 30, 40))
    (part,) = made_by_call([given(35, 1, 64)], 0, found)
    assert (part.operator, part.line) == ("aten::empty", "net.py:9")


def test_blocks_are_named_for_the_phases_that_make_them_and_let_them_go() -> None:
    phases = (Phase("forward", 0, 100), Phase("backward", 100, 200), Phase("optimizer", 200, 300))
    operators = [Event(f"aten::at{start}", start, start + 5) for start in (10, 20, 110, 120, 210, 250)]
    found = askers(*operators, Event(f"{NODE}X", 105, 190, sequence=3, forward_thread=1), phases=phases)
    events = [
        given(11, 1, 1),  # until the backward
        given(21, 2, 2),  # until the forward is over
        given(22, 6, 100),
        given(23, 6, -100),
        given(24, 2, -2),
        given(111, 3, 4),  # to the end
        given(121, 1, -1),
        given(211, 4, 8),  # to the end
        given(212, 5, 200),  # the peak
        given(251, 5, -200),
    ]
    at_peak = {part.category: part.size_bytes for part in made_by_call(events, 0, found)}
    assert at_peak == {"temporaries": 200, "new optimizer state": 8, "new gradients": 4}
    earlier = {part.category: part.size_bytes for part in made_by_call(events[:8], 0, found)}
    assert earlier == {"activations": 1, "temporaries": 102}


def test_what_a_call_lets_go_of_before_its_peak_counts_below_zero_and_is_named_for_who_made_it() -> None:
    found = askers(Event("aten::mm", 10, 20), Event("aten::mul", 110, 120))
    events = [given(15, 1, 64), given(105, 1, -64), given(106, 9, -32), given(115, 2, 256), given(130, 3, 1)]
    parts = made_by_call(events, 100, found)
    assert sum(part.size_bytes for part in parts) == 256 - 64 - 32 + 1
    assert {(part.category, part.operator, part.size_bytes) for part in parts if part.size_bytes < 0} == {
        ("let go", "aten::mm", -64),
        ("let go", "", -32),
    }


def test_blocks_are_told_by_when_they_are_given_and_not_by_address() -> None:
    assert made_by_call([given(5, 1, 64), given(105, 1, -64)], 100, askers()) == []
    found = askers(Event("aten::a", 10, 20), Event("aten::b", 30, 40))
    parts = made_by_call([given(15, 1, 8), given(25, 1, -8), given(35, 1, 16)], 0, found)
    assert [(part.operator, part.size_bytes) for part in parts] == [("aten::b", 16)]


# --- real calls --------------------------------------------------------------------------------------------------


class Net(nn.Module):
    """Three layers and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(32, 32) for _ in range(3))
        self.head = nn.Linear(32, 8)
        self.register_buffer("scale", torch.ones(8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = torch.relu(block(x))
        return self.head(x) * self.scale


def _step() -> Workload:
    net, data = Net(), torch.randn(64, 32)
    optimizer = torch.optim.AdamW(net.parameters())

    def forward() -> torch.Tensor:
        optimizer.zero_grad()
        return net(data).square().mean()

    return Step(forward, lambda loss: loss.backward(), optimizer.step)


def _inference() -> Workload:
    net, data = Net().eval(), torch.randn(64, 32)
    return Workload(torch.inference_mode()(net), (data,), {})


def _replaces_what_it_keeps() -> Workload:
    kept = [torch.ones(1000)]

    def call() -> None:
        kept[0] = kept[0].add(1)

    return Workload(call, (), {})


@pytest.mark.parametrize("make", [_step, _inference, _replaces_what_it_keeps])
def test_the_parts_add_up_to_the_peak_that_the_gate_measures(make: Callable[[], Workload]) -> None:
    workload = make()
    workload.run()
    memory, _ = measure_memory(workload, CPU)
    assert take_peak(workload, CPU).peak_bytes == memory.peak_bytes
    assert memory.peak_bytes > memory.held_bytes


def test_a_training_step_is_taken_apart_by_what_it_is_for_and_by_module() -> None:
    workload = _step()
    workload.run()
    parts = take_peak(workload, CPU).parts
    sizes = {(part.category, part.module): part.size_bytes for part in parts if not part.operator}
    block, head = 3 * 4 * (32 * 32 + 32), 4 * (8 * 32 + 8)
    assert sizes["parameters", "blocks.*"] == sizes["gradients", "blocks.*"] == block
    assert sizes["parameters", "head"] == sizes["gradients", "head"] == head
    assert sizes["optimizer state", "head"] == 2 * head + 2 * 4
    assert sizes["buffers", ""] == 4 * 8
    assert sizes["inputs", ""] == 4 * 64 * 32
    kept = [part for part in parts if part.category == "activations" and part.operator == "aten::clamp_min"]
    assert [(part.blocks, part.size_bytes) for part in kept] == [(3, 3 * 4 * 64 * 32)]
    assert kept[0].line.startswith("tests/harness/test_peaks.py:")


def _leaking() -> Workload:
    """Each call keeps its loss, with the graph that it comes from, and a hook a gradient."""
    net, data, history, seen = Net(), torch.randn(64, 32), list[torch.Tensor](), list[torch.Tensor]()

    def call() -> None:
        out = net(data)
        out.register_hook(seen.append)
        loss = out.square().mean()
        loss.backward(retain_graph=True)
        net.zero_grad()
        history.append(loss)

    return Workload(call, (), {})


def test_what_each_call_keeps_is_one_part_that_is_called_so_and_adds_up_whenever_the_gate_has_measured() -> None:
    net, data = Net(), torch.randn(64, 32)
    base, leaking = take_peak(Workload(lambda: net(data).square().mean().backward(), (), {}), CPU), _leaking()
    early, _ = measure_memory(leaking, CPU)
    head = take_peak(leaking, CPU)
    late, _ = measure_memory(leaking, CPU)
    each = 4 + 4 * 64 * 8  # the loss, and the gradient of what the hook stands at
    assert head.grows_bytes == each
    assert sum(part.size_bytes for part in head.parts if part.category == "inputs") == 4 * 64 * 32
    for gate, calls in ((early, "fewer"), (late, "more")):
        found = explain_peak(base, head, "main", gate.peak_bytes - base.peak_bytes)
        assert found.problem is None
        assert sum(part.change_bytes for part in found.parts) == gate.peak_bytes - base.peak_bytes
        texts = peak_texts(found, most=20)
        (kept,) = (text for text in texts if ", kept at " in text)
        assert re.search(r", kept at tests/harness/test_peaks\.py:\d+ in history of call, a list of \d+$", kept)
        assert any(f"calls {calls} before" in text for text in texts)


def test_what_is_held_after_a_call_is_read_when_autograd_s_thread_has_dropped_what_it_had(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    order: list[str] = []

    def held(*given: Any) -> dict[int, PeakPart]:
        order.append("read")
        return held_by_address(*given)

    monkeypatch.setattr(taking, "held_by_address", held)
    monkeypatch.setattr(type(backend_of(CPU)), "await_autograd", lambda _: order.append("autograd"))
    x = torch.ones(256, requires_grad=True)

    def call() -> object:
        order.append("call")
        return torch.autograd.grad((x * 2).sum(), x)

    take_peak(Workload(call, (), {}), CPU)
    assert order[-4:] == ["call", "autograd", "read", "call"]


def test_what_a_call_returns_is_its_result_and_nothing_that_it_keeps() -> None:
    peak = take_peak(Workload(lambda: torch.cos(torch.sin(DATA)), (), {}), CPU)
    made = {one.operator: one.category for one in peak.parts if one.operator}
    assert made == {"aten::sin": "temporaries", "aten::cos": "results"}
    assert peak.keepers == []


@pytest.mark.parametrize("returns_graph", [False, True])
def test_a_graph_that_outlives_its_backward_is_the_cause_of_a_peak_that_comes_later(returns_graph: bool) -> None:
    def stepping(retain: bool) -> Workload:
        net = Net()
        optimizer = torch.optim.Adam(net.parameters())

        def step() -> torch.Tensor:
            optimizer.zero_grad()
            loss = net(DATA).square().mean()
            loss.backward(retain_graph=retain)
            optimizer.step()
            return loss if returns_graph else loss.detach()

        workload = Workload(step, (), {})
        workload.run()
        return workload

    base, head = (take_peak(stepping(retain), CPU) for retain in (False, True))
    first = peak_texts(explain_peak(base, head, "main", head.peak_bytes - base.peak_bytes))[0]
    assert head.peak_bytes > base.peak_bytes
    assert re.search(
        r"aten::clamp_min in Net \(.*alive after their backward at tests/harness/test_peaks\.py:\d+", first
    )


def test_a_forgotten_no_grad_is_named_beside_what_it_keeps_alive() -> None:
    def predicting(enabled: bool) -> Workload:
        net = Net()

        def predict() -> torch.Tensor:
            with torch.set_grad_enabled(enabled):
                return net(DATA).argmax(-1)

        return Workload(predict, (), {})

    base, head = (take_peak(predicting(enabled), CPU) for enabled in (False, True))
    found = explain_peak(base, head, "main", head.peak_bytes - base.peak_bytes)
    assert peak_texts(found)[0].endswith(", temporaries; gradients are enabled there now")
    assert not any("enabled" in text for text in peak_texts(found)[1:])
    beside = changed(base, with_gradients={**base.with_gradients, "": ["aten::slice"]})  # of work outside of no_grad
    other = explain_peak(base, changed(beside, parts=[*base.parts, part(64, module="")]), "main", 64)
    assert not peak_texts(other)[0].endswith("now")
    unchanged = explain_peak(head, changed(head, parts=[*head.parts, part(64, module="Net")]), "main", 64)
    assert peak_texts(unchanged) == ["+64 B 1 more block of aten::mul in Net (net.py:7), activations"]


def test_modules_that_left_their_fast_path_with_no_grad_have_lines_and_the_cause() -> None:
    def peak(grad: bool) -> Peak:
        torch.manual_seed(0)
        layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True).eval()
        net = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

        def run(x: torch.Tensor) -> torch.Tensor:
            with torch.set_grad_enabled(grad):
                return net(x)  # type: ignore[no-any-return]

        work = Workload(run, (torch.randn(4, 64, 32),), {})
        work.run()
        return take_peak(work, CPU)

    base, head = peak(False), peak(True)
    assert all("test_peaks.py" in one.line for one in base.parts if one.module == "layers.*")
    first, *_ = explain_peak(base, head, "main", head.peak_bytes - base.peak_bytes).parts
    assert first.module == "layers.*.self_attn"
    assert first.has_gradients


def test_blocks_that_outlive_their_backward_come_first_though_both_peaks_have_them() -> None:
    base = Peak(parts=[part(300), part(100, operator="aten::mm")])
    head = Peak(
        parts=[
            part(300, category="alive after their backward"),
            part(120, operator="aten::mm", category="new gradients"),
        ],
        backward=["train.py:9 < train.py:20"],
    )
    found = explain_peak(base, head, "main", 20)
    assert sum(one.change_bytes for one in found.parts) == 20
    blocks = "300 B of aten::mul in blocks.* (net.py:7)"
    assert peak_texts(found)[0] == f"{blocks} are alive after their backward at train.py:9 now, and were not before"


def test_blocks_that_outlive_their_backward_in_both_versions_are_no_cause() -> None:
    """A variable of an operator's that outlives its backward counts as temporaries at a peak of the backward's."""
    base = Peak(parts=[part(100), part(100, category="temporaries")])
    head = Peak(parts=[part(100, category="alive after their backward"), part(220, operator="aten::ones")])
    found = explain_peak(base, head, "main", 120)
    assert found.parts[0].operator == "aten::ones"


def test_blocks_that_only_change_their_category_cancel_each_other_and_the_cause_is_what_is_more() -> None:
    base = Peak(parts=[part(100, category="temporaries"), part(300, operator="aten::mm", line="net.py:9")])
    head = Peak(parts=[part(100), part(250, operator="aten::sin", line="net.py:8"), part(60, operator="aten::cos")])
    found = explain_peak(base, head, "main", 10)
    assert [(one.operator, one.change_bytes) for one in found.parts] == [
        ("aten::sin", 250),
        ("aten::mm", -300),
        ("aten::cos", 60),
    ]


# --- two peaks ---------------------------------------------------------------------------------------------------


def part(size: int, blocks: int = 1, line: str = "net.py:7", operator: str = "aten::mul", **fields: str) -> PeakPart:
    """One of a peak."""
    return PeakPart(
        category=fields.get("category", "activations"),
        size_bytes=size,
        blocks=blocks,
        operator=operator,
        module=fields.get("module", "blocks.*"),
        line=line,
    )


def test_the_changes_add_up_and_the_largest_comes_first() -> None:
    base = Peak(parts=[part(100), part(50, operator="aten::mm"), part(-20, -1, category="let go")])
    head = Peak(parts=[part(400, 4), part(30, operator="aten::mm"), part(7, operator="aten::new")])
    found = explain_peak(base, head, "main", 307)
    assert [(one.operator, one.change_bytes, one.more) for one in found.parts] == [
        ("aten::mul", 300, 3),
        ("aten::mul", 20, 1),  # no longer let go
        ("aten::mm", -20, 0),
        ("aten::new", 7, 1),
    ]
    assert sum(one.change_bytes for one in found.parts) == found.now_bytes - found.before_bytes == 307
    assert found.problem is None
    assert all(abs(one.change_bytes) >= abs(other.change_bytes) for one, other in pairwise(found.parts))


def test_lines_that_moved_are_no_change_and_the_new_one_among_them_is_named() -> None:
    before = [part(100, line="net.py:7"), part(200, line="net.py:8")]
    moved = [part(100, line="net.py:17"), part(200, line="net.py:18")]
    assert explain_peak(Peak(parts=before), Peak(parts=moved), "main", 0).parts == []
    grown = Peak(parts=[*moved, part(30, line="net.py:19")])
    (found,) = explain_peak(Peak(parts=before), grown, "main", 30).parts
    assert (found.change_bytes, found.more, found.line) == (30, 1, "net.py:19")


def test_of_two_blocks_of_one_size_the_one_whose_line_or_caller_is_new_is_named() -> None:
    def called_by(caller: str, line: str = "net.py:20") -> PeakPart:
        return changed(part(100, line=line), stack=[line, caller])

    before = Peak(parts=[called_by("train.py:30")])
    for new in (called_by("train.py:30", "net.py:12"), called_by("train.py:12")):
        for head in ([new, *before.parts], [*before.parts, new]):
            (found,) = explain_peak(before, Peak(parts=head), "main", 100).parts
            assert (found.more, found.line, found.stack) == (1, new.line, new.stack)


def _scaled(x: torch.Tensor) -> torch.Tensor:
    return x.sin()


def _scaling(*, twice: bool) -> Workload:
    """A helper that is called in one place, or in two."""
    x = torch.ones(1024)

    def once() -> torch.Tensor:
        return _scaled(x)

    def again() -> torch.Tensor:
        return _scaled(x)

    def call() -> list[torch.Tensor]:
        return [once(), again(), again()] if twice else [once()]

    return Workload(call, (), {})


def test_new_blocks_are_named_by_the_stack_that_asked_for_them() -> None:
    base, head = (take_peak(_scaling(twice=twice), CPU) for twice in (False, True))
    (found,) = explain_peak(base, head, "main", 2 * 4096).parts
    assert (found.operator, found.more, found.change_bytes) == ("aten::sin", 2, 2 * 4096)
    helper, caller, case = (int(line.removeprefix("tests/harness/test_peaks.py:")) for line in found.stack)
    first = _scaling.__code__.co_firstlineno
    assert (helper, caller - first, case - first) == (_scaled.__code__.co_firstlineno + 1, 8, 11)
    (part_of_base,) = (part for part in base.parts if part.operator == "aten::sin")
    assert part_of_base.stack[1].endswith(f":{first + 5}")  # what both sides have


def test_the_text_has_the_callers_and_two_places_of_one_kind_are_two_changes(snapshot: SnapshotAssertion) -> None:
    stacks = (["ops.py:3", "net.py:9", "train.py:5", "run.py:1"], ["ops.py:3", "net.py:12"])
    new = [changed(part(1024 * (2 - at), line="ops.py:3"), stack=stack) for at, stack in enumerate(stacks)]
    found = explain_peak(
        Peak(parts=[part(8, line="ops.py:9")]), Peak(parts=[*new, part(8, line="ops.py:10")]), "m", 3072
    )
    assert peak_texts(found) == snapshot
    assert "(ops.py:3), activations" in peak_texts(found, callers=0)[0]
    assert found.parts[0].stack == stacks[0]


def test_peaks_that_differ_by_something_else_than_the_gate_found_say_so(snapshot: SnapshotAssertion) -> None:
    found = explain_peak(Peak(parts=[]), Peak(parts=[part(1024)]), "main", 2048)
    assert found.problem is not None
    assert found.problem == snapshot


def test_the_text_has_a_sum_the_largest_changes_and_the_rest_in_one(snapshot: SnapshotAssertion) -> None:
    head = Peak(
        parts=[
            part(4096, 2),
            part(2048, operator="", category="parameters", module="head", line=""),
            part(1024, operator="aten::mm", module="", line=""),
            part(512, operator="aten::a"),
            part(256, operator="aten::b"),
        ]
    )
    base = Peak(parts=[part(-1024, -1, category="let go"), part(8, operator="aten::mm", module="", line="")])
    texts = peak_texts(explain_peak(base, head, "main", 8952), most=3)
    assert texts == snapshot
    four = Peak(parts=[part(1024 * size, operator=f"aten::{size}") for size in (4, 3, 2, 1)])
    assert peak_texts(explain_peak(Peak(parts=[]), four, "main", 10240), most=3)[-2] == "+1.00 KiB in 1 smaller row"
    assert peak_texts(explain_peak(base, base, "main", 0)) == snapshot


def test_parts_of_one_place_and_kind_are_one() -> None:
    assert summed([part(1), part(2), part(4, line="net.py:8")]) == [part(4, line="net.py:8"), part(3, 2)]
