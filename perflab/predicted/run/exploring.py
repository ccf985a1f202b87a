"""Adds to a prediction what else fits (other GPUs, larger sizes, remedies), and an estimate of the time.

The time is estimated from the share of the roofline that measured cases reached on the same GPU.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from statistics import median
from typing import TYPE_CHECKING, Any

from perflab.base.data import changed
from perflab.base.errors import UsageError
from perflab.base.identity import function_of, test_of
from perflab.measure.calls.workload import Workload, phases_of
from perflab.measure.clocks.set_up import SetUpWorkload
from perflab.predicted.gpus import MODELLED, DataSheet, Gpu, gpu_by_device_name
from perflab.predicted.memory.sizes import Interpolated, Outline, largest, outline_of
from perflab.predicted.store import PredictedStore
from perflab.predicted.trace.trace import Trace
from perflab.predicted.trace.watch import Watch
from perflab.predicted.world.lone_rank import FAKE, LoneRank, playing
from perflab.results.predicted import Fit, Prediction
from perflab.store.case_files import module_of, name_of
from perflab.store.times import BaselineStore
from perflab.units import format_percent

if TYPE_CHECKING:
    from perflab.predicted.prediction import Work
    from perflab.running.case.perf import CaseState


STEPS_OF_A_SIZE = 16
WORLD = "world_size"
"""The name of the size of ``perf.fits`` that is a number of ranks."""
WORLDS = (8, 16, 32, 64, 128, 256, 512)
"""The numbers of ranks for which the peak of a rank is reckoned: a node of eight, and more nodes."""
FARTHER = 16
"""The number of ranks of the other world that is traced; FSDP cuts each parameter into as many, which takes time."""
_Test = tuple[Any, ...]
"""A test's name and the parameters that are not sizes."""
_Sizes = tuple[tuple[str, int], ...]


def fit_of(prediction: Prediction, gpu: DataSheet) -> Fit | None:
    """Return whether a case fits the GPU, and which GPUs it fits; None if a bound of the peak cannot tell.

    The peak and library workspaces have to fit into the memory beside the CUDA context.
    """
    needed = prediction.peak_bytes + prediction.workspace_bytes
    if not isinstance(gpu, Gpu):
        return Fit(room_bytes=gpu.room_bytes, fits=False) if needed > gpu.room_bytes else None
    return Fit(
        room_bytes=gpu.room_bytes,
        fits=needed <= gpu.room_bytes,
        fits_on=[other.name for other in MODELLED.values() if needed <= other.room_bytes],
        rooms={other.name: other.room_bytes for other in MODELLED.values()},
    )


class Explorer:
    """Explores other sizes and remembers the results, since cases of one test explore the same sizes."""

    def __init__(self) -> None:
        self._outlines: dict[_Test, dict[_Sizes, Outline]] = {}
        self._trusted: dict[tuple[_Test, str], int] = {}
        """The number of points whose interpolated peak a trace has confirmed, by test and name of the size."""

    def fit(
        self, prediction: Prediction, trace: Trace, state: CaseState, gpu: DataSheet, watch: Watch | None = None
    ) -> Fit | None:
        """Return which GPUs a case fits, the largest sizes that fit, and, if the case does not fit, remedies' peaks.

        Args:
            prediction: the prediction of the case as it is.
            trace: the trace from which the prediction was made.
            state: the case, and how to build it in other sizes.
            gpu: the GPU that the case has to fit.
            watch: is notified of each operator of other sizes.

        Raises:
            CalledOff: the watch stopped the tracing. Sizes traced by then are remembered.
        """
        exploration = state.exploration
        fit = fit_of(prediction, gpu)
        if exploration is None or not isinstance(gpu, Gpu) or fit is None:
            return fit
        build, sizes = exploration.build, exploration.sizes
        whole = not prediction.traced_layers  # if few layers are not enough here, they are not at other sizes
        others = sorted((name, value) for name, value in state.parameters.items() if name not in sizes)
        test: _Test = (test_of(state.case), *others)
        known = self._outlines.setdefault(test, {})
        known[_key(sizes)] = outline_of(trace)
        room_bytes = fit.room_bytes - prediction.workspace_bytes

        def outline_with(changes: Mapping[str, Any]) -> Outline:
            return outline_for(functools.partial(build, **{**sizes, **changes}), gpu, whole=whole, watch=watch)

        def largest_of(name: str) -> int | None:
            def outline_at(size: int) -> Outline:
                known[_key({**sizes, name: size})] = found = outline_with({name: size})
                return found

            same = {dict(key)[name]: one for key, one in known.items() if {**dict(key), name: 0} == {**sizes, name: 0}}
            search = Search(outline_at, room_bytes, same, points=self._trusted.get((test, name)))
            answer = search.largest(sizes[name])
            if search.points is not None:
                self._trusted[test, name] = search.points
            return answer

        remedies = {} if fit.fits else exploration.remedies
        return changed(
            fit,
            largest={name: largest_of(name) for name in sizes if name != WORLD},
            remedies={name: outline_with(changes).peak_bytes() for name, changes in remedies.items()},
        )


def worlds_of(
    outline: Outline, state: CaseState, gpu: Gpu, alone: LoneRank, watch: Watch | None = None
) -> dict[int, int]:
    """Return about the peak of a rank in bytes by the number of ranks, of a case that says how to build itself.

    The call is traced as a rank of one other world, and each block's size is interpolated over the share of a rank,
    1/ranks. Blocks that a last rank lacks or that are padded make it inexact by their rounding. If the call does other
    things there, the two worlds that were traced are returned.

    Args:
        outline: the outline of the call in the world of the case.
        state: the case.
        gpu: the GPU to trace for.
        alone: the rank that was played; its group is left.
        watch: is notified of each operator.
    """
    assert state.exploration is not None
    here, other = alone.world_size, FARTHER if alone.world_size < FARTHER else WORLDS[0]
    build = functools.partial(state.exploration.build, **{**state.exploration.sizes, WORLD: other})
    with playing(LoneRank(min(alone.rank, other - 1), other), FAKE):
        there = outline_for(build, gpu, watch=watch)
    shares = math.lcm(here, *WORLDS)
    reckoned = Interpolated({shares // here: outline, shares // other: there})
    if not reckoned.holds:
        return dict(sorted({here: outline.peak_bytes(), other: there.peak_bytes()}.items()))
    return {world: reckoned.peak_bytes(shares // world) for world in sorted({here, *WORLDS})}


class Search:
    """A search for the largest size whose peak fits, with as few traces as prove the answer.

    Args:
        outline_at: traces the call at a size and returns the outline.
        room_bytes: the memory that the peak has to fit into, in bytes.
        known: the outlines of sizes traced before.
        points: the number of sizes from which a peak can be interpolated without a trace; None if not confirmed yet.
    """

    def __init__(
        self, outline_at: Callable[[int], Outline], room_bytes: int, known: Mapping[int, Outline], *, points: int | None
    ) -> None:
        self._outline_at = outline_at
        self._room_bytes = room_bytes
        self._traced = dict(known)
        self.points = points

    def largest(self, start: int) -> int | None:
        """Return the largest size that fits, to one part in ``STEPS_OF_A_SIZE`` or finer; None if no such part fits.

        The size is interpolated from two sizes, or from three if that was wrong (naive attention is no straight line),
        and then traced, unless ``points`` was confirmed before. If the call does other things at other sizes, the size
        is found with traces alone.
        """
        for points in (2, 3) if self.points is None else (self.points,):
            size = start
            while len(self._traced) < points:
                size += start
                self._peak_at(size)
            nearest = sorted(self._traced, key=lambda size: abs(self._peak_at(size) - self._room_bytes))[:points]
            reckoned = Interpolated({size: self._traced[size] for size in sorted(nearest)})
            if not reckoned.holds:
                break
            least = step_of(start)  # the smallest useful size: a sequence of one token is no sequence
            roughly = largest(reckoned.peak_bytes, self._room_bytes, start=start)
            answer = least if roughly is None else max(least, roughly // step_of(roughly) * step_of(roughly))
            if self.points is not None or self._peak_at(answer) == reckoned.peak_bytes(answer):
                self.points = points
                return answer if reckoned.peak_bytes(answer) <= self._room_bytes else None
        peaks = {size: one.peak_bytes() for size, one in self._traced.items()}
        return largest(self._peak_at, self._room_bytes, start=start, step=step_of(start), known=peaks)

    def _peak_at(self, size: int) -> int:
        if size not in self._traced:
            self._traced[size] = self._outline_at(size)
        return self._traced[size].peak_bytes()


def step_of(size: int) -> int:
    """Return a size's rounding step: a sixteenth of the largest power of two in it, so 64 for 1,024 and 1 up to 31."""
    return max(1, (1 << (size.bit_length() - 1)) // STEPS_OF_A_SIZE)


def _key(sizes: Mapping[str, int]) -> _Sizes:
    return tuple(sorted(sizes.items()))


def work_of(workload: Workload) -> Work:
    """Convert a workload to the work that a prediction takes."""
    from perflab.predicted.prediction import Work

    def set_up() -> tuple[Any, ...]:
        workload.make_ready(1)
        return workload.roots

    needs_set_up = isinstance(workload, SetUpWorkload)
    roots = set_up() if needs_set_up else workload.roots  # the modules of the call are found from the roots
    return Work(workload.run, roots, workload.spans, set_up if needs_set_up else None)


def outline_for(make: Callable[[], Any], gpu: Gpu, *, whole: bool = False, watch: Watch | None = None) -> Outline:
    """Return the outline of one call, on a GPU, of what ``make`` returns: a callable, or a step's phases.

    ``whole``: run all layers.
    """
    from perflab.predicted.cuda.kernels import OnCuda
    from perflab.predicted.prediction import traced, watched

    with watched(watch):
        made = make()
    if not callable(made) and not isinstance(made, dict):
        raise UsageError(
            f"build of perf.fits() gave {type(made).__name__!r}",
            "let it return a callable without arguments, or the phases of perf.step or perf.phases as a dict",
        )
    workload = phases_of(made) if isinstance(made, dict) else Workload(made, (), {})
    return outline_of(traced(work_of(workload), OnCuda(gpu), whole=whole, watch=watch).trace)


def with_estimate(
    prediction: Prediction, case: str, measured: BaselineStore, predicted: PredictedStore, gpu: DataSheet
) -> Prediction:
    """Return the prediction with an estimate of its time, if cases have both a measured and a predicted baseline.

    A case's efficiency is its roofline time over its measured time; a value above 1 means that the GPU's data sheet,
    the counting or the clock is wrong. The estimate uses the median, so that one case that consists of launches, or was
    disturbed, does not affect the others. Cases of the same test have precedence: a training step reaches another share
    than a forward pass does.
    """
    if prediction.roofline_ns is None:
        return prediction
    pairs: dict[tuple[str, str], tuple[float, float]] = {}
    for path in sorted(measured.directory.glob("cuda-*/*.json")):
        for name, entries in measured.load(path).items():
            for entry in entries:
                if entry.replicates and gpu_by_device_name(entry.environment.device_name) is gpu:
                    before = predicted.of_module(gpu.name, path.stem).get(name)
                    if before is not None and before.roofline_ns:
                        pairs[path.stem, name] = before.roofline_ns, entry.replicates[0].median_ns
    test = (module_of(case), function_of(name_of(case)))
    alike = {key: pair for key, pair in pairs.items() if (key[0], function_of(key[1])) == test}
    shares = [roofline_ns / measured_ns for roofline_ns, measured_ns in (alike or pairs).values()]
    if not shares:
        return prediction
    which = "this test's" if alike else "other"
    many = f"{len(shares)} of {which} cases measured on {gpu.device_name}"
    lowest, reached, highest = map(format_percent, (min(shares), median(shares), max(shares)))
    share = f"{reached} of the roofline" + (f" ({lowest} to {highest})" if lowest != highest else "")
    estimate_ns = prediction.roofline_ns / median(shares)
    return changed(prediction, estimate_ns=estimate_ns, estimate_from=f"{many}: {share}")
