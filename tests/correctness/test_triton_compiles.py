"""The Triton kernels compiled ahead of time, without a GPU: do they fit, and do they use the tensor cores?"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from perflab.lab.attention.triton_tiles import choose_tiles

pytestmark = pytest.mark.correctness

ROOT = Path(__file__).parents[2]
Configuration = tuple[str, str, int, int, bool]
CONFIGURATIONS: list[Configuration] = [
    ("forward", dtype, head_dim, capability, True)
    for dtype in ("bfloat16", "float32")
    for head_dim in (64, 128)
    for capability in (80, 90)
] + [("forward", "bfloat16", 256, 80, True), ("forward", "bfloat16", 80, 90, False)]
CONFIGURATIONS += [
    (kernel, dtype, head_dim, capability, True)
    for kernel in ("dk_dv", "dq")
    for dtype, head_dim, capability in (
        ("bfloat16", 64, 90),
        ("bfloat16", 128, 80),
        ("bfloat16", 128, 90),
        ("bfloat16", 256, 90),
        ("float32", 64, 90),
        ("float32", 256, 80),
    )
]
CONFIGURATIONS += [(kernel, "float16", 80, 90, False) for kernel in ("dk_dv", "dq")]
CONFIGURATIONS += [("delta", "bfloat16", 256, 90, False)]


def name_of(configuration: Configuration) -> str:
    kernel, dtype, head_dim, capability, is_causal = configuration
    return f"{kernel}-{dtype}-d{head_dim}-sm{capability}-{'causal' if is_causal else 'full'}"


@pytest.fixture(scope="module")
def resources() -> dict[Configuration, dict[str, Any]]:
    """All configurations, compiled in one process that does not know of Triton's interpreter."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, "-m", f"{__package__}.compile_triton_attention", json.dumps(CONFIGURATIONS)]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    return dict(zip(CONFIGURATIONS, lines, strict=True))


@pytest.mark.parametrize("configuration", CONFIGURATIONS, ids=name_of)
def test_a_kernel_fits_without_spilling(
    configuration: Configuration, resources: dict[Configuration, dict[str, Any]]
) -> None:
    found = resources[configuration]
    assert found["shared_bytes"] <= found["shared_limit_bytes"]
    if found["predicted_shared_bytes"] is not None:
        assert found["shared_bytes"] <= found["predicted_shared_bytes"], "the tiles are chosen by this bound"
    assert found["spilled_bytes"] == 0, found


@pytest.mark.parametrize("configuration", CONFIGURATIONS, ids=name_of)
def test_products_run_where_their_precision_says(
    configuration: Configuration, resources: dict[Configuration, dict[str, Any]]
) -> None:
    kernel, dtype, head_dim, capability, _ = configuration
    found = resources[configuration]
    if dtype == "float32" or kernel == "delta":
        assert (found["wgmma"], found["mma"], found["tf32"]) == (0, 0, False), "float32 must stay IEEE"
    elif capability == 80 or (kernel != "forward" and head_dim > 128):
        assert found["mma"] > 0, "at this head dimension no tile is high enough for wgmma"
    else:
        assert found["wgmma"] > 0


@pytest.mark.parametrize("kernel", ["forward", "dk_dv", "dq"])
@pytest.mark.parametrize("shared_kib", [99, 163, 227], ids=lambda kib: f"{kib}KiB")
def test_there_are_tiles_for_every_head_dimension_on_every_recent_gpu(kernel: str, shared_kib: int) -> None:
    """99 KiB a block: consumer GPUs of Ampere and Ada, A10, L4. What has a forward must have a backward."""
    for dtype in (torch.bfloat16, torch.float32):
        for head_dim in (16, 40, 64, 80, 128, 192, 256):
            tiles = choose_tiles(kernel, head_dim, dtype, shared_kib * 1024)
            assert tiles.shared_bytes(kernel, head_dim, dtype.itemsize) <= shared_kib * 1024
