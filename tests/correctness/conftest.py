"""Correctness runs on small matrices, often several workers at a time."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator

import hypothesis
import pytest
import torch

from tests.fixtures import python_of_ranks, quick_collections, warm_ranks  # noqa: F401

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
