"""Turns on devices: one GPU is one GPU, however a process numbers it."""

from __future__ import annotations

import contextlib
import os
import re
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from filelock import FileLock

from perflab.measure.machine.devices import identities_of_all, identity_of
from perflab.running.case import locks
from perflab.running.case.locks import device_turn, machine_turn

A, B = "8a3f0000-0000-0000-0000-00000000000a", "8a3f0000-0000-0000-0000-00000000000b"


@dataclass
class Properties:
    uuid: str


@pytest.fixture(autouse=True)
def own_temporary_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "gettempdir", lambda: str(tmp_path))


def visible(monkeypatch: pytest.MonkeyPatch, *uuids: str, current: int = 0) -> None:
    """The GPUs that this process sees, in its own order."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: bool(uuids))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: len(uuids))
    gpu = torch.device("cuda") if uuids else None
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda check_available: gpu)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: current)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: Properties(uuids[index]))


def held(folder: Path) -> list[str]:
    """Names of the locks that are taken at the moment."""
    names = []
    for path in folder.glob("*.lock"):
        lock = FileLock(path)
        try:
            lock.acquire(timeout=0)
        except TimeoutError:
            names.append(path.name)
        else:
            lock.release()
    return sorted(names)


def test_without_a_number_a_gpu_is_the_current_one_and_without_a_gpu_there_is_the_cpu(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    visible(monkeypatch, A, B, current=1)
    assert identity_of("cuda") == identity_of("cuda:1") == identity_of(torch.device("cuda", 1))
    assert identity_of("cuda") != identity_of("cuda:0")
    visible(monkeypatch)
    assert identities_of_all() == ["cpu"]


def test_one_gpu_has_one_lock_whatever_cuda_visible_devices_makes_of_its_number(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    visible(monkeypatch, A, B)
    with device_turn("cuda:1", pytest.fail):
        first = held(tmp_path)
    visible(monkeypatch, B)  # as CUDA_VISIBLE_DEVICES=1 has it
    with device_turn("cuda:0", pytest.fail):
        second = held(tmp_path)
    assert first == second
    assert len(first) == 1
    assert B in first[0]


def test_two_gpus_are_measured_on_beside_each_other(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    visible(monkeypatch, A, B)
    with device_turn("cuda:0", pytest.fail), device_turn("cuda:1", pytest.fail), device_turn("cpu", pytest.fail):
        assert len(held(tmp_path)) == 3
    assert held(tmp_path) == []


def test_what_loads_the_whole_machine_holds_every_device(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    visible(monkeypatch, B, A)
    with machine_turn(pytest.fail):
        names = held(tmp_path)
    assert len(names) == 3
    assert [any(one in name for name in names) for one in ("-cpu.", A, B)] == [True] * 3


class Other:
    """Another holder of the CPU's lock, until somebody waits for it."""

    def __init__(self, folder: Path) -> None:
        with device_turn("cpu", pytest.fail):
            (self.name,) = held(folder)
        self.note = (folder / self.name).with_suffix(".holder")
        self.said: list[str] = []
        self._lock = contextlib.ExitStack()
        self._lock.enter_context(locks.held(folder / self.name, "", pytest.fail))

    def waited_for(self, text: str) -> None:
        self.said.append(text)
        self._lock.close()


@pytest.fixture
def other(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Other]:
    monkeypatch.setattr(locks, "PATIENCE_S", 0.01)
    monkeypatch.setenv("PYTEST_XDIST_TESTRUNUID", "one run")
    one = Other(tmp_path)
    yield one
    one.waited_for("")


def test_who_has_to_wait_says_for_whom_and_for_how_long_that_one_has_it(
    other: Other, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYTEST_XDIST_TESTRUNUID")
    with device_turn("cpu", other.waited_for):
        assert other.note.exists()
    holder = re.escape(f"process {os.getpid()} in {os.getcwd()}")
    assert re.fullmatch(rf"waiting for another measurement: {holder}, for \d+ s", other.said[0])
    assert not other.note.exists()


@pytest.mark.parametrize("note", [b"", b"\xff\x1b[2J\n\n\n/a\x1b[2J"], ids=["empty", "escapes"])
def test_a_note_that_says_nothing_useful_hides_no_waiting_and_escapes_to_no_terminal(other: Other, note: bytes) -> None:
    other.note.write_bytes(note)
    with device_turn("cpu", other.waited_for):
        assert other.said[0].startswith("waiting for another measurement")
        assert other.said[0].isprintable()


def test_workers_of_one_run_wait_for_each_other_without_a_word_and_only_while_there_is_time(
    other: Other, tmp_path: Path
) -> None:
    asked = iter([False, False, True])
    with device_turn("cpu", pytest.fail, lambda: next(asked)):
        assert list(asked) == []
        assert held(tmp_path) == [other.name], "the other one still has it"
