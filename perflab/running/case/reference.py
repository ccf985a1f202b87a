"""``perf.reference``: the function that says what the measured one has to return, and the comparison with it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from perflab.base.errors import UsageError, WrongResultError
from perflab.measure.calls.flat import Flat
from perflab.measure.calls.workload import Workload

if TYPE_CHECKING:
    import torch

    from perflab.running.case.perf import CaseState

__tracebackhide__ = True  # pytest shows the user's frames of an error, not ours

WRONG = "wrong result"
"""The short reason in the verdict column."""


@dataclass(frozen=True)
class Reference:
    """The arguments of ``perf.reference``."""

    definition: Callable[..., Any]
    multiple: float | None

    def like(self, workload: Workload) -> Flat:
        """Return the definition as a function of the same tensors as ``Flat`` makes of the measured call.

        Raises:
            UsageError: the workload is no plain call, or has no tensors among its arguments.
        """
        remedy = "give perf.reference() the same arguments: perf(fn, *tensors)"
        if type(workload) is not Workload:
            raise UsageError("perf.reference() checks one call, not phases, set-up or coroutines", remedy)
        flat = Flat(self.definition, *workload.roots[1:])
        if not flat.take():
            raise UsageError("perf.reference() needs tensors among the arguments of the measured call", remedy)
        return flat


def refuse_wrong(state: CaseState, workload: Workload) -> None:
    """Refuse a workload that returns something else than the reference that the case has stated, if it has stated one.

    One more call is made, on copies of the arguments as they are now.

    Raises:
        WrongResultError: a result is wrong.
        UsageError: the reference cannot be called with these arguments, or has no answer.
    """
    reference = state.reference
    if reference is None:
        return
    trusted = reference.like(workload)
    from perflab.correctness.definition import Definition, described, rewritten, with_float64

    flat = Flat(*workload.roots)
    places, taken = flat.names, flat.take()

    def inputs() -> dict[str, torch.Tensor]:
        return {name: rewritten(one, lambda x: x) for name, one in zip(places, taken, strict=True)}

    given = with_float64(inputs())
    definition = Definition(trusted, trusted, given, reference.multiple)
    returned = with_float64(dict(enumerate(flat(*inputs().values()))))
    wrong: str | None = f"it returned {len(returned)} tensors, wanted {len(definition.outputs)}"
    if len(returned) == len(definition.outputs):
        wrong = definition.wrong(given, dict(zip(definition.outputs, returned.values(), strict=True)))
    if wrong is None:
        raise UsageError(f"{state.case}: the reference returned NaN for these arguments", "give others, or another one")
    if wrong:
        raise WrongResultError(f"wrong for {described(given)}:\n{wrong}", "see where it is wrong, and mend it")
