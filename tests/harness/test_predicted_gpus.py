"""The data sheets, held to what multiprocessors can do in a second; names, to what people and CUDA write."""

from __future__ import annotations

import pytest

from perflab.predicted.gpus import GPUS, MODELLED, gpu_by_device_name, parse_gpu, parse_modelled

GIB = 2**30

# FLOPs of bfloat16 products (float16 before Ampere) that one multiprocessor does in a cycle, a multiply-add counted as
# two and without sparsity (the architectures' whitepapers), and the clock of tensor cores in the sheet, in GHz.
# There is none of a B200's: 1.85 is what its rate comes to, and its driver allows 1.965.
TENSOR_CORES = {
    "a100-40gb": (2048, 1.410),
    "a100-80gb": (2048, 1.410),
    "h100": (4096, 1.830),
    "h100-pcie": (4096, 1.620),
    "h200": (4096, 1.830),
    "b200": (8192, 1.850),
    "l4": (1024, 2.040),
    "l40s": (1024, 2.520),
    "a10": (1024, 1.695),
    "rtx4090": (512, 2.520),
    "rtx3090": (512, 1.695),
    "rtx5090": (512, 2.407),
    "v100-32gb": (1024, 1.530),
    "t4": (1024, 1.590),
}

# Width of the memory's bus in bits and its data rate in Gbit/s a pin.
MEMORY = {
    "a100-40gb": (5120, 2.43),
    "a100-80gb": (5120, 3.186),
    "h100": (5120, 5.24),
    "h100-pcie": (5120, 3.186),
    "h200": (6144, 6.25),
    "b200": (8192, 7.81),
    "l4": (192, 12.5),
    "l40s": (384, 18.0),
    "a10": (384, 12.5),
    "rtx4090": (384, 21.0),
    "rtx3090": (384, 19.5),
    "rtx5090": (512, 28.0),
    "v100-32gb": (4096, 1.758),
    "t4": (256, 10.0),
    "mi300x": (8192, 5.2),
    "mi355x": (8192, 8.0),
    "max1550": (8192, 3.2),
    "b60": (192, 19.0),
    "m1-max": (512, 6.4),
    "m2-ultra": (1024, 6.4),
    "m3-ultra": (1024, 6.4),
    "m4": (128, 7.5),
    "m4-max": (512, 8.533),
}

# Of other makers' GPUs: compute units (of Intel's, Xe cores), FLOPs of bfloat16 products that one does in a cycle, GHz.
MATRIX_CORES = {
    "mi300x": (304, 2048, 2.1),
    "mi355x": (256, 4096, 2.4),
    "max1550": (128, 4096, 1.6),
    "b60": (20, 2048, 2.4),
}


def test_a_rate_is_what_the_multiprocessors_can_do_in_a_second_without_sparsity() -> None:
    for name, gpu in MODELLED.items():
        flops_a_cycle, clock_ghz = TENSOR_CORES[name]
        rate = gpu.rates.get("bfloat16", gpu.rates["float16"])
        assert rate == pytest.approx(gpu.sms * flops_a_cycle * clock_ghz * 1e9, rel=0.01), name


def test_a_rate_of_another_makers_gpu_is_what_its_matrix_cores_can_do_in_a_second() -> None:
    for name in GPUS.keys() - MODELLED.keys():
        rate = GPUS[name].rates.get("bfloat16")
        assert (rate is None) == (name not in MATRIX_CORES)
        if rate is not None:
            cores, flops_a_cycle, clock_ghz = MATRIX_CORES[name]
            assert rate == pytest.approx(cores * flops_a_cycle * clock_ghz * 1e9, rel=0.01), name


def test_float32_is_what_lanes_without_tensor_cores_do_in_a_second() -> None:
    lanes = {70: 64, 75: 64, 80: 64}  # of each multiprocessor; 128 from sm_86 on
    for name, gpu in MODELLED.items():
        clock_ghz = gpu.rates["float32"] / (2 * lanes.get(gpu.architecture, 128) * gpu.sms) / 1e9
        assert 1.40 < clock_ghz < 2.60, name


def test_bandwidth_is_the_buss_width_times_its_data_rate() -> None:
    for name, gpu in GPUS.items():
        width_bits, gbits_a_pin = MEMORY[name]
        assert gpu.bandwidth_bytes_per_s == pytest.approx(width_bits / 8 * gbits_a_pin * 1e9, rel=0.01), name


def test_a_narrower_dtype_is_never_slower() -> None:
    order = ("float64", "float32", "tf32", "bfloat16", "float16", "float8_e4m3fn")
    for name, gpu in GPUS.items():
        rates = [gpu.rates[dtype] for dtype in order if dtype in gpu.rates]
        assert rates == sorted(rates), name


def test_dtypes_that_a_gpu_has_no_instructions_for_have_no_rate() -> None:
    for name in ("v100-32gb", "t4"):
        assert GPUS[name].rates.keys() == {"float64", "float32", "float16"}
    assert {name for name, gpu in MODELLED.items() if "float8_e4m3fn" not in gpu.rates} == {
        *("a100-40gb", "a100-80gb", "a10", "rtx3090", "v100-32gb", "t4")
    }


@pytest.mark.parametrize(
    ("name", "least_gib", "most_gib"),
    [
        # The least and the most that errors were seen to say: "has a total capacity of 39.38 GiB".
        ("a100-40gb", 39.37, 39.70),
        ("a100-80gb", 79.13, 79.35),
        ("h100", 79.09, 79.65),
        ("h200", 139.71, 139.81),
        ("b200", 178.34, 178.36),
        ("l4", 21.94, 22.17),
        ("l40s", 44.38, 44.53),
        ("rtx4090", 23.51, 23.65),
        ("rtx3090", 23.55, 23.70),
    ],
)
def test_memory_is_what_cuda_reports_and_the_least_of_it(name: str, least_gib: float, most_gib: float) -> None:
    assert least_gib <= GPUS[name].memory_bytes / GIB < most_gib


def test_every_sheet_says_where_it_is_from_and_leaves_room_for_tensors() -> None:
    for name, gpu in GPUS.items():
        assert gpu.name == name
        assert ("NVIDIA" in gpu.source) == (name in MODELLED)
        assert "(" in gpu.source  # what kind of document
        assert gpu.context_bytes < GIB < gpu.memory_bytes


def test_workspaces_are_pytorchs_and_sheets_cannot_be_changed() -> None:
    assert GPUS["a100-40gb"].workspace_bytes == 8_519_680
    assert {gpu.workspace_bytes for gpu in MODELLED.values() if gpu.architecture >= 90} == {33_554_432}
    with pytest.raises(TypeError):
        GPUS["h100"].rates["bfloat16"] = 1.0  # type: ignore[index]
    with pytest.raises(TypeError):
        GPUS["h100"] = GPUS["l4"]  # type: ignore[index]


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("h100", "h100"),
        ("H100", "h100"),
        ("a100-80gb", "a100-80gb"),
        ("A100 80GB", "a100-80gb"),
        ("a100_40gb", "a100-40gb"),
        (" rtx 4090 ", "rtx4090"),
        ("RTX-4090", "rtx4090"),
        ("GeForce RTX 4090", "rtx4090"),
        ("NVIDIA L4", "l4"),
        ("H100 PCIe", "h100-pcie"),
        ("NVIDIA H100 80GB HBM3", "h100"),
        ("Tesla T4", "t4"),
    ],
)
def test_a_name_is_read_however_it_is_written(text: str, name: str) -> None:
    assert parse_gpu(text).name == name


def test_every_sheets_own_names_are_read() -> None:
    for name, gpu in GPUS.items():
        assert parse_gpu(name) is gpu
        assert parse_gpu(gpu.device_name) is gpu


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "a100",
            "'a100' is not a GPU that perflab has a data sheet of; did you mean a100-40gb or a100-80gb? Known are ",
        ),
        ("v100", "did you mean v100-32gb? "),
        ("4090", "did you mean rtx4090? "),
        ("h1000", "did you mean h100"),
        ("gaudi3", "'gaudi3' is not a GPU that perflab has a data sheet of; known are a100-40gb, a100-80gb, h100, "),
        (" - ", "no GPU is named; known are a100-40gb, "),
        ("nvidia", "'nvidia' is not a GPU"),
    ],
)
def test_an_unknown_name_is_refused_with_those_like_it_and_those_that_there_are(text: str, said: str) -> None:
    with pytest.raises(ValueError, match="nown are ") as refused:
        parse_gpu(text)
    assert said in str(refused.value)
    assert str(refused.value).endswith(", ".join(GPUS))


def test_a_gpu_that_has_bounds_alone_is_refused_where_its_kernels_matter() -> None:
    assert parse_modelled("h100") is GPUS["h100"]
    with pytest.raises(
        ValueError, match="mi300x has bounds alone, by --perf-predict; known are a100-40gb, "
    ) as refused:
        parse_modelled("AMD Instinct MI300X")
    assert "mi355x" not in str(refused.value)


@pytest.mark.parametrize(
    ("device_name", "name"),
    [
        ("AMD Instinct MI300X", "mi300x"),
        ("Intel(R) Data Center GPU Max 1550", "max1550"),
        ("Apple M4 Max", "m4-max"),
        ("NVIDIA H100 80GB HBM3", "h100"),
        ("NVIDIA H100 PCIe", "h100-pcie"),
        ("NVIDIA A100-SXM4-40GB", "a100-40gb"),
        ("NVIDIA A100-PCIE-40GB", "a100-40gb"),
        ("A100-SXM4-80GB", "a100-80gb"),
        ("NVIDIA A100 80GB PCIe", "a100-80gb"),
        ("NVIDIA GeForce RTX 3090", "rtx3090"),
        ("GeForce RTX 3090", "rtx3090"),
        ("Tesla V100-SXM2-32GB", "v100-32gb"),
    ],
)
def test_a_device_is_matched_with_its_sheet(device_name: str, name: str) -> None:
    found = gpu_by_device_name(device_name)
    assert found is not None
    assert found.name == name


@pytest.mark.parametrize(
    "device_name",
    [
        "NVIDIA A10G",
        "NVIDIA L40",
        "NVIDIA H200 NVL",
        "NVIDIA GeForce RTX 4090 D",
        "NVIDIA GeForce RTX 4090 Laptop GPU",
        "NVIDIA A100-SXM4-40GB MIG 1g.5gb",
        "Tesla V100-SXM2-16GB",
        "AMD EPYC (family 25, model 1)",
        "",
    ],
)
def test_a_device_that_is_only_like_one_has_no_sheet(device_name: str) -> None:
    assert gpu_by_device_name(device_name) is None
