"""Machine code: parsing, loops, kinds, registers and the bound, on disassemblies of ``product_kernel`` and by hand.

The files in ``machine_code/`` are what nvdisasm says of a Triton kernel with one loop of products, one instruction a
line: (64, 32) by (32, 16) in bfloat16 for sm_80 and sm_90, (128, 32) by (32, 16) for sm_100; four warps, two stages.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from perflab.base.errors import KernelError
from perflab.compiled.machine.disassembly import _JOINED, Function, Instruction, disassemble, parse
from perflab.compiled.machine.kinds import Kind, bytes_of, counts_of, kind_of, product_of, use_of
from perflab.compiled.machine.library import kernels_in
from perflab.compiled.machine.loops import Loop, loops_of
from perflab.compiled.machine.pipes import PIPES
from perflab.compiled.machine.reading import bound_of, loop_lines, most_in_flight_bytes, read_loops
from perflab.predicted.data_sheets import GPUS
from perflab.results.compiled import LoopCounts

FOLDER = Path(__file__).parent / "machine_code"


def product_kernel(arch: int) -> Function:
    return parse((FOLDER / f"product-sm{arch}.json").read_bytes())[0]


def code(*lines: str) -> tuple[Instruction, ...]:
    """Return instructions: ``@P0 BRA 0x20`` is a branch to the third."""
    found = []
    for number, line in enumerate(lines):
        predicate, line = line.split(" ", 1) if line.startswith("@") else ("", line)
        opcode, _, operands = line.partition(" ")
        parts = tuple(_JOINED.sub(r"\1,", operands).split(",")) if operands else ()
        target = int(parts[-1], 16) if opcode.startswith("BRA") else None
        found.append(Instruction(16 * number, opcode, parts, predicate, target))
    return tuple(found)


def loops(*lines: str) -> list[tuple[list[int], list[int]]]:
    """Return for each loop the numbers of the instructions that it issues always, and sometimes."""
    return [
        ([one.address // 16 for one in loop.always], [one.address // 16 for one in loop.sometimes])
        for loop in loops_of(Function("kernel", 80, code(*lines)))
    ]


def body(*lines: str, arch: int = 80, num_warps: int = 4, blocks: int = 1) -> LoopCounts:
    """Return the bound of a loop of these instructions."""
    whole = code(*lines)
    return bound_of(whole, Loop(0, whole, ()), PIPES[arch], num_warps=num_warps, blocks=blocks)


def test_a_disassembly_is_read() -> None:
    found = product_kernel(80)
    assert (found.name, found.arch, len(found.instructions)) == ("product_kernel", 80, 176)
    assert [one.address for one in found.instructions[:3]] == [0, 16, 32]
    branches = [one for one in found.instructions if one.target is not None]
    assert branches
    assert all(one.target % 16 == 0 and one.target < 16 * 176 for one in branches if one.target is not None)
    loads = [one for one in found.instructions if one.name in ("LDSM", "LDG")]
    assert loads
    assert all(one.operands[1].startswith(("[", "desc[")) and use_of(one, None).reads for one in loads)
    (product, *_) = [one for one in found.instructions if one.name == "HMMA"]
    assert product.modifiers == {"16816", "F32", "BF16"}
    assert len(product.operands) == 4


def test_another_text_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="not what nvdisasm -json prints"):
        parse('[{"SM": {"version": {"major": 9}}}, []]')
    with pytest.raises(KernelError, match=r"cannot read k\.cubin"):
        disassemble(tmp_path / "k.cubin", "/bin/false")
    with pytest.raises(KernelError, match="there is no file"):
        list(kernels_in(tmp_path / "k.so", 80, "", nvdisasm="", cuobjdump=""))


def test_loops_are_found_with_what_they_may_skip() -> None:
    assert loops("MOV R1,R2", "EXIT") == []
    assert loops("MOV R1,R2", "FADD R1,R1,R2", "@P0 BRA 0x10", "EXIT") == [([1, 2], [])]
    # An iteration may go around 2.
    assert loops("MOV R1,R2", "@P1 BRA 0x30", "FADD R1,R1,R2", "FMUL R1,R1,R2", "@P0 BRA 0x10", "EXIT") == [
        ([1, 3, 4], [2])
    ]
    # Of two loops, one in the other, the inner one; the condition of BRA.U is among its operands.
    nested = ("MOV R1,R2", "FADD R1,R1,R2", "FMUL R1,R1,R2", "BRA.U UP0,0x20", "@P0 BRA 0x10", "EXIT")
    assert loops(*nested) == [([2, 3], [])]
    # A loop that waits for a barrier, out of the way, is none; the way there may be taken.
    waits = ("FADD R1,R1,R2", "@!P1 BRA 0x50", "FMUL R1,R1,R2", "@P0 BRA 0x0", "EXIT")
    assert loops(*waits, "SYNCS.PHASECHK P1,[UR4]", "@!P1 BRA 0x50", "BRA 0x20") == [([0, 1, 2, 3], [5, 6, 7])]
    # A trap leads nowhere, and a loop of three within a larger one may be left out.
    assert loops("MOV R1,R2", "BPT.TRAP 0x1", "EXIT") == []
    small = ("FADD R1,R1,R2", "LDG.E R3,[R4.64]", "@P1 BRA 0x10", "FMUL R1,R1,R2", "@P0 BRA 0x0", "EXIT")
    assert loops(*small) == [([1, 2], [])]
    assert [len(one.always) for one in loops_of(Function("kernel", 80, code(*small)), 4)] == [5]
    # Code after an unconditional branch is reached from elsewhere alone.
    assert loops("BRA 0x20", "EXIT", "FADD R1,R1,R2", "@P0 BRA 0x20", "BRA 0x10") == [([2, 3], [])]


@pytest.mark.parametrize(
    ("arch", "products"), [(80, {"16x8x16": 4}), (90, {"64x16x16": 2}), (100, {"128x16x16": 2})], ids=str
)
def test_every_instruction_of_real_kernels_has_a_kind(arch: int, products: dict[str, int]) -> None:
    found = product_kernel(arch)
    assert Kind.OTHER not in {kind_of(one) for one in found.instructions}
    (loop,) = [one for one in loops_of(found) if any(kind_of(part) is Kind.TENSOR for part in one.instructions)]
    counts = counts_of(found.instructions, loop.instructions)
    told = {name.partition(":")[2]: count for name, count in counts.items() if name.startswith("tensor_products")}
    assert told == products
    assert sum(counts.values()) == len(loop.instructions)
    # What the loop's products do in a block is the kernel's (rows, 32) by (32, 16), in each iteration.
    (read,) = [one for one in read_loops(found, num_warps=4, blocks=2) if one.flops]
    assert read.flops == 2 * (128 if arch == 100 else 64) * 16 * 32
    assert read.total == sum(counts.values())


def test_kinds_are_told_apart() -> None:
    kinds = [kind_of(one) for one in code("MUFU.EX2 R1,R2", "MUFU.RCP R1,R2", "IMAD.MOV.U32 R1,RZ,RZ,R2", "IMAD R1,R2")]
    assert kinds == [Kind.EXPONENTIAL, Kind.SPECIAL, Kind.MOVE, Kind.INTEGER]
    assert [bytes_of(one) for one in code("LDG.E.128 R1,[R2.64]", "LDSM.16.M88.4 R1,[R2]", "STS.U16 [R2],R1")] == [
        16,
        16,
        2,
    ]
    # A placeholder that is never executed is issued, and reads nothing. What is not known keeps its name.
    counted = counts_of(code("LDS.128 R0,[R2]", "@!PT LDS RZ,[RZ]", "WHATEVER R1,R2"))
    assert counted == {"shared_loads:16B": 1, "nothing": 1, "others:WHATEVER": 1}
    descriptor = (16 // 8) << 17 | (128 // 16) << 24
    blackwell = code(
        f"UMOV UR11,{hex(descriptor)}", "UTCHMMA gdesc[UR4],gdesc[UR6],tmem[UR17],tmem[UR10],idesc[UR11],UPT"
    )
    assert str(product_of(blackwell, 1)) == "128x16x16"
    assert product_of(blackwell[1:], 0) is None


@pytest.mark.parametrize(
    ("line", "reads", "writes"),
    [
        ("FADD R1,R2,-R3.reuse", "R2 R3", "R1"),
        ("@!P0 FADD R1,R2,c[0x0][0x160]", "P0 R2", "R1"),
        ("ISETP.GE.AND P4,PT,R5,UR6,PT", "R5 UR6", "P4"),
        ("LDSM.16.M88.4 R8[R2+0x40]", "R2", "R8 R9 R10 R11"),
        ("LDG.E.64 R4,desc[UR4][R2.64]", "UR4 R2 R3", "R4 R5"),
        ("LDGSTS.E.128 P5[R51+0x10][R42.64]", "P5 R51 R42 R43", ""),
        ("REDG.E.ADD desc[UR4][R2.64],R7", "UR4 R2 R3 R7", ""),
        ("PLOP3.LUT P0,PT,P1,P2,PT,0x80,0x0", "P1 P2", "P0"),
        ("IADD3 R4,P0,R1,R2,RZ", "R1 R2", "R4 P0"),
        ("LDG.E.128 R4,[R2.64]", "R2 R3", "R4 R5 R6 R7"),
        ("STS.64 [R2],R4", "R2 R4 R5", ""),
        ("LDGSTS.E.BYPASS.128 [R9],[R2.64]", "R9 R2 R3", ""),
        ("SHFL.BFLY PT,R1,R2,0x1,0x1f", "R2", "R1"),
        ("IMAD.WIDE R4,R1,R2,R6", "R1 R2 R6 R7", "R4 R5"),
        ("FADD2 R4,R6.F32x2.HI_LO,R8.F32x2.HI_LO", "R6 R7 R8 R9", "R4 R5"),
        ("HMMA.16816.F32.BF16 R4,R8,R12,R16", "R8 R9 R10 R11 R12 R13 R16 R17 R18 R19", "R4 R5 R6 R7"),
        ("HMMA.16816.F16 R4,R8,R12,RZ", "R8 R9 R10 R11 R12 R13", "R4 R5"),
        ("HGMMA.64x8x16.F32.BF16 R24,gdesc[UR8],R24,gsb0", "UR8 UR9 R24 R25 R26 R27", "R24 R25 R26 R27"),
        ("HGMMA.64x8x16.F32.BF16 R4,R8,gdesc[UR8],R4", "R8 R9 R10 R11 UR8 UR9 R4 R5 R6 R7", "R4 R5 R6 R7"),
        ("BAR.SYNC 0x0", "", ""),
    ],
)  # fmt: skip
def test_registers_are_known_by_the_operation(line: str, reads: str, writes: str) -> None:
    whole = code(line)
    use = use_of(whole[0], product_of(whole, 0))
    assert use.reads == set(reads.split())
    assert use.writes == set(writes.split())


HMMA = "HMMA.16816.F32.BF16"


def test_the_bound_of_each_pipe_is_its_work() -> None:
    # 8 products of 4096 FLOP, by each of 4 warps, at 2048 a cycle.
    independent = body(*(f"{HMMA} R{4 * at},R100,R104,R{4 * at}" for at in range(8)))
    assert independent.cycles["tensor cores"] == 8 * 4 * 4096 / 2048
    assert (independent.limit, independent.share_of_peak) == ("tensor cores", 1.0)
    assert independent.flops == 8 * 4 * 4096
    assert PIPES[80].flops_per_second(independent) == pytest.approx(312e12, rel=0.001)
    # 16 results a cycle, of 4 warps of 32 threads.
    exponentials = body(*["MUFU.EX2 R1,R2"] * 10)
    assert (exponentials.limit, exponentials.least_cycles) == ("special functions", 10 * 4 * 32 / 16)
    # A load of 16 bytes a thread, at 128 bytes a cycle.
    assert body(*["LDSM.16.M88.4 R4,[R2]"] * 3).cycles["shared memory"] == 3 * 4 * 32 * 16 / 128
    # Four schedulers issue one instruction each; a move takes no pipe that is counted.
    assert body(*["MOV R1,R2"] * 100, num_warps=8).cycles["issue"] == 200
    # Twice the float32 units, half the cycles.
    assert body(*["FFMA R1,R2,R3,R4"] * 16).cycles["float arithmetic"] == 32.0
    assert body(*["FFMA R1,R2,R3,R4"] * 16, arch=90).cycles["float arithmetic"] == 16.0


def test_a_chain_of_dependent_instructions_binds_unless_other_blocks_fill_it() -> None:
    chain = [f"{HMMA} R4,R100,R104,R4"] * 8
    alone = body(*chain)
    assert alone.cycles["dependencies"] == 8 * PIPES[80].product_latency
    assert alone.limit == "dependencies"
    assert body(*chain, blocks=3).limit == "tensor cores"
    # A use waits for a load; both are in each iteration.
    assert body("LDS R1,[R9]", "FADD R2,R1,R1", "FADD R9,R2,R2").cycles["dependencies"] == 23 + 4 + 4


def test_products_of_warp_groups_are_waited_for_where_the_code_says_so() -> None:
    product = "HGMMA.64x128x16.F32.BF16 R24,gdesc[UR8],R24,gsb0"
    waits = body(product, "WARPGROUP.DEPBAR.LE gsb0,0x0", "MUFU.EX2 R1,R2", *["FADD R1,R1,R1"] * 16, arch=90)
    passes = body(product, "WARPGROUP.DEPBAR.LE gsb0,0x1", "MUFU.EX2 R1,R2", *["FADD R1,R1,R1"] * 16, arch=90)
    assert waits.cycles["dependencies"] >= 64 + 16 * 4
    assert passes.cycles["dependencies"] < waits.cycles["dependencies"]
    # Both operands come from shared memory: 64 x 16 and 16 x 128 of two bytes.
    assert waits.cycles["shared memory"] == (64 * 16 + 16 * 128) * 2 / 128
    assert waits.cycles["tensor cores"] == 64


def test_code_that_need_not_run_is_not_in_the_bound() -> None:
    around = ("MOV R1,R2", "@P0 BRA 0x40", "MUFU.RCP R1,R2", "MUFU.RCP R1,R2", "STG.E [R2.64],R1", "EXIT", "BRA 0x60")
    found = Function("kernel", 80, (*code(*around), Instruction(112, "NOP")))
    (read,) = read_loops(found, num_warps=4, blocks=1)
    assert read.is_all
    assert "special functions" not in read.cycles
    assert read.issues["special_functions"] == 2
    assert "nothing" not in read.issues
    # Predicated, it is issued and may take no pipe; where warps are specialised, there is no bound.
    assert "special functions" not in body("@P0 MUFU.RCP R1,R2", "MOV R1,R2").cycles
    (read,) = read_loops(Function("kernel", 90, code("USETMAXREG.DEALLOC 0x18", "EXIT")), num_warps=4, blocks=1)
    assert read.cycles == {}


def test_architectures_without_a_data_sheet_have_counts_and_no_bound() -> None:
    found = Function("kernel", 120, code("FADD R1,R1,R2", "EXIT"))
    (read,) = read_loops(found, num_warps=4, blocks=1)
    assert (read.issues, read.cycles, read.limit) == ({"float_arithmetic": 1, "branches": 1}, {}, "")


@pytest.mark.parametrize(("arch", "rows"), [(80, 64), (90, 64), (100, 128)])
def test_two_stages_have_the_tiles_of_one_iteration_in_flight(arch: int, rows: int) -> None:
    (read,) = [one for one in read_loops(product_kernel(arch), num_warps=4, blocks=3) if one.flops]
    tiles = 2 * 32 * (rows + 16)
    assert (read.copied_bytes, read.in_flight_bytes) == (tiles, 3 * tiles)


COPY, GROUP = "LDGSTS.E.BYPASS.128 [R1],[R2.64]", "LDGDEPBAR"


@pytest.mark.parametrize(
    ("lines", "copies"),
    [
        (("DEPBAR.LE SB0,0x0", COPY, COPY, GROUP), 2),
        (("DEPBAR.LE SB0,0x2", COPY, GROUP, COPY, GROUP), 4),
        ((COPY, GROUP, "DEPBAR.LE SB0,0x1", COPY, GROUP), 3),
        ((COPY, GROUP, "DEPBAR.LE SB0,0x0", COPY, GROUP, "DEPBAR.LE SB0,0x0"), 1),
        (("DEPBAR.LE SB0,0x0", f"@!PT {COPY}", f"@P0 {COPY}", GROUP), 1),
        (("DEPBAR.LE SB1,0x0", COPY, GROUP), 0),
        (("DEPBAR.LE SB0,0x0", COPY, GROUP, "LDG.E R3,[R2.64]"), 0),
        (("DEPBAR.LE SB0,0x0", COPY, GROUP, "UTMALDG.2D [UR8],[UR4]"), 0),
        (("DEPBAR.LE SB0,0x0",), 0),
    ],
)
def test_copies_in_flight_are_those_that_no_wait_has_seen_done(lines: tuple[str, ...], copies: int) -> None:
    assert most_in_flight_bytes(code(*lines), num_warps=2) == copies * 16 * 64


def test_bandwidths_are_those_of_the_data_sheets() -> None:
    sheets = {80: "a100-80gb", 90: "h100", 100: "b200"}
    assert {arch: one.memory_bytes_per_s for arch, one in PIPES.items()} == {
        arch: GPUS[name].bandwidth_bytes_per_s for arch, name in sheets.items()
    }
    # An A100: 2,039 GB/s by 108 multiprocessors at 1.41 GHz is 13.4 B a cycle, for 550 cycles.
    assert PIPES[80].bandwidth_latency_bytes == pytest.approx(7365, abs=1)


def test_loops_in_words() -> None:
    read = [one for one in read_loops(product_kernel(90), num_warps=4, blocks=2) if one.flops]
    first, cycles, copies, issues = loop_lines(read, 90)
    assert first.startswith(f"loop 1: {read[0].total} instructions, bound by {read[0].limit}: at most")
    assert first.endswith("on H100 SXM")
    assert f"{read[0].limit} {read[0].least_cycles:.0f}" in cycles
    assert "tensor products:64x16x16 2" in issues
    assert copies.endswith("multiprocessor; memory's bandwidth needs 9,714 B at its latency of 700 cycles")
    assert loop_lines(read, 120)[0] == f"loop 1: {read[0].total} instructions"
