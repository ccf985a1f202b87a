"""The lab's own options. The plugin comes by its entry point; a user's repository declares its options like this."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

pytest_plugins = ["pytester"]

CONTEXT_LENGTHS = (128, 256, 512, 1024)

# Without a GPU Triton's kernels run in its interpreter, which has to be chosen before triton is imported. Asking
# PyTorch would load it for everybody, `pytest --help` included, so the driver's device file is asked instead.
if not (Path("/dev/nvidiactl").exists() or Path("/dev/dxg").exists()):
    os.environ.setdefault("TRITON_INTERPRET", "1")


def pytest_configure(config: pytest.Config) -> None:
    """Refuse an unknown model at once. Only where one was named: looking it up loads PyTorch."""
    name = config.getoption("--model")
    if name != "small" and ":" not in name:
        from perflab.lab.models import size_config

        try:
            size_config(name)
        except ValueError as error:
            raise pytest.UsageError(f"--model: {error}") from None


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare what the lab's cases are run on."""
    group = parser.getgroup("perflab lab", "the lab's models and shapes")
    group.addoption(
        "--model",
        default="small",
        metavar="NAME",
        help="tiny, small, medium, large, xl, 2.7B, or package.module:factory (default: small)",
    )
    group.addoption(
        "--context-length",
        default=",".join(map(str, CONTEXT_LENGTHS)),
        metavar="N[,N...]",
        help="context lengths of the model cases (default: 128,256,512,1024)",
    )
    group.addoption("--batch-size", default=4, type=int, metavar="N", help="sequences in a batch (default: 4)")
    group.addoption(
        "--attention-grid",
        default="quick",
        choices=("quick", "reference", "training", "all"),
        help="shapes of the attention cases: a few (default: quick), those of published measurements, batch 4 with "
        "16 heads up to 32,768 tokens, or both",
    )
