"""Out of memory is told from other errors, on every device, with the size that was asked for."""

from __future__ import annotations

import pytest
import torch

from perflab.measure.machine.devices import as_out_of_memory
from perflab.results.measurement import OutOfMemory

GIB = 2**30


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
