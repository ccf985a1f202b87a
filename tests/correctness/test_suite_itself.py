"""The attention suite's own machinery: covering arrays, cases, predictions of faults, the tally, --attention."""

from collections.abc import Mapping
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from syrupy.assertion import SnapshotAssertion

from perflab.attention.candidate import CandidateError, from_callable
from perflab.attention.chosen import find_candidates, load
from perflab.attention.faults import Fault, with_fault
from perflab.attention.grid import HEAD_DIMS, LENGTHS, RELATIONS, Case, Claims, cases_for, factors_for
from perflab.attention.hold import inputs_of, upstream_of
from perflab.attention.plugin import tally
from perflab.correctness import Evidence
from perflab.correctness.covering import cover, pairs_in, pairs_of
from perflab.lab.attention import reference_attention

pytestmark = pytest.mark.correctness
CPU = torch.device("cpu")


@settings(settings.get_profile("tests"), max_examples=30)
@given(st.lists(st.integers(1, 6), min_size=2, max_size=5))
def test_every_pair_of_levels_occurs(sizes: list[int]) -> None:
    factors = {f"f{number}": range(size) for number, size in enumerate(sizes)}
    rows = cover(factors)
    assert {pair for row in rows for pair in pairs_in(row)} == set(pairs_of(factors))
    assert len(rows) <= max(1, len(list(product(*factors.values()))))


def test_what_cannot_be_is_left_out_and_nothing_else_is_lost() -> None:
    factors = {"a": (1, 2, 3), "b": (1, 2, 3), "c": (1, 2)}

    def valid(row: Mapping[str, Any]) -> bool:
        return row.get("a", 0) + row.get("b", 0) < 6

    rows = cover(factors, valid)
    found = {pair for row in rows for pair in pairs_in(row)}
    assert set(pairs_of(factors)) - found == {(("a", 3), ("b", 3))}


@pytest.mark.parametrize(
    "claims",
    [
        Claims(),
        Claims(on_cpu=True),
        Claims(on_cpu=True, interpreted=True),
        Claims(features=frozenset()),
        Claims(few=True),
        Claims(few=True, on_cpu=True, lengths=(1, 17, 1023), head_dims=(16, 59)),
    ],
    ids=["all", "cpu", "interpreted", "plain", "few", "few lengths"],
)
def test_every_level_that_is_claimed_occurs_once_at_least(claims: Claims) -> None:
    cases = cases_for(claims)
    for factor, levels in factors_for(claims).items():
        assert {getattr(case, factor) for case in cases} == set(levels), factor
    assert len({str(case) for case in cases}) == len(cases)


def test_on_a_gpu_every_length_meets_every_head_dimension_and_relation_on_both_sides() -> None:
    cases = cases_for(Claims())
    assert {(case.n_q, case.head_dim) for case in cases} == set(product(LENGTHS, HEAD_DIMS))
    shortest, longest = LENGTHS[0], LENGTHS[-1]
    impossible = {(shortest, "longer"), (longest, "shorter")}
    assert {(case.n_q, case.relation) for case in cases} == set(product(LENGTHS, RELATIONS)) - impossible


@pytest.mark.parametrize("mask", ["full", "causal", "bottomright", "window"])
@pytest.mark.parametrize("softcap", ["", "softcap3"])
def test_predictions_without_a_fault_are_the_definition(mask: str, softcap: str) -> None:
    case = Case(17, 13, 8, "fp32", mask=mask, softcap=softcap, heads="h4:2", batch=2)
    inputs = inputs_of(case, CPU)(0)
    leaves = [x.double().requires_grad_() for x in inputs.values()]
    out, logsumexp = reference_attention(*leaves, **case.settings)
    upstream = {name: upstream_of(case)(x, 0) for name, x in (("out", out), ("logsumexp", logsumexp))}
    wanted = dict(
        zip(("dq", "dk", "dv"), torch.autograd.grad((out, logsumexp), leaves, tuple(upstream.values())), strict=True)
    )
    found = with_fault(Evidence(inputs, upstream, case.settings, {}, {}, ()), Fault())
    for name, tensor in ({"out": out, "logsumexp": logsumexp} | wanted).items():
        torch.testing.assert_close(found[name], tensor.detach(), rtol=1e-10, atol=1e-12)


def test_the_tally_says_how_many_why_and_what_always_fails(snapshot: SnapshotAssertion) -> None:
    def result(mask: str, dtype: str, text: str) -> dict[str, Any]:
        levels = {"n_q": "17", "n_k": "3", "mask": mask, "dtype": dtype}
        causes = ["the mask is off"] if text else []
        return {"candidate": "mine:flash", "case": f"{mask} {dtype}", "levels": levels, "text": text, "causes": causes}

    wrong = "mine:flash is wrong for x"
    results = [result(m, d, wrong if m == "causal" else "") for m in ("full", "causal") for d in ("fp32", "bf16") * 3]
    assert tally(results) == snapshot
    assert tally([result("full", "fp32", "")]) == []


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("tyled", "'tyled' is not a variant; wanted one of reference, naive, .* or package.module:function"),
        ("nowhere.kernels:flash", "there is no module 'nowhere' in .*; start pytest where it is, or set PYTHONPATH"),
        ("torch.nn.functional:flush", "'torch.nn.functional' has no 'flush'; it has "),
        ("math:pi", "'math:pi' is a float, wanted a callable f"),
    ],
)
def test_a_name_that_is_no_candidate_is_refused_with_the_remedy(name: str, text: str, tmp_path: Path) -> None:
    with pytest.raises(CandidateError, match=text):
        find_candidates(name, CPU, tmp_path)


def test_a_module_that_does_not_import_is_named_with_its_reason(tmp_path: Path) -> None:
    (tmp_path / "broken_kernel_a.py").write_text("import no_such_package")
    (tmp_path / "broken_kernel_b.py").write_text("raise RuntimeError('no GPU')")
    with pytest.raises(CandidateError, match="'broken_kernel_a' imports 'no_such_package', which is not installed"):
        load("broken_kernel_a:f", tmp_path)
    with pytest.raises(CandidateError, match="importing 'broken_kernel_b' raised RuntimeError: no GPU"):
        load("broken_kernel_b:f", tmp_path)


def test_a_callable_is_known_by_its_attributes_its_signature_and_a_small_call(snapshot: SnapshotAssertion) -> None:
    def plain(q: Any, k: Any, v: Any, *, is_causal: bool, scale: float | None) -> Any:
        return reference_attention(q, k, v, is_causal=is_causal, scale=scale)[0].to(q.dtype).detach()

    def rich(
        q: Any, k: Any, v: Any, *, is_causal: bool, scale: Any, window_size: Any = None, softcap: Any = None
    ) -> Any:
        return reference_attention(q, k, v, is_causal=is_causal, scale=scale, window_size=window_size, softcap=softcap)

    poor = from_callable("mine:plain", plain, CPU)
    assert poor.claims.features == {"causal", "scale", "grouped-heads"}
    assert str(poor) == (snapshot)
    able = from_callable("mine:rich", rich, CPU)
    assert able.claims.features == {"causal", "scale", "grouped-heads", "window", "softcap"}
    assert able.logsumexp
    assert able.claims.lse_gradients
    plain.features, plain.max_head_dim, plain.dtypes = ("causal",), 64, (torch.bfloat16,)  # type: ignore[attr-defined]
    told = from_callable("mine:plain", plain, CPU).claims
    assert (told.features, max(told.head_dims), told.dtypes) == ({"causal"}, 64, ("bf16",))
    plain.features = ("casual",)  # type: ignore[attr-defined]
    with pytest.raises(CandidateError, match=r"mine:plain.features has casual; known are bottom-right, causal"):
        from_callable("mine:plain", plain, CPU)
