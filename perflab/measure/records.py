"""What is taken of one callable: samples, memory, counts and evidence; and a case's record of them. In nanoseconds."""

from __future__ import annotations

from enum import StrEnum
from statistics import fmean, median, stdev
from typing import Annotated, ClassVar

import msgspec

from perflab.data import Amount, Data, Parameters, Positive, Share
from perflab.profiles.records import Explanation, Keeper, PeakExplanation, PeakPart, Profile
from perflab.records import Environment, TierRecord


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
    calls_differ: list[str] = []
    """In what the case's calls differ, as sentences."""
    least: dict[str, Amount] = {}
    """Of each quantity that is not exact since calls differ, the least that was seen: of ``memory`` what was held after
    warm-up, of a count what one call did."""
    used_up: bool = False
    """Whether later calls found nothing to do."""

    @property
    def shown_bytes(self) -> int | None:
        """The peak; None where there is no exact one, or no tensor memory at all."""
        return self.exact_bytes or None

    @property
    def exact_bytes(self) -> int | None:
        """The peak; None where calls differ so that it is not exact."""
        return None if "memory" in self.least else self.peak_bytes


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


CALIBRATION_BEFORE = "yardsticks_ns", "calibration_ns"
"""What files of before call the readings of the calibration workload, and their name now."""


class Leak(Data, frozen=True):
    """Tensors that pile up from call to call."""

    grown_bytes: list[Amount]
    """By how much more was alive after each call than before it."""
    kept: list[PeakPart] = []
    """Blocks that one call makes and a later one has not let go; empty where that could not be recorded."""
    keepers: list[Keeper] = []
    """What holds them, what grows first."""


PER_TOKEN = "/token"
"""How the name of a count of the decode phase ends that is divided by its tokens."""
FORMULAS = {
    "ttft": "first - start",
    "tpot": "(end - first) / (tokens - 1)",
    "itl": "between successive outputs, pooled over calls",
    "tokens/s": "batch * tokens / (end - start)",
    "sequence_tokens/s": "tokens / (end - start)",
    PER_TOKEN: "decode / (tokens - 1)",
}
"""By what a statistic of a generation is computed here. ``tokens`` are those of one sequence."""


def formula_of(name: str) -> str | None:
    """By what this version computes a statistic of a generation; None of one that it does not know."""
    return FORMULAS.get(PER_TOKEN if name.endswith(PER_TOKEN) else name.partition("_p")[0])


def is_compared(name: str, formula: str) -> bool:
    """Whether runs are compared by a statistic: a time by this version's formula.

    The time to the first token is the phase prefill, and is compared as that.
    """
    return formula == formula_of(name) and name.startswith(("tpot", "itl"))


class Statistic(Data, frozen=True):
    """A statistic of a generation, with its 95 % interval and its formula."""

    value: Share
    formula: str
    low: Share | None = None
    """None: the value is exact, or of too few calls."""
    high: Share | None = None


class Generation(Data, frozen=True):
    """What a generation of tokens was like. Times are nanoseconds."""

    batch: Annotated[int, msgspec.Meta(ge=1)]
    """Sequences in a call."""
    tokens: list[Amount]
    """That each sequence got in each timed call, in the order of ``samples_ns``."""
    statistics: dict[str, Statistic] = {}
    """By name: ``ttft``, time to the first token; ``tpot``, time per output token; ``itl_p50``, quantiles of the times
    between outputs; ``tokens/s`` of the batch and ``sequence_tokens/s``; ``operators/token`` and other counts."""

    @property
    def known(self) -> dict[str, Statistic]:
        """Those whose formula is this version's: others are neither shown nor compared."""
        return {name: one for name, one in self.statistics.items() if one.formula == formula_of(name)}

    @property
    def problems(self) -> list[str]:
        """What is to be said of it besides, in words."""
        least, most = min(self.tokens, default=0), max(self.tokens, default=0)
        others = [name for name in self.statistics if name not in self.known]
        return [
            *(["one token a call: no time per output token"] if most == 1 else []),
            *([f"calls gave {least:,} to {most:,} tokens"] if least != most else []),
            *([f"{', '.join(others)}: by a formula of another version, not shown"] if others else []),
        ]


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
    """Samples of each phase, in the order of ``samples_ns``."""
    memory: Memory | None = None
    calibration_ns: dict[str, Positive] = {}
    """Median readings of the calibration workload, taken between the samples."""
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
    profile: Profile | None = None
    """Where the time of a call goes; None: nobody asked, or it could not be taken."""
    not_profiled: str | None = None
    """Why it could not be."""
    generation: Generation | None = None
    """Of ``perf.generation``, statistics of its tokens."""
    not_counted: str | None = None
    """Why instructions, which a process of its own was to count, were not."""
    launch_ns: Positive | None = None
    """CUDA: host time to launch one call, where nothing makes the host wait; None: it waits, or nobody counted."""
    leak: Leak | None = None
    """What calls keep; None: nothing, or nobody asked."""
    off: dict[str, str] = {}
    """By quantity, ``memory`` or a count, why it was not measured: PyTorch's internals are other ones."""


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
    calibration_ns: dict[str, Positive] = {}
    cores_busy: float | None = None
    neighbours_cores: float | None = None
    steal_share: float | None = None
    gpu_neighbours: int | None = None
    temperature_c: int | None = None
    """The GPU's, the higher of before and after the samples."""
    launch_ns: Positive | None = None
    """As in ``Measurement``."""
    throttle: list[str] = []
    """Why the GPU's clocks were not higher, before or after the samples."""
    counts: dict[str, Amount] = {}


class OutOfMemory(Data, frozen=True):
    """A case that the device's memory could not hold."""

    asked_bytes: Amount | None
    """Size of the allocation that failed, where the allocator says it."""
    asked_by: PeakPart | None = None
    """Operator, module and line that asked for it, where a call that was repeated under the profiler told."""
    alive: list[PeakPart] = []
    """What was alive then, the largest first."""
    cached_bytes: Amount | None = None
    """CUDA: what PyTorch had reserved and nobody used, in pieces of which none was large enough."""
    remedies: list[str] = []
    """Names of those that the case declares (``perf.fits``)."""


class CallTimes(StrEnum):
    """Which times of calls a ratio is of."""

    FASTEST = "fastest"
    """The fastest of each turn: known best, and right where all calls changed alike."""
    MEAN = "mean"
    """The mean calls in the middle half of the blocks of turns: right where every few calls changed."""
    ALL = "all"
    """The mean of all calls: right where one call in many changed."""


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
    judged: CallTimes = CallTimes.FASTEST
    """What all these are ratios of."""
    uneven: bool = False
    """Whether the mean calls differed by more than the fastest ones, which was not certain."""
    detectable: float | None = None
    """The smallest ratio that would have been found in nine of ten such runs; infinite, in JSON null, if none would."""
    base_memory: Memory | None = None
    base_ns: Positive | None = None
    """Typical time of one call of the other side, measured beside this one's."""

    @property
    def calls(self) -> str:
        """The calls that are compared, in words, if these are not the fastest."""
        said = "means of all calls are compared, since these differ from each other"
        return "" if self.judged is CallTimes.FASTEST else said


class Ratio(Data, frozen=True):
    """A time as a multiple of another one that was measured in turns with it, and its 95 % interval."""

    value: Positive
    low: Positive
    high: Positive


class Beside(Data, frozen=True):
    """A row of a table, measured in turns with the row that it is held against."""

    base: str
    """Node id of that row."""
    base_ns: Positive
    """Its time of a call as its own measurement had it. Where another one counts by now, the ratios are of old code."""
    call: Ratio | None = None
    """None: there is no ratio, see ``problem``."""
    phases: dict[str, Ratio] = {}
    problem: str | None = None
    """Why there is none, and what helps."""


class Quote(Data, frozen=True):
    """What others measured on the same work, elsewhere: to look at, and judged by nobody."""

    source: str
    ns: Positive
    phases_ns: dict[str, Positive] = {}


class Record(TierRecord, frozen=True):
    """What a case learned that ran: its measurement, and replicates from fresh processes."""

    runs: ClassVar[bool] = True

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
    explained: Explanation | None = None
    """Of a case that became worse: what it does otherwise than before."""
    explained_peak: PeakExplanation | None = None
    """Of one that needs more memory: what is alive at its peak and was not before."""


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
        calibration_ns=measurement.calibration_ns,
        cores_busy=measurement.cores_busy,
        launch_ns=measurement.launch_ns,
        neighbours_cores=evidence.neighbours_cores if evidence else None,
        steal_share=evidence.steal_share if evidence else None,
        gpu_neighbours=max((state.neighbours for state in gpu if state.neighbours is not None), default=None),
        temperature_c=max((state.temperature_c for state in gpu if state.temperature_c is not None), default=None),
        throttle=sorted({reason for state in gpu for reason in state.throttle}),
        counts=measurement.counts,
    )
