"""The rate of plain products: it leaves the process as it is, and is known by what products are computed in."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from perflab.devices.cpu import Cpu
from perflab.measure.machine import devices
from perflab.measure.machine.devices import matmul_flops_per_second, precision_of_products

CPU, CUDA = torch.device("cpu"), torch.device("cuda", 0)


@pytest.fixture(autouse=True)
def switches_as_they_were(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(devices, "_rates", {})
    monkeypatch.setattr(devices, "_SECONDS", 0.01)
    monkeypatch.setattr(Cpu, "matmul_side", 64)
    before = torch.get_float32_matmul_precision()
    yield
    torch.set_float32_matmul_precision(before)


@pytest.mark.parametrize("looks", [1, 2])
def test_random_numbers_after_a_look_at_the_rate_are_those_without_it(looks: int) -> None:
    torch.manual_seed(3)
    without = torch.rand(8)
    torch.manual_seed(3)
    for _ in range(looks):
        assert matmul_flops_per_second(CPU, torch.float32) > 0
    assert torch.equal(torch.rand(8), without)


@pytest.mark.parametrize("device", [CPU, CUDA])
def test_products_in_tf32_have_a_rate_and_a_name_of_their_own(device: torch.device) -> None:
    torch.set_float32_matmul_precision("highest")
    assert precision_of_products(device, torch.float32) == "float32"
    torch.set_float32_matmul_precision("high")
    assert precision_of_products(device, torch.float32) == "tf32"
    assert precision_of_products(device, torch.bfloat16) == "bfloat16"


def test_a_rate_in_tf32_is_not_told_for_float32() -> None:
    torch.set_float32_matmul_precision("high")
    key = ("cpu", "tf32")
    devices._rates[key] = 1e30  # no machine has it: a look in float32 that tells it has mixed them up
    torch.set_float32_matmul_precision("highest")
    assert matmul_flops_per_second(CPU, torch.float32) < 1e30
    torch.set_float32_matmul_precision("high")
    assert matmul_flops_per_second(CPU, torch.float32) == 1e30
