"""What a case learned, as plain frozen data: no behaviour beyond simple derivations. On the ground floor.

These types are also the schema of every file that perflab writes: msgspec checks them field by field on reading,
and an unknown or missing field is an error that names its place. Times are nanoseconds, memory is bytes.
"""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from statistics import fmean, median, stdev
from typing import Annotated

import msgspec

from perflab.data import Amount as Amount
from perflab.data import Data as Data
from perflab.data import Parameters as Parameters
from perflab.data import Positive as Positive
from perflab.data import Share as Share
from perflab.data import changed as changed
from perflab.data import to_plain as to_plain
from perflab.mode import DEFAULT, Mode, identity
from perflab.predictions import PredictedCase


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


class Memory(Data, frozen=True):
    """Memory of one call, taken in a pass of its own."""

    peak_bytes: Amount
    """What the case needs at its worst moment: ``held_bytes + growth_bytes``. This is what is gated."""
    held_bytes: Amount
    """Tensors that the callable had in its hands before it ran: parameters, optimizer state, inputs."""
    growth_bytes: Amount
    """Highest rise of the allocator's live bytes during the call."""
    allocated_bytes: Amount | None = None
    """CUDA: ``max_memory_allocated``, leftovers of other tests included."""
    reserved_bytes: Amount | None = None
    """CUDA: ``max_memory_reserved``."""
    resident_growth_bytes: int | None = None
    """CPU: growth of the process's resident set, as information only."""


class GpuState(Data, frozen=True):
    """What NVML says of a GPU at one moment; None where it does not say."""

    sm_clock_mhz: int | None = None
    max_sm_clock_mhz: int | None = None
    memory_clock_mhz: int | None = None
    temperature_c: int | None = None
    power_w: float | None = None
    throttle: list[str] = []
    """Why the clocks are not higher: ``power cap``, ``hardware thermal slowdown``, …"""
    neighbours: int | None = None
    """Processes with work on the GPU, those of this run not counted."""


class Evidence(Data, frozen=True):
    """What may have disturbed the samples: the machine over the time in which they were taken.

    None is what this system does not tell, or not for so short a time.
    """

    span_ns: int
    """How long the samples took, with everything between them."""
    neighbours_cores: float | None = None
    """CPU cores that other processes kept busy meanwhile, among those that this process may use."""
    steal_share: float | None = None
    """Share of the time in which those cores had work, but the hypervisor ran another machine."""
    pressure_share: float | None = None
    """Share of the time in which some thread on this machine waited for a core."""
    involuntary_switches: int | None = None
    """How often a thread of this process lost its core before its work was done."""
    load_average: float | None = None
    """Of the last minute, as the samples began."""
    cpu_mhz_before: float | None = None
    """Frequency of the core that the samples' main thread was on."""
    cpu_mhz_after: float | None = None
    gpu_before: GpuState | None = None
    gpu_after: GpuState | None = None


class Measurement(Data, frozen=True):
    """A case's samples and memory in one process.

    A sample is the time of ``repetitions`` successive calls. Samples keep their order and are never trimmed.
    """

    samples_ns: list[Amount]
    repetitions: Annotated[int, msgspec.Meta(ge=1)]
    warmup_calls: Amount
    settled: bool | None
    """Whether successive warm-up calls agreed before sampling began; None where their number was fixed."""
    clock: str
    """``host`` (monotonic clock) or ``cuda events``."""
    phases_ns: dict[str, list[Amount]] = {}
    """Samples of each phase of a step, in the order of ``samples_ns``."""
    memory: Memory | None = None
    yardsticks_ns: dict[str, Positive] = {}
    """Median readings of fixed pieces of work on the same machine, taken between the samples."""
    cores_busy: float | None = None
    """CPU time over wall time of the samples: about 1 for work in one thread, more for work in several."""
    evidence: Evidence | None = None
    counts: dict[str, Amount] = {}
    """What one call did, such as ``{"operators": 112}``; ``measure/counts.py`` says what each counts."""
    evicted_bytes: int | None = None
    """Size of the buffer that was written before each call, so that it began with cold caches."""
    empty_call_ns: float | None = None
    """Of cold calls: what timing one that does nothing gives. It is in every sample."""
    ran_on: list[str] = []
    """Names of threads that ran on when a call had returned, so that not all of its work is in its time."""


class Replicate(Data, frozen=True):
    """A measurement boiled down to what comparisons need. Times are of one call."""

    median_ns: Positive
    fastest_ns: Positive
    mean_ns: Positive
    std_ns: Share
    noise: Share
    """Half the width of the median's interval within the process, as a share of the median."""
    samples: Annotated[int, msgspec.Meta(ge=1)]
    first_ns: Share | None = None
    """First sample, where the number of warm-up calls was fixed: what a cold start costs."""
    phases_ns: dict[str, Share] = {}
    """Median of each phase."""
    memory: Memory | None = None
    yardsticks_ns: dict[str, Positive] = {}
    cores_busy: float | None = None
    neighbours_cores: float | None = None
    steal_share: float | None = None
    gpu_neighbours: int | None = None
    temperature_c: int | None = None
    """The GPU's, the higher of before and after the samples."""
    throttle: list[str] = []
    """Why the GPU's clocks were not higher, before or after the samples."""
    counts: dict[str, Amount] = {}


class OutOfMemory(Data, frozen=True):
    """A case that the device's memory could not hold."""

    asked_bytes: Amount | None
    """Size of the allocation that failed, where the allocator says it."""


class Paired(Data, frozen=True):
    """What a comparison in turns with another version found."""

    against: str
    """The other side, as people call it: ``main (8009b65)``; ``8009b65, where its baseline was saved``."""
    commit: str | None = None
    screen: list[float] = []
    """Ratio head / base of each pair of fresh processes that was looked at first."""
    confirm: list[float] = []
    """The same of the pairs that were taken because of a suspicion. All count."""
    control: list[float] = []
    """Ratios of the base over itself, where this case was the null control."""
    detectable: float | None = None
    """The smallest ratio that would have been found in nine of ten such runs; infinite, in JSON null, if none would."""
    base_memory: Memory | None = None
    base_ns: Positive | None = None
    """Typical time of one call of the other side, measured beside this one's."""


class Quote(Data, frozen=True):
    """What others measured on the same work, elsewhere: to look at, and judged by nobody."""

    source: str
    ns: Positive
    phases_ns: dict[str, Positive] = {}


class Record(Data, frozen=True):
    """What one case learned in one session: its measurement here, and replicates from fresh processes."""

    case: str
    """The pytest node id: ``tests/perf/test_transformer.py::test_step[small-128-fp32]``."""
    environment: Environment
    device: str = "cpu"
    """Which device it was, exactly: ``cuda:1``."""
    parameters: Parameters = {}
    work: dict[str, float] = {}
    """Units of work in one call, such as ``{"tokens": 512}``, from which throughput is derived; with a phase's name
    before it (``backward_flops``) of that phase alone."""
    matmul_flops_per_second: Positive | None = None
    """The device's rate in plain matrix products of the case's precision, where the case said what it needs."""
    matmul_precision: str | None = None
    """That precision, as PyTorch names it: ``bfloat16``."""
    quotes: list[Quote] = []
    """What the case quotes from elsewhere."""
    facts: Parameters = {}
    """What the case noted beside its time and memory, in the order of noting; non-finite numbers stand as text."""
    measurement: Measurement | None = None
    """What the session measured itself; None if the case ran out of memory."""
    summary: Replicate | None = None
    """``measurement``, boiled down."""
    fresh: list[Replicate] = []
    """What fresh processes measured once the case was suspect: the replicates that are judged."""
    set_aside: list[Replicate] = []
    """Those of fresh processes that were disturbed, and were taken again undisturbed."""
    out_of_memory: OutOfMemory | None = None
    paired: Paired | None = None
    """What turns said: with the other version of a comparison, or with the code of an unsettled case's baseline."""
    paired_to_anchor: Paired | None = None
    """The same with the code of its anchor."""


class Policy(Data, frozen=True):
    """What counts as worse."""

    threshold: float = 0.05
    memory_threshold: float = 0.0
    floor_ns: float = 2_000.0
    gate_counts: bool = True
    """Whether a count that rose is a regression."""


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


class Entry(Data, frozen=True):
    """A case's times, as they were measured on one machine, or in one pool of machines."""

    environment: Environment
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
    noisy: list[str] = []
    """What is wrong with the replicates, as sentences: what disturbed them, and that they differ too much."""
    commit: str | None = None
    """The project's commit, with ``+dirty`` behind it if files differed; None where there is no git."""


class Exact(Data, frozen=True):
    """What one call of a case needs, exactly: the same on all machines that agree on its environment."""

    environment: ExactEnvironment
    recorded: str
    """Date, ISO 8601."""
    peak_bytes: list[Amount] = []
    """Peak memory of its replicates, each value once, ascending; empty: it was not taken."""
    counts: dict[str, Amount] = {}
    """Those on which all replicates agreed."""
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


MEANINGLESS = 10.0
"""Readings that cannot tell this factor from none at all tell nothing."""


class Change(Data, frozen=True):
    """One quantity before and now. ``ratio`` is now / before, ``low`` and ``high`` its 95 % interval.

    Readings that set no bound have an infinite ``high``, which JSON holds as null.
    """

    before: float
    now: float
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
        """Whether the interval says nothing: faster or slower, its ends a factor of ``MEANINGLESS`` apart."""
        if self.low is None or self.high is None:
            return False
        return self.low <= 1.0 <= self.high and self.high >= MEANINGLESS * self.low


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


class Judgement(Data, frozen=True):
    """A verdict with everything it rests on."""

    verdict: Verdict
    latency: Change | None = None
    memory: Change | None = None
    phases: dict[str, Change] = {}
    counts: dict[str, Change] = {}
    """Each count that both sides know exactly. Without ``limit`` it is shown and not gated."""
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
    not_compared: list[Uncompared] = []
    """Exact quantities that the verdict does not rest on, though baseline or case has them."""
    short_of: list[Shortage] = []
    """Why a case was skipped, where it did not fit."""


class KernelResources(Data, frozen=True):
    """What a compiled kernel takes of a multiprocessor, and which instructions it is made of."""

    ptxas: str
    """Version of the assembler; Triton ships more than one."""
    num_warps: Amount
    """Of a block, those that the compiler added included."""
    num_stages: Amount
    registers: Amount
    """Of a thread."""
    stack_bytes: Amount
    """Of a thread: spilled registers, and arrays that have no other place."""
    spill_store_bytes: Amount
    spill_load_bytes: Amount
    """Of a thread, as the assembler counts them: each store and load stands once, in a loop or not."""
    static_shared_bytes: Amount
    dynamic_shared_bytes: Amount
    shared_limit_bytes: int
    """The most that the architecture gives a block."""
    blocks_per_sm: Amount
    warps_per_sm: Amount
    """Upper bounds, of blocks and warps on a multiprocessor at once."""
    max_warps_per_sm: Amount
    limited_by: str
    """What has no room for one more: ``registers``, ``shared memory``, ``tensor memory``, ``warps``, ``blocks``."""
    tensor_columns: Amount = 0
    """Columns of tensor memory (Blackwell)."""
    instructions: dict[str, Amount] = {}
    """How often each kind stands in the PTX: ``mma``, ``wgmma``, ``tcgen05``, and ``tma`` for TMA's copies."""

    @property
    def shared_bytes(self) -> int:
        """Shared memory of a block."""
        return self.static_shared_bytes + self.dynamic_shared_bytes


class CompiledKernel(Data, frozen=True):
    """A registered kernel, compiled for one architecture: what it takes, or why there is nothing to take."""

    registration: str
    """Where it is registered: ``package.module:attribute``."""
    name: str
    arch: int
    """Compute capability without its dot: 90 is sm_90."""
    triton: str
    resources: KernelResources | None = None
    problem: str | None = None
    """What the compiler said, if it did not compile."""


class KernelBaseline(Data, frozen=True):
    """A compiled kernel as it is stored."""

    triton: str
    recorded: str
    """Date, ISO 8601."""
    resources: KernelResources
    commit: str | None = None
    reason: str | None = None
    """Why it was saved, if that was said."""


class CompiledCase(Data, frozen=True):
    """A compiled kernel beside what its baseline holds."""

    now: CompiledKernel
    before: KernelResources | None = None


class Result(Data, frozen=True):
    """What a session reports of a case. It crosses from worker to controller as plain data."""

    case: str
    record: Record | None
    judgement: Judgement
    saved: bool = False
    policy: Policy | None = None
    """What the case was judged by; None where there was nothing to judge."""
    failure: str | None = None
    """What pytest shows of the test, if it failed."""
    compiled: CompiledCase | None = None
    """Set of a kernel that was compiled and not run; there is no ``record`` then."""
    predicted: PredictedCase | None = None
    """Set of a case that was predicted and not measured; there is no ``record`` then."""
    parameters: Parameters = {}
    """The case's parameters, where there is no record that has them."""
    side_by_side: str | None = None
    """The parameter whose levels are to be shown against each other."""
    study: str | None = None
    """Title of the study that the case belongs to."""
    columns: list[str] = []
    """What the study's table is to show of the case; none: what there is."""
    versus: str | None = None
    """``parameter=level``: what the case is held against in the study's table."""
    mode: Mode = DEFAULT
    """How the case's calls are timed; the default of what is not measured."""

    @property
    def identity(self) -> str:
        """The name that the case's numbers are stored under: numbers of two modes are two cases'."""
        return identity(self.case, self.mode)


class Document(Data, frozen=True):
    """What one run learned, as ``--perf-json`` writes it; or several parts of a run, merged."""

    schema: Annotated[int, msgspec.Meta(ge=1)]
    perflab: str
    """Version that wrote it."""
    created: Annotated[datetime, msgspec.Meta(tz=True)]
    exitstatus: int
    """pytest's."""
    baselines: str | None
    """Directory of the baselines, as it is shown; None where results were not compared with any."""
    threshold: float
    """Slowdown that counted, unless a case's marker said otherwise."""
    results: list[Result]
    command: str | None = None
    """pytest's command, without the time that the run and each case were given; None of parts with different ones."""
    total_budget_s: float | None = None
    """What the run was given, in seconds; None: no limit."""
    preface: list[str] = []
    """What is to be known before the table, such as what else the results were compared with."""
    collected: list[str] = []
    """All perf cases that were found, chosen or not, in their order."""
    findings: dict[str, list[str]] = {}
    """By study, what the project's own code found in its results."""
    other_failures: list[str] = []
    """Node ids of what failed beside the perf cases' own results: plain tests, teardowns, files that do not import."""


def per_call_ns(samples_ns: list[int], repetitions: int) -> list[float]:
    """Time of one call in each sample."""
    return [sample / repetitions for sample in samples_ns]


def summarize(measurement: Measurement, noise: float) -> Replicate:
    """Boil a measurement down; ``noise`` is the relative half-width of its median's interval."""
    calls = per_call_ns(measurement.samples_ns, measurement.repetitions)
    evidence = measurement.evidence
    gpu = [state for state in (evidence.gpu_before, evidence.gpu_after) if state is not None] if evidence else []
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
        neighbours_cores=evidence.neighbours_cores if evidence else None,
        steal_share=evidence.steal_share if evidence else None,
        gpu_neighbours=max((state.neighbours for state in gpu if state.neighbours is not None), default=None),
        temperature_c=max((state.temperature_c for state in gpu if state.temperature_c is not None), default=None),
        throttle=sorted({reason for state in gpu for reason in state.throttle}),
        counts=measurement.counts,
    )
