"""Results of every kind of number are compared: complex, integers, bool, 8 bit; and what rounding decides is known."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from perflab.base.errors import UsageError
from perflab.correctness import verify
from perflab.correctness.definition import Definition

Inputs = dict[str, Tensor]


def normal(seed: int) -> Inputs:
    return {"x": torch.randn(64, 128, generator=torch.Generator().manual_seed(seed))}


def complex_normal(seed: int) -> Inputs:
    return {"x": torch.randn(8, 16, dtype=torch.complex64, generator=torch.Generator().manual_seed(seed))}


def large(seed: int) -> Inputs:
    return {"x": torch.randint(2**60, 2**62, (64,), generator=torch.Generator().manual_seed(seed))}


def scaled_to(dtype: torch.dtype, factor: float = 100.0) -> Callable[[Tensor], Tensor]:
    def scaled(x: Tensor) -> Tensor:
        return (x.abs() * factor).to(dtype)

    return scaled


def transform(x: Tensor) -> Tensor:
    found: Tensor = torch.fft.fft(x)
    return found


def quantised(x: Tensor) -> tuple[Tensor, Tensor]:
    scale = x.abs().amax(-1, keepdim=True) / 32767
    return (x / scale).round().to(torch.int16), scale


def quantised_by_the_reciprocal(x: Tensor, step: int = 0) -> tuple[Tensor, Tensor]:
    largest = x.abs().amax(-1, keepdim=True)
    found = (x * (32767 / largest)).round()
    found[0, 0] += step
    return found.to(torch.int16), largest / 32767


RIGHT_AND_WRONG: dict[str, tuple[Callable[[int], Inputs], Any, Any]] = {
    "the sign of imaginary parts": (complex_normal, transform, lambda x: transform(x).conj().resolve_conj()),
    "the last bits of large integers": (large, lambda x: x + 1, lambda x: x + 3),
    "an index": (normal, lambda x: x.argmax(-1), lambda x: x.argmax(-1).clamp(1)),
    "a mask": (normal, lambda x: x > 0, lambda x: x > -0.01),
    **{
        f"{dtype}": (normal, scaled_to(dtype), scaled_to(dtype, 120.0))
        for dtype in (torch.int8, torch.uint16, torch.float8_e4m3fn, torch.float8_e5m2fnuz, torch.float8_e8m0fnu)
    },
}


@pytest.mark.parametrize("what", RIGHT_AND_WRONG)
def test_a_right_result_of_any_kind_is_right_and_a_wrong_one_wrong(what: str) -> None:
    make, right, wrong = RIGHT_AND_WRONG[what]
    assert all(report.ok for report in verify(right, make, reference=right, plain=right))
    with pytest.raises(AssertionError, match="out is wrong"):
        verify(wrong, make, reference=right, plain=right)
    definition = Definition(right, right, make(0))
    inputs = make(1)
    assert definition.wrong(inputs, {"out": right(inputs["x"])}) == ""
    assert "out is wrong" in (definition.wrong(inputs, {"out": wrong(inputs["x"])}) or "")


def test_a_conjugate_that_is_only_marked_is_compared() -> None:
    def of(x: Tensor) -> Tensor:
        return transform(x).conj().resolve_conj()

    verify(lambda x: transform(x).conj(), complex_normal, reference=of, plain=of)


def test_a_quantiser_may_round_ties_otherwise_and_nothing_else() -> None:
    definition = Definition(quantised, quantised, normal(0))
    differing = 0
    for seed in range(4):
        inputs = normal(seed)
        got, scale = quantised_by_the_reciprocal(inputs["x"])
        differing += int((got != quantised(**inputs)[0]).sum())
        assert definition.wrong(inputs, {"out": got, "out1": scale}) == ""
    assert differing, "no draw has had a tie"
    fresh = Definition(quantised, quantised, normal(0))
    got, scale = quantised_by_the_reciprocal(normal(1)["x"], step=20)
    assert "elements are off" in (fresh.wrong(normal(1), {"out": got, "out1": scale}) or "")


def test_equal_numbers_may_be_found_in_either_order_and_others_not() -> None:
    def make(seed: int) -> Inputs:
        x = normal(seed)["x"]
        x[:, 100] = x[:, 7] = x.amax(-1)
        return {"x": x}

    def one_at(place: int) -> Callable[[Tensor], Tensor]:
        def found(x: Tensor) -> Tensor:
            indices = x.argmax(-1)
            indices[0] = place
            return indices

        return found

    def first(x: Tensor) -> Tensor:
        return x.argmax(-1)

    verify(one_at(100), make, reference=first, plain=first)
    inputs = make(1)
    assert Definition(first, first, make(0)).wrong(inputs, {"out": one_at(100)(inputs["x"])}) == ""
    for place, given in ((100, normal), (50, make)):  # there is no tie, and no third value is right at one
        with pytest.raises(AssertionError, match="1 of 64 elements are off"):
            verify(one_at(place), given, reference=first, plain=first)


def sorted_last_first(x: Tensor) -> tuple[Tensor, Tensor]:
    values, places = x.flip(-1).sort(stable=True, dim=-1, descending=True)
    return values, x.shape[-1] - 1 - places


def first_place_of_each(x: Tensor) -> tuple[Tensor, Tensor]:
    values = x.sort(-1, descending=True).values
    return values, (x[:, None] == values[..., None]).float().argmax(-1)


def two_places_exchanged(x: Tensor) -> tuple[Tensor, Tensor]:
    values, places = sorted_last_first(x)
    places[3, :8] = places[3, :8].flip(0)
    return values, places


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_equal_numbers_of_a_sorted_row_may_be_in_any_order_and_each_is_found_once(dtype: torch.dtype) -> None:
    for shares in (1, 8):  # all of a row, and the first of it, as a router's experts are chosen

        def best(form: Callable[..., Any], x: Tensor, shares: int = shares) -> tuple[Tensor, ...]:
            return tuple(one[:, : x.shape[1] // shares].contiguous() for one in form(x))

        def descending(x: Tensor) -> tuple[Tensor, ...]:
            return best(lambda x: x.sort(-1, descending=True), x)

        for seed in range(1, 4):
            x = normal(seed)["x"].to(dtype)
            x[:, 5] = x[:, 9] = x[:, 100] = x.amax(-1)
            definition = Definition(descending, descending, {"x": x})
            values, places = best(sorted_last_first, x)
            assert int((places != descending(x)[1]).sum()) > 64
            assert definition.wrong({"x": x}, {"out": values, "out1": places}) == ""
            for wrong in (first_place_of_each, two_places_exchanged):
                values, places = best(wrong, x)
                assert "out1 is wrong" in (definition.wrong({"x": x}, {"out": values, "out1": places}) or "")


def test_an_index_is_lost_along_any_dimension_and_indices_of_several_rows_are_no_row() -> None:
    x = normal(1)["x"].bfloat16()
    for dim, given in ((0, x[0].contiguous()), (0, x)):

        def ascending(x: Tensor, dim: int = dim) -> tuple[Tensor, ...]:
            return tuple(x.sort(dim=dim, stable=True))

        values, places = ascending(given)
        rows, ordered = places.movedim(dim, -1).clone(), values.movedim(dim, -1)
        rows[..., 1:] = torch.where(ordered[..., 1:] == ordered[..., :-1], rows[..., :-1], rows[..., 1:])
        definition = Definition(ascending, ascending, {"x": given})
        told = definition.wrong({"x": given}, {"out": values, "out1": rows.movedim(-1, dim)})
        assert "out1 is wrong" in (told or "")

    def best(x: Tensor) -> Tensor:
        return x.argmax(-1)

    both = normal(1)["x"][:2, :16].reshape(1, 2, 16)
    both[0, 0, 3] = both[0, 0, 7] = both[0, 1, 7] = 5.0
    definition = Definition(best, best, {"x": both})
    assert definition.wrong({"x": both}, {"out": torch.tensor([[7, 7]])}) == ""  # one of each row


def test_zeros_of_a_row_may_be_found_in_any_order() -> None:
    x = normal(1)["x"][:8, :64].relu()

    def largest(x: Tensor) -> tuple[Tensor, ...]:
        return tuple(x.topk(40))

    values, places = sorted_last_first(x)
    found = {"out": values[:, :40].contiguous(), "out1": places[:, :40].contiguous()}
    assert int((found["out1"] != largest(x)[1]).sum()) > 8
    assert Definition(largest, largest, {"x": x}).wrong({"x": x}, found) == ""


def test_an_index_that_a_constant_decides_is_no_matter_of_order() -> None:
    x = torch.rand(64, 64, generator=torch.Generator().manual_seed(0)).bfloat16()
    edges = torch.arange(0, 1, 0.0625)

    def bucket(x: Tensor, right: bool = False) -> Tensor:
        return torch.bucketize(x.contiguous(), edges.to(x.dtype), right=right)

    definition = Definition(bucket, bucket, {"x": x})
    off = int((bucket(x) != bucket(x, right=True)).sum())
    assert off > 64
    assert f"{off} of 4096 elements are off" in (definition.wrong({"x": x}, {"out": bucket(x, right=True)}) or "")


def test_whole_numbers_have_no_ties() -> None:
    def make(seed: int) -> Inputs:
        return {"x": torch.randint(1, 100, (64, 64), generator=torch.Generator().manual_seed(seed)).float()}

    def whole(x: Tensor) -> Tensor:
        return x.to(torch.int32)

    def one_less(x: Tensor) -> Tensor:
        found = whole(x)
        found[5] -= 1
        return found

    with pytest.raises(AssertionError, match="64 of 4096 elements are off"):
        verify(one_less, make, reference=whole, plain=whole)


@pytest.mark.parametrize("few", [2, 2048])
def test_small_elements_of_many_sizes_are_looked_at_as_well(few: int) -> None:
    def spread(x: Tensor, kept: float = 1.0) -> Tensor:
        small = torch.logspace(-36, 2, few, dtype=x.dtype) * kept
        return torch.cat((small, 1e9 * (1 + x.flatten()[: few + 1].abs())))

    definition = Definition(spread, spread, normal(0))
    x = normal(1)["x"]
    assert definition.wrong({"x": x}, {"out": spread(x)}) == ""
    assert "no digit is right in its smaller half" in (definition.wrong({"x": x}, {"out": spread(x, 0.0)}) or "")


@pytest.mark.parametrize("rows", [(10, 60, 64), (64, 40, 0), (0, 4, 96)])
def test_elements_of_a_size_that_larger_ones_hide_are_looked_at(rows: tuple[int, int, int]) -> None:
    large, middle, small = rows

    def levels(x: Tensor, kept: float = 1.0) -> Tensor:
        x = torch.cat((x, x))
        return torch.cat((x[:large] * 1e9, x[:middle] * kept, x[:small] * 1e-9))

    def with_large(x: Tensor, kept: float = 1.0) -> Tensor:
        found = levels(x, kept)
        found[-1] = 1e9
        return found

    definition = Definition(with_large, with_large, normal(0))
    inputs = normal(1)
    assert definition.wrong(inputs, {"out": with_large(inputs["x"])}) == ""
    assert "no digit is right in elements of 1e" in (
        definition.wrong(inputs, {"out": with_large(inputs["x"], 0.0)}) or ""
    )
    verify(with_large, normal, reference=with_large, plain=with_large)
    with pytest.raises(AssertionError, match="no digit is right in elements of 1e"):
        verify(lambda x: with_large(x, 0.0), normal, reference=with_large, plain=with_large)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_elements_of_pure_rounding_have_no_digit_to_be_right(dtype: torch.dtype) -> None:
    """Where the means of constant rows are taken off, what is left is rounding, and plain may have the same one."""

    def make(seed: int) -> dict[str, Tensor]:
        x = normal(seed)["x"][:8, :7].to(dtype)
        x[:4] = x[:4, :1]
        return {"x": x}

    def centred(x: Tensor) -> Tensor:
        return x.to(dtype) - x.to(dtype).mean(-1, keepdim=True)

    def summed(x: Tensor) -> Tensor:
        return x - (x / x.shape[-1]).sum(-1, keepdim=True)

    def magnitudes(x: Tensor, upstream: object) -> dict[str, Tensor]:
        return {"out": x.abs().amax(-1, keepdim=True)}

    verify(summed, make, reference=centred, plain=centred, multiple=8.0)
    verify(summed, make, reference=centred, plain=centred, multiple=8.0, magnitudes=magnitudes)


def test_a_random_reference_is_refused_and_one_that_repeats_itself_is_not() -> None:
    def dropped(x: Tensor) -> Tensor:
        return torch.nn.functional.dropout(x)

    def drawing(x: Tensor) -> Tensor:
        torch.rand(1)
        return x * 2

    with pytest.raises(ValueError, match="the reference returned other results for the same inputs"):
        verify(torch.zeros_like, normal, reference=dropped, plain=dropped)
    verify(lambda x: x * 2, normal, reference=drawing, plain=drawing)


def test_a_random_plain_beside_a_reference_that_repeats_itself_is_refused() -> None:
    def dropped(x: Tensor) -> Tensor:
        return torch.nn.functional.dropout(x) / 2

    def halved(x: Tensor) -> Tensor:
        return x / 2

    def drawing(x: Tensor) -> Tensor:
        torch.rand(1)
        return x / 2

    with pytest.raises(ValueError, match="plain returned other results for the same inputs"):
        verify(halved, normal, reference=halved, plain=dropped)
    with pytest.raises(UsageError, match="in the inputs' own precision returned other results"):
        Definition(halved, dropped, normal(0))
    verify(halved, normal, reference=halved, plain=drawing)
    Definition(halved, drawing, normal(0))


INDICES: dict[str, Callable[[Tensor], Tensor]] = {
    "argmax": lambda x: x.argmax(-1),
    "topk": lambda x: x.topk(8).indices,
    "sort": lambda x: x.argsort(-1),
}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("which", INDICES)
def test_an_index_of_values_that_were_rounded_may_be_another_at_a_tie_and_nowhere_else(
    which: str, dtype: torch.dtype
) -> None:
    index = INDICES[which]

    def make(seed: int) -> Inputs:
        generator = torch.Generator().manual_seed(seed)
        return {name: torch.randn(rows, 64, generator=generator).to(dtype) for name, rows in (("x", 256), ("w", 64))}

    def of_product(x: Tensor, w: Tensor) -> Tensor:
        return index(x @ w)

    def of_sums(x: Tensor, w: Tensor) -> Tensor:
        return index(x[:, :32] @ w[:32] + x[:, 32:] @ w[32:])

    def exactly(x: Tensor, w: Tensor) -> Tensor:
        return index(x.float() @ w.float())

    def first_rows(x: Tensor, w: Tensor) -> Tensor:
        found = of_product(x, w)
        found[::8] = (found[::8] + 1) % 64
        return found

    def coarsely(x: Tensor, w: Tensor) -> Tensor:  # nearly every index of these is at a tie
        return index((x.float() @ w.float()).to(torch.float8_e4m3fn).float())

    definition = Definition(of_product, of_product, make(0))
    for seed in range(1, 5):
        inputs = make(seed)
        for right in (of_product, of_sums, exactly):
            assert definition.wrong(inputs, {"out": right(**inputs)}) == ""
        for wrong in (first_rows, coarsely):
            assert "elements are off" in (definition.wrong(inputs, {"out": wrong(**inputs)}) or "")


def test_a_definition_that_writes_to_its_inputs_leaves_ties_where_they_are() -> None:
    def negated(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        x.mul_(-1)
        return x, (x @ w).argmax(-1)

    for seed in range(2):
        generator = torch.Generator().manual_seed(seed)
        x, w = (torch.randn(rows, 64, generator=generator).bfloat16() for rows in (256, 64))
        definition = Definition(negated, negated, {"x": x, "w": w})
        scores = -x[:, :32] @ w[:32] + -x[:, 32:] @ w[32:]
        indices = scores.argmax(-1)
        assert definition.wrong({"x": x, "w": w}, {"out": -x, "out1": indices}) == ""
        indices[:4] = scores[:4].argmin(-1)
        assert definition.wrong({"x": x, "w": w}, {"out": -x, "out1": indices})


def test_a_definition_that_does_not_take_the_inputs_precision_is_refused_with_a_remedy() -> None:
    x = torch.eye(4, dtype=torch.bfloat16)
    with pytest.raises(UsageError, match="the definition raised for inputs in their own precision"):
        Definition(torch.linalg.cholesky, torch.linalg.cholesky, {"x": x})


def test_one_number_that_the_definition_has_right_by_chance_allows_other_orders_of_its_sum() -> None:
    other_orders: list[Callable[[Tensor], Tensor]] = [lambda x: x.sum(0).sum(), lambda x: x.T.contiguous().sum()]
    for seed in (47, 54):
        given = {"x": torch.randn(128, 1000, generator=torch.Generator().manual_seed(seed))}
        definition = Definition(torch.sum, torch.sum, given)
        for form in other_orders:
            assert definition.wrong(given, {"out": form(given["x"])}) == ""
        assert definition.wrong(given, {"out": given["x"][:, :-1].sum()})
