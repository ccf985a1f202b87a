"""Occupancy, held against NVIDIA's own calculator: a C header, which Triton ships."""

from __future__ import annotations

import importlib.util
import itertools
import shutil
import subprocess
from pathlib import Path

import pytest

from perflab.compiled.compiler.architectures import ARCHITECTURES, occupancy, occupancy_on_amd, parse_architectures

PROGRAM = """
#include <stdio.h>
#include "cuda_occupancy.h"
int main(void) {
    int major, minor, warps_per_sm, shared_per_sm, warps, registers, shared;
    while (scanf("%d %d %d %d %d %d %d",
                 &major, &minor, &warps_per_sm, &shared_per_sm, &warps, &registers, &shared) == 7) {
        cudaOccDeviceProp device = {0};
        device.computeMajor = major; device.computeMinor = minor; device.warpSize = 32;
        device.maxThreadsPerBlock = 1024; device.maxThreadsPerMultiprocessor = 32 * warps_per_sm;
        device.regsPerBlock = 65536; device.regsPerMultiprocessor = 65536; device.numSms = 100;
        device.sharedMemPerBlock = 48 * 1024; device.sharedMemPerBlockOptin = shared_per_sm - 1024;
        device.sharedMemPerMultiprocessor = shared_per_sm; device.reservedSharedMemPerBlock = 1024;
        cudaOccFuncAttributes kernel = {0};
        kernel.maxThreadsPerBlock = 1024; kernel.numRegs = registers; kernel.numBlockBarriers = 1;
        kernel.shmemLimitConfig = FUNC_SHMEM_LIMIT_OPTIN; kernel.maxDynamicSharedSizeBytes = shared_per_sm;
        cudaOccDeviceState state = {0};
        state.carveoutConfig = SHAREDMEM_CARVEOUT_MAX_SHARED;
        cudaOccResult result;
        int status = cudaOccMaxActiveBlocksPerMultiprocessor(&result, &device, &kernel, &state, 32 * warps, shared);
        printf("%d %d\\n", status, result.activeBlocksPerMultiprocessor);
    }
    return 0;
}
"""
H100 = ARCHITECTURES[90]


def nvidias_header() -> Path | None:
    triton = importlib.util.find_spec("triton")
    places = list(triton.submodule_search_locations or []) if triton is not None else []
    found = [Path(place, "backends/nvidia/include/cuda_occupancy.h") for place in places]
    return next((path for path in found if path.exists()), None)


def test_it_counts_what_nvidias_calculator_counts(tmp_path: Path) -> None:
    header, compiler = nvidias_header(), shutil.which("cc") or shutil.which("gcc")
    if header is None or compiler is None:
        pytest.skip("needs Triton's headers and a C compiler")
    (tmp_path / "ask.c").write_text(PROGRAM)
    command = [compiler, "-w", "-x", "c", f"-I{header.parent}", str(tmp_path / "ask.c"), "-o", str(tmp_path / "ask")]
    subprocess.run(command, check=True)
    asked = [
        (architecture, num_warps, registers, shared)
        for architecture in ARCHITECTURES.values()
        if isinstance(architecture.number, int)
        for num_warps, registers, shared in itertools.product(
            (1, 2, 4, 5, 8, 12, 16, 32),
            (1, 16, 24, 32, 33, 40, 63, 64, 65, 80, 96, 128, 168, 169, 224, 232, 255),
            (0, 1, 1024, 16_384, 40_961, 65_536, 101_376, 163 * 1024, 227 * 1024),
        )
        if shared <= architecture.shared_limit_bytes
    ]
    lines = [
        f"{str(a.number)[:-1]} {str(a.number)[-1]} {a.max_warps} {a.shared_bytes} {num_warps} {registers} {shared}"
        for a, num_warps, registers, shared in asked
    ]
    done = subprocess.run([tmp_path / "ask"], input="\n".join(lines), capture_output=True, text=True, check=True)
    theirs = [tuple(map(int, line.split())) for line in done.stdout.splitlines()]
    ours = [
        (0, occupancy(a, num_warps=num_warps, registers=registers, shared_bytes=shared)[0])
        for a, num_warps, registers, shared in asked
    ]
    unknown = (2, 0)  # to an older header: sm_103 to that of Triton 3.6
    known = [(line, x, y) for line, x, y in zip(lines, ours, theirs, strict=True) if y != unknown]
    assert [one for one in known if one[1] != one[2]] == []
    assert len(known) > 5000


@pytest.mark.parametrize(
    ("num_warps", "registers", "shared_bytes", "tensor_columns", "blocks", "limited_by"),
    [
        (4, 32, 0, 0, 16, "warps"),
        (1, 32, 0, 0, 32, "blocks"),
        (8, 255, 0, 0, 1, "registers"),
        (16, 255, 0, 0, 0, "registers"),
        (4, 32, 100 * 1024, 0, 2, "shared memory"),
        (4, 32, 228 * 1024, 0, 0, "shared memory"),
        (4, 32, 0, 256, 2, "tensor memory"),
    ],
)
def test_it_says_what_there_is_no_more_room_for(
    num_warps: int, registers: int, shared_bytes: int, tensor_columns: int, blocks: int, limited_by: str
) -> None:
    found = occupancy(
        H100, num_warps=num_warps, registers=registers, shared_bytes=shared_bytes, tensor_columns=tensor_columns
    )
    assert found == (blocks, limited_by)


@pytest.mark.parametrize(
    ("arch", "num_warps", "waves_per_simd", "shared_bytes", "blocks", "limited_by"),
    [
        ("gfx942", 8, 8, 0, 4, "warps"),
        ("gfx942", 8, 2, 48 * 1024, 1, "registers"),
        ("gfx942", 4, 2, 48 * 1024, 1, "shared memory"),
        ("gfx942", 4, 5, 21 * 1024, 3, "shared memory"),
        ("gfx942", 4, 5, 21 * 1024 + 512, 2, "shared memory"),  # multiples of 512 B
        ("gfx942", 4, 8, 64 * 1024 + 1, 0, "shared memory"),
        ("gfx950", 4, 5, 49_888, 3, "shared memory"),
        ("gfx950", 4, 8, 21 * 1280, 6, "shared memory"),
        ("gfx950", 4, 8, 21 * 1280 + 1, 5, "shared memory"),  # multiples of 1280 B
        ("gfx950", 8, 2, 67_008, 1, "registers"),
        ("gfx950", 16, 1, 0, 0, "registers"),
        ("gfx950", 2, 8, 0, 16, "warps"),
        ("gfx950", 1, 8, 0, 32, "warps"),
    ],
)
def test_a_compute_unit_of_amd_has_room_for_as_many_blocks_as_its_scarcest_resource(
    arch: str, num_warps: int, waves_per_simd: int, shared_bytes: int, blocks: int, limited_by: str
) -> None:
    found = occupancy_on_amd(
        ARCHITECTURES[arch], num_warps=num_warps, waves_per_simd=waves_per_simd, shared_bytes=shared_bytes
    )
    assert found == (blocks, limited_by)


def test_architectures_are_read_as_people_write_them() -> None:
    assert parse_architectures("80,90 sm_100") == (80, 90, 100)
    assert parse_architectures("sm_90a,90") == (90,)
    assert parse_architectures("GFX942 90,gfx950") == ("gfx942", 90, "gfx950")


@pytest.mark.parametrize("text", ["95", "hopper", "80,9.0", "gfx90", "gfx942a", "sm_gfx942", ""])
def test_an_unknown_architecture_is_refused_with_those_that_are_known(text: str) -> None:
    with pytest.raises(ValueError, match="known are 80, 86, 89, 90, 100, 103, 120, gfx942, gfx950"):
        parse_architectures(text)
