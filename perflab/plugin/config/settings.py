"""Reads the settings of a run once: command line before ini file before default."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

import pytest

from perflab.data import changed
from perflab.errors import SettingError
from perflab.measure.devices import DEVICE_CHOICES
from perflab.measure.limits import patience_s
from perflab.measure.nvtx import ASKED, ranges_asked
from perflab.measure.sampling import OVERRUN, Plan
from perflab.mode import DEFAULT, Mode
from perflab.plugin.options import OPTIONS, Option
from perflab.records import Policy
from perflab.report.view import DEFAULT_VIEW, View, parse_columns, parse_sort
from perflab.results import Result
from perflab.tiers import tiers
from perflab.units import format_ns, parse_bytes, parse_duration_ns, parse_fraction, parse_seconds

Part = TypeVar("Part")
_Value = TypeVar("_Value")
EVIDENCE_SHARE = 0.1
"""Of a case's budget: what each of the profiles may take that explain a failure."""
PROFILE_SHARE = 0.3
"""Of a case's budget, on top of it: what its profile may take."""
_MACHINE = re.compile(r"[a-z0-9](?:[a-z0-9.-]{0,38}[a-z0-9])?")
"""It is part of a folder's name."""


@dataclass(frozen=True)
class Settings:
    """What one run was asked for. Fractions are shares of one."""

    update: bool
    update_new: bool
    reason: str | None
    noisy: str
    """What becomes of times that are to be saved, and are too noisy."""
    prune: bool
    prune_case: str
    """A case, or a test, whose baselines are deleted too if it was not collected; empty: none."""
    baselines: Path
    machine: str | None
    """The pool of machines whose times are compared with each other; None: this machine alone."""
    threshold: float
    memory_threshold: float
    memory_limit_bytes: int | None
    """The peak that a case may have, whatever its baseline; None: any."""
    leak_calls: int
    """Calls that tell whether memory piles up; 0: nobody asks."""
    floor_ns: float
    check: str
    fail_improved: bool
    """Whether a case that is better than its baseline fails."""
    counts: str
    cache: Literal["warm", "cold"]
    cuda_graph: bool
    instructions: str
    device: str
    budget_s: float
    total_budget_s: float | None
    settle: str
    replicates: int
    profile: bool
    """Whether each case is profiled after it has been measured."""
    evidence: str
    """Whether both versions of a case that became worse are profiled."""
    json: Path | None
    predict: bool
    """Whether cases are predicted instead of measured."""
    dry_run: bool
    """Whether what is predicted runs on CUDA with nothing computed, instead of on fake tensors."""
    parts: tuple[object, ...]
    """What tiers were asked for besides, one of a type."""
    timeout_s: float | None = None
    """How long a case may go without a sign of life; None: as long as its kind may take."""
    against: str | None = None
    """The other side of a paired comparison: a commit, branch, tag or directory."""
    against_threshold: float = 0.02
    view: View = DEFAULT_VIEW
    """How the table of measured cases is shown."""
    side_by_side: str | None = None
    """The parameter whose levels are shown against each other."""
    budget_by: str = "--perf-budget"
    """What sets ``budget_s``, as it is shown."""
    study: str | None = None
    """Title of the case's study. Only the marker sets it, and the next two."""
    columns: tuple[str, ...] = ()
    """What the study's table shows of the case; empty: what there is."""
    versus: str | None = None
    """``parameter=level`` that the case is held against there."""
    graph_by_mark: bool = False
    """Whether the case's mark alone asks for a CUDA graph, and not the run."""
    warmup: int | None = None
    """Fixed number of warm-up calls; None: until readings agree. Only the marker sets it."""
    last: bool = False
    """Whether the case comes after the others where the run's time is limited. Only the marker sets it."""
    allow_nan: bool = False
    """Whether a result may hold NaN. Only the marker sets it."""
    is_predictable: bool = True
    """Whether the case may be predicted. Only the marker sets it."""
    fresh_process: bool = False
    """Whether the case is measured in a process of its own. Only the marker sets it."""

    def part(self, kind: type[Part]) -> Part:
        """A tier's own settings."""
        return next(one for one in self.parts if isinstance(one, kind))

    @property
    def policy(self) -> Policy:
        """What counts as worse."""
        return Policy(
            threshold=self.threshold,
            memory_threshold=self.memory_threshold,
            floor_ns=self.floor_ns,
            gate_counts=self.counts == "on",
            fail_improved=self.fail_improved and self.against is None,
        )

    @property
    def plan(self) -> Plan:
        """How long to measure."""
        return self.plan_within(None)

    def plan_within(self, share_s: float | None) -> Plan:
        """How long to measure where no more than a share of the run's time is left; None: there is no limit."""
        budget_s = self.budget_s if share_s is None else min(self.budget_s, share_s)
        return Plan(budget_ns=budget_s * 1e9, warmup=self.warmup, least_samples_ns=OVERRUN * self.budget_s * 1e9)

    def patience_s(self, set_up_s: float = 0.0, call_s: float = 0.0) -> float:
        """How long the case may go without a sign of life, where it says that it takes so long."""
        return patience_s(self.budget_s, set_up_s, call_s) if self.timeout_s is None else self.timeout_s

    @property
    def profile_ns(self) -> float | None:
        """Time for a case's profile; None: none is taken."""
        return PROFILE_SHARE * self.budget_s * 1e9 if self.profile else None

    @property
    def stored_profile_ns(self) -> float:
        """The most that the profile may take that a baseline keeps."""
        return PROFILE_SHARE * self.budget_s * 1e9

    @property
    def evidence_ns(self) -> float:
        """Time for each of the profiles that explain a failure."""
        return EVIDENCE_SHARE * self.budget_s * 1e9

    @property
    def mode(self) -> Mode:
        """How calls are timed."""
        return Mode(cache=self.cache, cuda_graph=self.cuda_graph)

    @property
    def time_is_over(self) -> str:
        """Why a case is skipped that has nothing left of the total budget."""
        return f"the run's {self._total} are over (--perf-total-budget)"

    def over_before(self, what: str) -> str:
        """Why something was not done that the total budget left no time for."""
        return f"the run's {self._total} were over before {what} (--perf-total-budget)"

    @property
    def _total(self) -> str:
        return format_ns((self.total_budget_s or 0.0) * 1e9)

    def told_in(self, result: Result) -> Result:
        """The result with how the case is timed, where it is, and what its study's table is to know."""
        return changed(
            result,
            study=self.study,
            columns=list(self.columns),
            versus=self.versus,
            mode=self.mode if result.is_of_a_run else DEFAULT,
            compared=result.outcome is None and self.against is not None,
        )


def _raw(config: pytest.Config, option: Option) -> tuple[str, str]:
    """The value as text, and where it came from."""
    given = config.getoption(option.dest, default=None)
    if given is not None:
        return (str(given), option.name)
    if option.variable is not None and os.environ.get(option.variable):
        return (os.environ[option.variable], f"environment variable {option.variable}")
    ini = config.getini(option.dest)
    if ini is not None:
        return (str(ini), f"ini key {option.dest}")
    return (option.default, option.name)


class Given:
    """What a run was given: each option as text, and where that came from."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._raw = {option.dest: _raw(config, option) for option in OPTIONS}

    def text(self, dest: str) -> str:
        """As it was given."""
        return self._raw[dest][0]

    def origin(self, dest: str) -> str:
        """The option, ini key or variable that it came from."""
        return self._raw[dest][1]

    def value(
        self, dest: str, parse: Callable[[str], _Value], remedy: str = "see `pytest --help`, under perflab"
    ) -> _Value:
        """As ``parse`` reads it.

        Raises:
            SettingError: it cannot, naming the option or ini key that holds it.
        """
        text, origin = self._raw[dest]
        try:
            return parse(text)
        except ValueError as error:
            raise SettingError(f"{origin}: {error}", remedy) from error

    def path(self, dest: str) -> Path:
        """A path: one of an ini file is relative to that, one of the command line to where it was given."""
        text, origin = self._raw[dest]
        of_ini = origin.startswith("ini") or not self._config.getoption(dest, None)
        return (self._config.rootpath if of_ini else self._config.invocation_params.dir) / text

    def choice(self, dest: str) -> Any:
        """One of the option's choices."""
        known = next(option.choices for option in OPTIONS if option.dest == dest)
        return self.value(dest, lambda text: parse_choice(text, known))


def read_settings(config: pytest.Config) -> Settings:
    """Read and check every option.

    Raises:
        SettingError: a value that cannot be used, naming the option or ini key that holds it.
    """
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
    )


def parse_flag(text: str) -> bool:
    """Read ``true`` or ``false``, or one of their usual other names.

    Raises:
        ValueError: the text is none.
    """
    lowered = text.strip().lower()
    if lowered in ("true", "1", "yes", "on"):
        return True
    if lowered in ("false", "0", "no", "off", ""):
        return False
    raise ValueError(f"{text!r} is neither true nor false")


def _parse_reason(text: str) -> str | None:
    reason = text.strip()
    if reason in ("\u2026", "..."):  # as the command shown for accepting has it
        raise ValueError(f"{text!r} is a placeholder; write why the change is intended")
    return reason or None


def _parse_machine(text: str) -> str | None:
    name = text.strip()
    if name and not _MACHINE.fullmatch(name):
        raise ValueError(f"{text!r} cannot name machines; use lower-case letters, digits, dots and dashes, 40 at most")
    return name or None


def parse_timeout(text: str) -> float | None:
    """Read a time, ``auto`` (None) or ``off`` (infinite).

    Raises:
        ValueError: the text is none of them.
    """
    if text.strip() in ("auto", "off"):
        return None if text.strip() == "auto" else float("inf")
    return parse_seconds(text)


def parse_memory_limit(text: str) -> int | None:
    """Read a size; an empty text, or ``off``, is none.

    Raises:
        ValueError: the text is neither.
    """
    return parse_bytes(text) if text.strip() not in ("", "off") else None


def parse_leak_calls(text: str) -> int:
    """Read a number of calls: 0, or enough of them for growth in each to mean something.

    Raises:
        ValueError: the text is neither.
    """
    if not text.strip().isdecimal() or int(text) in (1, 2):
        raise ValueError(f"{text!r} is not a number of calls: 0, or 3 and more")
    return int(text)


def parse_choice(text: str, choices: tuple[str, ...]) -> str:
    """Take the text if it is one of the choices.

    Raises:
        ValueError: it is none of them, with what they are.
    """
    if text not in choices:
        raise ValueError(f"{text!r} is not one of {', '.join(choices)}")
    return text


def _parse_device(text: str) -> str:
    if DEVICE_CHOICES.fullmatch(text) is None:
        raise ValueError(f"{text!r} is not a device; use auto, cpu, cuda or cuda:N")
    return text


def _parse_count(text: str) -> int:
    if not text.strip().isdecimal() or int(text) < 1:
        raise ValueError(f"{text!r} is not a number of processes (1 or more)")
    return int(text)
