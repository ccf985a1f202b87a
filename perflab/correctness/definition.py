"""Compares results with a trusted definition's, within the error that the results' own precision costs.

The definition is one function of tensors, written plainly. Called on float64 copies of the inputs it says what is
right. Called on the inputs as they are it shows the cost of their precision; the budget is a multiple of that (see
``budget``).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from inspect import signature
from typing import TypeVar

import torch
from torch import Tensor

from perflab.base.errors import UsageError
from perflab.correctness.budget import MIN_PLAIN_ROWS, Errors, measure_errors, widest
from perflab.correctness.compare import Report, compare_all
from perflab.correctness.run import Function, Task, run_plainly
from perflab.correctness.ties import beside_ties, without_rounded_ties
from perflab.devices.backend import Quantity
from perflab.devices.kinds import kind_of

__tracebackhide__ = True  # pytest shows the user's frames of an error, not ours

_T = TypeVar("_T", Tensor, Tensor | None)
_Key = TypeVar("_Key", str, int)
_DRAWS = 8
"""Inputs on which plain's errors are seen, at most, where a result has few rows; each costs two calls."""
IS_RANDOM = "returned other results for the same inputs, which makes every error allowed"
_WITHOUT_RANDOM = "leave random numbers out, such as those of dropout: model.eval()"
Inputs = Mapping[str, Tensor]
"""Tensors by name, in the order of the function's arguments."""


class Definition:
    """A trusted function that tells which results are right."""

    def __init__(self, exact: Function, plain: Function, example: Inputs, multiple: float | None = None) -> None:
        """Call ``exact`` twice on the example, and learn how many outputs there are.

        Args:
            exact: called on float64 copies of inputs (complex128 of complex ones); returns tensors.
            plain: called on inputs as they are; the error of its results makes the budget.
            example: inputs of the kind that will be checked.
            multiple: the multiple of plain's error that is allowed; None: 2 in 16 bit, 8 otherwise, where other orders
                of sums differ by more than one order's error.

        Raises:
            UsageError: ``exact`` raises, returns something else than tensors, or does not repeat itself; or ``plain``
                has drawn random numbers, and does not repeat itself.
        """
        self._exact, self._plain, self._multiple = exact, plain, multiple
        self._plain_errors: dict[Hashable, list[Mapping[str, Errors]]] = {}
        names = ["out", *(f"out{number}" for number in range(1, self._count_outputs(example)))]
        self._task = Task(tuple(names), (), lambda output, _seed: output, {})
        self._refuse_random_plain(example)

    @property
    def outputs(self) -> tuple[str, ...]:
        """The names of its outputs: ``out``, ``out1``, ``out2``, …."""
        return self._task.outputs

    def _count_outputs(self, example: Inputs) -> int:
        def run() -> tuple[object, list[object]]:
            returned = self._exact(*upcast(example).values())
            outputs = list(returned) if isinstance(returned, list | tuple) else [returned]
            return returned, [one.detach().to("cpu", copy=True) if isinstance(one, Tensor) else one for one in outputs]

        try:
            (returned, outputs), (_, others) = run(), run()
        except (MemoryError, torch.OutOfMemoryError):
            raise
        except Exception as error:
            raise UsageError(
                f"the definition raised for inputs in float64: {type(error).__name__}: {error}",
                "write it for float64: it tells what is right",
            ) from error
        if not outputs or not all(isinstance(one, Tensor) for one in outputs):
            raise UsageError(
                f"the definition returned {f'a {type(returned).__name__}, not' if outputs else 'no'} tensors",
                "return a tensor, or a list or tuple of tensors",
            )
        if len(others) != len(outputs) or not all(
            repeats(one, other) for one, other in zip(outputs, others, strict=True)
        ):
            raise UsageError(f"the definition {IS_RANDOM}", _WITHOUT_RANDOM)
        return len(outputs)

    def _refuse_random_plain(self, example: Inputs) -> None:
        """Refuse a plain whose random numbers are its error. Other ones may add in another order each time."""

        def run() -> dict[str, Tensor]:
            return run_plainly(self._plain, {name: copied(one) for name, one in example.items()}, self._task, {})

        devices = {one.device for one in example.values()}
        before = random_states(devices)
        try:
            results = run()
        except (MemoryError, torch.OutOfMemoryError):
            raise
        except Exception as error:
            raise UsageError(
                f"the definition raised for inputs in their own precision: {type(error).__name__}: {error}",
                "write it for the inputs' dtype too, whose error makes the budget, or give inputs of a wider one",
            ) from error
        if all(map(torch.equal, before, random_states(devices))):
            return
        others = run()
        if not all(repeats(one, others[name]) for name, one in results.items()):
            raise UsageError(f"the definition in the inputs' own precision {IS_RANDOM}", _WITHOUT_RANDOM)

    def takes(self, inputs: Inputs) -> bool:
        """Whether the definition takes these inputs: of a matrix with a root the negative has none."""
        try:
            self._exact(*upcast(inputs).values())
            self._plain(*(one.clone() for one in inputs.values()))
        except Exception:
            return False
        return True

    def wrong(
        self, inputs: Inputs, got: Mapping[str, Tensor | None], kind: Hashable = None, *, wholly: bool = False
    ) -> str | None:
        """Return what is wrong with results, empty if nothing is; None where the definition has no answer (NaN).

        Args:
            inputs: the inputs of the call.
            got: its results, by the names of ``outputs``; None for one that is no tensor. Where they are, they are
                compared.
            kind: the kind of the inputs: the largest of plain's errors on inputs of one kind makes the budget.
            wholly: whether nothing is compared where a single element has no answer. Otherwise all others are.
        """
        inputs = {name: tensor.detach().clone() for name, tensor in inputs.items()}
        where = next((one.device for one in got.values() if one is not None), torch.device("cpu"))
        exact = run_plainly(self._exact, upcast(inputs), self._task, {})
        reference = _on(where, {name: widest(one) for name, one in exact.items()})
        # A copy, as a definition may write to its inputs.
        own = {name: one.clone() for name, one in inputs.items()}
        plain: Mapping[str, Tensor] = _on(where, run_plainly(self._plain, own, self._task, {}))
        got = {name: None if one is None else one.clone() for name, one in got.items()}
        for name, one in reference.items():
            unknown, found = one.isnan(), got[name]
            if (unknown.any() and wholly) or (unknown.all() and one.numel()):
                return None
            if unknown.any():
                is_like = found is not None and (found.shape, found.dtype) == (plain[name].shape, plain[name].dtype)
                for result in (one, plain[name], found if is_like else None):
                    if result is not None:  # another shape or dtype is wrong, which is said below
                        (result.view(torch.uint8) if result.itemsize == 1 else result)[unknown] = 0

        def again(nudged: Inputs) -> dict[str, Tensor]:
            return run_plainly(self._exact, upcast(nudged), self._task, {})

        got, plain = without_rounded_ties(
            got, plain, reference, inputs, again, lambda nudged: run_plainly(self._plain, nudged, self._task, {})
        )
        draws = self._plain_errors.setdefault(kind, [])
        draws.append({name: measure_errors(plain[name], wanted) for name, wanted in reference.items()})
        is_short = any(one.is_floating_point() and one.itemsize <= 2 for one in plain.values())
        multiple = self._multiple or (2.0 if is_short else 8.0)

        def compared(results: Mapping[str, Tensor | None]) -> Report:
            return compare_all(results, reference, plain, multiple=multiple, other_draws=draws)

        report = beside_ties(compared, got, reference, inputs, again)
        if not report.ok and self._draw_more(draws, inputs, plain):
            report = beside_ties(compared, got, reference, inputs, again)
        return "" if report.ok else str(report)

    def _draw_more(self, draws: list[Mapping[str, Errors]], inputs: Inputs, plain: Inputs) -> bool:
        """Add plain's errors on inputs that are a little smaller, where a result has few rows; return whether it has.

        One number, such as a loss, is right by chance now and then, and a budget of that would allow nothing. Of a
        result of one dimension each element is a row.
        """
        rows = min(one.shape[:-1].numel() if one.dim() > 1 else one.numel() for one in plain.values())
        wanted = min(_DRAWS, MIN_PLAIN_ROWS // max(1, rows))
        has_few = len(draws) < wanted
        while len(draws) < wanted:
            smaller = 1 - len(draws) / 128
            other = {
                name: rewritten(one, lambda x: x * smaller) if one.is_floating_point() else one.clone()  # noqa: B023
                for name, one in inputs.items()
            }
            try:
                exact = run_plainly(self._exact, upcast(other), self._task, {})
                again = run_plainly(self._plain, other, self._task, {})
            except Exception:  # a definition may refuse such inputs: then its error is what was seen
                break
            floats = {name: one for name, one in again.items() if one.is_floating_point() or one.is_complex()}
            draws.append({name: measure_errors(floats.get(name, one), widest(one)) for name, one in exact.items()})
        return has_few


def upcast(inputs: Inputs) -> dict[str, Tensor]:
    """Return copies of tensors: floating ones in float64, complex ones in complex128, others as they are."""

    def wide(one: Tensor) -> torch.dtype:
        return torch.float64 if one.is_floating_point() else torch.complex128 if one.is_complex() else one.dtype

    return {name: one.detach().to(wide(one), copy=True) for name, one in inputs.items()}


def _on(device: torch.device, results: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: one.to(device, copy=True) for name, one in results.items()}


def with_float64(tensors: Mapping[_Key, _T]) -> dict[_Key, _T]:
    """Return the same tensors bit for bit, those of a device that has no float64, such as Apple's, on the CPU."""
    return {
        name: x.cpu() if x is not None and not kind_of(x.device.type).tells(Quantity.FLOAT64) else x
        for name, x in tensors.items()
    }


def described(inputs: Inputs) -> str:
    """Return shapes, dtypes and range of values of inputs as text."""
    shapes = ", ".join(
        f"{name} {str(one.dtype).removeprefix('torch.')} {tuple(one.shape)}" for name, one in inputs.items()
    )
    values = [one.double() for one in inputs.values() if one.is_floating_point() and one.numel()]
    return shapes + (f" of {min(x.min() for x in values):.3g} to {max(x.max() for x in values):.3g}" if values else "")


def copied(tensor: Tensor) -> Tensor:
    """Return a tensor of the same layout and values in memory of its own."""
    return rewritten(tensor, lambda x: x)


def rewritten(tensor: Tensor, change: Callable[[Tensor], Tensor]) -> Tensor:
    """Return a tensor of the same layout with changed values."""
    storage = tensor.untyped_storage().clone()  # type: ignore[no-untyped-call]
    made = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
    made.set_(storage, tensor.storage_offset(), tensor.shape, tensor.stride())
    if 0 in tensor.stride():  # expanded: the elements share memory
        elements = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
        elements.set_(storage, 0, (storage.nbytes() // tensor.itemsize,), (1,))
        elements.copy_(rewritten(elements, change))
        return made
    if tensor.itemsize == 1:  # no arithmetic in 8 bit
        return made.copy_(change(tensor.detach().float()).to(tensor.dtype))
    return made.copy_(change(tensor.detach()).to(tensor.dtype))


def wider(inputs: Inputs) -> list[dict[str, Tensor]]:
    """Return the inputs with other values: larger, smaller, of the other sign; or, of one sign, within their range."""
    floats = {name: one.double() for name, one in inputs.items() if one.is_floating_point() and one.numel()}
    if not floats:
        return []
    changes: list[Callable[[Tensor], Tensor]] = [lambda x: x * 8, lambda x: x / 8, lambda x: -x]
    if all(one.min() >= 0 and one.max() <= 1 for one in floats.values()):
        changes = [lambda x: x**8, lambda x: 1 - x]
    elif any(one.min() >= 0 or one.max() <= 0 for one in floats.values()):
        changes = [lambda x: x / 8]
    return [
        {name: rewritten(one, change) if name in floats else one.clone() for name, one in inputs.items()}
        for change in changes
    ]


def random_states(devices: Iterable[torch.device]) -> list[Tensor]:
    """Return the states of PyTorch's random numbers on the CPU and these devices, where a device tells its own."""
    states = [torch.get_rng_state()]
    for device in devices:
        if device.type != "cpu" and (state_of := getattr(torch.get_device_module(device), "get_rng_state", None)):
            states.append(state_of(device) if signature(state_of).parameters else state_of())
    return states


def repeats(output: object, other: object) -> bool:
    """Whether a function that ran twice on the same inputs returned the same, but for the rounding of its sums."""
    if not isinstance(output, Tensor) or not isinstance(other, Tensor):
        return False
    if output.dtype != other.dtype or output.shape != other.shape:
        return False
    if not (output.is_floating_point() or output.is_complex()):
        return torch.equal(output, other)
    share = max(1e-5, 8 * torch.finfo(output.dtype).eps)
    return torch.allclose(widest(output), widest(other), rtol=share, equal_nan=True)
