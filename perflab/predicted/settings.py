"""What a run is asked of predictions, and says of them before the first test."""

from __future__ import annotations

from dataclasses import dataclass

from perflab.plugin.config.settings import Given, Settings, parse_flag
from perflab.predicted.dry_run.start import HERE
from perflab.predicted.gpus.names import Gpu, parse_gpu
from perflab.predicted.records import place_of
from perflab.units import format_count


@dataclass(frozen=True)
class Predicting:
    """The predicted tier's part of the settings."""

    gpu: Gpu
    """What cases are predicted for."""
    snapshots: bool
    """Whether the memory timeline of each prediction is written to a file."""


def read(given: Given) -> Predicting:
    """Read its options."""
    names_gpu = given.text("perf_dry_run") not in ("", HERE)
    gpu = given.value("perf_dry_run" if names_gpu else "perf_gpu", parse_gpu)
    return Predicting(gpu=gpu, snapshots=given.value("perf_snapshots", parse_flag))


def place_asked_for(settings: Settings) -> str | None:
    """Where all of a run's cases are to be predicted, ``h100-dry-run``; None: they are not."""
    if not settings.predict:
        return None
    return place_of(settings.part(Predicting).gpu.name, dry_run=settings.dry_run)


def predicts_by_itself(settings: Settings) -> bool:
    """Whether a case that does not fit this machine is predicted, though nobody asked: for want of a GPU.

    A CPU that was asked for by name is what is to be measured.
    """
    from perflab.measure.devices import resolve_device

    return not settings.predict and settings.device == "auto" and resolve_device("auto").type == "cpu"


def announce(settings: Settings, cases: int) -> list[str]:
    """What becomes of so many cases: all of them are predicted, or what is too much for this machine."""
    gpu = settings.part(Predicting).gpu.name
    if settings.dry_run:
        return [f"perf: {format_count(cases, 'case')} run dry on {gpu}: CUDA without a GPU, nothing is computed"]
    if settings.predict:
        return [f"perf: {format_count(cases, 'case')} predicted for {gpu} (--perf-gpu), not run"]
    if predicts_by_itself(settings):
        return [f"perf: no GPU here; cases too large for this machine are predicted for {gpu}, not run"]
    return []
