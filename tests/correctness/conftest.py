"""Correctness runs on small matrices, often several workers at a time."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Iterator

import hypothesis
import pytest
import torch

from tests.plugin.warm import warm_python

# A failure is to be seen by everybody who runs the tests, and never because a machine was slow.
hypothesis.settings.register_profile("correctness", derandomize=True, deadline=None)


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """On matrices as small as these, PyTorch's threads wait for each other longer than they work."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


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


@pytest.fixture(scope="module")
def warm_ranks() -> Iterator[None]:
    """Start ranks with PyTorch and its compiler imported; those of tests/harness/test_ranks.py are Python's own."""
    with warm_python("torch.distributed.fsdp", compiler=True) as launcher, pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(sys, "executable", launcher)
        monkeypatch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)  # heeded when Python starts: none would be warm
        yield
