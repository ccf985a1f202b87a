"""The predicted tier's settings, and the line about predictions that a run prints before its first test."""

from __future__ import annotations

from dataclasses import dataclass

from perflab.base.errors import UsageError
from perflab.predicted.dry_run.start import HERE
from perflab.predicted.gpus import DataSheet, parse_gpu, parse_modelled
from perflab.predicted.world.network import Network, parse_network
from perflab.results.predicted import place_of
from perflab.settings.given import Given, parse_flag, parse_ranks
from perflab.settings.settings import Settings
from perflab.units import format_count


@dataclass(frozen=True)
class Predicting:
    """The predicted tier's part of the settings."""

    gpu: DataSheet
    """The GPU that cases are predicted for."""
    snapshots: bool
    """Whether the memory timeline of each prediction is written to a file."""
    ranks: tuple[int, ...]
    """The ranks that a dry run plays of a case; a prediction plays the first. Empty: the first and the last."""
    network: Network
    """The network between the GPUs that the ranks of a case are predicted for."""

    def ranks_of(self, world_size: int) -> list[int]:
        """Return the ranks to play of a case in ranks, the one whose numbers are reported first.

        Raises:
            UsageError: the case has no such rank.
        """
        beyond = [rank for rank in self.ranks if rank >= world_size]
        if beyond:
            raise UsageError(
                f"--perf-ranks={beyond[0]}: the case has {world_size} ranks, 0 to {world_size - 1}",
                "name some of them, or have more: --perf-world",
            )
        return list(self.ranks or (0, world_size - 1))


def read(given: Given) -> Predicting:
    """Read the predicted tier's options."""
    names_gpu = given.text("perf_dry_run") not in ("", HERE)
    gpu = given.value("perf_dry_run", parse_modelled) if names_gpu else given.value("perf_gpu", parse_gpu)
    return Predicting(
        gpu=gpu,
        snapshots=given.value("perf_snapshots", parse_flag),
        ranks=given.value("perf_ranks", parse_ranks),
        network=given.value("perf_network", parse_network),
    )


def place_asked_for(settings: Settings) -> str | None:
    """Return the place (``h100-dry-run``) for which all of a run's cases are predicted; None if cases are measured."""
    if not settings.predict:
        return None
    return place_of(settings.part(Predicting).gpu.name, dry_run=settings.dry_run)


def predicts_by_itself(settings: Settings) -> bool:
    """Whether a case that does not fit this machine is predicted without ``--perf-predict``, since there is no GPU.

    If the user names the CPU as the device, cases are measured on the CPU.
    """
    from perflab.devices.kinds import resolve_device

    return not settings.predict and settings.device == "auto" and resolve_device("auto").type == "cpu"


def announce(settings: Settings, cases: int) -> list[str]:
    """Return the line that says whether all cases are predicted, or those too large for this machine; else nothing."""
    gpu = settings.part(Predicting).gpu.name
    if settings.dry_run:
        return [f"perf: {format_count(cases, 'case')} run dry on {gpu}: CUDA without a GPU, nothing is computed"]
    if settings.predict:
        return [f"perf: {format_count(cases, 'case')} predicted for {gpu} (--perf-gpu), not run"]
    if predicts_by_itself(settings):
        return [f"perf: no GPU here; cases too large for this machine are predicted for {gpu}, not run"]
    return []
