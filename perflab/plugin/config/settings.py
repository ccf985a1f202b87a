"""Reads the settings of a run once: the command line precedes environment variables, the ini file and the default."""

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
"""The fraction of a case's budget that each of the profiles which explain a failure may take."""
PROFILE_SHARE = 0.3
"""The fraction of a case's budget that the case's profile may take, in addition to the budget."""
_MACHINE = re.compile(r"[a-z0-9](?:[a-z0-9.-]{0,38}[a-z0-9])?")
"""The pattern of a name of machines, which becomes part of a folder's name."""


@dataclass(frozen=True)
class Settings:
    """The settings of one run, or of one case. Fractions are numbers such as 0.05 for 5 %."""

    update: bool
    update_new: bool
    reason: str | None
    noisy: str
    """The action for times that are to be saved but are too noisy."""
    prune: bool
    prune_case: str
    """A case, or a test, whose baselines are deleted also if it was not collected; empty: none."""
    baselines: Path
    machine: str | None
    """The pool of machines whose times are compared with each other; None: this machine alone."""
    threshold: float
    memory_threshold: float
    memory_limit_bytes: int | None
    """The highest allowed peak of a case in bytes, whatever its baseline; None: no limit."""
    leak_calls: int
    """The number of calls over which growing memory is looked for; 0: it is not looked for."""
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
    """Whether predictions run on a CUDA stand-in that computes nothing, instead of on fake tensors."""
    parts: tuple[object, ...]
    """The further settings of the tiers, one object of each type."""
    timeout_s: float | None = None
    """The seconds that a case may go without a sign of life; None: a limit derived from its budget and its claims."""
    against: str | None = None
    """The other side of a paired comparison: a commit, branch, tag or directory."""
    against_threshold: float = 0.02
    view: View = DEFAULT_VIEW
    """The columns and the order of the table of measured cases."""
    side_by_side: str | None = None
    """The parameter whose levels are shown side by side."""
    budget_by: str = "--perf-budget"
    """The source of ``budget_s``, as shown to the user: the option, or the mark."""
    study: str | None = None
    """The title of the case's study. Only the marker sets ``study``, ``columns`` and ``versus``."""
    columns: tuple[str, ...] = ()
    """The columns that the study's table shows; empty: every column that has values."""
    versus: str | None = None
    """The ``parameter=level`` with which the study's table compares the case."""
    graph_by_mark: bool = False
    """Whether the case's mark asks for a CUDA graph although the run does not."""
    warmup: int | None = None
    """A fixed number of warm-up calls; None: the warm-up lasts until readings agree. Only the marker sets it."""
    last: bool = False
    """Whether the case is measured after the others if the run's time is limited. Only the marker sets it."""
    allow_nan: bool = False
    """Whether a result may hold NaN. Only the marker sets it."""
    is_predictable: bool = True
    """Whether the case may be predicted. Only the marker sets it."""
    fresh_process: bool = False
    """Whether the case is measured in its own fresh process. Only the marker sets it."""

    def part(self, kind: type[Part]) -> Part:
        """Return a tier's own settings, by their type."""
        return next(one for one in self.parts if isinstance(one, kind))

    @property
    def policy(self) -> Policy:
        """The criteria by which a case is worse than its baseline."""
        return Policy(
            threshold=self.threshold,
            memory_threshold=self.memory_threshold,
            floor_ns=self.floor_ns,
            gate_counts=self.counts == "on",
            fail_improved=self.fail_improved and self.against is None,
        )

    @property
    def plan(self) -> Plan:
        """The plan of how long to measure."""
        return self.plan_within(None)

    def plan_within(self, share_s: float | None) -> Plan:
        """Return the plan for measuring within a share of the run's time, in seconds; None: the share is unlimited."""
        budget_s = self.budget_s if share_s is None else min(self.budget_s, share_s)
        return Plan(budget_ns=budget_s * 1e9, warmup=self.warmup, least_samples_ns=OVERRUN * self.budget_s * 1e9)

    def patience_s(self, set_up_s: float = 0.0, call_s: float = 0.0) -> float:
        """Return the seconds that the case may go without a sign of life, given its claimed set-up and call times."""
        return patience_s(self.budget_s, set_up_s, call_s) if self.timeout_s is None else self.timeout_s

    @property
    def profile_ns(self) -> float | None:
        """The time in nanoseconds for a case's profile; None: no profile is taken."""
        return PROFILE_SHARE * self.budget_s * 1e9 if self.profile else None

    @property
    def stored_profile_ns(self) -> float:
        """The time limit in nanoseconds of the profile that a baseline keeps."""
        return PROFILE_SHARE * self.budget_s * 1e9

    @property
    def evidence_ns(self) -> float:
        """The time in nanoseconds for each of the profiles that explain a failure."""
        return EVIDENCE_SHARE * self.budget_s * 1e9

    @property
    def mode(self) -> Mode:
        """The timing mode of calls: the state of the cache, and whether a CUDA graph is replayed."""
        return Mode(cache=self.cache, cuda_graph=self.cuda_graph)

    @property
    def time_is_over(self) -> str:
        """The reason for skipping a case when nothing is left of the total budget."""
        return f"the run's {self._total} are over (--perf-total-budget)"

    def over_before(self, what: str) -> str:
        """Return the reason why the total budget ended before something was done."""
        return f"the run's {self._total} were over before {what} (--perf-total-budget)"

    @property
    def _total(self) -> str:
        return format_ns((self.total_budget_s or 0.0) * 1e9)

    def told_in(self, result: Result) -> Result:
        """Return the result with the case's timing mode, if the case is timed, and with the settings of its study."""
        return changed(
            result,
            study=self.study,
            columns=list(self.columns),
            versus=self.versus,
            mode=self.mode if result.is_of_a_run else DEFAULT,
            compared=result.outcome is None and self.against is not None,
        )


def _raw(config: pytest.Config, option: Option) -> tuple[str, str]:
    """Return an option's value as text, and the source of the value."""
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
    """The options of a run: each value as text, with its source."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._raw = {option.dest: _raw(config, option) for option in OPTIONS}

    def text(self, dest: str) -> str:
        """Return an option's value as the text that was given."""
        return self._raw[dest][0]

    def origin(self, dest: str) -> str:
        """Return the option, ini key or environment variable from which a value came."""
        return self._raw[dest][1]

    def value(
        self, dest: str, parse: Callable[[str], _Value], remedy: str = "see `pytest --help`, under perflab"
    ) -> _Value:
        """Return an option's value as parsed by ``parse``.

        Raises:
            SettingError: the value cannot be parsed; the error names the option or ini key that holds it.
        """
        text, origin = self._raw[dest]
        try:
            return parse(text)
        except ValueError as error:
            raise SettingError(f"{origin}: {error}", remedy) from error

    def path(self, dest: str) -> Path:
        """Return an option's value as a path.

        A path from an ini file is relative to the root directory, a path from the command line to the directory in
        which the command was given.
        """
        text, origin = self._raw[dest]
        of_ini = origin.startswith("ini") or not self._config.getoption(dest, None)
        return (self._config.rootpath if of_ini else self._config.invocation_params.dir) / text

    def choice(self, dest: str) -> Any:
        """Return an option's value, which must be one of the option's choices."""
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
    """Parse ``true`` or ``false``, or one of their usual synonyms.

    Raises:
        ValueError: the text is neither.
    """
    lowered = text.strip().lower()
    if lowered in ("true", "1", "yes", "on"):
        return True
    if lowered in ("false", "0", "no", "off", ""):
        return False
    raise ValueError(f"{text!r} is neither true nor false")


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


def parse_timeout(text: str) -> float | None:
    """Parse a time in seconds, ``auto`` (None) or ``off`` (infinite).

    Raises:
        ValueError: the text is not one of these.
    """
    if text.strip() in ("auto", "off"):
        return None if text.strip() == "auto" else float("inf")
    return parse_seconds(text)


def parse_memory_limit(text: str) -> int | None:
    """Parse a size in bytes; return None for an empty text or ``off``.

    Raises:
        ValueError: the text is not a size, empty or ``off``.
    """
    return parse_bytes(text) if text.strip() not in ("", "off") else None


def parse_leak_calls(text: str) -> int:
    """Parse a number of calls: 0, or at least 3, the fewest in which growth from call to call is significant.

    Raises:
        ValueError: the text is not such a number.
    """
    if not text.strip().isdecimal() or int(text) in (1, 2):
        raise ValueError(f"{text!r} is not a number of calls: 0, or 3 and more")
    return int(text)


def parse_choice(text: str, choices: tuple[str, ...]) -> str:
    """Return the text if it is one of the choices.

    Raises:
        ValueError: the text is not one of the choices; the message lists them.
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
