"""CUDA graphs without a GPU: skips a case that asks for one, and refuses a whole run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from perflab.measure.cuda_graph import check_mode
from perflab.plugin.config.settings import Settings

if TYPE_CHECKING:
    import torch


def no_graph_for(case: str, settings: Settings, device: torch.device) -> str | None:
    """Why a case is skipped on this device; None if it is measured.

    Raises:
        SettingError: an option or ini key asks for graphs, which would leave nothing of the run.
    """
    if settings.graph_by_mark and device.type != "cuda":
        return "a CUDA graph needs a GPU"
    check_mode(case, settings.mode, device)
    return None
