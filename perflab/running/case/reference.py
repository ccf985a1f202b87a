"""``perf.reference``: the function that says what the measured one has to return, and the comparison with it."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from perflab.base.errors import UsageError, WrongResultError
from perflab.measure.calls.flat import Flat
from perflab.measure.calls.workload import Workload
from perflab.measure.machine.devices import as_out_of_memory

if TYPE_CHECKING:
    import torch

    from perflab.correctness.definition import Definition
    from perflab.running.case.perf import CaseState

__tracebackhide__ = True  # pytest shows the user's frames of an error, not ours

WRONG = "wrong result"
"""The short reason in the verdict column."""
UNDEFINED = "the reference returned NaN for these arguments"
IN_PLACE = "write to the same arguments in the reference, if that is meant"


class Trusted(NamedTuple):
    """A reference as functions of the tensors among a call's arguments: for float64, and as it is."""

    definition: Callable[..., Any]
    exact: Flat
    plain: Flat
    multiple: float | None
    """How many times the error of ``plain`` is allowed; None: as the results' precision says."""


@dataclass(frozen=True)
class Reference:
    """The arguments of ``perf.reference``."""

    definition: Callable[..., Any]
    multiple: float | None

    def trusted(self, workload: Workload) -> Trusted:
        """Return the definition as functions of the same tensors as ``Flat`` makes of a call.

        A module's weights are in float64 for the first. Both know to which tensors the definition writes.

        Raises:
            UsageError: the workload is no plain call, has no tensors among its arguments, or the definition raises.
        """
        import torch

        from perflab.correctness.definition import copied
        from perflab.correctness.run import same_bits

        remedy = "give perf.reference() the same arguments: perf(fn, *tensors)"
        if type(workload) is not Workload:
            raise UsageError("perf.reference() checks one call, not phases, set-up or coroutines", remedy)
        _, args, kwargs = workload.roots
        plain = Flat(self.definition, args, kwargs)
        if not plain.inputs:
            raise UsageError("perf.reference() needs dense tensors among the arguments of the measured call", remedy)
        given = {name: copied(one) for name, one in plain.inputs.items()}
        try:
            plain(*given.values())
        except Exception as error:
            if as_out_of_memory(error) is not None:
                raise
            raise UsageError(
                f"the reference raised {type(error).__name__}: {error}",
                "let it take the arguments of the measured call",
            ) from error
        written = [name for name, one in given.items() if not same_bits(one, plain.inputs[name])]
        exact = plain
        if isinstance(self.definition, torch.nn.Module):
            exact = Flat(copy.deepcopy(self.definition).double(), args, kwargs)
        exact.writes = plain.writes = written
        return Trusted(self.definition, exact, plain, self.multiple)


def refuse_wrong(state: CaseState, workload: Workload, *, again: bool = False) -> None:
    """Refuse a workload that returns something else than the reference that the case has stated, if it has stated one.

    One call is made, on copies of the arguments. If it runs out of memory, nothing is refused: the measurement will
    run out, too. ``again``: after a measurement; its calls have changed the arguments that the reference writes to, and
    where there are such, no further call is made.

    Raises:
        WrongResultError: a result is wrong, or an argument is changed that the reference does not change.
        UsageError: the reference cannot be called with these arguments, or has no answer.
    """
    if state.reference is None:
        return
    try:
        trusted = state.reference.trusted(workload)
        if again and trusted.plain.writes:
            return
        candidate = Flat(*workload.roots)
        candidate.writes = trusted.plain.writes
        _compare(candidate, trusted)
    except _NoMemoryError:
        return
    except Exception as error:
        if as_out_of_memory(error) is None:
            raise
        raise UsageError(
            "perf.reference() ran out of memory: it holds arguments and results in float64, several times",
            "state the reference in a case with smaller arguments",
        ) from error


class _NoMemoryError(Exception):
    """The candidate itself has run out of memory."""


def _compare(candidate: Flat, trusted: Trusted) -> None:
    from perflab.correctness.definition import Definition, copied, with_float64
    from perflab.correctness.run import same_bits

    given = {name: copied(one) for name, one in candidate.inputs.items()}
    try:
        returned = with_float64(dict(enumerate(candidate(*given.values()))))
    except Exception as error:
        raise _NoMemoryError if as_out_of_memory(error) is not None else error from None
    before = {name: one for name, one in candidate.inputs.items() if name not in candidate.writes}
    if changed := [name for name, one in before.items() if not same_bits(one, given[name])]:
        raise WrongResultError(f"it changed {', '.join(changed)}", IN_PLACE)
    given = with_float64({name: copied(one) for name, one in candidate.inputs.items()})
    definition = Definition(trusted.exact, trusted.plain, given, trusted.multiple)
    refuse_other(definition, given, list(returned.values()))


def refuse_other(definition: Definition, given: Mapping[str, torch.Tensor], returned: Sequence[torch.Tensor]) -> None:
    """Refuse what a call has returned for the given inputs unless it is the definition's.

    Raises:
        WrongResultError: it is not.
        UsageError: the definition has no answer.
    """
    from perflab.correctness.definition import described

    wrong: str | None = f"it returned {len(returned)} tensors, wanted {len(definition.outputs)}"
    if len(returned) == len(definition.outputs):
        wrong = definition.wrong(given, dict(zip(definition.outputs, returned, strict=True)))
    if wrong is None:
        raise UsageError(UNDEFINED, "give others, or another reference")
    if wrong:
        raise WrongResultError(f"wrong for {described(given)}:\n{wrong}", "see where it is wrong, and mend it")
