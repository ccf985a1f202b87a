"""Reads the settings of a run, once; and those of a project as pytest would, without running its tests."""

from __future__ import annotations

import contextlib
import io
import re
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from perflab.base.errors import SettingError
from perflab.devices.kinds import CHOICES, DEVICE_CHOICES
from perflab.measure.calls.nvtx import ASKED, ranges_asked
from perflab.settings.given import (
    Given,
    parse_flag,
    parse_leak_calls,
    parse_memory_limit,
    parse_timeout,
    parse_world_sizes,
)
from perflab.settings.settings import Settings
from perflab.tables.view import View, parse_columns, parse_sort
from perflab.tiers.interface import tiers
from perflab.units import parse_duration_ns, parse_fraction, parse_seconds

_SETTINGS: pytest.StashKey[Settings] = pytest.StashKey()
_MACHINE = re.compile(r"[a-z0-9](?:[a-z0-9.-]{0,38}[a-z0-9])?")
"""The pattern of a name of machines, which becomes part of a folder's name."""


def settings_of(config: pytest.Config) -> Settings:
    """Return the run's settings. The settings are read and checked at the first call.

    Raises:
        SettingError: a value that cannot be used, naming the option or ini key that holds it.
    """
    if _SETTINGS not in config.stash:
        config.stash[_SETTINGS] = _read_settings(config)
    return config.stash[_SETTINGS]


def set_settings(config: pytest.Config, settings: Settings) -> None:
    """Give the run other settings than its options say."""
    config.stash[_SETTINGS] = settings


def _read_settings(config: pytest.Config) -> Settings:
    given = Given(config)
    value, path, choice = given.value, given.path, given.choice
    against = given.text("perf_against") or None
    if against is None and config.getoption("perf_against", None) is not None:
        raise SettingError("--perf-against is empty", "name a commit, branch, tag or directory; is the variable set?")
    update, update_new = value("perf_update", parse_flag), value("perf_update_new", parse_flag)
    if against is not None and (update or update_new):
        raise SettingError(
            "--perf-against and --perf-update: an A/B comparison neither uses nor saves baselines",
            "save baselines in a separate run",
        )
    if ranges_asked() and (update or update_new):
        raise SettingError(
            f"--perf-update where {ASKED} is set, as perflab nsys does: the ranges' own cost is in all times",
            "save baselines in a run of its own",
        )
    dry_run = bool(given.text("perf_dry_run"))
    predict = value("perf_predict", parse_flag)
    if dry_run and predict:
        raise SettingError(
            "--perf-dry-run and --perf-predict: a case runs either on a CUDA stand-in or on fake tensors",
            "leave one of them out; a dry run needs PyTorch's CUDA build, and reports more",
        )
    predict = predict or dry_run
    if against is not None and predict:
        other = "--perf-dry-run" if dry_run else "--perf-predict"
        raise SettingError(
            f"--perf-against and {other}: an A/B comparison measures both versions, and a prediction runs nothing",
            "leave one of them out; a prediction is compared exactly with its own baseline",
        )
    reason = value("perf_reason", _parse_reason)
    if reason is not None and not (update or update_new):
        raise SettingError(
            f"{given.origin('perf_reason')}: {reason!r} is a reason for saving, but this run saves nothing",
            "give it together with --perf-update or --perf-update-new, or leave it out",
        )
    prune, prune_case = value("perf_prune", parse_flag), given.text("perf_prune_case")
    if prune_case and not prune:
        raise SettingError(f"{given.origin('perf_prune_case')} removes nothing by itself", "add --perf-prune")
    return Settings(
        update=update,
        update_new=update_new,
        reason=reason,
        noisy=choice("perf_noisy"),
        prune=prune,
        prune_case=prune_case,
        baselines=path("perf_baselines"),
        machine=value("perf_machine", _parse_machine),
        threshold=value("perf_threshold", parse_fraction),
        memory_threshold=value("perf_memory_threshold", parse_fraction),
        memory_limit_bytes=value("perf_memory_limit", parse_memory_limit),
        leak_calls=value("perf_leak_calls", parse_leak_calls),
        floor_ns=value("perf_floor", parse_duration_ns),
        check="off" if ranges_asked() else choice("perf_check"),
        fail_improved=value("perf_fail_improved", parse_flag),
        adversarial=value("perf_adversarial", parse_flag),
        counts=choice("perf_counts"),
        cache=choice("perf_cache"),
        cuda_graph=value("perf_cuda_graph", parse_flag),
        instructions=choice("perf_instructions"),
        device=value("perf_device", _parse_device),
        budget_s=value("perf_budget", parse_seconds),
        total_budget_s=value("perf_total_budget", lambda text: parse_seconds(text) if text else None),
        timeout_s=value("perf_timeout", parse_timeout),
        settle=choice("perf_settle"),
        replicates=value("perf_replicates", _parse_count),
        profile=value("perf_profile", parse_flag),
        evidence=choice("perf_evidence"),
        json=path("perf_json") if given.text("perf_json") else None,
        predict=predict,
        dry_run=dry_run,
        parts=tuple(one.settings(given) for one in tiers()),
        against=against,
        against_threshold=value("perf_against_threshold", parse_fraction),
        view=View(
            value("perf_columns", parse_columns, "give some of them, separated by commas"),
            value("perf_sort", parse_sort, "give one of them, with - before it for the largest first"),
        ),
        side_by_side=given.text("perf_side_by_side").strip() or None,
        world_sizes=value("perf_world_size", parse_world_sizes),
    )


def _parse_reason(text: str) -> str | None:
    reason = text.strip()
    if reason in ("\u2026", "..."):  # the placeholder in the command that is shown for accepting
        raise ValueError(f"{text!r} is a placeholder; write why the change is intended")
    return reason or None


def _parse_machine(text: str) -> str | None:
    name = text.strip()
    if name and not _MACHINE.fullmatch(name):
        raise ValueError(f"{text!r} cannot name machines; use lower-case letters, digits, dots and dashes, 40 at most")
    return name or None


def _parse_device(text: str) -> str:
    if DEVICE_CHOICES.fullmatch(text) is None:
        raise ValueError(f"{text!r} is not a device; use {CHOICES}")
    return text


def _parse_count(text: str) -> int:
    if not text.strip().isdecimal() or int(text) < 1:
        raise ValueError(f"{text!r} is not a number of processes (1 or more)")
    return int(text)


@dataclass(frozen=True)
class Project:
    """The configuration that pytest would use in the current directory."""

    settings: Settings
    root: Path
    import_path: list[str]
    """``sys.path`` after pytest has applied the ini key ``pythonpath``."""


class _Reader:
    """A plugin that reads the project's configuration, and ends pytest before it collects anything."""

    found: Project | None = None

    @pytest.hookimpl(tryfirst=True)
    def pytest_cmdline_main(self, config: pytest.Config) -> int:
        config._do_configure()
        self.found = Project(settings_of(config), config.rootpath, list(sys.path))
        return 0


def read_project() -> Project:
    """Return the settings of the project to which the current directory belongs, wherever its configuration file is.

    The project's conftest files are not loaded, since they need not be importable for this. ``addopts`` is ignored,
    since it may hold options that conftest files declare.

    Raises:
        SettingError: pytest cannot read the configuration; pytest's message is in the error.
    """
    reader, said = _Reader(), io.StringIO()
    command = ["-p", "perflab.plugin", "-p", "no:cacheprovider", "--noconftest", "-o", "addopts="]
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        pytest.main(command, plugins=[reader])
    if reader.found is None:
        raise SettingError(f"pytest's configuration cannot be read: {said.getvalue().strip()}", "fix it; see pytest -h")
    return reader.found
