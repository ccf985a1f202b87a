"""Reading what the assembler says, and what PTX is made of. Pure text."""

from __future__ import annotations

import pytest

from perflab.compiled.compiler.resources import (
    assembler_version,
    count_instructions,
    read_amdgcn,
    read_assembler,
    useful_lines,
)

AMPERE = """\
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'mm' for 'sm_80'
ptxas info    : Function properties for mm
    520 bytes stack frame, 528 bytes spill stores, 516 bytes spill loads
ptxas info    : Used 255 registers, used 1 barriers, 520 bytes cumulative stack size, 592 bytes cmem[0]
"""
HOPPER = """\
ptxas-blackwell info    : Function properties for k
    16 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas-blackwell info    : Used 8 registers, used 1 barriers, 4096 bytes smem
"""


def reported(
    registers: int, stack_bytes: int, spill_store_bytes: int, spill_load_bytes: int, static_shared_bytes: int
) -> dict[str, int]:
    return dict(locals())


def test_spills_are_told_from_the_stack_also_those_of_functions_and_other_logs_refused() -> None:
    assert read_assembler(AMPERE) == reported(255, 520, 528, 516, 0)
    assert read_assembler(HOPPER) == reported(8, 16, 0, 0, 4096)
    function = "    40 bytes stack frame, 8 bytes spill stores, 4 bytes spill loads\n"
    assert read_assembler(HOPPER + function) == reported(8, 40, 8, 4, 4096)
    with pytest.raises(ValueError, match="reported neither registers nor spills: 'ptxas warning"):
        read_assembler("ptxas warning: nothing\n")


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        ("\tmma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 { %r1 }, { %r2 };", "mma"),
        ("\t@%p1 mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 { %r1 };", "mma"),
        ("\tmma.sp.sync.aligned.m16n8k32.row.col.f32.bf16.bf16.f32 { %r1 };", "mma"),
        ("\twgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {%r1}, %rd1;", "wgmma"),
        ("\t@%p1 tcgen05.mma.cta_group::1.kind::f16 [%r1], %rd1;", "tcgen05"),
        ("\tcp.async.bulk.tensor.2d.shared::cta.global.mbarrier [%r1], [%rd1, {%r2}];", "tma"),
        ("\t@%p1 cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%rd1, {%r2}], [%r1];", "tma"),
        ("\twgmma.commit_group.sync.aligned;", None),
        ("\ttcgen05.commit.cta_group::1 [%r1];", None),
        ("\tcp.async.cg.shared.global [%r1], [%rd1], 16;", None),
        ("\tldmatrix.sync.aligned.m8n8.x4.shared.b16 {%r1}, [%r2];", None),
        ("\t// mma.sync is only spoken of", None),
        ("\tv_mfma_f32_32x32x8_bf16_1k v[2:17], v[18:19], v[20:21], 0", "mfma"),
        ("\tv_smfmac_f32_16x16x32_bf16 v[2:5], v[6:7], v[8:11], v1", "mfma"),
        ("\tv_fma_f32 v1, v2, v3, v4", None),
    ],
)
def test_instructions_are_counted_by_kind(line: str, kind: str | None) -> None:
    assert count_instructions(f"{line}\n{line}\n") == ({kind: 2} if kind else {})


CDNA = """\
; Kernel info:
; NumVgprs: 128
; NumAgprs: 128
; TotalNumVgprs: 256
; ScratchSize: 96
; Occupancy: 2
amdhsa.kernels:
  - .agpr_count:     128
    .group_segment_fixed_size: 1024
    .sgpr_spill_count: 5
    .vgpr_count:     256
    .vgpr_spill_count: 23
"""


def test_amds_assembly_says_what_a_kernel_takes() -> None:
    resources, waves_per_simd = read_amdgcn(CDNA)
    assert resources == reported(256, 96, 92, 0, 1024), "23 registers of four bytes"
    assert waves_per_simd == 2
    with pytest.raises(ValueError, match="does not say its vgpr_spill_count, Occupancy"):
        read_amdgcn(CDNA.replace(".vgpr_spill_count", ".x").replace("Occupancy", "x"))


def test_of_what_tools_say_versions_and_lines_with_errors_are_kept() -> None:
    assert assembler_version("Cuda compilation tools, release 12.9, V12.9.86\nBuild x") == "12.9.86"
    assert assembler_version("something else") == "unknown"
    said = "loc: note\nx.py:3:1: error: no such thing\n" + "\n".join(f"frame {n}" for n in range(20))
    assert useful_lines(said) == "x.py:3:1: error: no such thing"
    assert useful_lines("\n".join("abc"), most=2) == "b\nc"
