"""Settings of a run, read once: command line before ini file before default. What markers change: ``marker.py``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from perflab.errors import SettingError
from perflab.measure.devices import DEVICE_CHOICES
from perflab.measure.sampling import Plan
from perflab.plugin.options import OPTIONS, Option
from perflab.predict.gpus import Gpu, parse_gpu
from perflab.records import Policy, Result
from perflab.static.architectures import parse_architectures
from perflab.units import format_ns, parse_duration_ns, parse_fraction, parse_seconds


@dataclass(frozen=True)
class Settings:
    """What one run was asked for. Fractions are shares of one."""

    update: bool
    update_new: bool
    reason: str | None
    prune: bool
    baselines: Path
    threshold: float
    memory_threshold: float
    floor_ns: float
    check: str
    counts: str
    instructions: str
    device: str
    budget_s: float
    total_budget_s: float | None
    settle: str
    replicates: int
    json: Path | None
    predict: bool
    """Whether cases are predicted instead of measured."""
    gpu: Gpu
    """What they are predicted for."""
    snapshots: bool
    """Whether the memory timeline of each prediction is written to a file."""
    kernels: tuple[str, ...]
    """Where kernels are registered: ``package.module:attribute``."""
    archs: tuple[int, ...]
    """What they are compiled for: 90 is sm_90."""
    against: str | None = None
    """The other side of a paired comparison: a commit, branch, tag or directory."""
    against_threshold: float = 0.02
    side_by_side: str | None = None
    """The parameter whose levels are shown against each other."""
    study: str | None = None
    """Title of the case's study. Only the marker sets it, and the next two."""
    columns: tuple[str, ...] = ()
    """What the study's table shows of the case; empty: what there is."""
    versus: str | None = None
    """``parameter=level`` that the case is held against there."""
    warmup: int | None = None
    """Fixed number of warm-up calls; None: until readings agree. Only the marker sets it."""
    allow_nan: bool = False
    """Whether a result may hold NaN. Only the marker sets it."""
    fresh_process: bool = False
    """Whether the case is measured in a process of its own. Only the marker sets it."""

    @property
    def policy(self) -> Policy:
        """What counts as worse."""
        return Policy(
            threshold=self.threshold,
            memory_threshold=self.memory_threshold,
            floor_ns=self.floor_ns,
            gate_counts=self.counts == "on",
        )

    @property
    def plan(self) -> Plan:
        """How long to measure."""
        return Plan(budget_ns=self.budget_s * 1e9, warmup=self.warmup)

    @property
    def time_is_over(self) -> str:
        """Why a case is skipped that has nothing left of the total budget."""
        return f"the run's {format_ns((self.total_budget_s or 0.0) * 1e9)} are over (--perf-total-budget)"

    def in_study(self, result: Result) -> Result:
        """The result with what its study's table is to know."""
        return structs.replace(result, study=self.study, columns=list(self.columns), versus=self.versus)


def _raw(config: pytest.Config, option: Option) -> tuple[str, str]:
    """The value as text, and where it came from."""
    given = config.getoption(option.dest, default=None)
    if given is not None:
        return (str(given), option.name)
    ini = config.getini(option.dest)
    if ini is not None:
        return (str(ini), f"ini key {option.dest}")
    return (option.default, option.name)


def read_settings(config: pytest.Config) -> Settings:
    """Read and check every option.

    Raises:
        SettingError: a value that cannot be used, naming the option or ini key that holds it.
    """
    raw = {option.dest: _raw(config, option) for option in OPTIONS}

    def value(dest: str, parse: Callable[[str], Any]) -> Any:
        text, origin = raw[dest]
        try:
            return parse(text)
        except ValueError as error:
            raise SettingError(f"{origin}: {error}", "see `pytest --help`, under perflab") from error

    def path(dest: str) -> Path:
        text, origin = raw[dest]
        return (
            config.rootpath
            if origin.startswith("ini") or not config.getoption(dest, None)
            else config.invocation_params.dir
        ) / text

    def choice(dest: str) -> str:
        known = next(option.choices for option in OPTIONS if option.dest == dest)
        chosen: str = value(dest, lambda text: parse_choice(text, known))
        return chosen

    against = raw["perf_against"][0] or None
    if against is None and config.getoption("perf_against", None) is not None:
        raise SettingError(
            "--perf-against is given, and empty", "name a commit, branch, tag or directory; is the variable set?"
        )
    update, update_new = value("perf_update", _parse_flag), value("perf_update_new", _parse_flag)
    if against is not None and (update or update_new):
        raise SettingError(
            "--perf-against and --perf-update: a comparison in turns uses no baselines, and saves none",
            "save baselines in a run of its own",
        )
    predict = value("perf_predict", _parse_flag)
    if against is not None and predict:
        raise SettingError(
            "--perf-against and --perf-predict: turns are taken by what runs, and nothing does",
            "leave one of them out; predictions are compared with their baselines, exactly",
        )
    reason = value("perf_reason", _parse_reason)
    if reason is not None and not (update or update_new):
        raise SettingError(
            f"{raw['perf_reason'][1]}: {reason!r} is a reason for saving, and nothing is saved in this run",
            "give it together with --perf-update or --perf-update-new, or leave it out",
        )
    return Settings(
        update=update,
        update_new=update_new,
        reason=reason,
        prune=value("perf_prune", _parse_flag),
        baselines=path("perf_baselines"),
        threshold=value("perf_threshold", parse_fraction),
        memory_threshold=value("perf_memory_threshold", parse_fraction),
        floor_ns=value("perf_floor", parse_duration_ns),
        check=choice("perf_check"),
        counts=choice("perf_counts"),
        instructions=choice("perf_instructions"),
        device=value("perf_device", _parse_device),
        budget_s=value("perf_budget", parse_seconds),
        total_budget_s=value("perf_total_budget", lambda text: parse_seconds(text) if text else None),
        settle=choice("perf_settle"),
        replicates=value("perf_replicates", _parse_count),
        kernels=tuple(raw["perf_kernels"][0].replace(",", " ").split()),
        archs=value("perf_arch", parse_architectures),
        json=path("perf_json") if raw["perf_json"][0] else None,
        predict=predict,
        gpu=value("perf_gpu", parse_gpu),
        snapshots=value("perf_snapshots", _parse_flag),
        against=against,
        against_threshold=value("perf_against_threshold", parse_fraction),
        side_by_side=raw["perf_side_by_side"][0].strip() or None,
    )


def _parse_flag(text: str) -> bool:
    lowered = text.strip().lower()
    if lowered in ("true", "1", "yes", "on"):
        return True
    if lowered in ("false", "0", "no", "off", ""):
        return False
    raise ValueError(f"{text!r} is neither true nor false")


def _parse_reason(text: str) -> str | None:
    reason = text.strip()
    if reason in ("\u2026", "..."):  # as the command shown for accepting has it
        raise ValueError(f"{text!r} stands for your own words; say why the change is meant")
    return reason or None


def parse_choice(text: str, choices: tuple[str, ...]) -> str:
    """Take the text if it is one of the choices.

    Raises:
        ValueError: it is none of them, with what they are.
    """
    if text not in choices:
        raise ValueError(f"{text!r} is none of {', '.join(choices)}")
    return text


def _parse_device(text: str) -> str:
    if DEVICE_CHOICES.fullmatch(text) is None:
        raise ValueError(f"{text!r} is not a device; use auto, cpu, cuda or cuda:N")
    return text


def _parse_count(text: str) -> int:
    if not text.strip().isdecimal() or int(text) < 1:
        raise ValueError(f"{text!r} is not a number of processes (1 or more)")
    return int(text)
