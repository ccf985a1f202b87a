"""Looking for NaN in a result takes next to no memory, whatever the result is."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from perflab.measure.memory.peak import cpu_allocations
from perflab.running.case.refusals import holds_nan

KINDS: dict[str, Callable[[], torch.Tensor]] = {
    "float32": lambda: torch.zeros(2048, 1024),
    "bfloat16": lambda: torch.zeros(2048, 1024, dtype=torch.bfloat16),
    "float64": lambda: torch.zeros(2048, 1024, dtype=torch.float64),
    "transposed": lambda: torch.zeros(1024, 2048).t(),
    "every other": lambda: torch.zeros(2048, 2048)[:, ::2],
    "with a graph": lambda: torch.zeros(2048, 1024, requires_grad=True) * 2,
    "complex": lambda: torch.zeros(2048, 1024, dtype=torch.complex64),
    "conjugate": lambda: torch.zeros(2048, 1024, dtype=torch.complex64).conj(),
    "float8": lambda: torch.zeros(4096, 4096).to(torch.float8_e5m2),
}


@pytest.mark.parametrize("kind", KINDS)
def test_the_look_takes_less_than_a_tenth_of_the_result(kind: str) -> None:
    result = KINDS[kind]()
    holds_nan(result)
    with cpu_allocations() as allocations:
        found = holds_nan(result)
    assert not found
    assert allocations.peak_bytes() < result.numel() * result.itemsize / 10


@pytest.mark.parametrize("kind", KINDS)
def test_one_nan_is_found_wherever_it_stands(kind: str) -> None:
    for place in ((0, 0), (-1, -1), (517, 333)):
        result = KINDS[kind]().detach()
        result[place] = float("nan")
        assert holds_nan(result)


def test_infinities_and_nothing_at_all_are_no_nan() -> None:
    assert not holds_nan(torch.tensor([float("inf"), float("-inf")]))
    assert not holds_nan(torch.empty(0, 3))
    assert not holds_nan(torch.arange(3))
    assert not holds_nan(torch.empty(3, device="meta"))
    assert holds_nan(torch.tensor(float("nan")))


def test_a_complex_number_is_nan_if_either_part_is() -> None:
    assert holds_nan(torch.complex(torch.tensor([0.0]), torch.tensor([float("nan")])).conj())
    assert holds_nan(torch.complex(torch.tensor([float("nan")]), torch.tensor([0.0])))
