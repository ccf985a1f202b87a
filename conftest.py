"""The lab's own options. The plugin comes by its entry point; a user's repository declares its options like this."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from perflab import Result

pytest_plugins = ["pytester", "perflab.attention.plugin"]

CONTEXT_LENGTHS = (128, 256, 512, 1024)

# Without a GPU Triton's kernels run in its interpreter, which has to be chosen before triton is imported. Asking
# PyTorch would load it for everybody, `pytest --help` included, so the driver's device file is asked instead. Under
# nocuda (make cuda) there is none, and Triton compiles and launches as on a GPU.
NOCUDA = "NOCUDA_LIBRARY" in os.environ
if not (NOCUDA or Path("/dev/nvidiactl").exists() or Path("/dev/dxg").exists()):
    os.environ.setdefault("TRITON_INTERPRET", "1")


def pytest_configure(config: pytest.Config) -> None:
    """Refuse what cannot be run at once."""
    from tests.perf.choice import check_choices

    config.addinivalue_line("markers", "gpu_numbers: on a GPU it asserts what kernels compute; nocuda computes nothing")
    check_choices(config)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what asserts numbers of a GPU where kernels are launched and not run."""
    for item in items if NOCUDA else ():
        if item.get_closest_marker("gpu_numbers"):
            item.add_marker(pytest.mark.skip(reason="asserts what kernels compute, and nocuda computes nothing"))


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare what the lab's cases are run on."""
    group = parser.getgroup("perflab lab", "the lab's models and shapes")
    group.addoption(
        "--model",
        default="small",
        metavar="NAME[,FIELD=VALUE...][,NAME...]",
        help="tiny, small, medium, large, xl, 2.7B, all (those but tiny), 70B (to predict), or package.module:factory; "
        "behind a size, fields of ModelConfig, such as small,mixer=mamba (default: small)",
    )
    group.addoption(
        "--study-model",
        default="",
        metavar="NAME",
        help="the model of the studies of switches, compilation and memory (default: the first of --model on a GPU, "
        "tiny on a CPU)",
    )
    group.addoption(
        "--train-steps",
        default=100,
        type=int,
        metavar="N",
        help="training steps on real text before a switch's loss is read (default: 100)",
    )
    group.addoption(
        "--context-length",
        default=",".join(map(str, CONTEXT_LENGTHS)),
        metavar="N[,N...]",
        help="context lengths of the model cases (default: 128,256,512,1024)",
    )
    group.addoption("--batch-size", default=4, type=int, metavar="N", help="sequences in a batch (default: 4)")
    group.addoption(
        "--collective-size",
        default="1MB,10MB,100MB",
        metavar="SIZE[,SIZE...]",
        help="sizes of the cases of collectives, in decimal units (default: 1MB,10MB,100MB)",
    )
    group.addoption(
        "--attention-grid",
        default="quick",
        choices=("quick", "reference", "training", "all"),
        help="shapes of the attention cases: a few (default: quick), those of published measurements, batch 4 with "
        "16 heads up to 32,768 tokens, or both",
    )


def pytest_perf_findings(study: str, results: list[Result]) -> list[str] | None:
    """What the lab's studies come to. Here, where the process that collects the results of others looks for it too."""
    from tests.perf.studies.findings import findings_of

    return findings_of(study, results)
