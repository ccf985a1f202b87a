"""Devices: which one a name means, what is said if it is not there, how much room there is.

Also what an error for want of memory is, and at what rate a device multiplies.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from perflab.base.errors import DeviceError, UsageError
from perflab.devices import cpu
from perflab.devices.backend import Backend
from perflab.devices.cpu import Cpu
from perflab.devices.kinds import CHOICES, backend_of, resolve_device
from perflab.measure.machine import devices
from perflab.measure.machine.devices import (
    as_dtype,
    as_out_of_memory,
    autocast_on,
    available_bytes,
    current_device,
    matmul_flops_per_second,
    precision_of_products,
    release_memory,
    synchronize,
)
from perflab.results.measurement import OutOfMemory

CPU = torch.device("cpu")
GPU = torch.device("cuda", 0)
Gpus = Callable[[int], None]
GIB = 2**30
CUDA = GPU


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> Gpus:
    """Pretend that so many CUDA devices are there."""

    def pretend(count: int) -> None:
        monkeypatch.setattr(torch.cuda, "is_available", lambda: count > 0)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
        monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda check_available: GPU if count else None)

    return pretend


# --- names -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["tpu", "", "CPU", "cuda:", "cuda:-1", "cuda:x", "cuda0", "cpu:0", " cpu"])
def test_a_name_that_is_no_device_is_refused_with_the_choices(name: str) -> None:
    with pytest.raises(DeviceError) as caught:
        resolve_device(name)
    assert str(caught.value) == f"{name!r} is not a device\n  -> use --perf-device={CHOICES}"


@pytest.mark.parametrize("name", ["cuda", "cuda:0", "cuda:3"])
@pytest.mark.parametrize(("built_for", "why"), [(None, "was built without CUDA"), ("13.0", "sees no CUDA device")])
def test_cuda_that_is_not_there_says_why_and_what_to_do(
    gpus: Gpus, monkeypatch: pytest.MonkeyPatch, name: str, built_for: str | None, why: str
) -> None:
    gpus(0)
    monkeypatch.setattr(torch.version, "cuda", built_for)
    with pytest.raises(DeviceError) as caught:
        resolve_device(name)
    assert f"--perf-device={name}, but PyTorch {torch.__version__} {why}" in str(caught.value)
    assert "use --perf-device=cpu or auto" in str(caught.value)


@pytest.mark.parametrize("name", ["cuda:2", "cuda:10"])
def test_a_number_beyond_the_devices_names_those_that_are_there(gpus: Gpus, name: str) -> None:
    gpus(2)
    with pytest.raises(DeviceError) as caught:
        resolve_device(name)
    assert f"--perf-device={name}, but the CUDA devices here are cuda:0 to cuda:1" in str(caught.value)
    assert "CUDA_VISIBLE_DEVICES" in str(caught.value)


def test_auto_is_a_gpu_where_there_is_one_and_workers_spread_over_them(gpus: Gpus) -> None:
    gpus(0)
    assert resolve_device("auto") == CPU
    gpus(1)
    assert resolve_device("auto") == GPU
    gpus(4)
    assert resolve_device("cpu", worker=3) == CPU
    gpus(2)
    for name in ("auto", "cuda"):
        assert [resolve_device(name, worker).index for worker in range(4)] == [0, 1, 0, 1]
    assert {resolve_device("cuda:1", worker).index for worker in range(4)} == {1}


# --- waiting and releasing ---------------------------------------------------------------------------------------


def test_a_gpu_is_waited_for_and_emptied_and_a_cpu_is_neither(monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[object] = []
    monkeypatch.setattr(torch.cuda, "synchronize", waited.append)
    synchronize(CPU)
    assert waited == []
    synchronize(GPU)
    assert waited == [GPU]
    done: list[str] = []
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: done.append("emptied"))
    monkeypatch.setattr(Backend, "await_autograd", lambda _: done.append("awaited"))
    release_memory(CPU)
    assert done == []
    release_memory(GPU)
    assert done == ["awaited", "emptied"]
    monkeypatch.setattr(torch.cuda, "device", None)
    with current_device(CPU):
        pass


# --- precision ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "dtype"),
    [
        ("fp32", torch.float32),
        ("fp16", torch.float16),
        ("bf16", torch.bfloat16),
        ("bfloat16", torch.bfloat16),
        ("float64", torch.float64),
        (torch.bfloat16, torch.bfloat16),
        (None, None),
    ],
)
def test_a_precision_is_read_by_its_short_and_its_full_name(
    given: torch.dtype | str | None, dtype: torch.dtype | None
) -> None:
    assert as_dtype(given) is dtype


@pytest.mark.parametrize("given", ["int64", "bool", "tf32", "Tensor", "nn", "", "FP32", 16])
def test_what_is_no_precision_is_refused_with_the_choices(given: str) -> None:
    with pytest.raises(UsageError) as caught:
        as_dtype(given)
    assert str(caught.value) == f"{given!r} is not a precision\n  -> use fp32, fp16, bf16 or a torch.dtype"


@pytest.mark.parametrize("precision", ["fp32", "float32", torch.float32, None])
def test_autocast_to_float32_is_none(precision: torch.dtype | str | None) -> None:
    with autocast_on(CPU, precision):
        assert not torch.is_autocast_enabled("cpu")
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype is torch.float32


@pytest.mark.parametrize(("precision", "dtype"), [("bf16", torch.bfloat16), ("fp16", torch.float16)])
def test_autocast_to_a_low_precision_reaches_a_matrix_product_and_ends_with_its_block(
    precision: str, dtype: torch.dtype
) -> None:
    with autocast_on(CPU, precision):
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype is dtype
    assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype is torch.float32


# --- room --------------------------------------------------------------------------------------------------------


def cgroup(folder: Path, limit: str, used: str, stat: str | None = None) -> int | None:
    (folder / "memory.max").write_text(f"{limit}\n")
    (folder / "memory.current").write_text(f"{used}\n")
    if stat is not None:
        (folder / "memory.stat").write_text(stat)
    return cpu._cgroup_available_bytes(str(folder))


CACHED = "anon 1000\nfile 2000\ninactive_file 1500\nactive_file 500\n"
CONTAINERS: dict[str, tuple[str, str, str | None, int | None]] = {
    "below its limit": ("8000", "3000", None, 5000),
    "beyond its limit": ("8000", "9000", None, 0),
    "without a limit": ("max", "3000", None, None),
    "with files that the kernel merely caches": ("8000", "3000", CACHED, 6500),
    "whose use cannot be read": ("8000", "", None, None),
    "whose limit cannot be read": ("", "3000", None, None),
    "of which nothing can be read": ("", "", None, None),
}


@pytest.mark.parametrize(("limit", "used", "stat", "room"), CONTAINERS.values(), ids=CONTAINERS)
def test_a_container_has_the_room_below_its_limit_as_far_as_it_is_known(
    tmp_path: Path, limit: str, used: str, stat: str | None, room: int | None
) -> None:
    assert cgroup(tmp_path, limit, used, stat) == room


def test_without_a_container_there_is_no_limit_of_one(tmp_path: Path) -> None:
    assert cpu._cgroup_available_bytes(str(tmp_path)) is None


@pytest.mark.parametrize(
    ("system", "group", "room"), [(10, 4, 4), (4, 10, 4), (10, None, 10), (None, 4, 4), (None, None, None), (10, 0, 0)]
)
def test_the_room_on_a_cpu_is_the_smaller_of_the_systems_and_the_containers(
    monkeypatch: pytest.MonkeyPatch, system: int | None, group: int | None, room: int | None
) -> None:
    monkeypatch.setattr(cpu, "_proc_available_bytes", lambda: system)
    monkeypatch.setattr(cpu, "_cgroup_available_bytes", lambda: group)
    assert available_bytes(CPU) == room


def test_the_room_on_a_gpu_is_what_is_free_and_what_pytorch_keeps_for_later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _device: (100, 1000))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda _device: 60)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda _device: 40)
    assert available_bytes(GPU) == 120


def raised_by_the_cpu_allocator(size_bytes: int) -> BaseException:
    with pytest.raises(RuntimeError) as caught:
        torch.empty(size_bytes, dtype=torch.uint8)
    return caught.value


def test_the_cpu_allocators_refusal_is_out_of_memory_with_its_size() -> None:
    assert as_out_of_memory(raised_by_the_cpu_allocator(2**50)) == OutOfMemory(asked_bytes=2**50)


@pytest.mark.parametrize(
    ("text", "asked_bytes"),
    [
        (
            "CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has a total capacity of 139.80 GiB of which "
            "1.25 GiB is free. Including non-PyTorch memory, this process has 138.54 GiB memory in use.",
            20 * GIB,
        ),
        ("CUDA out of memory. Tried to allocate 2.50 MiB. GPU 0 has a total capacity of 1.00 GiB.", 5 * 2**19),
        ("HIP out of memory. Tried to allocate 512 bytes.", 512),
        ("CUDA out of memory. Tried to allocate more than 1EB memory.", None),
        ("out of memory", None),
        ("", None),
    ],
)
def test_a_gpus_refusal_is_out_of_memory_with_the_size_that_its_text_tells(text: str, asked_bytes: int | None) -> None:
    assert as_out_of_memory(torch.OutOfMemoryError(text)) == OutOfMemory(asked_bytes=asked_bytes)


@pytest.mark.parametrize("error", [MemoryError(), MemoryError("Unable to allocate 8.00 PiB for an array")])
def test_pythons_own_memory_error_is_out_of_memory(error: MemoryError) -> None:
    assert as_out_of_memory(error) == OutOfMemory(asked_bytes=None)


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("mat1 and mat2 shapes cannot be multiplied (2x3 and 2x3)"),
        RuntimeError("Storage size calculation overflowed with sizes=[2305843009213693952]"),
        RuntimeError("CUDA error: an illegal memory access was encountered"),
        ValueError("can't allocate memory"),
        OSError(12, "Cannot allocate memory"),
        AssertionError("out of memory"),
        KeyboardInterrupt(),
    ],
    ids=lambda error: f"{type(error).__name__}: {error}"[:40],
)
def test_other_errors_are_not_out_of_memory(error: BaseException) -> None:
    assert as_out_of_memory(error) is None


def test_out_of_memory_behind_another_error_is_not_taken_for_it() -> None:
    def work() -> None:
        try:
            torch.empty(2**50)
        except RuntimeError as error:
            raise ValueError("the batch is too large") from error

    with pytest.raises(ValueError, match="too large") as caught:
        work()
    assert as_out_of_memory(caught.value) is None


@pytest.fixture
def short_looks(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(devices, "_rates", {})
    monkeypatch.setattr(devices, "_SECONDS", 0.01)
    monkeypatch.setattr(Cpu, "matmul_side", 64)
    before = torch.get_float32_matmul_precision()
    yield
    torch.set_float32_matmul_precision(before)


@pytest.mark.usefixtures("short_looks")
@pytest.mark.parametrize("looks", [1, 2])
def test_random_numbers_after_a_look_at_the_rate_are_those_without_it(looks: int) -> None:
    torch.manual_seed(3)
    without = torch.rand(8)
    torch.manual_seed(3)
    for _ in range(looks):
        assert matmul_flops_per_second(CPU, torch.float32) > 0
    assert torch.equal(torch.rand(8), without)


@pytest.mark.usefixtures("short_looks")
@pytest.mark.parametrize("device", [CPU, CUDA])
def test_products_in_tf32_have_a_rate_and_a_name_of_their_own(device: torch.device) -> None:
    torch.set_float32_matmul_precision("highest")
    assert precision_of_products(device, torch.float32) == "float32"
    torch.set_float32_matmul_precision("high")
    assert precision_of_products(device, torch.float32) == "tf32"
    assert precision_of_products(device, torch.bfloat16) == "bfloat16"


@pytest.mark.usefixtures("short_looks")
def test_a_rate_in_tf32_is_not_told_for_float32() -> None:
    torch.set_float32_matmul_precision("high")
    key = ("cpu", "tf32")
    devices._rates[key] = 1e30  # no machine has it: a look in float32 that tells it has mixed them up
    torch.set_float32_matmul_precision("highest")
    assert matmul_flops_per_second(CPU, torch.float32) < 1e30
    torch.set_float32_matmul_precision("high")
    assert matmul_flops_per_second(CPU, torch.float32) == 1e30


def test_a_device_that_is_not_in_use_is_not_started_to_wait_for_its_autograd(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    monkeypatch.setattr(torch, "empty", None)  # the tensor would start it
    backend_of(GPU).await_autograd()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_on_cuda_no_gradient_of_a_finished_backward_counts_as_memory_in_use() -> None:
    """Autograd's thread drops results after ``grad`` has returned: in one of twenty calls, after the next statement."""
    backend = backend_of(torch.device("cuda", 0))
    x = torch.zeros(256, device=backend.device, requires_grad=True)
    before = backend.allocated_bytes()
    for _ in range(1000):
        torch.autograd.grad(x * 2, x, x)
        backend.await_autograd()
        assert backend.allocated_bytes() == before
