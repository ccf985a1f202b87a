"""What the tests of nocuda share: those that need CUDA are skipped where it is not, and children with other GPUs."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pytest

from nocuda import Gpu, Seen, environment, is_active, library

needs_nocuda = pytest.mark.skipif(
    not is_active(), reason="needs PyTorch's CUDA build: make cuda (python -m nocuda run -- pytest tests/nocuda)"
)


@dataclass(frozen=True)
class Told:
    """One thing that an observer was told."""

    what: Seen
    name: str
    size: int
    source: int
    target: int


@contextmanager
def told(mask: Seen) -> Iterator[list[Told]]:
    """What happens within."""
    seen: list[Told] = []
    with library().observing(mask, lambda *what: seen.append(Told(*what))):
        yield seen


def child(code: str, gpu: Gpu | None = None, **variables: str) -> subprocess.CompletedProcess[str]:
    """Another process with the library, and a GPU of its own."""
    return subprocess.run(
        [sys.executable, "-c", code],
        env=environment(gpu, base=dict(os.environ) | variables),
        capture_output=True,
        text=True,
        timeout=120,
    )


def said_by(code: str, gpu: Gpu | None = None, **variables: str) -> list[str]:
    """Its lines; it must end well."""
    done = child(code, gpu, **variables)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()
