"""The largest size that fits: the true one, with few traces, whatever the peak is a function of."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from perflab.predicted.data_sheets import GPUS, MODELLED
from perflab.predicted.memory.sizes import Outline
from perflab.predicted.run.exploring import Search, fit_of, step_of
from perflab.results.predicted import Fit
from tests.harness import make

KIB = 1024
Shape = Callable[[int], Outline]


def constant(size: int) -> Outline:
    return Outline((10 * KIB,), (0,))


def affine(size: int) -> Outline:
    return Outline((100 * KIB, 3 * KIB * size, 2 * KIB * size), (0, 1, 2))


def quadratic(size: int) -> Outline:
    return Outline((100 * KIB, 3 * KIB * size, 512 * size**2), (0, 1, ~1, 2))


def with_two_moments(size: int) -> Outline:
    """First many that are linear, later one that is quadratic."""
    return Outline((5 * KIB, *[KIB * size] * 100, 512 * size**2), (*range(101), *(~one for one in range(1, 101)), 101))


def changing(size: int) -> Outline:
    """From 50 on it does more."""
    more = (size * 7 * KIB,) if size >= 50 else ()
    return Outline((100 * KIB, KIB * size, *more), tuple(range(2 + len(more))))


def in_stairs(size: int) -> Outline:
    """Padded to 128."""
    return Outline((KIB * (-(-size // 128) * 128),), (0,))


SHAPES: tuple[Shape, ...] = (affine, quadratic, with_two_moments, changing, in_stairs)


class Asked:
    def __init__(self, shape: Shape) -> None:
        self.shape, self.sizes = shape, list[int]()

    def __call__(self, size: int) -> Outline:
        self.sizes.append(size)
        return self.shape(size)


def truth(shape: Shape, room: int, least: int) -> int | None:
    """One by one, in the steps in which a size is told."""
    found, size = None, least
    while shape(size).peak_bytes() <= room:
        found, size = size, size + 1
    return found if found is None else max(least, found // step_of(found) * step_of(found))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("start", [1, 4, 8])
@pytest.mark.parametrize("room", [150 * KIB, 400 * KIB, 3_000 * KIB, 40_000 * KIB])
def test_the_largest_size_that_fits_is_found(shape: Shape, start: int, room: int) -> None:
    asked = Asked(shape)
    search = Search(asked, room, {start: shape(start)}, points=None)
    wanted = truth(shape, room, step_of(start))
    found = search.largest(start)
    if search.points or wanted is None:
        assert found == wanted
    else:  # by traces alone it is found to the last one
        assert found is not None
        assert shape(found).peak_bytes() <= room < shape(found + step_of(start)).peak_bytes()
    assert len(asked.sizes) == len(set(asked.sizes)) <= 20


@pytest.mark.parametrize(("shape", "traces"), [(affine, 2), (quadratic, 3)])
def test_what_is_a_polynomial_takes_a_trace_for_each_degree_and_one_to_prove_it(shape: Shape, traces: int) -> None:
    asked = Asked(shape)
    search = Search(asked, 100_000 * KIB, {4: shape(4)}, points=None)
    assert search.largest(4) == truth(shape, 100_000 * KIB, 1)
    assert search.points is not None
    assert len(asked.sizes) == traces


def test_the_largest_size_is_none_any_or_known_without_a_trace() -> None:
    asked = Asked(affine)
    search = Search(asked, 5_000 * KIB, {4: affine(4), 8: affine(8)}, points=2)
    assert search.largest(4) == truth(affine, 5_000 * KIB, 1)
    assert asked.sizes == []
    for shape in (affine, quadratic):
        assert Search(shape, 50 * KIB, {4: shape(4)}, points=None).largest(4) is None
    asked = Asked(constant)
    found = Search(asked, 11 * KIB, {4: constant(4)}, points=None).largest(4)
    assert found is not None
    assert found >= 2**23
    assert len(asked.sizes) <= 2


@pytest.mark.parametrize(("size", "step"), [(1, 1), (31, 1), (32, 2), (64, 4), (1023, 32), (1024, 64), (1500, 64)])
def test_a_size_is_told_to_a_sixteenth_of_the_power_of_two_in_it(size: int, step: int) -> None:
    assert step_of(size) == step


def test_a_case_fits_with_what_libraries_hold_beside_it_and_without_the_context() -> None:
    gpu = GPUS["l4"]
    room = gpu.room_bytes
    just = fit_of(make.prediction(peak_bytes=room - 100, workspace_bytes=100), gpu)
    more = fit_of(make.prediction(peak_bytes=room - 100, workspace_bytes=101), gpu)
    assert just is not None
    assert more is not None
    assert just.fits
    assert "l4" in just.fits_on
    assert not more.fits
    assert "l4" not in more.fits_on
    assert "h100" in more.fits_on
    assert more.rooms.keys() == MODELLED.keys()


def test_a_bound_of_the_peak_can_be_too_large_for_a_gpu_and_never_fits_one() -> None:
    gpu = GPUS["m4"]
    assert fit_of(make.prediction(peak_bytes=gpu.room_bytes), gpu) is None
    assert fit_of(make.prediction(peak_bytes=gpu.room_bytes + 1), gpu) == Fit(room_bytes=32 * 2**30, fits=False)


def test_what_three_points_told_two_are_not_believed_to_tell() -> None:
    parabola = lambda size: Outline((KIB * size * size,), (0,))  # noqa: E731
    search = Search(parabola, 900 * KIB, {4: parabola(4)}, points=None)
    assert search.largest(4) == 30
    assert search.points == 3
    assert Search(parabola, 2500 * KIB, {4: parabola(4)}, points=search.points).largest(4) == 50
