"""What a case learned, as plain frozen data: no behaviour beyond simple derivations. Imports nothing of ours.

These types are also the schema of every file that perflab writes: msgspec checks them field by field on reading,
and an unknown or missing field is an error that names its place. Times are nanoseconds, memory is bytes.
"""

from __future__ import annotations

from enum import StrEnum
from statistics import fmean, median, stdev
from typing import Annotated, Any

import msgspec

Positive = Annotated[float, msgspec.Meta(gt=0)]
"""A time that can be compared: ratios and logarithms are taken of it."""
Parameters = dict[str, str | int | float | bool | None]
"""A case's parameters as pytest has them; values that are no plain data stand as their text."""


class Data(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """Base of all records: frozen, and strict about what it reads."""


class Environment(Data, frozen=True):
    """What machine and versions a number belongs to. Two numbers are compared only if all of this agrees."""

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


class Memory(Data, frozen=True):
    """Memory of one call, taken in a pass of its own."""

    peak_bytes: int
    """What the case needs at its worst moment: ``held_bytes + growth_bytes``. This is what is gated."""
    held_bytes: int
    """Tensors that the callable had in its hands before it ran: parameters, optimizer state, inputs."""
    growth_bytes: int
    """Highest rise of the allocator's live bytes during the call."""
    allocated_bytes: int | None = None
    """CUDA: ``max_memory_allocated``, leftovers of other tests included."""
    reserved_bytes: int | None = None
    """CUDA: ``max_memory_reserved``."""
    resident_growth_bytes: int | None = None
    """CPU: growth of the process's resident set, as information only."""


class Measurement(Data, frozen=True):
    """A case's samples and memory in one process.

    A sample is the time of ``repetitions`` successive calls. Samples keep their order and are never trimmed.
    """

    samples_ns: list[int]
    repetitions: int
    warmup_calls: int
    settled: bool | None
    """Whether successive warm-up calls agreed before sampling began; None where their number was fixed."""
    clock: str
    """``host`` (monotonic clock) or ``cuda events``."""
    phases_ns: dict[str, list[int]] = {}
    """Samples of each phase of a step, in the order of ``samples_ns``."""
    memory: Memory | None = None
    yardsticks_ns: dict[str, Positive] = {}
    """Median readings of fixed pieces of work on the same machine, taken between the samples."""
    cores_busy: float | None = None
    """CPU time over wall time of the samples: about 1 for work in one thread, more for work in several."""
    load_average: float | None = None


class Replicate(Data, frozen=True):
    """A measurement boiled down to what comparisons need. Times are of one call."""

    median_ns: Positive
    fastest_ns: Positive
    mean_ns: float
    std_ns: float
    noise: float
    """Half the width of the median's interval within the process, as a share of the median."""
    samples: int
    first_ns: float | None = None
    """First sample, where the number of warm-up calls was fixed: what a cold start costs."""
    phases_ns: dict[str, float] = {}
    """Median of each phase."""
    memory: Memory | None = None
    yardsticks_ns: dict[str, Positive] = {}
    cores_busy: float | None = None


class OutOfMemory(Data, frozen=True):
    """A case that the device's memory could not hold."""

    asked_bytes: int | None
    """Size of the allocation that failed, where the allocator says it."""


class Record(Data, frozen=True):
    """What one case learned in one session: its measurement here, and replicates from fresh processes."""

    case: str
    """The pytest node id: ``tests/perf/test_transformer.py::test_step[small-128-fp32]``."""
    environment: Environment
    device: str = "cpu"
    """Which device it was, exactly: ``cuda:1``."""
    parameters: Parameters = {}
    work: dict[str, float] = {}
    """Units of work in one call, such as ``{"tokens": 512}``, from which throughput is derived."""
    measurement: Measurement | None = None
    """What the session measured itself; None if the case ran out of memory."""
    summary: Replicate | None = None
    """``measurement``, boiled down."""
    fresh: list[Replicate] = []
    out_of_memory: OutOfMemory | None = None


class Entry(Data, frozen=True):
    """One case in a baseline file."""

    environment: Environment
    recorded: str
    """Date, ISO 8601."""
    replicates: list[Replicate]
    parameters: Parameters = {}
    out_of_memory: OutOfMemory | None = None


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


class Change(Data, frozen=True):
    """One quantity before and now. ``ratio`` is now / before, ``low`` and ``high`` its 95 % interval."""

    before: float
    now: float
    ratio: float
    low: float | None = None
    high: float | None = None
    limit: float | None = None
    """The ratio from which the change counts."""


class Judgement(Data, frozen=True):
    """A verdict with everything it rests on."""

    verdict: Verdict
    latency: Change | None = None
    memory: Change | None = None
    phases: dict[str, Change] = {}
    worse: list[str] = []
    """What got worse past its limit: ``latency``, ``memory``."""
    reasons: list[str] = []
    """Plain sentences, most important first."""
    suspect: bool = False
    """Looks worse, and was not yet measured again in fresh processes."""


class Result(Data, frozen=True):
    """What a session reports of a case. It crosses from worker to controller as plain data."""

    case: str
    record: Record | None
    judgement: Judgement
    saved: bool = False


def per_call_ns(samples_ns: list[int], repetitions: int) -> list[float]:
    """Time of one call in each sample."""
    return [sample / repetitions for sample in samples_ns]


def summarize(measurement: Measurement, noise: float) -> Replicate:
    """Boil a measurement down; ``noise`` is the relative half-width of its median's interval."""
    calls = per_call_ns(measurement.samples_ns, measurement.repetitions)
    return Replicate(
        median_ns=round(median(calls), 3),
        fastest_ns=round(min(calls), 3),
        mean_ns=round(fmean(calls), 3),
        std_ns=round(stdev(calls), 3) if len(calls) > 1 else 0.0,
        noise=round(noise, 6),
        samples=len(calls),
        first_ns=round(calls[0], 3) if measurement.settled is None else None,
        phases_ns={
            name: round(median(per_call_ns(samples, measurement.repetitions)), 3)
            for name, samples in measurement.phases_ns.items()
        },
        memory=measurement.memory,
        yardsticks_ns=measurement.yardsticks_ns,
        cores_busy=measurement.cores_busy,
    )


def to_plain(data: Data) -> Any:
    """Turn a record into dicts, lists and scalars, fit for JSON and for crossing processes."""
    return msgspec.to_builtins(data)
