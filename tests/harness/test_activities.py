"""What kineto's events record, told by PyTorch or deduced."""

from __future__ import annotations

import pytest
import torch

from perflab.internals.of_torch.machine import activity_of, deduced_activity, kineto_results
from perflab.measure.counts.events import profiler


def test_what_an_event_records_is_told_by_pytorch_or_deduced_alike() -> None:
    """PyTorch 2.11 does not tell; where it does, both agree on every event of a step with ranges and memory."""
    model, x = torch.nn.Linear(8, 8), torch.randn(4, 8)
    with profiler("cpu", profile_memory=True) as recorded, torch.profiler.record_function("a range"):
        model(x).sum().backward()
    events = kineto_results(recorded).events()
    kinds = {deduced_activity(one) for one in events}
    assert {"cpu_op", "user_annotation", "cpu_instant_event"} <= kinds
    assert [activity_of(one) for one in events] == [deduced_activity(one) for one in events]


class Told:
    """An event of kineto's with what 2.11 tells of it."""

    def __init__(self, name: str, is_of_host: bool = False, is_annotation: bool = False) -> None:
        self.name = lambda: name
        self.device_type = lambda: torch.autograd.DeviceType.CPU if is_of_host else torch.autograd.DeviceType.CUDA
        self.is_user_annotation = lambda: is_annotation


@pytest.mark.parametrize(
    ("event", "activity"),
    [
        (Told("cudaLaunchKernel", is_of_host=True), "cuda_runtime"),
        (Told("cuLaunchKernelEx", is_of_host=True), "cuda_runtime"),
        (Told("cumsum", is_of_host=True), "cpu_op"),
        (Told("aten::mm", is_of_host=True), "cpu_op"),
        (Told("forward", is_of_host=True, is_annotation=True), "user_annotation"),
        (Told("forward", is_annotation=True), "gpu_user_annotation"),
        (Told("Memcpy HtoD (Pageable -> Device)"), "gpu_memcpy"),
        (Told("Memset (Device)"), "gpu_memset"),
        (Told("void at::native::elementwise_kernel<4>"), "kernel"),
    ],
    ids=lambda value: value if isinstance(value, str) else value.name(),
)
def test_an_event_of_a_gpu_is_told_by_its_side_its_mark_and_its_name(event: Told, activity: str) -> None:
    assert activity_of(event) == activity
