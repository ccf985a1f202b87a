"""Warm Pythons of several folders: executables that fork from a process with PyTorch imported (``plugin/warm.py``).

Each is started when a test first asks for it, and kept for all that come after. Imports nothing for ``tests/perf``.
Interrupts reach them, and all other processes of tests, also where the run itself is in the background of a shell.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell starts what it puts into the background so, and processes that stories interrupt would inherit it.
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def python() -> Iterator[str]:
    """Runs pytest in processes that have PyTorch: importing it would be most of the time of a story."""
    from tests.plugin.warm import warm_python

    with warm_python() as launcher:
        yield launcher


@pytest.fixture(scope="session")
def python_with_compiler() -> Iterator[str]:
    """The same with what fake tensors and FSDP import, which takes most of the time of a prediction and of a rank."""
    from tests.plugin.warm import warm_python

    with warm_python("torch.distributed.fsdp", compiler=True) as launcher:
        yield launcher


@pytest.fixture(scope="session")
def python_of_kernels() -> Iterator[str]:
    """The same with Triton imported to compile kernels, where other tests have its interpreter."""
    from tests.plugin.warm import warm_python

    libraries = "triton", "triton.experimental.gluon.nvidia"
    with warm_python(*libraries, compiler=True, without="TRITON_INTERPRET") as launcher:
        yield launcher
