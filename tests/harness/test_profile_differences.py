"""What an explanation says of two profiles that are made up: which calls are new, where, and what is not compared.

Also what takes longer, and what is computed again. ``SAID`` has the pairs of profiles whose text is stored.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from syrupy.assertion import SnapshotAssertion

from perflab.base.data import changed
from perflab.profiles.difference import explain
from perflab.profiles.events import name_and_scope
from perflab.profiles.facts import Calls, Place, Shifts, same_calls, unmatched
from perflab.profiles.text import explanation_texts
from perflab.results.profile import CudaCall, Explanation, Part, Profile, ProfileRow
from perflab.results.records import Change, Judgement, Verdict
from perflab.turns import evidence
from tests.harness.test_profiles import BASE, on_cuda, profile, row

WORSE = Judgement(verdict=Verdict.REGRESSED, latency=Change(before=10e6, now=13e6, ratio=1.3), worse=["latency"])


def added(*rows: ProfileRow) -> Profile:
    """The profile before with further rows."""
    return profile(*BASE.rows, *rows)


# --- what changed ------------------------------------------------------------------------------------------------


def test_more_calls_of_an_operator_are_named_with_their_module_and_line_and_the_parts_add_up() -> None:
    more = row("aten::copy_", 2.4e6, 12, "blocks.*.attention", category="copies", line="model.py:88")
    found = explain(BASE, added(more), "main", 2.5e6)
    (part,) = found.parts
    assert (part.operator, part.more, part.module, part.line, part.phases) == (
        "aten::copy_",
        12,
        "blocks.*.attention",
        "model.py:88",
        ["forward"],
    )
    assert sum(part.change_ns for part in found.parts) + found.rest_ns == pytest.approx(2.5e6)


def test_an_operator_that_calls_others_leads_and_not_the_largest_of_its_parts() -> None:
    parts = [
        row("aten::repeat", 1e4, 2, "rope"),
        row("aten::cat", 4e5, 2, "rope", within="aten::repeat"),
        row("aten::copy_", 2e6, 4, "rope", within="aten::repeat", category="copies"),
    ]
    (part,) = explain(BASE, added(*parts), "main", 2.41e6).parts
    assert (part.operator, part.more, part.others) == ("aten::repeat", 2, ["aten::copy_", "aten::cat"])
    assert part.change_ns == 2.41e6


def test_gradients_that_are_added_up_come_after_what_keeps_them() -> None:
    kept = row("aten::zero_", 4e5, 56, line="train.py:98")
    adds = row("aten::add_", 4e6, 8, "blocks.*.up", phase="backward", line="model.py:23")
    found = explain(BASE, added(adds, kept), "main", None)
    assert [part.operator for part in found.parts] == ["aten::zero_", "aten::add_"]


def test_an_operator_that_calls_few_of_them_does_not_lead() -> None:
    before = row("aten::copy_", 1e6, 8, "rope", within="aten::to", category="copies")
    more = [
        changed(before, instances=9, time_ns=1.1e6),  # one more by aten::to, and eleven more by nobody
        row("aten::to", 1e4, 1, "rope", category="copies"),
        row("aten::copy_", 2e6, 11, "rope", category="copies"),
    ]
    (part,) = explain(added(before), added(*more), "main", 2.1e6).parts
    assert (part.operator, part.more) == ("aten::copy_", 12)


def test_unchanged_code_noise_and_work_that_is_not_in_every_call_are_no_cause() -> None:
    again = profile(*(row(one.operator, 1.01 * one.time_ns, one.instances, one.module) for one in BASE.rows))
    assert explain(BASE, again, "main", 5e5).parts == []
    noisy = profile(row("aten::mm", 8e6, 4, "head", spread_ns=2e6), *BASE.rows[1:])
    assert explain(BASE, noisy, "main", 3e6).parts == []
    sometimes = [added(row("aten::histc", 1e5, often)) for often in (0.25, 0.75)]
    assert explain(*sometimes, "main", None).parts == []


def test_shapes_that_vary_from_call_to_call_are_no_fact() -> None:
    """Two batch shapes in turn: the faster half of the calls has another share of each by chance alone."""
    base, head = (
        profile(
            row("aten::mm", 1e6 * small, small, "head", shapes="8x8", spread_ns=4e5),
            row("aten::mm", 4e6 * (1 - small), 1 - small, "head", shapes="16x16", spread_ns=16e5),
            *BASE.rows[1:],
        )
        for small in (0.83, 0.67)
    )
    assert explain(base, head, "main", 4.8e5).parts == []
    assert explain(base, head, "main", None).parts == []


def test_parts_that_do_not_reach_the_gate_s_interval_are_said_not_to_be_all_of_the_change(
    snapshot: SnapshotAssertion,
) -> None:
    slower = profile(row("aten::mm", 6.6e6, 4, "head"), *BASE.rows[1:])
    beyond = explain(BASE, slower, "main", 3e6, (2.9e6, 3.1e6))
    assert explanation_texts(beyond, timed=True) == snapshot
    wide = explain(BASE, slower, "main", 3e6, (1.5e6, 3.1e6))
    assert wide.problem is None
    above = explain(BASE, slower, "main", 1.6e6, (1.5e6, 4e6))  # an interval is not as wide on both sides
    assert above.problem is None
    fact = added(row("aten::neg", 2e3, 1, "b"))  # takes hardly any time
    assert explain(BASE, fact, "main", 3e6, (0.0, 6e6)).problem is None


# --- computed again ----------------------------------------------------------------------------------------------


def _work(module: str, times: int = 1, phase: str = "forward", share: int = 1) -> list[ProfileRow]:
    """What a layer does, so often, on so many parts of its input."""
    return [
        row(name, 1e6 * times, 2 * times * share, module, phase=phase, shapes=f"{64 // share}x8 float32")
        for name in ("aten::linear", "aten::mm", "aten::gelu")
    ]


def test_a_module_whose_whole_work_is_done_again_is_named_as_a_whole(snapshot: SnapshotAssertion) -> None:
    layers = ("blocks.*.up", "blocks.*.down", "head")
    base = profile(*(one for name in layers for one in _work(name)), row("aten::add", 1e6, 2, "blocks.*"))
    blocks = [one for name in layers[:2] for one in _work(name, 1, "backward")]
    again = explain(
        base, profile(*base.rows, *blocks, row("aten::add", 0.5e6, 1, "blocks.*", phase="backward")), "b", 6.5e6
    )
    one = explain(base, profile(*base.rows, *_work("blocks.*.up", 2, "backward")), "b", 6e6)
    assert [*explanation_texts(again, timed=True), *explanation_texts(one, timed=True, brief=True)] == snapshot
    twice = profile(*(one for name in layers for one in _work(name, 1 + (name == "head"))), base.rows[-1])
    (part,) = explain(base, twice, "b", 3e6).parts
    assert (part.module, part.again, part.phases) == ("head", 1, ["forward"])


@pytest.mark.parametrize(
    "changed_rows",
    [
        _work("up", 1, "backward")[:2],  # not all of it
        [*_work("up", 1, "backward"), row("aten::sort", 1e6, 2, "up")],  # and something else
        _work("up", 1, "backward", share=2),  # on other inputs: work that was divided
    ],
)
def test_more_of_some_operators_of_a_module_is_not_all_of_it_again(changed_rows: list[ProfileRow]) -> None:
    base = profile(*_work("up"), *_work("down"))
    found = explain(base, profile(*base.rows, *changed_rows), "b", 3e6)
    assert [part.again for part in found.parts] == [0]


def _block_on_cuda(phase: str, adds: int = 2) -> list[ProfileRow]:
    """A transformer's block as a GPU has it: a layer is one operator, since views have no kernel."""
    linear = ("attention.q", "attention.o", "mlp.up", "mlp.down")
    several = {"norm": ("pow", "mean", "mul"), "attention": ("bmm", "_softmax"), "mlp": ("gelu",)}
    return [
        *(row("aten::addmm", 1e6, 12, f"blocks.*.{name}", phase=phase) for name in linear),
        *(
            row(f"aten::{one}", 1e5, 12, f"blocks.*.{name}", phase=phase)
            for name, all_ in several.items()
            for one in all_
        ),
        row("aten::add", 2e5, 12 * adds, "blocks.*", phase=phase),
    ]


def test_on_a_gpu_blocks_of_layers_with_one_operator_each_are_computed_again_as_a_whole() -> None:
    backward = row("aten::mm", 9e6, 48, "blocks.*.mlp.up", phase="backward")
    flattened = row("aten::sum", 1e5, 12, "blocks.*.view", phase="backward")  # its forward launches nothing
    base = on_cuda(*_block_on_cuda("forward"), row("aten::addmm", 1e6, 1, "head"), backward, flattened)
    head = on_cuda(*base.rows, *_block_on_cuda("backward", adds=1))
    (part,) = explain(base, head, "main", None).parts
    assert (part.module, part.other_modules, part.again, part.phases) == ("blocks.*", [], 1, ["backward"])
    left_out = ("blocks.*", "blocks.*.mlp.down", "blocks.*.attention", "blocks.*.norm")  # the last are not asked for
    some = [one for one in _block_on_cuda("backward") if one.module not in left_out]
    first, second = explain(base, on_cuda(*base.rows, *some), "main", None).parts
    assert [first.module, *first.other_modules] == [
        f"blocks.*.{name}" for name in ("attention.o", "attention.q", "mlp.up")
    ]
    assert (second.module, second.again, second.operator) == ("blocks.*.mlp", 0, "aten::gelu")  # not all of its parts
    one = explain(base, on_cuda(*base.rows, row("aten::addmm", 1e6, 1, "head", phase="backward")), "main", None)
    assert [(part.again, part.more) for part in one.parts] == [(0, 1)]  # one operator is told by its name
    both = on_cuda(*head.rows, row("aten::addmm", 1e6, 1, "head", phase="backward"))
    (part,) = explain(base, both, "main", None).parts
    assert (part.module, part.other_modules) == ("blocks.*", ["head"])


def test_a_module_that_does_the_same_in_forward_and_backward_belongs_to_the_larger_cause() -> None:
    def scaled(phase: str) -> list[ProfileRow]:
        return [row("aten::mul", 1e5, 12, f"net.scale.{at}", phase=phase) for at in "ab"]

    def layers(phase: str) -> list[ProfileRow]:
        return [row("aten::addmm", 1e6, 12, f"net.{at}", phase=phase) for at in ("up", "down", "gate")]

    base = on_cuda(*scaled("forward"), *scaled("backward"), *layers("forward"))
    (part,) = explain(base, on_cuda(*base.rows, *scaled("backward"), *layers("backward")), "main", None).parts
    assert (part.module, part.other_modules, part.again) == ("net", [], 1)


def test_a_module_that_does_not_do_all_of_its_parts_again_is_told_by_its_operators() -> None:
    base = on_cuda(*_block_on_cuda("forward"))
    again = _block_on_cuda("backward", adds=1)
    again[0] = changed(again[0], instances=6)  # not all of the attention's first layer
    found = explain(base, on_cuda(*base.rows, *again), "main", None)
    told = {(part.module, *part.other_modules): (part.again, part.operator) for part in found.parts}
    assert told == {
        ("blocks.*.mlp", "blocks.*.attention.o", "blocks.*.norm"): (1, "aten::addmm"),
        ("blocks.*.attention",): (0, "aten::bmm"),
        ("blocks.*.attention.q",): (0, "aten::addmm"),
        ("blocks.*",): (0, "aten::add"),
    }


def test_blocks_whose_last_layer_a_checkpoint_leaves_out_are_named_with_that(snapshot: SnapshotAssertion) -> None:
    base = on_cuda(*_block_on_cuda("forward"), row("aten::addmm", 1e6, 1, "head"))
    again = [one for one in _block_on_cuda("backward", adds=1) if one.module != "blocks.*.mlp.down"]
    found = explain(base, on_cuda(*base.rows, *again), "main", None)
    assert [part.left_out for part in found.parts] == [["blocks.*.mlp.down"]]
    assert explanation_texts(found, timed=False, brief=True) == snapshot
    fewer = [one for one in again if one.module != "blocks.*.norm"]  # two of them: not a matter of what comes last
    found = explain(base, on_cuda(*base.rows, *fewer), "main", None)
    assert [part.left_out for part in found.parts] == [[]] * len(found.parts)
    twice = [one for one in _block_on_cuda("forward", adds=1) if one.module != "blocks.*.mlp.down"]
    found = explain(base, on_cuda(*base.rows, *twice), "main", None)  # in the same phase nothing is left out
    assert [part.left_out for part in found.parts] == [[]] * len(found.parts)


def test_a_module_that_calls_functions_and_one_small_child_twice_is_computed_again() -> None:
    work = [row("aten::linear", 1e6, 2, "mlp"), row("aten::mm", 1e6, 2, "mlp"), row("aten::gelu", 1e5, 1, "mlp.act")]
    twice = [changed(one, instances=2 * one.instances, time_ns=2 * one.time_ns) for one in work]
    (part,) = explain(profile(*work), profile(*twice), "main", None).parts
    assert (part.module, part.again) == ("mlp", 1)
    cached = [*twice[:2], work[2]]  # all of the module, but not all of its parts
    (part,) = explain(profile(*work), profile(*cached), "main", None).parts
    assert (part.module, part.again, part.more) == ("mlp", 0, 2)


@pytest.mark.parametrize(("casts", "again"), [(5, 1), (4, 1), (3, 0), (9, 0)])
def test_a_module_that_is_computed_again_under_autocast_need_not_cast_its_weights_again(casts: int, again: int) -> None:
    def work(times: int, casts: int) -> Profile:
        products = (row(name, 1e6 * times, 2 * times, "mlp") for name in ("aten::linear", "aten::addmm"))
        return profile(*products, row("aten::to", 1e4 * casts, casts, "mlp", category="copies"))

    (part,) = explain(work(1, 4), work(2, casts), "main", None).parts
    assert (part.module, part.again, part.more) == ("mlp", again, 2)


def test_an_explanation_that_fails_says_so_and_loses_no_verdict(
    monkeypatch: pytest.MonkeyPatch, snapshot: SnapshotAssertion
) -> None:
    def broken(*_given: object) -> None:
        raise IndexError("out of range\nand more")

    monkeypatch.setattr(evidence, "explain", broken)
    one = profile(row("aten::mm", 1e6))
    assert evidence.told_apart(one, one, "main", WORSE).problem == snapshot


# --- which calls are new -----------------------------------------------------------------------------------------

PRODUCTS = row("aten::mm", 20e6, 12, "blocks.*", line="net.py:5", shapes="64x64, 64x64 float32")
"""What is called as before, and where: it shows that no line moved."""


def copies(times: float, time_ns: float, line: str, shapes: str = "8x8 float32") -> ProfileRow:
    """Copies in every block."""
    return row("aten::copy_", time_ns, times, "blocks.*", line=line, shapes=shapes, category="copies")


_PLACES = st.dictionaries(
    st.tuples(st.sampled_from(["8x8", "4x4"]), st.sampled_from(["a.py:1", "a.py:2", "b.py:7"])),
    st.integers(1, 20).map(lambda often: Calls(often, 1e3 * often)),
)


@given(before=_PLACES, now=_PLACES)
def test_what_is_left_of_two_profiles_is_their_difference_and_no_shapes_both_come_and_go(
    before: dict[Place, Calls], now: dict[Place, Calls]
) -> None:
    left = unmatched(before, now, Shifts(same_calls(before, now)))
    for of in ("instances", "time_ns"):
        sums = [sum(getattr(one, of) for one in calls.values()) for calls in (left.come, left.gone, now, before)]
        assert sums[0] - sums[1] == pytest.approx(sums[2] - sums[3])
    assert not {shapes for shapes, _ in left.come} & {shapes for shapes, _ in left.gone}
    assert left.come.keys() <= now.keys()
    assert left.gone.keys() <= before.keys()


# --- more layers than before -------------------------------------------------------------------------------------


def layered(layers: int, times: int = 1, **changed_work: int) -> Profile:
    """A training step of so many layers; the first asks for no gradient of its input."""
    often = {"linear": times, "mm": times, "gelu": times, **changed_work}
    work = [row(f"aten::{name}", 1e6 * layers * n, layers * n, "blocks.*.mlp") for name, n in often.items()]
    views, products = 7 * layers * times + 1, 2 * layers * times - 1
    work += [
        row("aten::view", 1e3 * views, views, "blocks.*.mlp", category="dispatch"),
        row("aten::mm", 1e6 * products, products, "blocks.*.mlp", phase="backward"),
    ]
    cached = row("aten::cos", 1e6 * layers, layers * times, "rope")
    return profile(*work, cached, row("aten::add", 1e6 * layers, layers, "blocks.*"), PRODUCTS_OF_HEAD)


PRODUCTS_OF_HEAD = row("aten::mm", 5e6, 1, "head")


def test_layers_that_do_something_else_too_are_not_just_more_layers() -> None:
    for head in (layered(3, gelu=2), layered(3, neg=1), layered(2, times=2)):
        assert [part.layers for part in explain(layered(2), head, "main", None).parts if part.layers] == []


# --- the texts ---------------------------------------------------------------------------------------------------


def at(number: int, name: str, time_ns: float = 1e6, **fields: object) -> ProfileRow:
    """An operator on a line outside of all modules."""
    return row(f"aten::{name}", time_ns, 1, "", line=f"train.py:{number}", **fields)


def waits_at(number: int, time_ns: float, spread_ns: float = 0.0) -> ProfileRow:
    """Python that an operator on this line ends."""
    line = f"train.py:{number}"
    return row("", time_ns, 1, "", category="python", line=line, phase="backward", spread_ns=spread_ns)


def waits(time_ns: float, module: str = "blocks.*", category: str = "host wait", **fields: object) -> ProfileRow:
    """A gap that belongs to no line."""
    return row("", time_ns, 4, module, category=category, line="", **fields)


def products(often: float, time_ns: float, shapes: str) -> ProfileRow:
    """Those that take longer, at inputs that are told apart."""
    return row("aten::mm", time_ns, often, "head", shapes=shapes, spread_ns=1e4)


def with_calls(one: Profile, **often: float) -> Profile:
    """A profile of a GPU beside these calls on the host."""
    return changed(one, cuda_calls=[CudaCall(name, instances, 1e3) for name, instances in often.items()])


def on_gpus(number: int, *rows: ProfileRow) -> Profile:
    """A profile of a call on so many GPUs."""
    return changed(on_cuda(*rows), devices=number)


def only(*rows: ProfileRow) -> Profile:
    """A profile with the products that are called as before, and these rows."""
    return profile(PRODUCTS, *rows)


def slowed(head_ns: float) -> Profile:
    """The profile before, the products of whose head take this long."""
    return profile(row("aten::mm", head_ns, 4, "head"), *BASE.rows[1:])


def moved_lines(was: int, new: int | None = None) -> Profile:
    """Copies on a line, products on the next one, and perhaps new copies."""
    old = profile(changed(PRODUCTS, line=f"net.py:{was + 1}"), copies(20, 1e6, f"net.py:{was}"))
    return old if new is None else profile(*old.rows, copies(12, 3e6, f"net.py:{new}"))


def in_phases(*phases: str) -> Profile:
    """Six casts, divided among these phases."""
    return only(*(row("aten::to", 1e6, 6 / len(phases), "drop", phase=phase) for phase in phases))


def stepped(phase: str, line: str) -> Profile:
    """An optimizer that loops over parameters."""
    return only(
        *(row(f"aten::{name}", time, 8, "", phase=phase, line=line) for name, time in (("sqrt", 2e6), ("mul_", 1e6)))
    )


def mlp(times: int) -> Profile:
    """A module that does its own work so often, and the work of a module within it once."""
    own = [row(f"aten::{name}", 1e6 * times, 2 * times, "mlp", shapes="8x8") for name in ("linear", "mm")]
    return profile(*own, *(row(f"aten::{name}", 1e6, 2, "mlp.act", shapes="8x8") for name in ("gelu", "mul")))


def compiled(name: str, time_ns: float) -> Profile:
    """A graph of ``torch.compile`` with this hash."""
    operator, _ = name_and_scope(f"## Call CompiledFxGraph {name} ##", 0)
    return only(row(operator, time_ns, 1, "", category="compiled code", line=""))


def views(often: float) -> ProfileRow:
    """Operators that launch nothing on a GPU."""
    return row("aten::view", 0.0, often, "blocks.*", category="dispatch", line="")


def repeated(*modules: str) -> Profile:
    """Layers of which some are computed again in the backward."""
    once = [one for name in [*(f"stage{at}.layer" for at in range(5)), "head"] for one in _work(name)]
    return profile(*once, *(one for name in modules for one in _work(name, 1, "backward")))


def of_two_devices(*times: float) -> Profile:
    """One product on each of two devices."""
    rows = (row("aten::mm", time, 1, "m", device=at) for at, time in enumerate(times))
    return changed(profile(*rows), devices=2)


_COPY = row("aten::copy_", 4e6, 4, "", category="copies")
_MOVED = changed(_COPY, time_ns=4.1e6, phase="optimizer")
_SMALL, _LARGE = copies(20, 20e3, "net.py:9"), copies(12, 12e6, "net.py:9")
_ONE_LARGE = only(_SMALL, copies(1, 10e6, "net.py:20", "4096x4096 float32"))
_OFTEN = copies(19, 19e6, "net.py:9")
_FUSED = only(row("aten::_fused_adamw_", 1e6, 1, "", category="optimizer", phase="optimizer", line="train.py:17"))
_CHECK = [
    at(10, "isfinite", 2e6),
    *(at(10, name, 5e5, within="aten::isfinite") for name in ("ne", "eq", "mul")),
    at(10, "item", 1e3),
    at(11, "clone", 10.0),
    at(11, "copy_", 1e6, within="aten::clone"),
]
_LOSS = at(16, "loss", 5e6, phase="backward")
_FACTS = [row(f"aten::f{at}", ms * 1e6, 1, f"m{at}") for at, ms in enumerate((10, 9, 8, 7, 6, 5, 20))]
_VARY = [only(copies(often, 1e5 * often, "net.py:9")) for often in (12, 18.5)]
_WAITED, _WAITS_MORE = (
    with_calls(on_cuda(PRODUCTS, waits(took, "head")), cudaLaunchKernel=4, **calls)
    for took, calls in ((1e6, {"cudaMalloc": 1}), (3e6, {"cudaMalloc": 9, "cudaDeviceSynchronize": 12}))
)
_LAUNCHED, _LAUNCHED_MORE = (with_calls(on_cuda(PRODUCTS), cudaLaunchKernel=often) for often in (4, 6))
_VIEWED, _VIEWED_MORE = (on_cuda(PRODUCTS, views(often)) for often in (24, 48))
_TWO_GPUS = on_gpus(
    2,
    PRODUCTS,
    *(row("", 5e6, 1, "", category="host wait", device=at, line="") for at in (0, 1)),
    changed(copies(1, 3e6, "net.py:9"), device=1),
)
_HALVES = [changed(PRODUCTS, instances=6, time_ns=10e6, device=at) for at in (0, 1)]
_FEW_LAYERS, _MANY_LAYERS = layered(4), layered(10)
_SLOW_HEAD = changed(PRODUCTS_OF_HEAD, time_ns=25e6)
_MANY_LAYERS = changed(_MANY_LAYERS, rows=[_SLOW_HEAD if one is PRODUCTS_OF_HEAD else one for one in _MANY_LAYERS.rows])

SAID: dict[str, tuple[Profile, Profile, float | None]] = {
    "an unexplained rest": (BASE, added(row("aten::copy_", 2.4e6, 12, "blocks.*", category="copies")), 2.5e6),
    "a caller without a row": (
        BASE,
        added(row("aten::copy_", 2e6, 12, "blocks.*", within="aten::reshape", category="copies")),
        2.1e6,
    ),
    "the mean of several devices": (of_two_devices(5e6, 5e6), of_two_devices(9e6, 7e6), 3e6),
    "an operator that takes longer": (BASE, slowed(8e6), 3e6),
    "the gate found another change": (BASE, slowed(8e6), 30e6),
    "all operators slower alike": (
        BASE,
        profile(*(row(one.operator, 1.3 * one.time_ns, one.instances, one.module) for one in BASE.rows)),
        3.9e6,
    ),
    "other inputs": (
        profile(row("aten::mm", 5e6, 4, "head", shapes="8x8 float32"), *BASE.rows[1:]),
        profile(row("aten::mm", 9e6, 4, "head", shapes="8x8 float64"), *BASE.rows[1:]),
        4e6,
    ),
    "an operator that is most of the time": (
        profile(row("my::attention", 6e6)),
        profile(row("my::attention", 9e6)),
        3e6,
    ),
    "a fact without time comes last": (BASE, profile(*slowed(8e6).rows, row("aten::neg", 2e3, 1, "b")), 3e6),
    "a fact that explains no time": (BASE, added(row("aten::neg", 2e3, 1, "b")), 3e6),
    "views come after work": (
        BASE,
        added(row("aten::view", 9e3, 40, "a", category="dispatch"), row("aten::neg", 1e3, 1, "b")),
        None,
    ),
    "a new gap": (BASE, added(row("", 5e6, 4, "blocks.*", category="host wait")), 5e6),
    "a call that takes the shapes of another": (
        profile(*BASE.rows[1:], products(1, 1e6, "8x8"), products(1, 4e6, "64x64")),
        profile(*BASE.rows[1:], products(2, 8e6, "64x64")),
        3e6,
    ),
    "counts": (BASE, added(row("aten::neg", 10.0, 2, "head")), None),
    "moved to another phase": (added(_COPY), added(_MOVED), 1e5),
    "moved, with another operator": (
        added(_COPY),
        added(_MOVED, row("aten::mul", 1e3, 6, "", phase="optimizer")),
        None,
    ),
    "a large part that became faster": (added(_FACTS[6]), added(*_FACTS[:6]), 25e6),
    # computed again
    "many modules computed again": (repeated(), repeated(*(f"stage{at}.layer" for at in range(5))), 15e6),
    "a module's own work alone again": (mlp(1), mlp(2), 2e6),
    # which calls are new
    "a large call among small ones": (only(_SMALL), _ONE_LARGE, 10e6),
    "a large call among small ones is gone": (_ONE_LARGE, only(_SMALL), -10e6),
    "small calls beside large ones": (
        only(_LARGE, waits(1e6, category="python")),
        only(_LARGE, copies(12, 12e3, "net.py:20"), waits(7e6, category="python")),
        6.012e6,
    ),
    "calls that nothing tells apart": (only(copies(4, 4e6, "", "")), only(copies(6, 6e6, "", "")), 2e6),
    "work that is divided": (only(copies(4, 8e6, "net.py:9", "64x8")), only(copies(8, 9e6, "net.py:9", "32x8")), 1e6),
    "a new call before the old one, which moved": (moved_lines(9), moved_lines(10, new=9), 3e6),
    "a new call after the old one": (moved_lines(9), moved_lines(9, new=12), 3e6),
    "a new call where all lines moved": (moved_lines(9), moved_lines(14, new=10), 3e6),
    "an operator that leads has the line of what it calls": (
        only(),
        only(
            row("aten::to", 90, 1, "blocks.*", line="net.py:7"),  # of the right type already: nothing is copied
            row("aten::to", 10, 1, "blocks.*", line="net.py:8"),
            row("aten::copy_", 2e6, 1, "blocks.*", line="net.py:8", within="aten::to", category="copies"),
        ),
        2e6,
    ),
    "all in the backward": (only(), in_phases("backward"), None),
    "in forward and backward": (only(), in_phases("forward", "backward"), None),
    "one of them under no_grad": (only(), in_phases("", "backward"), None),
    "moved out of all phases": (only(row("aten::to", 1e6)), only(row("aten::to", 1e6, phase="")), None),
    "moved into a phase": (only(row("aten::to", 1e6, phase="")), only(row("aten::to", 1e6)), None),
    "a loop replaces the fused optimizer": (_FUSED, stepped("optimizer", "train.py:17"), None),
    "a loop replaces it on another line": (_FUSED, stepped("optimizer", "train.py:20"), None),
    "a loop in no phase replaces it": (_FUSED, stepped("", "train.py:20"), None),
    "phases of what is in no module": (
        only(),
        only(*(row("aten::fill_", took, 1, "", phase=in_) for in_, took in (("backward", 1e4), ("forward", 2e6)))),
        2.01e6,
    ),
    "no line shows how others moved": (
        profile(copies(20, 1e6, "net.py:9")),
        profile(copies(20, 1e6, "net.py:30"), copies(2, 3e6, "net.py:31", "64x64 float32")),
        3e6,
    ),
    "one call of many on other inputs": (
        only(changed(_OFTEN, instances=20, time_ns=20e6)),
        only(changed(_OFTEN, time_ns=21e6), copies(1, 4e6, "net.py:9", "8x8 float64")),
        5e6,
    ),
    "parts that are more than the change": (only(), only(copies(2, 5e6, "net.py:9")), 4e6),
    "more layers, and a slow head": (
        _FEW_LAYERS,
        _MANY_LAYERS,
        _MANY_LAYERS.explained_ns - _FEW_LAYERS.explained_ns,
    ),
    # several edits of one module
    "two edits with unchanged work between them": (
        only(_LOSS),
        only(
            _LOSS,
            at(14, "softmax", 2e6),
            at(14, "entr", 1e6),
            at(14, "softmax", 1e6, phase="backward"),
            at(18, "norm", 3e6, phase="backward"),
        ),
        7e6,
    ),
    "an operator that two edits add": (
        profile(at(16, "loss"), at(10, "mul")),
        profile(at(16, "loss"), at(10, "mul"), at(12, "mul", 2e6, shapes="4x4"), at(20, "mul", 4e6, shapes="8x8")),
        6e6,
    ),
    "lines with no common phase": (only(), only(at(14, "entr", 2e6), at(15, "norm", 1e6, phase="optimizer")), 3e6),
    "lines of one edit": (only(), only(*_CHECK), sum(one.time_ns for one in _CHECK)),
    "many lines of one edit": (only(), only(*_CHECK, *(at(number, "neg", 100.0) for number in (12, 13))), None),
    "gone is not named with new": (only(at(9, "silu")), only(at(9, "sigmoid", 3e6)), 2e6),
    "compiled graphs with other hashes": (compiled("fbdnuqj2p6tzd", 1e6), compiled("fj2paw7zk3o5a", 3e6), 2e6),
    "compiled graphs are called as often": (compiled("fbdnuqj2p6tzd", 1e6), compiled("fj2paw7zk3o5a", 3e6), None),
    "python beside noisier lines": (
        profile(waits_at(11, 5e6, spread_ns=4e5), waits_at(16, 1e6), at(11, "loss"), at(16, "step")),
        profile(
            waits_at(11, 4.9e6, spread_ns=4e5), waits_at(12, 3e5), waits_at(17, 1e6), at(11, "loss"), at(17, "step")
        ),
        3e5,
    ),
    # what takes longer, and varies
    "slower at known shapes": (profile(products(12, 12e6, "8x8")), profile(products(12, 24e6, "8x8")), 12e6),
    "slower at unknown shapes": (profile(products(12, 12e6, "")), profile(products(12, 24e6, "")), 12e6),
    "a varying number of calls": (*_VARY, 6.5e5),
    "a varying number of calls, untimed": (*_VARY, None),
    "a varying number of calls, fewer": (*reversed(_VARY), None),
    "a new operator with a varying number of calls": (only(), only(copies(6.5, 5e6, "net.py:9")), 5e6),
    "inputs that vary now": (
        profile(products(12, 12e6, "512x64, 64x64 float32")),
        profile(*(products(1.5, 3e6, f"{512 + 64 * at}x64, 64x64 float32") for at in range(8))),
        12e6,
    ),
    "inputs that vary before and now": (
        *(profile(products(0.5, took, "8x8"), products(0.5, took, "16x16")) for took in (1e6, 7e6)),
        12e6,
    ),
    # counts
    "waits for the device, untimed": (_WAITED, _WAITS_MORE, None),
    "waits for the device": (_WAITED, _WAITS_MORE, 2e6),
    "waits that take no time": (
        _WAITED,
        with_calls(_WAITED, cudaLaunchKernel=4, cudaDeviceSynchronize=12),
        1e5,
    ),
    "waits whose number varies": (_WAITED, with_calls(_WAITED, cudaLaunchKernel=4, cudaStreamSynchronize=2.5), None),
    "launches without more operators": (_LAUNCHED, _LAUNCHED_MORE, None),
    "launches of more operators": (
        _LAUNCHED,
        changed(_LAUNCHED_MORE, rows=[*_LAUNCHED_MORE.rows, copies(2, 1e3, "net.py:9")]),
        None,
    ),
    "PyTorch's own work": (*(only(row("aten::view", 1e4, often, category="dispatch")) for often in (24, 48)), None),
    "operators that launch nothing": (_VIEWED, _VIEWED_MORE, None),
    "operators that launch nothing beside a wait": (
        _VIEWED,
        changed(_VIEWED_MORE, rows=[*_VIEWED_MORE.rows, changed(waits(2e6), instances=1)]),
        2e6,
    ),
    "operators that launch nothing follow from work": (
        _VIEWED,
        changed(_VIEWED_MORE, rows=[*_VIEWED_MORE.rows, copies(2, 1e3, "net.py:9")]),
        None,
    ),
    "a call of each tensor in place of one of all": (
        only(at(8, "_foreach_lerp_", 1e3), changed(at(8, "lerp_", 14e3, within="aten::_foreach_lerp_"), instances=14)),
        only(changed(at(9, "lerp_", 15e3), instances=14)),
        None,
    ),
    "as many calls on larger inputs, made directly now": (
        only(
            row("aten::linear", 1e5, 4, "net", shapes="8x8", line="net.py:8"),
            row("aten::mm", 8e5, 4, "net", shapes="8x8", within="aten::linear", line="net.py:8"),
        ),
        only(row("aten::mm", 8e6, 4, "net", shapes="64x64", line="net.py:8")),
        7.1e6,
    ),
    "views by the line of Python that calls them": (
        only(views(24)),
        only(views(48), row("", 1e4, 24, "blocks.*", category="python", line="net.py:31")),
        None,
    ),
    "a module of which no lines are known": (
        only(),
        changed(only(row("aten::mm", 1e6, 2, "pool", line="")), called={"pool": ["net.py:40", "net.py:41 < run.py:2"]}),
        None,
    ),
    "a count that no profile keeps": (only(), only(), None),
    "a count that no profile of a GPU keeps": (_LAUNCHED, _LAUNCHED, None),
    # other devices than before
    "now on two GPUs": (on_gpus(1, PRODUCTS), _TWO_GPUS, 5e6),
    "now on one GPU": (_TWO_GPUS, on_gpus(1, PRODUCTS), 5e6),
    "now on two GPUs, untimed": (on_gpus(1, PRODUCTS), _TWO_GPUS, None),
    "work divided among GPUs": (on_gpus(1, PRODUCTS), on_gpus(2, *_HALVES), 2e6),
    "work divided among GPUs, slower": (
        on_gpus(1, PRODUCTS),
        on_gpus(2, *(changed(one, time_ns=40e6) for one in _HALVES)),
        2e6,
    ),
}
for _was, _is_now in ((2, 3), (2, 4), (5, 3), (12, 24)):
    _base, _head = layered(_was), layered(_is_now)
    SAID[f"{_is_now} layers instead of {_was}"] = (_base, _head, _head.timer_ns - _base.timer_ns)


@pytest.mark.parametrize("name", SAID)
def test_what_is_said_of_two_profiles(name: str, snapshot: SnapshotAssertion) -> None:
    """The gate's interval is as wide as two processes differ anyway."""
    base, head, change_ns = SAID[name]
    found = explain(base, head, "main", change_ns)
    assert explanation_texts(found, timed=change_ns is not None) == snapshot
    if change_ns is not None:
        assert sum(part.change_ns for part in found.parts) + found.rest_ns == pytest.approx(change_ns)


@pytest.mark.parametrize(
    "found",
    [
        pytest.param(
            Explanation(
                base="main",
                parts=[
                    Part(change_ns=ms * 1e6, operator="aten::mm", module=f"m{at}")
                    for at, ms in enumerate((10, 9, 8, 7, 6, 0.5))
                ],
                rest_ns=50e6,
            ),
            id="more parts than are shown",
        ),
        pytest.param(Explanation(base="main", problem="could not look, because base: its process hung"), id="none"),
    ],
)
def test_what_is_said_of_an_explanation(found: Explanation, snapshot: SnapshotAssertion) -> None:
    assert explanation_texts(found, timed=True) == snapshot
