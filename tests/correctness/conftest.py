"""Correctness runs on small matrices, often several workers at a time."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator
from dataclasses import replace

import pytest

from tests.fixtures import one_thread, python_of_ranks, quick_collections, warm_ranks  # noqa: F401


@pytest.fixture(autouse=True, scope="module")
def small_matrices(one_thread: None) -> None:  # noqa: F811
    """Run each module in one thread, as alone so in ranks: sums of as many parts."""


@pytest.fixture(autouse=True, scope="session")
def quick_interpreter() -> Iterator[None]:
    """Kernels in Triton's interpreter take half the time."""
    if os.environ.get("TRITON_INTERPRET") != "1" or importlib.util.find_spec("triton") is None:
        yield
        return
    from .interpreter import quicken

    with pytest.MonkeyPatch.context() as monkeypatch:
        quicken(monkeypatch)
        yield


@pytest.fixture
def gluon_anywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let attention take `triton-gluon` on a CPU, too, where its operators run the kernel of `triton-one-pass`."""
    from perflab.lab.attention import registry

    anywhere = replace(registry.IMPLEMENTATIONS["triton-gluon"], devices=None)
    monkeypatch.setitem(registry._REGISTERED, "triton-gluon", anywhere)
