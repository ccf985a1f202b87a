"""Handles CUDA graphs without a GPU: skips a case whose marker asks for one, and refuses a run that asks for all."""

from __future__ import annotations

from typing import TYPE_CHECKING

from perflab.base.errors import SettingError
from perflab.devices.backend import Quantity
from perflab.devices.kinds import backend_of
from perflab.settings.settings import Settings

if TYPE_CHECKING:
    import torch


def no_graph_for(case: str, settings: Settings, device: torch.device) -> str | None:
    """Return why a case is skipped on this device; None if it is measured.

    Raises:
        SettingError: an option or ini key asks for graphs, so every case would be skipped.
    """
    if not settings.cuda_graph or backend_of(device).tells(Quantity.GRAPHS):
        return None
    if settings.graph_by_mark:
        return "a CUDA graph needs a GPU"
    raise SettingError(
        f"--perf-cuda-graph (perf_cuda_graph) needs CUDA: {case} is measured on {device}",
        "leave it out there, or mark what is to have a graph, @pytest.mark.perf(cuda_graph=True): such cases alone "
        "are skipped without a GPU; cache='cold' works on every device",
    )
