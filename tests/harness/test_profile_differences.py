"""What an explanation says of two profiles that are made up: which calls are new, where, and what is not compared."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perflab.base.data import changed
from perflab.profiles.difference import explain
from perflab.profiles.events import name_and_scope
from perflab.profiles.explanation_text import explanation_texts
from perflab.profiles.facts import Calls, Place, Shifts, same_calls, unmatched
from perflab.results.profile import CudaCall, Profile, ProfileRow
from perflab.results.records import Change, Judgement, Verdict
from perflab.turns import evidence
from tests.harness.test_profiles import on_cuda, profile, row

WORSE = Judgement(verdict=Verdict.REGRESSED, latency=Change(before=10e6, now=13e6, ratio=1.3), worse=["latency"])


def said(base: Profile, head: Profile, change_ns: float | None) -> list[str]:
    """The texts of an explanation; the gate's interval is as wide as two processes differ anyway."""
    return explanation_texts(explain(base, head, "main", change_ns), timed=change_ns is not None)


# --- computed again ----------------------------------------------------------------------------------------------


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
    (first,) = said(profile(PRODUCTS), profile(PRODUCTS, *there), 2.01e6)
    assert first == "+2.01 ms 2 more aten::fill_ in forward and backward (model.py:8)"


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
    (first,) = said(profile(PRODUCTS), profile(PRODUCTS, copies(6.5, 5e6, "net.py:9")), 5e6)
    assert first == "+5.00 ms about 6.5 more aten::copy_ a call (it varies) in the forward of blocks.* (net.py:9)"


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
