"""The settings of a run, and of each of its cases, as ``reading.py`` reads them; the time that is left of a run."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeVar

from perflab.base.data import changed
from perflab.base.identity import DEFAULT, Mode
from perflab.measure.stopping import OVERRUN, Plan, patience_s
from perflab.results.records import Policy
from perflab.results.result import Result
from perflab.tables.view import DEFAULT_VIEW, View
from perflab.units import format_ns

Part = TypeVar("Part")
EVIDENCE_SHARE = 0.1
"""The fraction of a case's budget that each of the profiles which explain a failure may take."""
PROFILE_SHARE = 0.3
"""The fraction of a case's budget that the case's profile may take, in addition to the budget."""


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
    adversarial: bool
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
    gpus: int | None = None
    """The GPUs that the case needs in a job of a cluster; None: those that the cluster's file says."""
    nodes: int = 1
    """The nodes among which a job of a cluster divides the case's ranks. Only the marker sets it."""
    world_sizes: tuple[int, ...] = ()
    """The numbers of ranks for cases that the marker runs in ranks; empty: those that the marker names."""
    world_size: int = 1
    """The number of processes that run the case at once, as ranks of one group. Only the marker sets it."""

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
        return Mode(cache=self.cache, cuda_graph=self.cuda_graph, world_size=self.world_size)

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


SHARE_AT_LEAST_S = 0.5
"""The smallest share in seconds: samples are spread over 0.3 s, after a quarter of the budget for warm-up."""
GRACE_S = 5.0
"""The time in seconds after the end of the budget within which a case may still begin, to state its claimed cost."""
CAUSES_SHARE = 0.25
"""The largest fraction of the total budget that is reserved for finding the causes of failures."""


class TotalBudget:
    """The total time budget of a run.

    Args:
        total_s: the budget in seconds; None: no limit.
        now_s: a clock that returns seconds.
    """

    def __init__(self, total_s: float | None, now_s: Callable[[], float] = time.monotonic) -> None:
        self._total_s = total_s
        self._now_s = now_s
        self._began_s = now_s()
        self._done = 0
        self.cases = 0
        """The number of cases in the run."""
        self.processes = 1
        """The number of processes that share the cases; only one process measures at a time."""
        self.causes_s = 0.0
        """The seconds to reserve from now on for finding the causes of known or probable failures."""

    def left_s(self) -> float | None:
        """Return the seconds that are left, negative after the end; None without a budget."""
        return None if self._total_s is None else self._total_s - (self._now_s() - self._began_s)

    def measuring_s(self) -> float | None:
        """Return the seconds left for measuring, without the time reserved for causes; None without a budget."""
        left_s = self.left_s()
        return None if left_s is None else left_s - min(CAUSES_SHARE * (self._total_s or 0.0), self.causes_s)

    def is_over(self) -> bool:
        """Whether nothing is left of the budget."""
        left_s = self.left_s()
        return left_s is not None and left_s <= 0

    def case_done(self) -> None:
        """Count one more case as done, whether it was measured or not."""
        self._done += 1

    def case_share_s(self) -> float | None:
        """Return the seconds that the current case may take: an equal share of the time left; None without a budget."""
        return self.share_s(self.cases - self.processes * self._done)

    def share_s(self, among: int) -> float | None:
        """Return the seconds that each of ``among`` measurements may take of the time left; None without a budget."""
        left_s = self.measuring_s()
        return None if left_s is None else max(SHARE_AT_LEAST_S, left_s / max(1, among))
