"""Real kernels through the real compiler, for architectures that are not here. One batch for all of these tests."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from syrupy.assertion import SnapshotAssertion

from perflab.base.errors import KernelError
from perflab.compiled.compiler.pool import CompilerPool
from perflab.results.compiled import CompiledKernel

HERE = "tests.harness.tiny_kernels"
ROOT = Path(__file__).parents[2]
PYTHON = sys.executable
"""Python itself; the pool's processes start warm."""
WANTED = [
    ("FINE", "add", 80),
    ("FINE", "add", 100),
    ("FINE", "product", 80),
    ("FINE", "product", 90),
    ("FINE", "product", 100),
    ("TMA", "tma", 90),
    ("BROKEN", "spilling", 80),
    ("BROKEN", "past-the-limit", 90),
    ("BROKEN", "unknown-name", 90),
]
Found = dict[tuple[str, int], CompiledKernel]


@pytest.fixture(scope="module")
def found(pool: CompilerPool) -> Found:
    assert os.environ.get("TRITON_INTERPRET") == "1" or Path("/dev/nvidiactl").exists(), "it must not matter here"
    futures = {(name, arch): pool.submit(f"{HERE}:{where}", name, arch) for where, name, arch in WANTED}
    return {key: future.result() for key, future in futures.items()}


def test_a_small_kernel_takes_little_and_fills_the_multiprocessor(found: Found) -> None:
    for arch in (80, 100):
        resources = found["add", arch].resources
        assert resources is not None
        assert 0 < resources.registers <= 40
        assert (resources.spill_store_bytes, resources.shared_bytes, resources.instructions) == (0, 0, {})
        assert (resources.warps_per_sm, resources.max_warps_per_sm) == (64, 64)


def test_a_product_uses_the_tensor_cores_of_each_generation(found: Found) -> None:
    kinds = {arch: found["product", arch].resources for arch in (80, 90, 100)}
    assert {arch: list(one.instructions) for arch, one in kinds.items() if one} == {
        80: ["mma"],
        90: ["wgmma"],
        100: ["tcgen05"],
    }
    assert kinds[100] is not None
    assert kinds[100].tensor_columns == 128, "float32 sums of 128 columns"


def test_tma_spills_and_shared_memory_past_the_limit_are_told(found: Found) -> None:
    tma, spilling, past = (found[one].resources for one in (("tma", 90), ("spilling", 80), ("past-the-limit", 90)))
    assert tma is not None
    assert set(tma.instructions) == {"wgmma", "tma"}
    assert spilling is not None
    assert min(spilling.spill_store_bytes, spilling.spill_load_bytes, spilling.stack_bytes) > 1000
    assert past is not None
    assert past.shared_limit_bytes == 227 * 1024 < past.dynamic_shared_bytes
    assert (past.blocks_per_sm, past.limited_by) == (0, "shared memory")


def test_what_does_not_compile_is_a_result_that_names_the_line(found: Found, snapshot: SnapshotAssertion) -> None:
    broken = found["unknown-name", 90]
    assert broken.resources is None
    assert broken.problem == snapshot


def test_a_compiler_that_dies_is_a_result_and_the_next_kernel_is_compiled(
    pool: CompilerPool, found: Found, snapshot: SnapshotAssertion
) -> None:
    died = pool.submit(f"{HERE}:dying", "add", 90).result()
    assert died.problem == snapshot
    assert (died.resources, died.triton) == (None, found["add", 80].triton)
    assert pool.submit(f"{HERE}:FINE", "add", 80).result() == found["add", 80]


def test_a_compiler_that_closes_its_output_and_stays_is_ended(
    monkeypatch: pytest.MonkeyPatch, snapshot: SnapshotAssertion
) -> None:
    monkeypatch.setattr("perflab.processes.peer._CLOSING_S", 0.5)
    monkeypatch.setattr(sys, "executable", PYTHON)  # the launcher of a warm one has the output too
    with CompilerPool(1) as pool:
        silent = pool.submit(f"{HERE}:silent", "add", 90).result(timeout=60)
    assert (silent.problem or "").partition(";")[0] == snapshot


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_a_compiler_that_hangs_is_a_result_and_ends_with_all_that_it_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HANGING_PIDS", str(tmp_path / "pids"))
    monkeypatch.setattr(sys, "executable", PYTHON)  # the launcher of a warm one would get its signal
    with CompilerPool(1) as pool:
        assert pool.names(f"{HERE}:FINE", [90])[90], "it has loaded torch by now"
        pool._all[0]._silent_s = 3.0
        hung = pool.submit(f"{HERE}:hanging", "add", 90).result()
        assert hung.problem is not None
        assert hung.problem.startswith("the compiling process hung and was stopped: no answer for 3.00 s; its output:")
        assert " in hanging" in hung.problem, "its stacks name the line"
        for pid in map(int, (tmp_path / "pids").read_text().split()):
            deadline = time.monotonic() + 10.0  # it was killed, and goes when the system comes to it
            while _runs(pid) and time.monotonic() < deadline:
                time.sleep(0.02)
            assert not _runs(pid)
        assert pool.submit(f"{HERE}:FINE", "add", 80).result().resources is not None


def test_configurations_may_depend_on_the_architecture(pool: CompilerPool) -> None:
    assert pool.names(f"{HERE}:by_architecture", [80, 90]) == {80: ["add"], 90: ["add", "large"]}


def test_a_registration_that_is_none_is_an_error_from_there_too(pool: CompilerPool) -> None:
    with pytest.raises(KernelError, match=r"tests\.harness\.tiny_kernels has no FIN\n  -> did you mean FINE\?"):
        pool.names(f"{HERE}:FIN", [80])


def test_what_is_handed_to_the_compiler_is_what_a_launch_would_hand_it() -> None:
    """By Triton's rules: 1 and None are compiled in, multiples of 16 and aligned pointers are marked."""
    program = (
        "import json\nfrom tests.harness.tiny_kernels import EVERY_KIND\n"
        "from perflab.compiled.compiler.compile import specialise\n"
        "_, signature, constants, attributes = specialise(EVERY_KIND, 90)\n"
        "marked = [position for (position,), found in attributes.items() if found == [['tt.divisibility', 16]]]\n"
        "print(json.dumps([signature, {position: str(value) for (position,), value in constants.items()}, marked]))"
    )
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    signature, constants, marked = json.loads(done.stdout)
    assert signature == {
        "tensor": "*fp32",
        "half": "*fp16",
        "whole": "i32",
        "multiple": "i32",
        "one": "constexpr",
        "large": "i64",
        "number": "fp32",
        "flag": "u1",
        "nothing": "constexpr",
        "BLOCK": "constexpr",
    }
    assert constants == {"4": "1", "8": "None", "9": "16"}
    assert marked == [0, 1, 3, 5], "2**40 is a multiple of 16 too"
