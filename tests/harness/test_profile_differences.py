"""What an explanation says of two profiles that are made up: which calls are new, where, and what is not compared.

Also what takes longer, and what is computed again.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perflab.base.data import changed
from perflab.profiles.difference import explain
from perflab.profiles.events import name_and_scope
from perflab.profiles.explanation_text import explanation_texts
from perflab.profiles.facts import Calls, Place, Shifts, same_calls, unmatched
from perflab.results.profile import CudaCall, Explanation, Part, Profile, ProfileRow
from perflab.results.records import Change, Judgement, Verdict
from perflab.turns import evidence
from tests.harness.test_profiles import BASE, on_cuda, profile, row

WORSE = Judgement(verdict=Verdict.REGRESSED, latency=Change(before=10e6, now=13e6, ratio=1.3), worse=["latency"])


def said(base: Profile, head: Profile, change_ns: float | None) -> list[str]:
    """The texts of an explanation; the gate's interval is as wide as two processes differ anyway."""
    return explanation_texts(explain(base, head, "main", change_ns), timed=change_ns is not None)


def added(*rows: ProfileRow) -> Profile:
    """The profile before with further rows."""
    return profile(*BASE.rows, *rows)


# --- what changed ------------------------------------------------------------------------------------------------


def test_more_calls_of_an_operator_are_named_with_their_module_and_line_and_the_parts_add_up() -> None:
    more = row("aten::copy_", 2.4e6, 12, "blocks.*.attention", category="copies", line="model.py:88")
    found = explain(BASE, added(more), "main", 2.5e6)
    assert explanation_texts(found, timed=True) == [
        "+2.40 ms 12 more aten::copy_ in the forward of blocks.*.attention (model.py:88)",
        "+100 µs unexplained",
        "+2.50 ms in all",
    ]
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


def test_where_the_caller_is_not_called_more_often_or_has_no_row_the_text_still_names_it() -> None:
    copies = row("aten::copy_", 2e6, 12, "blocks.*", within="aten::reshape", category="copies")
    assert (
        said(BASE, added(copies), 2.1e6)[0]
        == "+2.00 ms 12 more aten::copy_ within aten::reshape in the forward of blocks.* (model.py:8)"
    )


def test_an_operator_that_calls_few_of_them_does_not_lead() -> None:
    before = row("aten::copy_", 1e6, 8, "rope", within="aten::to", category="copies")
    more = [
        changed(before, instances=9, time_ns=1.1e6),  # one more by aten::to, and eleven more by nobody
        row("aten::to", 1e4, 1, "rope", category="copies"),
        row("aten::copy_", 2e6, 11, "rope", category="copies"),
    ]
    (part,) = explain(added(before), added(*more), "main", 2.1e6).parts
    assert (part.operator, part.more) == ("aten::copy_", 12)


def test_the_time_of_several_devices_is_explained_by_their_mean() -> None:
    base, head = (
        changed(profile(*(row("aten::mm", time, 1, "m", device=at) for at, time in enumerate(times))), devices=2)
        for times in ((5e6, 5e6), (9e6, 7e6))
    )
    assert said(base, head, 3e6) == ["+3.00 ms aten::mm slower in the forward of m (model.py:8)"]


def test_an_operator_that_takes_longer_is_named_where_the_profiles_agree_with_the_gate() -> None:
    slower = profile(row("aten::mm", 8e6, 4, "head"), *BASE.rows[1:])
    assert said(BASE, slower, 3e6) == ["+3.00 ms aten::mm slower in the forward of head (model.py:8)"]
    disagreeing = explain(BASE, slower, "main", 30e6)
    assert disagreeing.parts == []
    assert "the profiles differ by +3.00 ms, and the gate found +30.0 ms" in str(disagreeing.problem)


def test_everything_slower_alike_is_the_machine_and_no_operator() -> None:
    slower = profile(*(row(one.operator, 1.3 * one.time_ns, one.instances, one.module) for one in BASE.rows))
    found = explain(BASE, slower, "main", 3.9e6)
    assert found.parts == []
    assert "all operators take longer alike (about +30%)" in str(found.problem)


def test_unchanged_code_noise_and_work_that_is_not_in_every_call_are_no_cause() -> None:
    again = profile(*(row(one.operator, 1.01 * one.time_ns, one.instances, one.module) for one in BASE.rows))
    assert explain(BASE, again, "main", 5e5).parts == []
    noisy = profile(row("aten::mm", 8e6, 4, "head", spread_ns=2e6), *BASE.rows[1:])
    assert explain(BASE, noisy, "main", 3e6).parts == []
    sometimes = [added(row("aten::histc", 1e5, often)) for often in (0.25, 0.75)]
    assert explain(*sometimes, "main", None).parts == []


def test_the_same_number_of_calls_on_other_inputs_is_a_fact_too() -> None:
    wide = profile(row("aten::mm", 9e6, 4, "head", shapes="8x8 float64"), *BASE.rows[1:])
    narrow = profile(row("aten::mm", 5e6, 4, "head", shapes="8x8 float32"), *BASE.rows[1:])
    assert "aten::mm on other inputs, 8x8 float32 -> 8x8 float64 in the forward of head" in said(narrow, wide, 4e6)[0]


def test_views_alone_come_after_what_does_work() -> None:
    views = row("aten::view", 9e3, 40, "a", category="dispatch")
    work = row("aten::neg", 1e3, 1, "b")
    found = explain(BASE, added(views, work), "main", None)
    assert [part.operator for part in found.parts] == ["aten::neg", "aten::view"]


def test_the_operator_that_takes_most_of_the_time_is_no_measure_of_itself() -> None:
    alone, slower = profile(row("my::attention", 6e6)), profile(row("my::attention", 9e6))
    (first,) = said(alone, slower, 3e6)
    assert first.startswith("+3.00 ms my::attention slower")


def test_a_fact_that_takes_no_time_comes_after_what_takes_it() -> None:
    slower = profile(row("aten::mm", 8e6, 4, "head"), *BASE.rows[1:], row("aten::neg", 2e3, 1, "b"))
    assert [part.operator for part in explain(BASE, slower, "main", 3e6).parts] == ["aten::mm", "aten::neg"]
    unexplained = explain(BASE, added(row("aten::neg", 2e3, 1, "b")), "main", 3e6, (0.0, 6e6))
    assert unexplained.problem is None
    told = explain(BASE, added(row("aten::neg", 2e3, 1, "b")), "main", 3e6)
    assert "they do not explain times" in explanation_texts(told, timed=True)[-1]


def test_a_gap_that_was_not_there_before_is_named() -> None:
    waits = row("", 5e6, 4, "blocks.*", category="host wait")
    assert said(BASE, added(waits), 5e6) == ["+5.00 ms more host wait in the forward of blocks.* (model.py:8)"]


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


def test_a_call_that_moves_to_shapes_of_another_is_a_fact() -> None:
    small, large = (row("aten::mm", time, 1, "head", shapes=shape) for time, shape in ((1e6, "8x8"), (4e6, "64x64")))
    both, twice = (
        profile(*BASE.rows[1:], small, large),
        profile(*BASE.rows[1:], row("aten::mm", 8e6, 2, "head", shapes="64x64")),
    )
    assert "aten::mm on other inputs, 8x8 -> 64x64 in the forward of head" in said(both, twice, 3e6)[0]


def test_counts_are_explained_without_times() -> None:
    assert said(BASE, added(row("aten::neg", 10.0, 2, "head")), None) == [
        "2 more aten::neg in the forward of head (model.py:8)"
    ]


def test_an_operator_that_moves_to_another_phase_is_said_to_have_moved() -> None:
    there, here = (row("aten::copy_", 4e6, 4, "", phase=phase, category="copies") for phase in ("forward", "optimizer"))
    here = changed(here, time_ns=4.1e6)
    moved = explain(added(there), added(here), "main", 1e5)
    first = "+100 µs 4 aten::copy_ moved from forward to optimizer (model.py:8)"
    assert explanation_texts(moved, timed=True)[0] == first
    more = row("aten::mul", 1e3, 6, "", phase="optimizer")
    assert said(added(there), added(here, more), None) == [
        "4 aten::copy_ moved from forward to optimizer, with aten::mul (model.py:8)"
    ]


def test_what_is_unexplained_has_its_own_text_however_many_parts_there_are() -> None:
    changes = (10e6, 9e6, 8e6, 7e6, 6e6, 0.5e6)
    parts = [Part(change_ns=ns, operator="aten::mm", module=f"m{at}") for at, ns in enumerate(changes)]
    texts = explanation_texts(Explanation(base="main", parts=parts, rest_ns=50e6), timed=True)
    assert texts[0].startswith("+10.0 ms")
    assert texts[5:] == ["+500 µs in 1 other part", "+50.0 ms unexplained", "+90.5 ms in all"]


def test_a_large_part_that_became_faster_is_among_those_that_are_shown() -> None:
    facts = [row(f"aten::f{at}", ms * 1e6, 1, f"m{at}") for at, ms in enumerate((10, 9, 8, 7, 6, 5, 20))]
    found = explain(added(facts[6]), added(*facts[:6]), "main", 25e6)
    assert [text.split(" 1 ")[0] for text in explanation_texts(found, timed=True)] == [
        "+10.0 ms",
        "+9.00 ms",
        "+8.00 ms",
        "+7.00 ms",
        "-20.0 ms",
        "+11.0 ms in 2 other parts",
        "+25.0 ms in all",
    ]


def test_parts_that_do_not_reach_the_gate_s_interval_are_said_not_to_be_all_of_the_change() -> None:
    slower = profile(row("aten::mm", 6.6e6, 4, "head"), *BASE.rows[1:])
    *texts, problem = explanation_texts(explain(BASE, slower, "main", 3e6, (2.9e6, 3.1e6)), timed=True)
    assert texts[0].startswith("+1.60 ms aten::mm slower")
    assert texts[1] == "+1.40 ms unexplained"
    assert problem.startswith("these parts are not all of the change")
    wide = explain(BASE, slower, "main", 3e6, (1.5e6, 3.1e6))
    assert wide.problem is None
    above = explain(BASE, slower, "main", 1.6e6, (1.5e6, 4e6))  # an interval is not as wide on both sides
    assert above.problem is None


def test_what_could_not_be_looked_into_says_why() -> None:
    said = Explanation(base="main", problem="could not look, because base: its process hung")
    assert explanation_texts(said, timed=True) == ["could not look, because base: its process hung"]


# --- computed again ----------------------------------------------------------------------------------------------


def _work(module: str, times: int = 1, phase: str = "forward", share: int = 1) -> list[ProfileRow]:
    """What a layer does, so often, on so many parts of its input."""
    return [
        row(name, 1e6 * times, 2 * times * share, module, phase=phase, shapes=f"{64 // share}x8 float32")
        for name in ("aten::linear", "aten::mm", "aten::gelu")
    ]


def test_a_module_whose_whole_work_is_done_again_is_named_as_a_whole() -> None:
    layers = ("blocks.*.up", "blocks.*.down", "head")
    base = profile(*(one for name in layers for one in _work(name)), row("aten::add", 1e6, 2, "blocks.*"))
    blocks = [one for name in layers[:2] for one in _work(name, 1, "backward")]
    again = explain(
        base, profile(*base.rows, *blocks, row("aten::add", 0.5e6, 1, "blocks.*", phase="backward")), "b", 6.5e6
    )
    (first,) = explanation_texts(again, timed=True)
    assert first == "+6.50 ms all of blocks.* computed once more in backward, with 4 more aten::linear (model.py:8)"
    one = explain(base, profile(*base.rows, *_work("blocks.*.up", 2, "backward")), "b", 6e6)
    assert explanation_texts(one, timed=True, brief=True)[0].endswith(
        "all of blocks.*.up computed 2 times more in backward (model.py:8)"
    )
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


def test_blocks_whose_last_layer_a_checkpoint_leaves_out_are_named_with_that() -> None:
    base = on_cuda(*_block_on_cuda("forward"), row("aten::addmm", 1e6, 1, "head"))
    again = [one for one in _block_on_cuda("backward", adds=1) if one.module != "blocks.*.mlp.down"]
    found = explain(base, on_cuda(*base.rows, *again), "main", None)
    (text,) = explanation_texts(found, timed=False, brief=True)
    assert text == "all of blocks.* computed once more in backward but for blocks.*.mlp.down (model.py:8)"
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


def test_many_modules_that_are_computed_again_are_named_in_part() -> None:
    layers = [f"stage{at}.layer" for at in range(5)]
    base = profile(*(one for name in [*layers, "head"] for one in _work(name)))
    found = explain(
        base, profile(*base.rows, *(one for name in layers for one in _work(name, 1, "backward"))), "b", 15e6
    )
    said = explanation_texts(found, timed=True)[0]
    assert "all of stage0.layer, stage1.layer, stage2.layer and 2 more modules computed once more in backward" in said


def test_a_module_that_does_its_own_work_again_and_not_that_of_one_within_it_is_not_all_computed_again() -> None:
    def mlp(times: int) -> Profile:
        own = [row(f"aten::{name}", 1e6 * times, 2 * times, "mlp", shapes="8x8") for name in ("linear", "mm")]
        within = [row(f"aten::{name}", 1e6, 2, "mlp.act", shapes="8x8") for name in ("gelu", "mul")]
        return profile(*own, *within)

    assert (
        said(mlp(1), mlp(2), 2e6)[0] == "+2.00 ms 2 more aten::linear, with aten::mm in the forward of mlp (model.py:8)"
    )


def test_an_explanation_that_fails_says_so_and_loses_no_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_given: object) -> None:
        raise IndexError("out of range\nand more")

    monkeypatch.setattr(evidence, "explain", broken)
    one = profile(row("aten::mm", 1e6))
    assert evidence.told_apart(one, one, "main", WORSE).problem == (
        "could not look, because comparing both profiles failed, a fault of perflab: IndexError: out of range"
    )


# --- which calls are new -----------------------------------------------------------------------------------------

PRODUCTS = row("aten::mm", 20e6, 12, "blocks.*", line="net.py:5", shapes="64x64, 64x64 float32")
"""What is called as before, and where: it shows that no line moved."""


def copies(times: float, time_ns: float, line: str, shapes: str = "8x8 float32") -> ProfileRow:
    """Copies in every block."""
    return row("aten::copy_", time_ns, times, "blocks.*", line=line, shapes=shapes, category="copies")


def test_a_large_call_among_many_small_ones_has_its_own_time_and_line() -> None:
    small = copies(20, 20e3, "net.py:9")
    head = profile(PRODUCTS, small, copies(1, 10e6, "net.py:20", "4096x4096 float32"))
    assert said(profile(PRODUCTS, small), head, 10e6) == [
        "+10.0 ms 1 more aten::copy_ in the forward of blocks.* (net.py:20)"
    ]
    gone = said(head, profile(PRODUCTS, small), -10e6)
    assert gone == ["-10.0 ms 1 fewer aten::copy_ in the forward of blocks.* (net.py:20)"]


def test_small_calls_beside_large_ones_are_not_given_the_time_of_these() -> None:
    large = copies(12, 12e6, "net.py:9")
    before, now = (row("", took, 5, "blocks.*", category="python", line="") for took in (1e6, 7e6))
    head = profile(PRODUCTS, large, copies(12, 12e3, "net.py:20"), now)
    assert said(profile(PRODUCTS, large, before), head, 6.012e6) == [
        "+6.00 ms more python in the forward of blocks.*",
        "+12.0 µs 12 more aten::copy_ in the forward of blocks.* (net.py:20)",
        "+6.01 ms in all",
    ]


def test_of_calls_that_nothing_tells_apart_each_has_the_mean_time() -> None:
    before, now = (profile(PRODUCTS, copies(times, times * 1e6, "", "")) for times in (4, 6))
    assert said(before, now, 2e6)[0] == "+2.00 ms 2 more aten::copy_ in the forward of blocks.*"


def test_work_that_is_divided_counts_with_the_difference_of_both() -> None:
    before = profile(PRODUCTS, copies(4, 8e6, "net.py:9", "64x8"))
    now = profile(PRODUCTS, copies(8, 9e6, "net.py:9", "32x8"))
    assert said(before, now, 1e6)[0] == "+1.00 ms 4 more aten::copy_ in the forward of blocks.* (net.py:9)"


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


@pytest.mark.parametrize(
    ("was", "is_now", "new"),
    [
        (9, 10, 9),  # written before the old one, which moved down by a line
        (9, 9, 12),
        (9, 14, 10),
    ],
)
def test_the_line_of_a_new_call_is_its_own_although_all_lines_moved(was: int, is_now: int, new: int) -> None:
    """The lines of what is called as before show by how much."""
    base, head = (
        profile(changed(PRODUCTS, line=f"net.py:{at + 1}"), copies(20, 1e6, f"net.py:{at}")) for at in (was, is_now)
    )
    head = changed(head, rows=[*head.rows, copies(12, 3e6, f"net.py:{new}")])
    assert said(base, head, 3e6)[0] == f"+3.00 ms 12 more aten::copy_ in the forward of blocks.* (net.py:{new})"


def test_an_operator_that_leads_for_what_it_calls_has_the_line_of_that() -> None:
    head = profile(
        PRODUCTS,
        row("aten::to", 90, 1, "blocks.*", line="net.py:7"),  # of the right type already: nothing is copied
        row("aten::to", 10, 1, "blocks.*", line="net.py:8"),
        row("aten::copy_", 2e6, 1, "blocks.*", line="net.py:8", within="aten::to", category="copies"),
    )
    assert said(profile(PRODUCTS), head, 2e6)[0].endswith(
        "1 more aten::to, with aten::copy_ in the forward of blocks.* (net.py:8) and on 1 more line: 1 more aten::to "
        "(net.py:7)"
    )


@pytest.mark.parametrize(
    ("phases", "where"),
    [
        (["backward"], "the backward of drop"),
        (["forward", "backward"], "drop (forward and backward)"),
        (["", "backward"], "drop"),  # one of them under ``no_grad``
    ],
)
def test_what_is_not_all_in_the_backward_is_not_said_to_be(phases: list[str], where: str) -> None:
    there = [row("aten::to", 1e6, 6 / len(phases), "drop", phase=phase) for phase in phases]
    assert said(profile(PRODUCTS), profile(PRODUCTS, *there), None) == [f"6 more aten::to in {where} (model.py:8)"]


def test_what_moves_out_of_all_phases_is_said_to_be_in_none() -> None:
    base, head = (profile(PRODUCTS, row("aten::copy_", 1e6, 1, phase=phase)) for phase in ("forward", ""))
    assert said(base, head, None) == ["1 aten::copy_ moved from forward to no phase in m (model.py:8)"]
    assert said(head, base, None) == ["1 aten::copy_ moved from no phase to forward in m (model.py:8)"]


@pytest.mark.parametrize("phase", ["", "optimizer"])
@pytest.mark.parametrize("line", ["train.py:17", "train.py:20"])
def test_what_replaces_the_optimizer_s_operator_is_of_the_optimizer_and_says_what_is_gone(
    phase: str, line: str
) -> None:
    fused = row("aten::_fused_adamw_", 1e6, 1, "", category="optimizer", phase="optimizer", line="train.py:17")
    loop = [row(f"aten::{name}", time, 8, "", phase=phase, line=line) for name, time in (("sqrt", 2e6), ("mul_", 1e6))]
    (text,) = said(profile(PRODUCTS, fused), profile(PRODUCTS, *loop), None)
    assert text.startswith(f"8 more aten::sqrt, with aten::mul_ instead of aten::_fused_adamw_ in optimizer ({line})")


def test_what_is_in_no_module_is_placed_by_its_phases_that_first_in_which_it_takes_longest() -> None:
    there = [row("aten::fill_", took, 1, "", phase=phase) for phase, took in (("backward", 1e4), ("forward", 2e6))]
    assert said(profile(PRODUCTS), profile(PRODUCTS, *there), 2.01e6) == [
        "+2.01 ms 2 more aten::fill_ in forward and backward (model.py:8)"
    ]


def test_without_anything_that_shows_how_lines_moved_calls_match_by_their_shapes() -> None:
    base = profile(copies(20, 1e6, "net.py:9"))
    head = profile(copies(20, 1e6, "net.py:30"), copies(2, 3e6, "net.py:31", "64x64 float32"))
    assert said(base, head, 3e6)[0] == "+3.00 ms 2 more aten::copy_ in the forward of blocks.* (net.py:31)"


def test_one_call_of_many_on_other_inputs_has_the_time_of_that_one() -> None:
    often = copies(19, 19e6, "net.py:9")
    head = profile(PRODUCTS, changed(often, time_ns=21e6), copies(1, 4e6, "net.py:9", "8x8 float64"))
    (first, *_rest) = said(profile(PRODUCTS, changed(often, instances=20, time_ns=20e6)), head, 5e6)
    assert first.startswith(
        "+3.00 ms aten::copy_ on other inputs, 8x8 float32 -> 8x8 float64 in the forward of blocks.*"
    )


def test_parts_that_are_more_than_the_change_are_said_to_be() -> None:
    head = profile(PRODUCTS, copies(2, 5e6, "net.py:9"))
    texts = said(profile(PRODUCTS), head, 4e6)
    assert texts[:2] == ["+5.00 ms 2 more aten::copy_ in the forward of blocks.* (net.py:9)", "-1.00 ms unexplained"]
    assert texts[2] == "+4.00 ms in all"
    assert texts[3].startswith("these parts are more than the change")


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


def test_more_layers_are_one_cause_with_what_runs_as_often_as_they_do() -> None:
    for before, now in ((2, 3), (2, 4), (5, 3), (12, 24)):
        base, head = layered(before), layered(now)
        (first, *rest) = said(base, head, head.timer_ns - base.timer_ns)
        many = f"{abs(now - before)} {'more' if now > before else 'fewer'}"
        assert first.endswith(f"{many} blocks.* and rope ({now} instead of {before})"), first
        assert rest == []


def test_layers_that_do_something_else_too_are_not_just_more_layers() -> None:
    for head in (layered(3, gelu=2), layered(3, neg=1), layered(2, times=2)):
        assert [part.layers for part in explain(layered(2), head, "main", None).parts if part.layers] == []


def test_what_has_more_calls_is_no_measure_of_how_fast_the_machine_is() -> None:
    base, head = layered(4), layered(10)
    slow = changed(PRODUCTS_OF_HEAD, time_ns=25e6)
    head = changed(head, rows=[slow if one is PRODUCTS_OF_HEAD else one for one in head.rows])
    (_layers, text, _sum) = said(base, head, head.explained_ns - base.explained_ns)
    assert text == "+20.0 ms aten::mm slower in the forward of head (model.py:8)"


# --- several edits of one module ---------------------------------------------------------------------------------


def at(number: int, name: str, time_ns: float = 1e6, **fields: object) -> ProfileRow:
    """An operator on a line outside of all modules."""
    return row(f"aten::{name}", time_ns, 1, "", line=f"train.py:{number}", **fields)


def test_edits_with_unchanged_work_between_them_are_two_parts_each_with_its_own_line_and_time() -> None:
    entropy = [at(14, "softmax", 2e6), at(14, "entr", 1e6), at(14, "softmax", 1e6, phase="backward")]
    norms = at(18, "norm", 3e6, phase="backward")
    loss = at(16, "loss", 5e6, phase="backward")
    assert said(profile(PRODUCTS, loss), profile(PRODUCTS, loss, *entropy, norms), 7e6) == [
        "+4.00 ms 2 more aten::softmax, with aten::entr in forward and backward (train.py:14)",
        "+3.00 ms 1 more aten::norm in backward (train.py:18)",
        "+7.00 ms in all",
    ]


def test_an_operator_that_two_edits_add_is_counted_and_timed_in_each() -> None:
    before = [at(16, "loss"), at(10, "mul", 1e6)]
    after = [*before, at(12, "mul", 2e6, shapes="4x4"), at(20, "mul", 4e6, shapes="8x8")]
    assert said(profile(*before), profile(*after), 6e6) == [
        "+4.00 ms 1 more aten::mul in forward (train.py:20)",
        "+2.00 ms 1 more aten::mul in forward (train.py:12)",
        "+6.00 ms in all",
    ]


def test_lines_that_work_in_no_common_phase_are_of_two_edits() -> None:
    after = [at(14, "entr", 2e6), at(15, "norm", 1e6, phase="optimizer")]
    assert [part.operator for part in explain(profile(PRODUCTS), profile(PRODUCTS, *after), "main", 3e6).parts] == [
        "aten::entr",
        "aten::norm",
    ]


def test_lines_of_one_edit_are_one_part_that_names_what_is_on_each() -> None:
    check = [at(10, "isfinite", 2e6), *(at(10, name, 5e5, within="aten::isfinite") for name in ("ne", "eq", "mul"))]
    edit = [*check, at(10, "item", 1e3), at(11, "clone", 10.0), at(11, "copy_", 1e6, within="aten::clone")]
    whole = sum(one.time_ns for one in edit)
    first = "1 more aten::isfinite, with aten::item, aten::ne, aten::eq in forward (train.py:10)"
    texts = said(profile(PRODUCTS), profile(PRODUCTS, *edit), whole)
    assert texts == [f"+4.50 ms {first} and on 1 more line: 1 more aten::clone (train.py:11)"]
    later = [at(number, "neg", 100.0) for number in (12, 13)]
    (text,) = said(profile(PRODUCTS), profile(PRODUCTS, *edit, *later), None)
    assert text.endswith("on 3 more lines: 1 more aten::clone (train.py:11), 1 more aten::neg (train.py:12), ...")


def test_what_is_no_more_called_is_not_named_with_what_is_called_more_often() -> None:
    there, here = profile(PRODUCTS, at(9, "silu", 1e6)), profile(PRODUCTS, at(9, "sigmoid", 3e6))
    assert said(there, here, 2e6) == ["+2.00 ms 1 more aten::sigmoid in forward (train.py:9)"]


def test_graphs_of_torch_compile_are_one_operator_whatever_their_hash() -> None:
    def compiled(name: str, time_ns: float) -> Profile:
        operator, _ = name_and_scope(f"## Call CompiledFxGraph {name} ##", 0)
        return profile(PRODUCTS, row(operator, time_ns, 1, "", category="compiled code", line=""))

    base, head = compiled("fbdnuqj2p6tzd", 1e6), compiled("fj2paw7zk3o5a", 3e6)
    assert said(base, head, 2e6) == ["+2.00 ms compiled graph slower in forward"]
    assert explain(base, head, "main", None).parts == []


# --- python ------------------------------------------------------------------------------------------------------


def waits_at(number: int, time_ns: float, spread_ns: float = 0.0) -> ProfileRow:
    """Python that an operator on this line ends."""
    line = f"train.py:{number}"
    return row("", time_ns, 1, "", category="python", line=line, phase="backward", spread_ns=spread_ns)


def test_python_that_takes_longer_is_named_with_its_line_where_others_are_noisier() -> None:
    before = [waits_at(11, 5e6, spread_ns=4e5), waits_at(16, 1e6), at(11, "loss"), at(16, "step")]
    after = [waits_at(11, 4.9e6, spread_ns=4e5), waits_at(12, 3e5), waits_at(17, 1e6), at(11, "loss"), at(17, "step")]
    assert said(profile(*before), profile(*after), 3e5)[0] == "+300 µs more python in backward (train.py:12)"


# --- what takes longer, and varies -------------------------------------------------------------------------------


def products(often: float, time_ns: float, shapes: str) -> ProfileRow:
    """Those that take longer, at inputs that are told apart."""
    return row("aten::mm", time_ns, often, "head", shapes=shapes, spread_ns=1e4)


def test_the_same_shapes_are_only_said_to_be_where_they_are_known() -> None:
    for shapes, how in (("8x8", "slower at the same shapes"), ("", "slower")):
        base, head = (profile(products(12, time, shapes)) for time in (12e6, 24e6))
        assert said(base, head, 12e6) == [f"+12.0 ms aten::mm {how} in the forward of head (model.py:8)"]


def test_an_operator_whose_number_of_calls_varies_is_told_with_about_how_many_it_has_more() -> None:
    base, head = (profile(PRODUCTS, copies(often, 1e5 * often, "net.py:9")) for often in (12, 18.5))
    about = "about 6.5 more aten::copy_ a call (it varies) in the forward of blocks.* (net.py:9)"
    assert said(base, head, 6.5e5) == [f"+650 µs {about}"]
    assert said(base, head, None) == [about]
    assert said(head, base, None) == [about.replace("more", "fewer")]


def test_a_new_operator_whose_number_of_calls_varies_is_named_too() -> None:
    assert said(profile(PRODUCTS), profile(PRODUCTS, copies(6.5, 5e6, "net.py:9")), 5e6) == [
        "+5.00 ms about 6.5 more aten::copy_ a call (it varies) in the forward of blocks.* (net.py:9)"
    ]


def test_an_operator_whose_inputs_vary_is_not_said_to_have_the_same_shapes() -> None:
    base = profile(products(12, 12e6, "512x64, 64x64 float32"))
    padded = profile(*(products(1.5, 3e6, f"{512 + 64 * at}x64, 64x64 float32") for at in range(8)))
    slower = "+12.0 ms aten::mm slower on inputs that vary in the forward of head (model.py:8)"
    assert said(base, padded, 12e6) == [slower]
    turns, longer = (profile(products(0.5, took, "8x8"), products(0.5, took, "16x16")) for took in (1e6, 7e6))
    assert said(turns, longer, 12e6) == [slower]


# --- counts ------------------------------------------------------------------------------------------------------


def with_calls(one: Profile, **often: float) -> Profile:
    """A profile of a GPU beside these calls on the host."""
    return changed(one, cuda_calls=[CudaCall(name, instances, 1e3) for name, instances in often.items()])


def test_waits_for_the_device_are_named_whether_the_time_became_worse_or_their_count_alone() -> None:
    waits = [row("", took, 4, "head", category="host wait", line="") for took in (1e6, 3e6)]
    base = with_calls(on_cuda(PRODUCTS, waits[0]), cudaLaunchKernel=4, cudaMalloc=1)
    head = with_calls(on_cuda(PRODUCTS, waits[1]), cudaLaunchKernel=4, cudaMalloc=9, cudaDeviceSynchronize=12)
    synchronised = "12 more cudaDeviceSynchronize on the host"
    assert said(base, head, None) == [synchronised]
    assert said(base, head, 2e6) == ["+2.00 ms more host wait in the forward of head", synchronised]
    assert said(base, with_calls(base, cudaLaunchKernel=4, cudaDeviceSynchronize=12), 1e5)[0] == synchronised
    half = with_calls(base, cudaLaunchKernel=4, cudaStreamSynchronize=2.5)
    assert said(base, half, None) == ["about 2.5 more cudaStreamSynchronize a call (it varies) on the host"]


def test_launches_are_named_where_no_operator_is_called_more_often() -> None:
    base, head = (with_calls(on_cuda(PRODUCTS), cudaLaunchKernel=often) for often in (4, 6))
    assert said(base, head, None) == ["2 more cudaLaunchKernel on the host"]
    more = changed(head, rows=[*head.rows, copies(2, 1e3, "net.py:9")])
    assert said(base, more, None) == ["2 more aten::copy_ in the forward of blocks.* (net.py:9)"]


def test_pytorch_s_own_work_that_is_called_more_often_is_named_with_its_place() -> None:
    base, head = (profile(PRODUCTS, row("aten::view", 1e4, often, category="dispatch")) for often in (24, 48))
    assert said(base, head, None) == ["24 more aten::view in the forward of m (model.py:8)"]
    assert said(base, base, None)[0].startswith("no operator is called more often")


def test_operators_that_launch_nothing_are_named_on_a_gpu_and_have_no_time() -> None:
    views = [row("aten::view", 0.0, often, "blocks.*", category="dispatch", line="") for often in (24, 48)]
    base, head = (on_cuda(PRODUCTS, one) for one in views)
    assert said(base, head, None) == ["24 more aten::view in the forward of blocks.* on the host"]
    waits = changed(head, rows=[*head.rows, row("", 2e6, 1, "blocks.*", category="host wait", line="")])
    assert said(base, waits, 2e6) == [
        "+2.00 ms more host wait in the forward of blocks.*",
        "24 more aten::view in the forward of blocks.* on the host",
    ]
    copied = changed(head, rows=[*head.rows, copies(2, 1e3, "net.py:9")])  # they follow from it
    assert said(base, copied, None) == ["2 more aten::copy_ in the forward of blocks.* (net.py:9)"]


def test_a_count_that_a_profile_does_not_keep_is_said_to_be_none_of_it() -> None:
    base = profile(PRODUCTS)
    kept = "is called more often: a profile does not keep what this count counts"
    assert said(base, base, None) == [f"no operator {kept}"]
    on_gpu = with_calls(on_cuda(PRODUCTS), cudaLaunchKernel=4)
    assert said(on_gpu, on_gpu, None) == [f"no operator {kept}"]


# --- other devices than before -----------------------------------------------------------------------------------


def on_gpus(number: int, *rows: ProfileRow) -> Profile:
    """A profile of a call on so many GPUs."""
    return changed(on_cuda(*rows), devices=number)


def test_times_on_another_number_of_gpus_are_not_compared_and_what_is_called_more_often_is_still_named() -> None:
    waits = [row("", 5e6, 1, "", category="host wait", device=at, line="") for at in (0, 1)]
    both = on_gpus(2, PRODUCTS, *waits, changed(copies(1, 3e6, "net.py:9"), device=1))
    assert said(on_gpus(1, PRODUCTS), both, 5e6) == [
        "1 more aten::copy_ in the forward of blocks.* (net.py:9)",
        "now on 2 GPUs, before on 1: times are not compared",
    ]
    found = explain(both, on_gpus(1, PRODUCTS), "main", 5e6)
    assert explanation_texts(found, timed=True)[-1] == "now on 1 GPU, before on 2: times are not compared"
    assert sum(part.change_ns for part in found.parts) + found.rest_ns == 5e6
    assert said(on_gpus(1, PRODUCTS), both, None) == ["1 more aten::copy_ in the forward of blocks.* (net.py:9)"]


def test_work_that_is_divided_among_gpus_is_neither_faster_nor_slower() -> None:
    halves = [changed(PRODUCTS, instances=6, time_ns=10e6, device=at) for at in (0, 1)]
    for head in (on_gpus(2, *halves), on_gpus(2, *(changed(one, time_ns=40e6) for one in halves))):
        assert said(on_gpus(1, PRODUCTS), head, 2e6) == ["now on 2 GPUs, before on 1: times are not compared"]
