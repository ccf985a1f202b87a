"""Fixtures of several folders: one thread, quick garbage collections, and ranks with PyTorch's compiler imported."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator

import hypothesis
import pytest

# A failure is to be seen by everybody who runs the tests, and never because a machine was slow.
hypothesis.settings.register_profile("tests", derandomize=True, deadline=None)
hypothesis.settings.load_profile("tests")


@pytest.fixture(scope="module")
def one_thread() -> Iterator[None]:
    """PyTorch without its thread pool, whose threads wait long for each other on small matrices or a busy machine."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(autouse=True, scope="package")
def quick_collections() -> Iterator[None]:
    """Leave what importing and collecting made out of garbage collections: each would take half a second for it.

    Tests collect garbage a thousand times: before each measurement of memory, and around each call that is timed.
    """
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture(scope="session")
def python_of_ranks(python_with_compiler: str) -> str:
    """An executable that forks from a process with PyTorch and its compiler imported."""
    return python_with_compiler


def _take(launcher: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", launcher)
    monkeypatch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)  # heeded when Python starts: none would be warm


@pytest.fixture
def warm_start(python_of_ranks: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Start the ranks of one test warm."""
    _take(python_of_ranks, monkeypatch)


@pytest.fixture(scope="module")
def warm_ranks(python_of_ranks: str) -> Iterator[None]:
    """Start the ranks of a module's tests warm."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        _take(python_of_ranks, monkeypatch)
        yield
