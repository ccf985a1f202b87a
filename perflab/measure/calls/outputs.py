"""Compares what calls leave: across versions of the code, and timed calls with untimed ones.

*Across versions*, a few numbers per tensor are enough to see whether two versions compute the same.

*Timed and untimed*: a timed call, drawn at random, is held against the first call and the last one, whose memory was
measured and not its time: their results, and the tensors among their arguments. Values are copied on the spot, at the
same random places of each tensor, in no span that is timed, counted or measured. Only where two of the three agree is
anything concluded, after further calls: results may depend on random numbers, on steps before, or on memory that
nobody has written.
"""

from __future__ import annotations

import contextlib
import math
import random
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from perflab.attribution.reachable import reachable
from perflab.base.errors import ResultsError
from perflab.internals.of_torch.tracing import parts_of
from perflab.measure.calls.flat import is_dense
from perflab.measure.calls.workload import Workload, Wrapped
from perflab.results.measurement import Results

if TYPE_CHECKING:
    import torch

__tracebackhide__ = True  # pytest shows the user's frames of an error, not ours

_PICKED = 32
"""Number of elements of a tensor that are compared one by one, at most."""
_ELEMENTS = 1 << 12
"""Elements of a tensor that are compared, at most: copies must cost next to nothing beside a sample."""
_TENSORS = 16
_ROUNDING = {2: 2e-2, 4: 1e-3, 8: 1e-6}
"""Relative difference, by the size of a number in bytes, up to which two runs of one computation may differ."""
_CONFIRMED, _IN_A_ROW = 2, 4
"""Further rounds of a timed call, and of untimed calls in a row, that must agree with the suspicion."""


def outputs_of(workload: Workload) -> dict[str, list[str]]:
    """Call the workload once, with the same random numbers in each process, and summarise its outputs.

    Returns:
        The type with shape, the mean, and elements spread over the tensor, of each tensor of a kind: the returned
        value, parameters, or gradients of the objects that the call holds. Numbers are text, since JSON knows no
        infinities.
    """
    import torch

    torch.manual_seed(0)
    workload.make_ready(1)
    result = workload.run()
    leaves = [one for one in _tensors_in(workload.roots) if one.is_leaf]
    found = {
        "the returned value": [_as_tensor(result)] if isinstance(result, int | float) else _tensors_in((result,)),
        "parameters": [one for one in leaves if one.requires_grad],
        "gradients": [one.grad for one in leaves if one.grad is not None],
    }
    with torch.no_grad():  # sorted, since a change of the code may change the order in which tensors are found
        sums = {what: sorted(_summed_up(part) for one in found[what] for part in parts_of(one)) for what in found}
    return {what: [str(number) for one in some for number in one] for what, some in sums.items()}


def _as_tensor(number: float) -> torch.Tensor:
    import torch

    try:
        return torch.tensor(float(number), dtype=torch.float64)
    except OverflowError:  # an integer of more digits than floats have
        return torch.tensor(math.inf)


def _tensors_in(roots: tuple[Any, ...]) -> list[torch.Tensor]:
    import torch

    return [one for one in reachable(roots) if isinstance(one, torch.Tensor)]


def _summed_up(tensor: torch.Tensor) -> tuple[str | float, ...]:
    import torch

    values: list[float] = []
    with contextlib.suppress(Exception):  # a class of the user's, say, that knows none of this
        flat = (torch.view_as_real(tensor) if tensor.is_complex() else tensor).detach().flatten()
        picked = flat[:: max(1, flat.numel() // _PICKED)][:_PICKED].double()
        values = [float(flat.sum(dtype=torch.float64)) / max(1, flat.numel()), *picked.tolist()]
    return f"{tensor.dtype} {list(tensor.shape)}", *values


def distance(before: Sequence[str], now: Sequence[str]) -> float:
    """Return the largest difference between outputs, as a share of the largest value.

    The distance is infinite if the outputs differ in number, shape or type, or by a NaN or an infinity.
    """
    try:
        gaps = [abs(float(one) - float(other)) for one, other in zip(before, now, strict=True) if one != other]
    except ValueError:  # the outputs differ in number, shape or type
        return math.inf
    if not all(map(math.isfinite, gaps)):
        return math.inf
    values = [abs(float(one)) for one in (*before, *now) if " " not in one]
    largest = max(filter(math.isfinite, values), default=0.0)
    return max(gaps) / largest if gaps and largest else 0.0  # 0.0 and -0.0 are the same


Left = list[tuple[str, "torch.Tensor"]]
"""Copies of parts of the tensors that a call has left, on the host, each with the tensor's dtype and shape."""


def _agree(one: Left, other: Left) -> bool:
    """Whether two calls have left the same but for rounding."""
    same_forms = [form for form, _ in one] == [form for form, _ in other]
    return same_forms and all(alike(mine, theirs) for (_, mine), (_, theirs) in zip(one, other, strict=True))


class Kept(Wrapped):
    """A workload for one sample that keeps the result of its last call until the sample is over."""

    def __init__(self, inner: Workload, calls: int) -> None:
        super().__init__(inner)
        self._left = calls
        self.result: Any = None

    def run(self, after_phase: Callable[[], None] = lambda: None) -> Any:
        """Do the work once and return its result."""
        self._left -= 1
        if self._left:
            return self.inner.run(after_phase)
        self.result = self.inner.run(after_phase)
        return self.result


class Comparing:
    """Copies what calls of a workload leave, and compares it at the end."""

    def __init__(self, workload: Workload) -> None:
        self._workload = workload
        self._draw = random.Random()
        self._seed = self._draw.randrange(2**31)
        self._samples = 0
        self._always = False
        self._first: Left | None = None
        self._timed: Left | None = None

    def wrapped(self, workload: Workload, calls: int, *, warm: bool) -> Workload:
        """Return the workload for a sample: one that keeps a result in the first call, and in samples by chance.

        Args:
            workload: what the sample calls.
            calls: its number of calls.
            warm: whether warm-up is over.
        """
        if warm:
            self._samples += 1
            kept = self._always or self._draw.random() * self._samples < 1
            return Kept(workload, calls) if kept else workload
        return workload if self._first is not None else Kept(workload, calls)

    def note(self, workload: Workload, *, warm: bool) -> None:
        """Copy what the sample's last call has left, if the sample kept it."""
        if isinstance(workload, Kept):
            left, workload.result = self.left(workload.result), None
            if warm:
                self._timed = left
            elif self._first is None:
                self._first = left

    def left(self, result: Any) -> Left:
        """Return copies of what a call has left; empty if it left no tensor that can be read."""
        roots = self._workload.roots
        found: Left = []
        for value in (result, *(one for root in roots for one in _arguments(root))):
            _add(value, found, self._seed, 3)
        return found

    def concluded(self, untimed: Left, timed_again: Callable[[], None]) -> tuple[Results | None, ResultsError | None]:
        """Compare the calls; return what is known, and the error for results that timed calls do not have.

        Args:
            untimed: what the last untimed call has left.
            timed_again: takes another sample.
        """
        if not untimed or self._timed is None:
            return None, None
        if _agree(self._timed, untimed):
            return Results.SAME, None
        # The first call was timed for warm-up: it may be right as untimed calls are, or wrong as timed ones are.
        if self._first is None or not (_agree(self._first, untimed) or _agree(self._first, self._timed)):
            return Results.NOT_COMPARABLE, None
        self._always = True
        for _ in range(_CONFIRMED):  # memory that nobody writes may hold the same by chance
            timed_again()
            # Several in a row: results that come in turns, such as a generation's lengths, differ among themselves.
            if _agree(self._timed, untimed) or not all(_agree(self._untimed(), untimed) for _ in range(_IN_A_ROW)):
                return Results.NOT_COMPARABLE, None
        return None, ResultsError(
            "a timed call returned another result than untimed calls of the same arguments",
            "time what you use: --perf-adversarial shows what differs, in a process of its own",
        )

    def _untimed(self) -> Left:
        self._workload.make_ready(1)
        return self.left(self._workload.run())


def _arguments(root: Any) -> list[Any]:
    """Return the positional or keyword arguments of a call."""
    return list(root) if type(root) is tuple else list(root.values()) if type(root) is dict else []


def _add(value: Any, found: Left, seed: int, depth: int) -> None:
    """Add copies of the tensors in a value; only types are inspected, never objects of a user's class."""
    import torch

    kind = type(value)
    if len(found) >= _TENSORS:
        return
    if kind in (list, tuple, dict) and depth:
        for one in value.values() if kind is dict else value:
            _add(one, found, seed, depth - 1)
    elif kind is torch.Tensor and is_dense(value) and value.numel():
        found.append((f"{value.dtype} {tuple(value.shape)}", _part(value.detach(), seed)))


def _part(tensor: torch.Tensor, seed: int) -> torch.Tensor:
    """Return a copy of the tensor's elements at the same random places for each seed, on the host."""
    import torch

    count = tensor.numel()
    if count <= _ELEMENTS:
        return tensor.to("cpu", copy=True)
    places = torch.randint(count, (_ELEMENTS,), generator=torch.Generator().manual_seed(seed)).to(tensor.device)
    indices = []
    for size in reversed(tensor.shape):  # torch.unravel_index would import half a second of modules
        indices.append(places % size)
        places = places // size
    return tensor[tuple(reversed(indices))].to("cpu")


def alike(mine: torch.Tensor, theirs: torch.Tensor) -> bool:
    """Whether two tensors of one shape and dtype are the same but for rounding; whole numbers must be equal."""
    import torch

    if not (mine.is_floating_point() or mine.is_complex()):
        return torch.equal(mine, theirs)
    wide = torch.complex128 if mine.is_complex() else torch.float64
    a, b = mine.to(wide).nan_to_num(), theirs.to(wide).nan_to_num()
    if not torch.equal(mine.isnan(), theirs.isnan()):
        return False
    size = max(float(a.abs().square().mean().sqrt()), float(b.abs().square().mean().sqrt()))
    rounding = _ROUNDING[min(8, max(2, mine.itemsize // (2 if mine.is_complex() else 1)))]
    return float((a - b).abs().square().mean().sqrt()) <= rounding * size
