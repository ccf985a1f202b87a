"""Roofline times, held to their definition on products and copies that can be reckoned by hand."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perflab.predicted.gpus.names import GPUS, Gpu
from perflab.predicted.gpus.roofline import (
    Efficiency,
    bound_ns,
    efficiency,
    estimate_ns,
    rate_of,
    roofline_ns,
    room_bytes,
)
from perflab.predicted.trace.trace import Op, Place

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


def test_products_in_a_dtype_that_no_sheet_knows_are_reckoned_by_their_bytes() -> None:
    assert rate_of(H100, "int8") is None
    copied = op(bytes_moved=10**9, dtype="int8")
    assert bound_ns(op(10**15, 10**9, "int8"), H100) == bound_ns(copied, H100)
    assert bound_ns(op(10**15, 0, "int8"), H100) is None
    assert roofline_ns(op(10**15, 0, "int8"), H100) is None


def test_what_neither_computes_nor_moves_takes_no_time() -> None:
    assert bound_ns(op(dtype="bool"), H100) == 0.0
    assert roofline_ns(op(dtype="bool"), H100) == 0.0


def test_the_room_is_the_memory_without_the_context() -> None:
    for gpu in GPUS.values():
        assert room_bytes(gpu) + gpu.context_bytes == gpu.memory_bytes


def test_efficiency_is_the_median_share_with_its_range_and_number() -> None:
    pairs = [(50.0, 100.0), (60.0, 100.0), (1.0, 100.0), (70.0, 100.0), (55.0, 100.0)]
    reached = efficiency(pairs)
    assert reached == Efficiency(median=0.55, lowest=0.01, highest=0.7, count=5)
    assert estimate_ns(110.0, reached) == pytest.approx(200.0)
    assert efficiency([]) is None


def test_one_case_that_is_all_launches_does_not_move_the_estimate() -> None:
    alike = [(80.0, 100.0 + n) for n in range(5)]
    with_outlier = efficiency([*alike, (0.001, 100.0)])
    without = efficiency(alike)
    assert with_outlier is not None
    assert without is not None
    assert estimate_ns(1.0, with_outlier) == pytest.approx(estimate_ns(1.0, without), rel=0.01)


def test_the_estimate_of_a_case_that_was_the_only_one_measured_is_its_measurement() -> None:
    reached = efficiency([(3.0e6, 4.5e6)])
    assert reached is not None
    assert estimate_ns(3.0e6, reached) == pytest.approx(4.5e6)


@pytest.mark.parametrize("pair", [(0.0, 1.0), (1.0, 0.0), (-1.0, 1.0), (1.0, float("inf")), (float("nan"), 1.0)])
def test_times_that_no_share_can_be_taken_of_are_refused(pair: tuple[float, float]) -> None:
    with pytest.raises(ValueError, match=r"pair 1 of roofline and measured time is .*have to be positive and finite"):
        efficiency([(1.0, 2.0), pair])
