"""What all tiers say in common: where a case ran, what counts as worse, and the verdict. Plain frozen data.

A tier's own records stand in its folder; ``results.py`` puts both together. These types are also the schema of every
file that perflab writes: msgspec checks each field on reading, and an unknown or missing field is an error that names
its place. Times are nanoseconds, memory is bytes.
"""

from __future__ import annotations

from enum import StrEnum
from typing import ClassVar

from perflab.data import Data, Share


class Environment(Data, frozen=True):
    """What machine and versions a time belongs to. Two times are compared only if all of this agrees."""

    device: str
    """``cpu`` or ``cuda``: also the tier of everything measured under it."""
    device_name: str
    """The processor that did the work: ``AMD EPYC (family 25, model 17)``, ``NVIDIA H200``."""
    cores: int
    """CPU cores that this process may use."""
    threads: int
    """Threads of PyTorch's intra-op pool."""
    isa: str
    """PyTorch's CPU kernels in use: ``AVX512``, ``AVX2``, ``DEFAULT``."""
    system: str
    """Operating system and machine: ``Linux x86_64``."""
    python: str
    """Major and minor version."""
    torch: str
    triton: str | None = None
    cuda: str | None = None
    """CUDA runtime that PyTorch was built for; absent on a CPU."""
    driver: str | None = None
    """NVIDIA driver; absent on a CPU."""
    features: str | None = None
    """What oneDNN chooses its way by in bf16 and fp16: instructions of the processor, and sizes of its caches."""
    machine: str | None = None
    """This machine, or the pool that it belongs to; absent in what was saved before machines were kept apart."""


class ExactEnvironment(Data, frozen=True):
    """What exact quantities may depend on: memory and counts of one call. No machine: the code decides them."""

    device: str
    system: str
    torch: str
    python: str
    threads: int
    isa: str
    device_name: str | None = None
    """The GPU's model; absent on a CPU."""
    cuda: str | None = None
    features: str | None = None
    triton: str | None = None
    """Absent on a CPU, where its kernels are interpreted."""


class Policy(Data, frozen=True):
    """What counts as worse."""

    threshold: float = 0.05
    memory_threshold: float = 0.0
    floor_ns: float = 2_000.0
    gate_counts: bool = True
    """Whether a count that rose is a regression."""
    fail_improved: bool = False
    """Whether the test of a case that improved fails, since its baseline has to be saved again."""


class Verdict(StrEnum):
    """The answer to one case."""

    OK = "ok"
    REGRESSED = "regressed"
    IMPROVED = "improved"
    INCONCLUSIVE = "inconclusive"
    NEW = "new"
    INCOMPARABLE = "incomparable"
    OOM = "oom"
    SKIPPED = "skipped"
    FAILED = "failed"
    """The test itself failed, or measured nothing; there is no number to judge."""
    UNCHECKED = "unchecked"
    """Measured under ``--perf-check=off``."""


ENOUGH_RUNS = 3
"""Runs of a machine's own history that are needed to tell a difference of times from what one run has by chance."""
MEANINGLESS = 10.0
"""Readings that cannot tell this factor from none at all tell nothing."""


def says_nothing(low: float | None, high: float | None) -> bool:
    """Whether this interval of a ratio, where there is one, tells neither faster from slower nor how much.

    Its ends are a factor of ``MEANINGLESS`` apart; without ``high`` nothing bounds it from above.
    """
    return low is not None and low <= 1.0 and (high is None or (high >= 1.0 and high >= MEANINGLESS * low))


class Change(Data, frozen=True):
    """One quantity before and now. ``ratio`` is now / before, ``low`` and ``high`` its 95 % interval.

    Readings that set no bound have an infinite ``high``, which JSON holds as null.
    """

    before: Share
    now: Share
    ratio: float
    low: float | None = None
    high: float | None = None
    limit: float | None = None
    """The ratio from which the change counts."""

    @property
    def is_past_limit(self) -> bool:
        """Whether what is now is more than a limit allows; without one nothing is."""
        return self.limit is not None and self.now > self.before * self.limit

    @property
    def is_faster(self) -> bool:
        """Whether the change counts, and is for the better."""
        return self.limit is not None and self.ratio < 1.0 / self.limit

    @property
    def is_vague(self) -> bool:
        """Whether the interval says nothing."""
        return says_nothing(self.low, self.high)


class Drift(Data, frozen=True):
    """How a quantity stands against its anchor, where that is older than the baseline."""

    recorded: str
    steps: int
    change: Change
    decides: bool = False
    """Whether the verdict is the anchor's: against the baseline alone it would have been better."""


class Shortage(Data, frozen=True):
    """What a skipped case had too little of."""

    of: str
    """The option that sets the limit, ``memory``, or ``the mark's budget``."""
    needed: float
    """Seconds or bytes, as far as the case says; of a run's time what it may take; 0: it is not known."""
    given: float
    """What the limit is; of memory, what was free."""


class Uncompared(Data, frozen=True):
    """An exact quantity of a case that was not compared with its baseline."""

    quantity: str
    """``memory``, or a count's name."""
    reason: str
    """``saved with 2 threads, here 1``: words that many cases have in common."""
    can_be_saved: bool = False
    """Whether ``--perf-update-new`` saves a value that the next run here compares with."""
    calls_differ: bool = False
    """Whether it was exact before and is not now, since calls differ: then nobody can tell whether it rose."""
    elsewhere: bool = False
    """Whether its baseline was saved with other threads, instructions or caches than there are here."""


class Judgement(Data, frozen=True):
    """A verdict with everything it rests on."""

    verdict: Verdict
    latency: Change | None = None
    memory: Change | None = None
    phases: dict[str, Change] = {}
    launching: Change | None = None
    """CUDA: host time to launch one call. Shown, and never judged."""
    counts: dict[str, Change] = {}
    """Each count that both sides know exactly. Without ``limit`` it is shown and not gated."""
    before_ns: list[float] = []
    """Median of one call in each process that ``latency`` was compared with."""
    worse: list[str] = []
    """What got worse past its limit: ``latency``, ``memory``, ``counts``; of a prediction ``memory``, ``saved``,
    ``flops``, ``bytes``, ``operators``."""
    drift: dict[str, Drift] = {}
    """By the same names. Where it decides, ``latency`` or ``memory`` is the comparison with the anchor."""
    reasons: list[str] = []
    """Plain sentences, most important first."""
    disturbed: list[str] | None = None
    """What disturbed the processes that were judged, as sentences. Empty: nothing did. None: there is no telling."""
    beside: list[str] = []
    """What went on beside the processes whose numbers are shown, as sentences, whatever the baseline had beside it."""
    suspect: bool = False
    """Looks worse, and was not yet measured again in fresh processes."""
    unsettled: list[str] = []
    """``baseline``, ``anchor``: which stored times cannot tell, though turns with their code could."""
    no_times: str | None = None
    """Why time was not compared, where memory or counts were: there are no times of this machine."""
    few_runs: int | None = None
    """How many runs this machine has kept of the case, where they are too few to tell what a difference of time is."""
    not_compared: list[Uncompared] = []
    """Exact quantities that the verdict does not rest on, though baseline or case has them."""
    short_of: list[Shortage] = []
    """Why a case was skipped, where it did not fit."""
    moved_from: str | None = None
    """The case whose baseline it was compared with, since the test stood under that name before."""
    outputs_differ: bool = False
    """Whether the two versions that took turns compute something else; what, the reasons say."""

    @property
    def time_not_judged(self) -> str | None:
        """Why the verdict does not rest on time, in words that many cases have in common; None if it does."""
        if self.few_runs is None:
            return self.no_times
        more = ENOUGH_RUNS - self.few_runs
        return f"{self.few_runs} of {ENOUGH_RUNS} runs kept on this machine, {more} more and times are compared"


class TierRecord(Data, frozen=True):
    """What a case came to in one tier. Each tier derives its own record and names itself by the ``tag``."""

    runs: ClassVar[bool] = False
    """Whether the case ran on this machine, so that there are times."""
    stands_in: ClassVar[bool] = False
    """Whether it stands in for a run, though nothing ran."""

    compares: ClassVar[bool] = False
    """Whether another version of the code ran beside it, which its verdict is about."""

    @property
    def place(self) -> str | None:
        """Where it was predicted: ``h100``, ``h100-dry-run``; None of what is no prediction."""
        return None

    @property
    def variant(self) -> str:
        """What tells results of one case apart that stand beside each other: the GPU of a prediction."""
        return ""
