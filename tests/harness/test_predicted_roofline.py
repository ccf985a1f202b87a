"""Roofline times, held to their definition on products and copies that can be reckoned by hand."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perflab.predicted.gpus import GPUS, Gpu, bound_ns, rate_of, roofline_ns
from perflab.predicted.run.exploring import with_estimate
from perflab.predicted.trace.trace import Op, Place
from tests.harness import make

H100, V100, A100 = GPUS["h100"], GPUS["v100-32gb"], GPUS["a100-80gb"]


def op(flops: int = 0, bytes_moved: int = 0, dtype: str = "bfloat16") -> Op:
    return Op("aten::mm", Place(), flops=flops, bytes_moved=bytes_moved, dtype=dtype)


def product(side: int, dtype: str = "bfloat16", element_bytes: int = 2) -> Op:
    return op(2 * side**3, 3 * side**2 * element_bytes, dtype)


def test_a_product_takes_as_long_as_its_arithmetic_in_the_cache_too() -> None:
    small = product(512)
    assert small.bytes_moved < H100.l2_bytes
    assert bound_ns(small, H100) == pytest.approx(2 * 512**3 / 989.4e12 * 1e9)
    expected_ns = 2 * 8192**3 / 989.4e12 * 1e9  # 1.11 ms
    assert bound_ns(product(8192), H100) == pytest.approx(expected_ns)
    assert roofline_ns(product(8192), H100) == pytest.approx(expected_ns)


def test_a_large_copy_takes_as_long_as_its_bytes() -> None:
    copied = 8 * 2**30
    assert roofline_ns(op(bytes_moved=copied), H100) == pytest.approx(copied / 3352e9 * 1e9)
    # One cache full of what it reads, and one of what it writes, need not pass through memory.
    assert bound_ns(op(bytes_moved=copied), H100) == pytest.approx((copied - 2 * 50 * 2**20) / 3352e9 * 1e9)


def test_a_copy_that_fits_into_the_cache_has_no_bytes_bound() -> None:
    twice_l2 = 2 * H100.l2_bytes
    assert bound_ns(op(bytes_moved=twice_l2), H100) == 0.0
    assert bound_ns(op(bytes_moved=twice_l2 + 3352), H100) == pytest.approx(1.0)
    assert roofline_ns(op(bytes_moved=twice_l2), H100) == pytest.approx(twice_l2 / 3352e9 * 1e9)


@given(
    st.integers(0, 10**15),
    st.integers(0, 10**12),
    st.sampled_from(["float64", "float32", "tf32", "bfloat16", "float16", "float8_e4m3fn", "int64"]),
    st.sampled_from(sorted(GPUS)),
)
def test_the_bound_is_never_above_the_textbooks_roofline_and_misses_two_caches_of_bytes_at_most(
    flops: int, bytes_moved: int, dtype: str, name: str
) -> None:
    gpu = GPUS[name]
    bound, roofline = bound_ns(op(flops, bytes_moved, dtype), gpu), roofline_ns(op(flops, bytes_moved, dtype), gpu)
    if bound is not None:
        assert roofline is not None
        from_caches_ns = 2 * gpu.l2_bytes / gpu.bandwidth_bytes_per_s * 1e9
        assert 0.0 <= bound <= roofline <= (bound + from_caches_ns) * (1 + 1e-9)


@pytest.mark.parametrize(
    ("gpu", "dtype", "as_dtype"),
    [
        (H100, "bfloat16", "bfloat16"),
        (V100, "bfloat16", "float32"),
        (V100, "tf32", "float32"),
        (V100, "float16", "float16"),
        (A100, "float8_e4m3fn", "float16"),
        (A100, "tf32", "tf32"),
        (H100, "float8_e5m2", "float8_e4m3fn"),
        (H100, "complex64", "float32"),
        (H100, "complex128", "float64"),
    ],
)
def test_a_dtype_without_a_rate_is_computed_in_another(gpu: Gpu, dtype: str, as_dtype: str) -> None:
    assert rate_of(gpu, dtype) == gpu.rates[as_dtype]


def test_what_no_rate_is_known_of_is_reckoned_by_its_bytes_and_nothing_takes_no_time() -> None:
    assert rate_of(H100, "int8") is None
    copied = op(bytes_moved=10**9, dtype="int8")
    assert bound_ns(op(10**15, 10**9, "int8"), H100) == bound_ns(copied, H100)
    assert bound_ns(op(10**15, 0, "int8"), H100) is None
    assert roofline_ns(op(10**15, 0, "int8"), H100) is None
    assert bound_ns(op(dtype="bool"), H100) == 0.0
    assert roofline_ns(op(dtype="bool"), H100) == 0.0


def test_the_room_is_the_memory_without_the_context() -> None:
    for gpu in GPUS.values():
        assert gpu.room_bytes + gpu.context_bytes == gpu.memory_bytes


def measured_and_predicted(directory: Path, pairs: dict[str, tuple[float, float]]) -> tuple[Any, Any]:
    """Stores in which cases of one module have a roofline time and a measured one, in ns."""
    (directory / "cuda-h200").mkdir()
    (directory / "cuda-h200" / "tests.t.json").touch()

    def entry(ns: float) -> SimpleNamespace:
        replicates = [SimpleNamespace(median_ns=ns)]
        return SimpleNamespace(replicates=replicates, environment=SimpleNamespace(device_name="NVIDIA H200"))

    entries = {name: [entry(ns)] for name, (_, ns) in pairs.items()}
    predictions = {name: SimpleNamespace(roofline_ns=ns) for name, (ns, _) in pairs.items()}
    measured = SimpleNamespace(directory=directory, load=lambda path: entries)
    return measured, SimpleNamespace(of_module=lambda gpu, module: predictions)


def test_an_estimate_is_by_the_median_share_of_the_roofline_with_its_range_and_number(tmp_path: Path) -> None:
    roofline = (50.0, 60.0, 1.0, 70.0, 55.0)  # one case is all launches
    stores = measured_and_predicted(tmp_path, {f"test_x[{ns}]": (ns, 100.0) for ns in roofline})
    now = with_estimate(make.prediction(roofline_ns=110.0), "tests/other.py::test_y", *stores, GPUS["h200"])
    assert now.estimate_ns == pytest.approx(200.0)
    assert now.estimate_from == "5 of other cases measured on NVIDIA H200: 55% of the roofline (1% to 70%)"


def test_there_is_no_estimate_where_nothing_was_measured(tmp_path: Path) -> None:
    stores = measured_and_predicted(tmp_path, {})
    prediction = make.prediction(roofline_ns=110.0)
    assert with_estimate(prediction, "tests/t.py::test_x", *stores, GPUS["h200"]) == prediction
