"""Measurements of one callable: samples, memory, counts, evidence; and a case's record of them. Times are in ns."""

from __future__ import annotations

from enum import StrEnum
from statistics import fmean, median, stdev
from typing import Annotated, ClassVar

import msgspec

from perflab.base.data import Amount, Data, Parameters, Positive, Share
from perflab.results.peak import Keeper, PeakExplanation, PeakPart
from perflab.results.profile import Explanation, Profile
from perflab.results.records import Environment, TierRecord


class Memory(Data, frozen=True):
    """Memory of one call, taken in a pass of its own."""

    peak_bytes: Amount
    """Peak memory of the case, ``held_bytes + growth_bytes``: the value that the gate judges."""
    held_bytes: Amount
    """Bytes of the tensors that the callable held before it ran: parameters, optimizer state, inputs."""
    growth_bytes: Amount
    """Highest rise of the allocator's live bytes during the call."""
    allocated_bytes: Amount | None = None
    """An accelerator: the most bytes in use (``max_memory_allocated``), leftovers of other tests included."""
    reserved_bytes: Amount | None = None
    """An accelerator: the most bytes that its allocator had from the driver (``max_memory_reserved``)."""
    resident_growth_bytes: int | None = None
    """CPU: growth of the process's resident set, as information only."""
    calls_differ: list[str] = []
    """Differences between the case's calls, as sentences; empty if calls are alike."""
    least: dict[str, Amount] = {}
    """Least value seen of each quantity that is not exact because calls differ: of ``memory`` the bytes held after
    warm-up, of a count the count of one call."""
    used_up: bool = False
    """Whether later calls found nothing to do."""

    @property
    def shown_bytes(self) -> int | None:
        """The peak in bytes; None if it is not exact, or if the case uses no tensor memory at all."""
        return self.exact_bytes or None

    @property
    def exact_bytes(self) -> int | None:
        """The peak in bytes; None if it is not exact because calls differ."""
        return None if "memory" in self.least else self.peak_bytes


class GpuState(Data, frozen=True):
    """The state of a GPU at one moment, by its vendor's library; None for a figure that the library does not report."""

    sm_clock_mhz: int | None = None
    max_sm_clock_mhz: int | None = None
    memory_clock_mhz: int | None = None
    temperature_c: int | None = None
    power_w: float | None = None
    throttle: list[str] = []
    """Why the clocks are not higher: ``power cap``, ``hardware thermal slowdown``, …"""
    neighbours: int | None = None
    """Number of processes with work on the GPU, without those of this run."""


class Evidence(Data, frozen=True):
    """Evidence of interference with the samples: the state of the machine while they were taken.

    None for a quantity that this system does not report, or not for so short a time.
    """

    span_ns: int
    """Duration of the samples, with everything between them."""
    neighbours_cores: float | None = None
    """Number of CPU cores that other processes kept busy, among the cores that this process may use."""
    steal_share: float | None = None
    """Share of the time in which this process's cores had work, but the hypervisor ran another machine."""
    pressure_share: float | None = None
    """Share of the time in which some thread on this machine waited for a core."""
    involuntary_switches: int | None = None
    """How often a thread of this process lost its core before its work was done."""
    load_average: float | None = None
    """Load average of the last minute when the samples began."""
    cpu_mhz_before: float | None = None
    """Frequency in MHz of the core that the main thread was on before the samples."""
    cpu_mhz_after: float | None = None
    gpu_before: GpuState | None = None
    gpu_after: GpuState | None = None


class Leak(Data, frozen=True):
    """Tensors that pile up from call to call."""

    grown_bytes: list[Amount]
    """Bytes by which more was alive after each call than before the call."""
    kept: list[PeakPart] = []
    """Blocks that one call makes and a later one has not let go; empty if they could not be recorded."""
    keepers: list[Keeper] = []
    """Holders of the tensors that pile up; holders that grow come first."""


PER_TOKEN = "/token"
"""Suffix of the name of a count of the decode phase that is divided by the phase's tokens."""
FORMULAS = {
    "ttft": "first - start",
    "tpot": "(end - first) / (tokens - 1)",
    "itl": "between successive outputs, pooled over calls",
    "tokens/s": "batch * tokens / (end - start)",
    "sequence_tokens/s": "tokens / (end - start)",
    PER_TOKEN: "decode / (tokens - 1)",
}
"""Formulas by which this version computes the statistics of a generation. ``tokens`` are those of one sequence."""


def formula_of(name: str) -> str | None:
    """Return the formula by which this version computes a statistic of a generation; None for an unknown statistic."""
    return FORMULAS.get(PER_TOKEN if name.endswith(PER_TOKEN) else name.partition("_p")[0])


def is_compared(name: str, formula: str) -> bool:
    """Whether runs are compared by a statistic: a time per token or between outputs, by this version's formula.

    The time to the first token is compared as the phase prefill.
    """
    return formula == formula_of(name) and name.startswith(("tpot", "itl"))


class Statistic(Data, frozen=True):
    """A statistic of a generation, with its 95 % interval and its formula."""

    value: Share
    formula: str
    low: Share | None = None
    """Lower end of the 95 % interval; None if the value is exact, or from too few calls."""
    high: Share | None = None


class Generation(Data, frozen=True):
    """The statistics of a generation of tokens. Times are in nanoseconds."""

    batch: Annotated[int, msgspec.Meta(ge=1)]
    """Number of sequences in a call."""
    tokens: list[Amount]
    """Number of tokens that each sequence got in each timed call, in the order of ``samples_ns``."""
    statistics: dict[str, Statistic] = {}
    """Statistics by name: ``ttft``, time to the first token; ``tpot``, time per output token; ``itl_p50``, quantiles of
    the times between outputs; ``tokens/s`` of the batch and ``sequence_tokens/s``; ``operators/token`` and other
    counts."""

    @property
    def known(self) -> dict[str, Statistic]:
        """The statistics with this version's formula; statistics by other formulas are neither shown nor compared."""
        return {name: one for name, one in self.statistics.items() if one.formula == formula_of(name)}

    @property
    def problems(self) -> list[str]:
        """Remarks on the generation, in words."""
        least, most = min(self.tokens, default=0), max(self.tokens, default=0)
        others = [name for name in self.statistics if name not in self.known]
        return [
            *(["one token a call: no time per output token"] if most == 1 else []),
            *([f"calls gave {least:,} to {most:,} tokens"] if least != most else []),
            *([f"{', '.join(others)}: by a formula of another version, not shown"] if others else []),
        ]


class Results(StrEnum):
    """The knowledge about the results of timed calls."""

    SAME = "same"
    NOT_COMPARABLE = "not comparable"
    """Untimed calls differ among themselves."""


class RankFigures(Data, frozen=True):
    """One rank's own figures, of a case that runs in several processes at once."""

    median_ns: Positive
    """The rank's median time of a call in nanoseconds, in which it may have waited for other ranks."""
    peak_bytes: Amount | None = None
    """The rank's peak memory; None if memory was not measured or is not exact."""
    counts: dict[str, Amount] = {}
    """The counts that are not the same in all ranks."""


class Measurement(Data, frozen=True):
    """A case's samples and memory in one process, or in the ranks of one group.

    A sample is the time of ``repetitions`` successive calls. Samples keep their order and are never trimmed. In ranks
    it is the time of the slowest rank, memory is that of the rank with the highest peak, and a count is the largest.
    """

    samples_ns: list[Amount]
    repetitions: Annotated[int, msgspec.Meta(ge=1)]
    warmup_calls: Amount
    settled: bool | None
    """Whether successive warm-up calls agreed before sampling began; None if the number of calls was fixed."""
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
    """Counts of one call, such as ``{"operators": 112}``; ``measure/counts/counter.py`` defines each count."""
    evicted_bytes: int | None = None
    """Size of the buffer that was written before each call, for cold caches; None if caches were warm."""
    empty_call_ns: float | None = None
    """Measured time of an empty call with cold caches, which every sample includes; None with warm caches."""
    ran_on: list[str] = []
    """Names of threads that ran on when a call had returned, so that the call's time lacks some of its work."""
    profile: Profile | None = None
    """Profile of a call's time; None if no profile was asked for, or if it could not be taken."""
    not_profiled: str | None = None
    """The reason why the profile could not be taken."""
    generation: Generation | None = None
    """Statistics of the tokens of ``perf.generation``; None for other workloads."""
    not_counted: str | None = None
    """The reason why a separate process could not count instructions."""
    launch_ns: Positive | None = None
    """CUDA: host time to launch one call without waiting; None if the call makes the host wait, or was not counted."""
    leak: Leak | None = None
    """Memory that calls keep; None if they keep none, or if no check was asked for."""
    ranks: list[RankFigures] = []
    """The figures of each rank, by rank; empty for a case in one process."""
    off: dict[str, str] = {}
    """The reason why a quantity, ``memory`` or a count, was not measured: PyTorch's internals are other ones."""
    cut_short: bool = False
    """Whether sampling ended before the median was known, since the run compares no times: ``--perf-check=exact``."""
    results: Results | None = None
    """Whether timed calls left what untimed ones leave; None if they leave no tensors, or in ranks and CUDA graphs."""


class Replicate(Data, frozen=True):
    """The summary of a measurement that comparisons need. Times are of one call, in nanoseconds."""

    median_ns: Positive
    fastest_ns: Positive
    mean_ns: Positive
    std_ns: Share
    noise: Share
    """Half the width of the median's interval within the process, as a share of the median."""
    samples: Annotated[int, msgspec.Meta(ge=1)]
    first_ns: Share | None = None
    """First sample if the number of warm-up calls was fixed, which shows the cost of a cold start; None otherwise."""
    phases_ns: dict[str, Share] = {}
    """Median of each phase."""
    memory: Memory | None = None
    calibration_ns: dict[str, Positive] = {}
    cores_busy: float | None = None
    neighbours_cores: float | None = None
    steal_share: float | None = None
    gpu_neighbours: int | None = None
    temperature_c: int | None = None
    """Temperature of the GPU in degrees Celsius, the higher of before and after the samples."""
    launch_ns: Positive | None = None
    """Host time to launch one call on a GPU, as in ``Measurement``."""
    throttle: list[str] = []
    """Why the GPU's clocks were not higher, before or after the samples."""
    counts: dict[str, Amount] = {}


class OutOfMemory(Data, frozen=True):
    """A case that the device's memory could not hold."""

    asked_bytes: Amount | None
    """Size of the allocation that failed, if the allocator reports the size."""
    asked_by: PeakPart | None = None
    """Operator, module and line that asked for the failed allocation, if a repeated call under the profiler told."""
    alive: list[PeakPart] = []
    """Blocks that were alive at the failure, the largest first."""
    cached_bytes: Amount | None = None
    """CUDA: bytes that PyTorch had reserved and nobody used, in pieces of which none was large enough."""
    remedies: list[str] = []
    """Names of the remedies that the case declares (``perf.fits``)."""


class CallTimes(StrEnum):
    """The times of calls that a ratio compares."""

    FASTEST = "fastest"
    """The fastest call of each turn: known best, and right if all calls changed alike."""
    MEAN = "mean"
    """The mean calls in the middle half of the blocks of turns: right if every few calls changed."""
    ALL = "all"
    """The mean of all calls: right if one call in many changed."""


class LaunchedKernel(Data, frozen=True):
    """The machine code of a Triton kernel that a call launched."""

    name: str
    digest: str
    """SHA-256 of what a GPU loads of its code, with warps, registers and shared memory; without lines and paths."""
    launches: int = 1
    """How often one call launched it."""


class KernelCode(Data, frozen=True):
    """The machine code of the Triton kernels that both sides of a comparison launched, by the kernels' names."""

    same: list[str] = []
    """Kernels whose code each process of both sides launched."""
    changed: list[str] = []
    """Kernels of both sides with other code."""
    gone: list[str] = []
    """Kernels that the base alone launched."""
    new: list[str] = []
    """Kernels that the head alone launched."""
    is_all: bool = False
    """Whether these were all launches of the call."""


class Paired(Data, frozen=True):
    """The result of a comparison in turns with another version."""

    against: str
    """Name of the other side for a reader: ``main (8009b65)``; ``8009b65, where its baseline was saved``."""
    commit: str | None = None
    screen: list[float] = []
    """Ratio head / base of each pair of fresh processes that was looked at first."""
    confirm: list[float] = []
    """Ratio head / base of each pair that was taken because of a suspicion. All pairs count."""
    control: list[float] = []
    """Ratios of the base over itself, if this case was the null control."""
    judged: CallTimes = CallTimes.FASTEST
    """The times of calls that all these ratios compare."""
    uneven: bool = False
    """Whether the mean calls seem to differ by more than the fastest calls, without certainty."""
    detectable: float | None = None
    """The smallest ratio that would have been found in nine of ten such runs; infinite, in JSON null, if none would."""
    base_memory: Memory | None = None
    base_ns: Positive | None = None
    """Typical time of one call of the other side, measured in turns with this side."""
    kernels: KernelCode | None = None
    """The machine code of both sides' Triton kernels; None if a side launched none, or was not looked at."""

    @property
    def calls(self) -> str:
        """The compared calls, in words; empty if the fastest calls are compared."""
        said = "means of all calls are compared, since these differ from each other"
        return "" if self.judged is CallTimes.FASTEST else said


class Ratio(Data, frozen=True):
    """A time as a multiple of another time that was measured in turns with it, and the ratio's 95 % interval."""

    value: Positive
    low: Positive
    high: Positive


class Beside(Data, frozen=True):
    """The ratios of a table's row to its base row, measured in turns."""

    base: str
    """Node id of the base row."""
    base_ns: Positive
    """Time of a call in the base row's own measurement; once another time counts there, the ratios are of old code."""
    call: Ratio | None = None
    """Ratio of the times of a call; None if there is no ratio, see ``problem``."""
    phases: dict[str, Ratio] = {}
    problem: str | None = None
    """The reason why there is no ratio, and what helps."""


class Quote(Data, frozen=True):
    """A time that others measured on the same work, elsewhere: to look at, and not judged."""

    source: str
    ns: Positive
    phases_ns: dict[str, Positive] = {}


class Record(TierRecord, frozen=True):
    """The record of a case that ran: its measurement, and replicates from fresh processes."""

    runs: ClassVar[bool] = True

    case: str
    """The pytest node id: ``tests/perf/test_transformer.py::test_step[small-128-fp32]``."""
    environment: Environment
    device: str = "cpu"
    """The exact device: ``cuda:1``."""
    parameters: Parameters = {}
    work: dict[str, float] = {}
    """Units of work in one call, such as ``{"tokens": 512}``, from which throughput is derived; a name that begins with
    a phase (``backward_flops``) is of that phase alone."""
    matmul_flops_per_second: Positive | None = None
    """The device's rate in plain matrix products of the case's precision, in FLOP/s, if the case declared its needs."""
    matmul_precision: str | None = None
    """Precision of ``matmul_flops_per_second``, as PyTorch names it: ``bfloat16``."""
    quotes: list[Quote] = []
    """Times that the case quotes from elsewhere."""
    facts: Parameters = {}
    """Values that the case noted beside its time and memory, in the order of noting; non-finite numbers are text."""
    measurement: Measurement | None = None
    """The session's own measurement; None if the case ran out of memory."""
    summary: Replicate | None = None
    """The summary of ``measurement``."""
    fresh: list[Replicate] = []
    """Replicates that fresh processes measured once the case was suspect: these are judged."""
    set_aside: list[Replicate] = []
    """Replicates of fresh processes that were disturbed, and were taken again undisturbed."""
    out_of_memory: OutOfMemory | None = None
    paired: Paired | None = None
    """Result in turns with the other version of a comparison, or with the code of an unsettled case's baseline."""
    paired_to_anchor: Paired | None = None
    """Result in turns with the code of the case's anchor."""
    explained: Explanation | None = None
    """Differences in what a case does from before, if the case became worse."""
    explained_peak: PeakExplanation | None = None
    """Blocks that are alive at the case's peak and were not before, if the case needs more memory."""

    @property
    def num_ranks(self) -> int:
        """The number of processes that ran the case at once."""
        return len(self.measurement.ranks) or 1 if self.measurement is not None else 1

    @property
    def times_are_cut_short(self) -> bool:
        """Whether the times to judge are of a measurement that was cut short, so that they are compared with none."""
        return self.measurement is not None and self.measurement.cut_short and not self.fresh

    @property
    def lacks_cores(self) -> bool:
        """Whether a CPU ran more ranks than it has cores: they waited for each other, so time is shown, not judged."""
        return self.environment.device == "cpu" and self.num_ranks > self.environment.cores


def per_call_ns(samples_ns: list[int], repetitions: int) -> list[float]:
    """Return the time of one call in each sample, in nanoseconds."""
    return [sample / repetitions for sample in samples_ns]


def summarize(measurement: Measurement, noise: float) -> Replicate:
    """Summarise a measurement; ``noise`` is the relative half-width of its median's interval."""
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
