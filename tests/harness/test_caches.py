"""How large the caches are that a cold call must not find anything in, and that writing the buffer empties them."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from perflab.base.identity import Mode
from perflab.measure.calls.workload import Workload
from perflab.measure.machine import caches
from perflab.measure.machine.caches import Eviction, eviction_bytes, last_level_cache_bytes
from perflab.measurement.measurement import stopwatch_for

CPU = torch.device("cpu")
MIB = 2**20


def cache(root: Path, core: int, index: int, level: int, kind: str, size: str, shared_by: str) -> None:
    """One cache, as Linux tells of it."""
    folder = root / f"cpu{core}" / "cache" / f"index{index}"
    folder.mkdir(parents=True)
    for name, text in {"level": str(level), "type": kind, "size": size, "shared_cpu_list": shared_by}.items():
        (folder / name).write_text(f"{text}\n")


@pytest.fixture
def eight_cores(tmp_path: Path) -> Path:
    """Two groups of four cores, each with 32 MiB of its own, as AMD builds them."""
    for core in range(8):
        cache(tmp_path, core, 0, 1, "Data", "32K", str(core))
        cache(tmp_path, core, 1, 1, "Instruction", "32K", str(core))
        cache(tmp_path, core, 2, 2, "Unified", "1024K", str(core))
        cache(tmp_path, core, 3, 3, "Unified", "32768K", "0-3" if core < 4 else "4-7")
    return tmp_path


@pytest.mark.parametrize(("cores", "mib"), [(range(8), 64), ([0, 1], 32), ([3, 4], 64)])
def test_last_level_caches_of_the_cores_in_use_are_counted_once_each(
    eight_cores: Path, cores: list[int], mib: int
) -> None:
    assert last_level_cache_bytes(str(eight_cores), cores) == mib * MIB


def test_without_a_third_level_the_second_is_the_last(tmp_path: Path) -> None:
    for core in (0, 1):
        cache(tmp_path, core, 0, 1, "Data", "64K", str(core))
        cache(tmp_path, core, 1, 2, "Unified", "2M", str(core))
    assert last_level_cache_bytes(str(tmp_path), [0, 1]) == 4 * MIB


def test_a_cache_that_cannot_be_read_is_none(eight_cores: Path) -> None:
    (eight_cores / "cpu0" / "cache" / "index3" / "size").write_text("unknown\n")
    assert last_level_cache_bytes(str(eight_cores), [0]) == 1 * MIB


def test_where_the_system_tells_nothing_a_documented_size_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unknown(_name: str) -> int:
        raise ValueError("unrecognized configuration name")

    monkeypatch.setattr(caches.os, "sysconf", unknown)
    assert last_level_cache_bytes(str(tmp_path), [0, 1]) is None
    monkeypatch.setattr(caches, "last_level_cache_bytes", lambda: None)
    assert eviction_bytes(CPU) == 256 * MIB


def test_what_the_c_library_knows_counts_where_sys_is_hidden(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    known = {"SC_LEVEL4_CACHE_SIZE": 0, "SC_LEVEL3_CACHE_SIZE": 8 * MIB, "SC_LEVEL2_CACHE_SIZE": MIB}
    monkeypatch.setattr(caches.os, "sysconf", known.__getitem__)
    assert last_level_cache_bytes(str(tmp_path), [0]) == 8 * MIB


@pytest.mark.parametrize(("l2_mib", "mib"), [(40, 256), (50, 256), (126, 256), (200, 400)])
def test_a_gpu_takes_what_do_bench_takes_or_twice_its_l2_cache(
    monkeypatch: pytest.MonkeyPatch, l2_mib: int, mib: int
) -> None:
    properties = SimpleNamespace(L2_cache_size=l2_mib * MIB)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _device: properties)
    assert eviction_bytes(torch.device("cuda", 0)) == mib * MIB


def test_the_buffer_is_larger_than_this_machines_last_level_cache() -> None:
    known = last_level_cache_bytes()
    assert eviction_bytes(CPU) >= 2 * (known or 0) > 0 or known is None


def test_the_buffer_is_there_from_the_first_eviction_until_it_is_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(caches, "eviction_bytes", lambda _device: 4096)
    evict = Eviction(CPU)
    assert evict._buffer is None
    evict()
    evict()
    assert evict._buffer is not None
    assert evict._buffer.nbytes == 4096
    assert set(evict._buffer.tolist()) == {2}, "the whole buffer is written by each eviction"
    evict.release()
    assert evict._buffer is None


@pytest.mark.usefixtures("one_thread")
def test_a_call_on_what_a_core_had_in_its_cache_is_slower_after_an_eviction() -> None:
    """192 KiB in a core's own cache: by the fastest of twenty, seen eight to eighteen times slower."""
    a, b, out = torch.rand(3, 2**14)
    work = Workload(torch.add, (a, b), {"out": out})
    warm, cold = stopwatch_for(CPU), stopwatch_for(CPU, Mode(cache="cold"))
    fastest_warm = min(warm.time(work, 100).total_ns / 100 for _ in range(20))
    assert min(cold.time(work, 1).total_ns for _ in range(20)) > 1.5 * fastest_warm
