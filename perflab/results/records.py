"""Records that all tiers share: where a case ran, what counts as worse, and the verdict. Plain frozen data.

A tier's own records are in its folder; ``results.py`` combines both. These types are also the schema of every
file that perflab writes: msgspec checks each field on reading, and an unknown or missing field is an error that names
its place. Times are nanoseconds, memory is bytes.
"""

from __future__ import annotations

from enum import StrEnum
from typing import ClassVar

from perflab.base.data import Data, Share


class Environment(Data, frozen=True):
    """The machine and versions of a time. Two times are compared only if all fields agree."""

    device: str
    """The kind of device that did the work, as PyTorch names it: ``cpu``, ``cuda``, ``mps``."""
    device_name: str
    """The processor that did the work: ``AMD EPYC (family 25, model 17)``, ``NVIDIA H200``."""
    cores: int
    """Number of CPU cores that the process may use."""
    threads: int
    """Number of threads of PyTorch's intra-op pool."""
    isa: str
    """The instruction set of PyTorch's CPU kernels in use: ``AVX512``, ``AVX2``, ``DEFAULT``."""
    system: str
    """Operating system and machine type: ``Linux x86_64``."""
    python: str
    """Python's major and minor version."""
    torch: str
    triton: str | None = None
    cuda: str | None = None
    """Version of the CUDA runtime that PyTorch was built for; None on a CPU."""
    driver: str | None = None
    """Version of the device's driver, on ROCm of HIP; None on a CPU and if it is unknown."""
    features: str | None = None
    """Facts by which oneDNN selects its code in bf16 and fp16: the processor's instructions and cache sizes."""
    machine: str | None = None
    """The machine, or its pool of machines; None in files saved before machines were kept apart."""
    nccl: str | None = None
    """NCCL's version and variables that choose its algorithms, ``2.27.5 NCCL_ALGO=Ring``; None without NCCL ranks."""


class ExactEnvironment(Data, frozen=True):
    """The facts on which exact quantities (memory and counts of one call) may depend.

    No machine is among them: the code determines exact quantities.
    """

    device: str
    system: str
    torch: str
    python: str
    threads: int
    isa: str
    device_name: str | None = None
    """The GPU's model; None on a CPU."""
    cuda: str | None = None
    features: str | None = None
    triton: str | None = None
    """Triton's version; None on a CPU, where Triton's kernels are interpreted."""


class Policy(Data, frozen=True):
    """The thresholds of a verdict: relative slowdown, relative memory growth, and the least change of time in ns."""

    threshold: float = 0.05
    memory_threshold: float = 0.0
    floor_ns: float = 2_000.0
    gate_counts: bool = True
    """Whether a count that rose is a regression."""
    fail_improved: bool = False
    """Whether the test of an improved case fails, so that its baseline is saved again."""


class Verdict(StrEnum):
    """The verdict on one case."""

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
    """The case was measured under ``--perf-check=off``."""


ENOUGH_RUNS = 3
"""Least number of runs in a machine's own history for distinguishing a change of time from noise."""
MEANINGLESS = 10.0
"""An interval around 1 whose ends differ by this factor carries no information."""


def says_nothing(low: float | None, high: float | None) -> bool:
    """Whether a ratio's interval shows neither the direction nor the size of a change; False without an interval.

    Such an interval contains 1, and its ends are a factor of ``MEANINGLESS`` apart; ``high`` None means no upper bound.
    """
    return low is not None and low <= 1.0 and (high is None or (high >= 1.0 and high >= MEANINGLESS * low))


class Change(Data, frozen=True):
    """One quantity before and now. ``ratio`` is now / before, ``low`` and ``high`` its 95 % interval.

    Readings that give no upper bound have an infinite ``high``, which JSON holds as null.
    """

    before: Share
    now: Share
    ratio: float
    low: float | None = None
    high: float | None = None
    limit: float | None = None
    """The ratio above which the change counts; None if the change is not gated."""

    @classmethod
    def exact(cls, before: float, now: float, limit: float | None = None) -> Change:
        """Return the change of an exact quantity, which has no interval; from 0 the ratio is 1 + now."""
        return cls(before=before, now=now, ratio=now / before if before else 1.0 + now, limit=limit)

    @property
    def is_past_limit(self) -> bool:
        """Whether the value now exceeds the limit; False without a limit."""
        return self.limit is not None and self.now > self.before * self.limit

    @property
    def is_faster(self) -> bool:
        """Whether the change is an improvement that counts; False without a limit."""
        return self.limit is not None and self.ratio < 1.0 / self.limit

    @property
    def is_vague(self) -> bool:
        """Whether the interval carries no information (``says_nothing``)."""
        return says_nothing(self.low, self.high)


class Drift(Data, frozen=True):
    """The change of a quantity since its anchor, which is older than the baseline."""

    recorded: str
    steps: int
    change: Change
    decides: bool = False
    """Whether the anchor decides the verdict, which would be better against the baseline alone."""


class Shortage(Data, frozen=True):
    """The resource that a skipped case lacked."""

    of: str
    """The resource: the option that sets the limit, ``memory``, or ``the mark's budget``."""
    needed: float
    """Seconds or bytes that the case needs, as declared; for the run's time, what the case may take; 0 if unknown."""
    given: float
    """The limit in seconds or bytes; for memory, the free bytes."""


class Uncompared(Data, frozen=True):
    """An exact quantity of a case that was not compared with its baseline."""

    quantity: str
    """The quantity: ``memory``, or a count's name."""
    reason: str
    """The reason, in words that many cases share: ``saved with 2 threads, here 1``."""
    can_be_saved: bool = False
    """Whether ``--perf-update-new`` saves a value that the next run here compares with."""
    calls_differ: bool = False
    """Whether the quantity was exact before and is not now, since calls differ: whether it rose is then unknown."""
    elsewhere: bool = False
    """Whether the baseline was saved with other threads, instructions or caches than this machine's."""


class Judgement(Data, frozen=True):
    """A verdict with all its evidence."""

    verdict: Verdict
    latency: Change | None = None
    memory: Change | None = None
    phases: dict[str, Change] = {}
    launching: Change | None = None
    """The change of the host's time to launch one call, on CUDA. It is shown, and never judged."""
    counts: dict[str, Change] = {}
    """Change of each count that both sides know exactly. A change without ``limit`` is shown and not gated."""
    before_ns: list[float] = []
    """Median time of one call in each process that ``latency`` was compared with."""
    worse: list[str] = []
    """Names of the quantities that got worse past their limit: ``latency``, ``memory``, ``counts``; in a prediction
    ``memory``, ``saved``, ``flops``, ``bytes``, ``operators``."""
    drift: dict[str, Drift] = {}
    """Name of a quantity -> its drift. If it decides, ``latency`` or ``memory`` is the comparison with the anchor."""
    reasons: list[str] = []
    """Reasons for the verdict, as sentences, most important first."""
    disturbed: list[str] | None = None
    """Disturbances of the judged processes, as sentences; empty if there were none, None if that is unknown."""
    beside: list[str] = []
    """Disturbances of the processes whose numbers are shown, as sentences, even if the baseline had the same ones."""
    beside_alone: list[str] | None = None
    """The sentences of ``beside`` on disturbances that ``disturbed`` does not name; None in turns and if nothing was
    compared."""
    suspect: bool = False
    """Whether the case looks worse or faster, and is still to be re-measured in fresh processes."""
    unsettled: list[str] = []
    """Stored times (``baseline``, ``anchor``) that cannot decide, although interleaving with their code could."""
    no_times: str | None = None
    """Why time was not compared although memory or counts were: this machine has no comparable times."""
    few_runs: int | None = None
    """Number of runs in this machine's history of the case, if too few to interpret a change of time; else None."""
    not_compared: list[Uncompared] = []
    """Exact quantities that the baseline or the case has, but that were not compared."""
    short_of: list[Shortage] = []
    """The resources that a skipped case lacked."""
    moved_from: str | None = None
    """The test's old name, under which the baseline of the comparison is stored; None if the name is unchanged."""
    outputs_differ: bool = False
    """Whether the two interleaved versions compute different outputs; ``reasons`` describes the difference."""

    @property
    def time_not_judged(self) -> str | None:
        """Why the verdict does not rest on time, in words that many cases share; None if it does."""
        if self.few_runs is None:
            return self.no_times
        more = ENOUGH_RUNS - self.few_runs
        return f"{self.few_runs} of {ENOUGH_RUNS} runs kept on this machine, {more} more and times are compared"


class TierRecord(Data, frozen=True):
    """The result of a case in one tier. Each tier derives its own record, whose ``tag`` is the tier's name."""

    runs: ClassVar[bool] = False
    """Whether the case ran on this machine, so that it has times."""
    stands_in: ClassVar[bool] = False
    """Whether the record stands in for a run, although nothing ran."""

    compares: ClassVar[bool] = False
    """Whether the verdict compares the case with another version of the code that ran beside it."""

    @property
    def place(self) -> str | None:
        """The place of a prediction: ``h100``, ``h100-dry-run``; None for any other record."""
        return None

    @property
    def variant(self) -> str:
        """The mark that distinguishes results of one case, such as the GPU of a prediction; empty if none is needed."""
        return ""
