"""Sides of an A/B comparison that are forked from one process use CUDA as fresh ones would, or are not forked."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from perflab.base.errors import SideEndedError
from perflab.processes.child import Start
from perflab.turns.process import Ancestor, NotForkedError, side_process

from .active import needs_nocuda

pytestmark = needs_nocuda

USES_CUDA = """
import torch

x = torch.ones(1 << 20, device="cuda")
y = x + 1
torch.cuda.synchronize()
print(y.device, torch.cuda.memory_allocated() >> 20, torch.cuda.current_stream() == torch.cuda.default_stream())
"""


def start_of(folder: Path, name: str, shared: Path) -> Start:
    """A side that runs ``uses_cuda`` of its own folder."""
    own = folder / name
    own.mkdir()
    (own / "uses_cuda.py").write_text(USES_CUDA)
    path = os.pathsep.join([str(shared), *(entry for entry in sys.path if entry)])
    return Start(name, [sys.executable, "-m", "uses_cuda"], {**os.environ, "PYTHONPATH": path}, own)


def test_forked_sides_use_cuda_beside_each_other(tmp_path: Path) -> None:
    starts = [start_of(tmp_path, name, tmp_path) for name in ("head", "base")]
    with Ancestor(starts) as ancestor:
        sides = [side_process(start, 60.0, ancestor) for start in starts]
        for side in sides:
            with side:
                with pytest.raises(SideEndedError, match=r"ended \(exit status 0\)") as ended:
                    side.answer()
                assert ended.value.output.strip() == "cuda:0 8 True"


def test_where_cuda_was_asked_for_before_nothing_is_forked(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import torch\ntorch.cuda.is_available()\n")
    start = start_of(tmp_path, "head", tmp_path)
    with Ancestor([start]) as ancestor, pytest.raises(NotForkedError, match="CUDA was in use"):
        side_process(start, 60.0, ancestor)
