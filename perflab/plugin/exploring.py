"""What else of a predicted case would fit: other GPUs, larger sizes, and remedies where it does not."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from perflab.errors import UsageError
from perflab.measure.workload import Step, Workload
from perflab.predict.gpus import GPUS, Gpu
from perflab.predict.roofline import room_bytes
from perflab.predict.search import largest
from perflab.predictions import Fit, Prediction

if TYPE_CHECKING:
    from perflab.plugin.case import CaseState

_STEPS_OF_A_SIZE = 8
Peaks = dict[tuple[Any, ...], dict[tuple[tuple[str, int], ...], int]]
"""By test and parameters, and then by sizes: cases of one test at other sizes ask for the same ones."""


@dataclass(frozen=True)
class Exploration:
    """What ``perf.fits`` was given."""

    build: Callable[..., Any]
    sizes: dict[str, int]
    remedies: dict[str, dict[str, Any]]


def fit_of(prediction: Prediction, gpu: Gpu) -> Fit:
    """Whether a case fits the GPU, and which it fits: what it needs and libraries hold, beside the context."""
    needed = prediction.peak_bytes + prediction.workspace_bytes
    return Fit(
        room_bytes=room_bytes(gpu),
        fits=needed <= room_bytes(gpu),
        fits_on=[other.name for other in GPUS.values() if needed <= room_bytes(other)],
    )


def explored(prediction: Prediction, state: CaseState, gpu: Gpu, peaks: Peaks) -> Fit:
    """The same with the largest sizes that fit; and where it does not, what it would need with each remedy.

    Args:
        prediction: of the case as it is.
        state: the case, and how it is made otherwise.
        gpu: what it is to fit.
        peaks: what cases of this process were found to need.
    """
    exploration = state.exploration
    assert exploration is not None
    build, sizes = exploration.build, exploration.sizes
    fit = fit_of(prediction, gpu)
    room = fit.room_bytes - prediction.workspace_bytes
    others = sorted((name, value) for name, value in state.parameters.items() if name not in sizes)
    known = peaks.setdefault((state.case.partition("[")[0], *others), {})
    known[_key(sizes)] = prediction.peak_bytes

    def peak(name: str, size: int) -> int:
        asked = {**sizes, name: size}
        if _key(asked) not in known:
            known[_key(asked)] = predicted_peak(lambda: build(**asked))
        return known[_key(asked)]

    def of(name: str) -> dict[int, int]:
        """Peaks that are known already, by this size, all else equal."""
        return {
            dict(key)[name]: value for key, value in known.items() if {**dict(key), name: 0} == {**sizes, name: 0}
        }

    remedies = {} if fit.fits else exploration.remedies
    return msgspec.structs.replace(
        fit,
        largest={
            name: largest(functools.partial(peak, name), room, start=size, step=step_of(size), known=of(name))
            for name, size in sizes.items()
        },
        remedies={
            name: predicted_peak(functools.partial(build, **{**sizes, **changes})) for name, changes in remedies.items()
        },
    )


def step_of(size: int) -> int:
    """In which steps a size is searched: an eighth of the power of two that is in it, so 128 for 1,024, and 1 for 4."""
    return max(1, (1 << (size.bit_length() - 1)) // _STEPS_OF_A_SIZE)


def _key(sizes: Mapping[str, int]) -> tuple[tuple[str, int], ...]:
    return tuple(sorted(sizes.items()))


def predicted_peak(make: Callable[[], Any]) -> int:
    """Peak memory of what ``make`` makes: a callable, or the phases of a step."""
    from perflab.plugin.predicting import work_of
    from perflab.predict.account import peak_of
    from perflab.predict.prediction import ON_CUDA, traced

    return peak_of(traced(work_of(_workload(make())), ON_CUDA).trace)


def _workload(made: Any) -> Workload:
    if isinstance(made, dict):
        return Step(**made)
    if callable(made):
        return Workload(made, (), {})
    raise UsageError(
        f"build of perf.fits() gave {type(made).__name__!r}",
        "let it return a callable without arguments, or the phases of perf.step as a dict",
    )
