"""Golden tensors see a change of the mathematics, and not another order of additions."""

import re

import pytest
import torch

from perflab.correctness.golden import GoldenTensors, differences

KEPT = torch.tensor([[0.1, -2.0, 3e-17], [torch.inf, -torch.inf, 0.5]], dtype=torch.float64)


def written(**tensors: torch.Tensor) -> str:
    return GoldenTensors.serialize(None, tensors)  # type: ignore[arg-type]


def test_golden_tensors_are_read_back_bit_by_bit_and_another_order_of_additions_is_no_change() -> None:
    assert list(differences(written(out=KEPT), written(out=KEPT))) == []
    assert '"0.1 -2.0 3e-17"' in written(out=KEPT)
    terms = torch.sin(torch.arange(1000, dtype=torch.float64))
    one, other = terms.sum(), terms.flip(0).cumsum(0)[-1]
    assert one != other
    scaled = torch.stack([one, terms.abs().max()]), torch.stack([other, terms.abs().max()])
    assert list(differences(*(written(sum=x) for x in scaled))) == []


def test_a_change_of_a_billionth_is_seen_with_its_place() -> None:
    changed = KEPT.clone()
    changed[0, 1] += 1e-9
    (line,) = differences(written(out=changed), written(out=KEPT))
    assert line.startswith("out[0, 1]: got -1.999999999, kept -2.0, error 1e-09, budget 2.84e-14; 1 of 6 elements")


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        ({"out": KEPT.T}, r"out: its shape is \[3, 2\], kept \[2, 3\]"),
        ({"lse": KEPT}, "out is missing"),
        ({"out": torch.where(torch.inf == KEPT, torch.nan, KEPT)}, r"out\[1, 0\]: got nan, kept inf, error inf"),
    ],
)
def test_other_shapes_names_and_infinities_are_seen(changed: dict[str, torch.Tensor], text: str) -> None:
    lines = list(differences(written(**changed), written(out=KEPT)))
    assert any(re.match(text, line) for line in lines)


def test_what_is_no_golden_tensor_is_refused() -> None:
    with pytest.raises(TypeError, match=r"'out' is torch.float32, wanted float64"):
        written(out=KEPT.float())
    with pytest.raises(TypeError, match=r"a tensor or \{name: tensor\}, got list"):
        GoldenTensors.serialize(None, [1.0])  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="has 5000 elements, 4096 at most"):
        written(out=torch.zeros(5000, dtype=torch.float64))


def test_the_extension_updates_compares_and_says_what_changed(pytester: pytest.Pytester) -> None:
    test = """
        import torch
        from perflab.correctness.golden import GoldenTensors
        def test_it(snapshot):
            assert torch.tensor([1.0, {}], dtype=torch.float64) == snapshot.use_extension(GoldenTensors)
    """
    options = ("-p", "no:perflab.plugin", "-p", "no:cacheprovider")
    for number, arguments, outcome in (
        ("2.0", ("--snapshot-update",), "passed"),
        ("2.0", (), "passed"),
        ("2.1", (), "failed"),
    ):
        pytester.makepyfile(test_golden=test.format(number))
        result = pytester.runpytest_inprocess(*options, *arguments)
        result.assert_outcomes(**{outcome: 1})
    result.stdout.fnmatch_lines(["*value[[]1[]]: got 2.1, kept 2.0, error 0.1, budget 2.84e-14*"])
