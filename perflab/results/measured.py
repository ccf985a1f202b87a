"""Records of the measured and compared tiers: the result of a case, and its stored baseline. Times are in ns."""

from __future__ import annotations

from typing import ClassVar

from perflab.base.data import Amount, Data, Parameters, Positive
from perflab.results.measurement import OutOfMemory, Record, Replicate
from perflab.results.records import Environment, ExactEnvironment


class MeasuredCase(Record, frozen=True, tag="measured"):
    """The measurement of one case in one session."""


class ComparedCase(MeasuredCase, frozen=True, tag="compared"):
    """The record of one case in an A/B comparison: the head's measurement, and the ratios of all pairs."""

    compares: ClassVar[bool] = True


class Anchor(Data, frozen=True):
    """Times of an older save of a baseline. A case is compared with them too, so that small accepted steps add up."""

    recorded: str
    """Date of the save, ISO 8601."""
    replicates: list[Replicate]
    steps: Amount
    """How often the baseline was saved since ``recorded`` without a step past the limit."""
    commit: str | None = None


class MemoryAnchor(Data, frozen=True):
    """Peak memory of an older save of a baseline. It is replaced independently of the anchor of time."""

    recorded: str
    peak_bytes: Amount
    steps: Amount
    commit: str | None = None


class Accepted(Data, frozen=True):
    """One accepted change of a baseline."""

    date: str
    latency_ratio: Positive | None = None
    """Time now / before; None if there were no comparable times."""
    peak_bytes_before: Amount | None = None
    peak_bytes_now: Amount | None = None
    """Peak memory after the change, in bytes. It and ``peak_bytes_before`` are None unless the peak changed."""
    reason: str | None = None
    commit: str | None = None


class Timed(Data, frozen=True):
    """A case's times, without the field that names the environment in which they were measured."""

    recorded: str
    """Date of the save, ISO 8601."""
    replicates: list[Replicate]
    parameters: Parameters = {}
    out_of_memory: OutOfMemory | None = None
    anchor: Anchor | None = None
    """The older times to compare with; None if ``replicates`` are the anchor themselves."""
    accepted: list[Accepted] = []
    """The latest accepted changes, oldest first."""
    profile: str | None = None
    """The profile of a call, as `perflab.measured.baselines` packs it; None if no profile was taken."""
    noisy: list[str] = []
    """Problems of the replicates, as sentences: what disturbed them, and that they differ too much."""
    commit: str | None = None
    """The project's commit, with ``+dirty`` appended if files differed from it; None without git."""


class Entry(Timed, frozen=True, kw_only=True):
    """A case's times, measured on one machine or in one pool of machines."""

    environment: Environment


class ExactQuantities(Data, frozen=True):
    """Exact quantities of one call of a case, without the environment that they belong to.

    Gated quantities have no defaults, so that they are always stored, and a missing one is known to be lost.
    """

    recorded: str
    """Date of the save, ISO 8601."""
    peak_bytes: list[Amount]
    """Peak memory of the replicates in bytes, each value once, ascending; empty if it was not measured."""
    counts: dict[str, Amount]
    """Counts on which all replicates agreed, by name."""
    varying: list[str] | None
    """Names of counts on which the replicates disagreed; None if that was not recorded. A count that is in neither
    ``counts`` nor ``varying`` was not taken."""
    memory_anchor: MemoryAnchor | None = None
    """The older peak memory to compare with; None if ``peak_bytes`` is the anchor itself."""
    accepted: list[Accepted] = []
    """The latest accepted changes, oldest first."""
    commit: str | None = None
    """The project's commit, as in ``Entry``."""


class Exact(ExactQuantities, frozen=True, kw_only=True):
    """Exact quantities of a case, equal on all machines that agree on ``environment``."""

    environment: ExactEnvironment
    parameters: Parameters = {}


class Baseline(Data, frozen=True):
    """The stored numbers to compare a case with: exact quantities, which belong to the code, and a machine's times."""

    exact: Exact | None = None
    times: Entry | None = None
    times_are_own: bool = False
    """Whether the times come from this machine's own history, which is not committed."""
    moved_from: str | None = None
    """The case's old name, if the baseline is stored under that one."""
