"""What is true of attention whatever its numbers are, for shapes that hypothesis draws.

Each relation is between two calls of one candidate, so both sides may round: they are held to the budget's own terms,
the rounding of float32 times the size of the terms, or to equality where nothing is added in another order.
"""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from perflab.attention.candidate import Candidate
from perflab.attention.grid import HEADS, MASKS, SOFTCAPS, Case, feature_of_mask
from perflab.attention.hold import inputs_of
from perflab.attention.plain import attention_magnitudes

pytestmark = pytest.mark.correctness

lengths = st.integers(1, 70)


@st.composite
def cases(draw: Any, masks: tuple[str, ...] = tuple(MASKS)) -> Case:
    return Case(
        draw(lengths),
        draw(lengths),
        draw(st.integers(1, 48)),
        "fp32",
        mask=draw(st.sampled_from(masks)),
        softcap=draw(st.sampled_from(tuple(SOFTCAPS))),
        heads=draw(st.sampled_from(tuple(HEADS))),
        batch=draw(st.integers(1, 2)),
        data=draw(st.sampled_from(("", "large", "constant"))),
    )


def examples(candidate: Candidate) -> Any:
    """Few for what is slow; always the same."""
    if candidate.claims.interpreted or candidate.claims.few:
        pytest.skip(f"{candidate.name} takes seconds a shape; its cases are those of test_attention_suite.py")
    return settings(settings.get_profile("tests"), max_examples=20)


def supported(candidate: Candidate, case: Case) -> Case | None:
    needed = set(feature_of_mask(case.mask)) | ({"softcap"} if case.softcap else set())
    needed |= {"grouped-heads"} if HEADS[case.heads][0] != HEADS[case.heads][1] else set()
    return case if needed <= candidate.claims.features and case.dtype in candidate.claims.dtypes else None


def out_of(candidate: Candidate, inputs: dict[str, Tensor], **asked: Any) -> Tensor:
    try:
        returned = candidate.call(*inputs.values(), **asked)
    except (NotImplementedError, *candidate.refusals) as refusal:
        pytest.skip(f"{candidate.name}: {refusal}")
    return returned if isinstance(returned, Tensor) else returned[0]


def assert_near(one: Tensor, other: Tensor, inputs: dict[str, Tensor], **asked: Any) -> None:
    """Within twice the rounding of the terms, each way."""
    size = attention_magnitudes(*(x.double() for x in inputs.values()), upstream={}, **asked)["out"]
    assert bool(((one.double() - other.double()).abs() <= 4 * torch.finfo(torch.float32).eps * size).all())


@pytest.mark.parametrize("relation", ["keys-in-any-order", "values-scaled", "batches-apart", "heads-written-out"])
def test_a_relation_holds(candidate: Candidate, relation: str, device: torch.device) -> None:
    @examples(candidate)
    @given(cases(masks=("full",)) if relation == "keys-in-any-order" else cases())
    def check(case: Case) -> None:
        if supported(candidate, case) is None:
            return
        inputs, asked = dict(inputs_of(case, device)(0)), case.settings
        out = out_of(candidate, inputs, **asked)
        if relation == "keys-in-any-order":
            order = torch.randperm(case.n_k, generator=torch.Generator().manual_seed(0)).to(device)
            other = inputs | {"k": inputs["k"][:, :, order], "v": inputs["v"][:, :, order]}
            assert_near(out_of(candidate, other, **asked), out, inputs, **asked)
        elif relation == "values-scaled":  # by a power of two: exact
            assert torch.equal(out_of(candidate, inputs | {"v": inputs["v"] * 4}, **asked), out * 4)
        elif relation == "batches-apart":
            alone = {name: x[:1] for name, x in inputs.items()}
            assert_near(out_of(candidate, alone, **asked), out[:1], alone, **asked)
        else:
            group = inputs["q"].shape[1] // inputs["k"].shape[1]
            written = {name: x if name == "q" else x.repeat_interleave(group, 1) for name, x in inputs.items()}
            assert_near(out_of(candidate, written, **asked), out, inputs, **asked)

    check()


def test_later_keys_change_nothing_for_earlier_queries(candidate: Candidate, device: torch.device) -> None:
    @examples(candidate)
    @given(cases(masks=("causal",)), st.integers(1, 70))
    def check(case: Case, seen: int) -> None:
        if supported(candidate, case) is None or seen >= case.n_k:
            return
        inputs, asked = dict(inputs_of(case, device)(0)), case.settings
        other = {name: x.clone() for name, x in inputs.items()}
        other["k"][:, :, seen:], other["v"][:, :, seen:] = 17.0, -29.0
        one, two = (out_of(candidate, x, **asked)[:, :, :seen] for x in (inputs, other))
        assert torch.equal(one, two)

    check()


def test_a_window_that_holds_everything_is_no_window(candidate: Candidate, device: torch.device) -> None:
    if "window" not in candidate.claims.features:
        pytest.skip(f"{candidate.name} does not claim window")

    @examples(candidate)
    @given(cases(masks=("full",)))
    def check(case: Case) -> None:
        if supported(candidate, case) is None:
            return
        inputs, asked = dict(inputs_of(case, device)(0)), case.settings
        wide = out_of(candidate, inputs, **asked, window_size=(70, 70))
        assert_near(wide, out_of(candidate, inputs, **asked), inputs, **asked)

    check()
