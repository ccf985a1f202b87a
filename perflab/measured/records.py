"""Records of the measured tier: what a case came to, and what is stored of it. Times are in nanoseconds."""

from __future__ import annotations

from perflab.data import Amount, Data, Parameters, Positive
from perflab.measure.records import OutOfMemory, Record, Replicate
from perflab.records import Environment, ExactEnvironment


class MeasuredCase(Record, frozen=True, tag="measured"):
    """What one case learned in one session."""


class Anchor(Data, frozen=True):
    """An older state of a baseline, that time is compared with too: small accepted steps add up against it."""

    recorded: str
    """Date, ISO 8601."""
    replicates: list[Replicate]
    steps: Amount
    """How often the baseline was saved since then without a step past the limit."""
    commit: str | None = None


class MemoryAnchor(Data, frozen=True):
    """The same for peak memory, which moves for reasons of its own."""

    recorded: str
    peak_bytes: Amount
    steps: Amount
    commit: str | None = None


class Accepted(Data, frozen=True):
    """One change of a baseline that was accepted."""

    date: str
    latency_ratio: Positive | None = None
    """Time now / before; None where there were no comparable times."""
    peak_bytes_before: Amount | None = None
    peak_bytes_now: Amount | None = None
    """Both only if the peak changed."""
    reason: str | None = None
    commit: str | None = None


class Timed(Data, frozen=True):
    """A case's times, whatever names the environment in which they were measured."""

    recorded: str
    """Date, ISO 8601."""
    replicates: list[Replicate]
    parameters: Parameters = {}
    out_of_memory: OutOfMemory | None = None
    anchor: Anchor | None = None
    """None: the replicates are the anchor themselves."""
    memory_anchor: MemoryAnchor | None = None
    """Of what was saved before exact quantities stood apart."""
    accepted: list[Accepted] = []
    """The latest accepted changes, oldest first."""
    profile: str | dict[str, object] | None = None
    """Where the time of a call went, as `perflab.profiles.stored` packs it; None where no profile was taken. Rows that
    older versions stored are a dict, which explains nothing."""
    noisy: list[str] = []
    """What is wrong with the replicates, as sentences: what disturbed them, and that they differ too much."""
    commit: str | None = None
    """The project's commit, with ``+dirty`` behind it if files differed; None where there is no git."""


class Entry(Timed, frozen=True, kw_only=True):
    """A case's times, as they were measured on one machine, or in one pool of machines."""

    environment: Environment


class Exact(Data, frozen=True):
    """What one call of a case needs, exactly: the same on all machines that agree on its environment."""

    environment: ExactEnvironment
    recorded: str
    """Date, ISO 8601."""
    peak_bytes: list[Amount] = []
    """Peak memory of its replicates, each value once, ascending; empty: it was not taken."""
    counts: dict[str, Amount] = {}
    """Those on which all replicates agreed."""
    varying: list[str] | None = None
    """Those on which they did not; None: nobody noted that, in a file of before. What is in neither was not counted."""
    parameters: Parameters = {}
    memory_anchor: MemoryAnchor | None = None
    """None: ``peak_bytes`` is the anchor itself."""
    accepted: list[Accepted] = []
    """The latest accepted changes, oldest first."""
    commit: str | None = None
    """As in ``Entry``."""


class Baseline(Data, frozen=True):
    """What a case is compared with: what is exact belongs to the code, and times belong to a machine."""

    exact: Exact | None = None
    times: Entry | None = None
    times_are_own: bool = False
    """Whether the times are of this machine's own history, and not committed."""
    moved_from: str | None = None
    """The name under which it is stored, where that is the case's old one."""
