"""The fused kernels compiled ahead of time, without a GPU: do they fit into registers, do they read in wide pieces?"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from perflab.lab.kernels.examples import launches
from perflab.lab.launch import SHARED_BYTES

pytestmark = pytest.mark.correctness

ROOT = Path(__file__).parents[2]
CAPABILITY = 90
# All examples on all architectures take two minutes, and stand in docs/log.md. Those that need the most registers:
NAMES = ("rms_norm_backward-fp32-8192", "weighted_sum_backward-fp32-128", "cross_entropy-bf16-128256")


@pytest.fixture(scope="module")
def resources() -> dict[str, dict[str, Any]]:
    """Some examples, compiled in a process that does not know of Triton's interpreter."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, "-m", f"{__package__}.compile_fused_kernels", str(CAPABILITY), *NAMES]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    return {line["name"]: line for line in lines}


@pytest.mark.parametrize("name", NAMES)
def test_a_kernel_fits_without_spilling(name: str, resources: dict[str, dict[str, Any]]) -> None:
    found = resources[name]
    assert found["spilled_bytes"] == 0, found
    assert found["shared_bytes"] <= SHARED_BYTES[CAPABILITY]


@pytest.mark.parametrize("name", NAMES)
def test_a_kernel_reads_sixteen_bytes_at_a_time(name: str, resources: dict[str, dict[str, Any]]) -> None:
    assert resources[name]["wide_loads"] > 0


def test_the_examples_hold_every_kernel_forward_and_backward_and_no_memory() -> None:
    found = launches(SHARED_BYTES[CAPABILITY])
    kernels = {launch.kernel.__name__ for launch in found.values()}
    assert kernels == {
        "weighted_sum_kernel",
        "weighted_sum_backward_kernel",
        "sum_partials_kernel",
        "rms_norm_kernel",
        "rms_norm_backward_kernel",
        "rms_norm_dx_kernel",
        "rms_norm_d_weight_kernel",
        "swiglu_kernel",
        "swiglu_backward_kernel",
        "cross_entropy_kernel",
        "cross_entropy_backward_kernel",
    }
    assert {launch.device.type for launch in found.values()} == {"meta"}
