"""Verifies a candidate: several runs that a wrong kernel does not survive, each within its budget.

The candidate runs first, before the reference could leave a right answer in the allocator's memory; on
inputs of its own, which must come back bit by bit; into memory that holds NaN until it is written; and
twice, the second time with fresh data in the same memory, so that a result remembered from the first run
is wrong. Only then do the reference (float64) and plain (the candidate's precision) run, on copies.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from perflab.correctness.budget import MIN_PLAIN_ROWS, Errors, measure_errors
from perflab.correctness.compare import Report, compare_all
from perflab.correctness.definition import IS_RANDOM, random_states, repeats, upcast, with_float64
from perflab.correctness.diagnosis import Evidence, Explain
from perflab.correctness.run import Function, Run, Task, held, run_candidate, run_plainly, same_bits
from perflab.correctness.ties import beside_ties

__tracebackhide__ = True  # pytest shows the user's frames of an error, not ours

Magnitudes = Callable[..., Mapping[str, Tensor]]

MAX_PLAIN_DRAWS = 32


def random_upstream(output: Tensor, seed: int) -> Tensor:
    """A standard normal gradient for `output`, of its shape, dtype and device."""
    generator = torch.Generator(output.device).manual_seed(seed)
    return torch.randn(output.shape, generator=generator, dtype=output.dtype, device=output.device)


def expanded_ones(output: Tensor, seed: int) -> Tensor:
    """The gradient that `output.sum().backward()` hands over: one element, expanded with stride 0."""
    return torch.ones((), dtype=output.dtype, device=output.device).expand(output.shape)


def verify(
    candidate: Function,
    make_inputs: Callable[[int], Mapping[str, Tensor]],
    *,
    reference: Function,
    plain: Function,
    outputs: Sequence[str] = ("out",),
    gradient_of: Sequence[str] = (),
    upstream: Callable[[Tensor, int], Tensor] = random_upstream,
    settings: Mapping[str, Any] | None = None,
    magnitudes: Magnitudes | None = None,
    multiple: float = 2.0,
    seeds: tuple[int, int] = (0, 1),
    explain: Explain | None = None,
) -> tuple[Report, ...]:
    """Compare `candidate` with the reference, within its budget. Return the reports of both runs.

    candidate    called as candidate(*inputs, **settings); returns a tensor, or one for each of `outputs`
    make_inputs  make_inputs(seed) -> {name: tensor}, in the order of the candidate's arguments, with
                 other values of one distribution for each seed; any layouts (expanded, transposed,
                 offset): memory between the elements is watched too
    reference    the definition, called on float64 copies of the inputs
    plain        the reference's mathematics step by step in the candidate's precision; plain's error makes
                 the budget. Reference and plain are differentiated by autograd, and may return more than
                 `outputs` names; the rest is left out
    outputs      the names of the tensors that the candidate returns, in order
    gradient_of  the outputs that get an upstream gradient; then the gradient of every floating input is
                 compared too, as "d" + the input's name
    upstream     upstream(output, seed) -> the gradient for that output
    settings     keyword arguments for all of these functions, is_causal=True, say
    magnitudes   magnitudes(*inputs, upstream=, **settings) -> {result: float64 tensor}, for results
                 in which larger terms cancel (see `budget`); called on float64 copies
    multiple     how many times plain's error is allowed
    seeds        one for each run
    explain      explain(evidence) -> lines that come first in the verdict on a wrong candidate (see `diagnosis`)

    Raises AssertionError whose text says which tensor is wrong, where and by how much, or which input was
    changed, or what was missing; ValueError for unusable arguments, such as a random reference. The candidate's own
    exceptions pass through, with a note that names the run.
    """
    unknown = [name for name in gradient_of if name not in outputs]
    if unknown:
        raise ValueError(f"gradient_of names {unknown}, which are not among the outputs {list(outputs)}")
    task = Task(tuple(outputs), tuple(gradient_of), upstream, dict(settings or {}))
    ran = _run_twice(candidate, make_inputs, task, seeds, (reference, plain))

    def answer(inputs: Mapping[str, Tensor], upstream: Mapping[str, Tensor], *, sized: bool = True) -> _Answer:
        inputs64, upstream64 = upcast(inputs), upcast(upstream)
        return _Answer(
            run_plainly(reference, inputs64, task, upstream64),
            run_plainly(plain, inputs, task, upstream),
            magnitudes(*inputs64.values(), upstream=upstream64, **task.settings) if magnitudes and sized else {},
        )

    devices = {one.device for one in ran[0].copies.values()}
    before = random_states(devices)
    answers = [answer(one.copies, one.run.upstream) for one in ran]
    if not all(map(torch.equal, before, random_states(devices))):  # random numbers have been drawn
        other = answer(ran[0].copies, ran[0].run.upstream, sized=False)
        for which, mine, theirs in (
            ("the reference", answers[0].reference, other.reference),
            ("plain", answers[0].plain, other.plain),
        ):
            if not all(repeats(one, theirs[name]) for name, one in mine.items()):
                raise ValueError(f"{which} {IS_RANDOM}")
    draws = [answer.plain_errors() for answer in answers]
    # The least number of rows of a result, without results of fewer dimensions: a log-sum-exp's row is a single number.
    dimensions = max(tensor.dim() for tensor in answers[0].plain.values())
    full = [tensor.shape for tensor in answers[0].plain.values() if tensor.dim() == dimensions]
    fewest_rows = max(1, min(shape[:-1].numel() for shape in full))
    while len(draws) < min(MAX_PLAIN_DRAWS, MIN_PLAIN_ROWS / fewest_rows):
        seed = seeds[1] + len(draws)
        fresh = {name: task.upstream(answers[0].plain[name], seed) for name in task.gradient_of}
        draws.append(answer(with_float64(_copies(make_inputs(seed))), fresh, sized=False).plain_errors())

    def report(one: _Ran, answer: _Answer) -> Report:
        def compared(results: Mapping[str, Tensor | None]) -> Report:
            return compare_all(
                results,
                answer.reference,
                answer.plain,
                multiple=multiple,
                magnitudes=answer.magnitudes,
                other_draws=draws,
                cancelling=one.run.results.keys() - set(task.outputs),
            )

        def again(inputs: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
            return run_plainly(reference, upcast(inputs), task, upcast(one.run.upstream))

        return beside_ties(compared, one.run.results, answer.reference, one.copies, again)

    reports = tuple(report(one, answer) for one, answer in zip(ran, answers, strict=True))
    if all(report.ok for report in reports):
        return reports
    lines = _complaints(reports, seeds, *(one.run for one in ran))
    if explain is not None:
        number = 1 if not reports[1].ok else 0
        one, wrong = ran[number], tuple(tensor.name for tensor in reports[number].tensors if not tensor.ok)
        right = answers[number].reference
        evidence = Evidence(one.inputs, one.run.upstream, task.settings, one.run.results, right, wrong)
        try:
            lines = [*explain(evidence), *lines]
        except Exception as error:  # the verdict must be shown, whatever the search for a cause raises
            lines.insert(0, f"(looking for the cause failed: {type(error).__name__}: {error})")
    raise AssertionError("\n".join(lines))


@dataclass(frozen=True, slots=True)
class _Ran:
    """A run of the candidate, on a device that has float64."""

    run: Run
    copies: Mapping[str, Tensor]
    """Copies of the inputs that the candidate had."""
    inputs: Mapping[str, Tensor]
    """The inputs as the candidate had them; of the first run copies, since the second run has overwritten them."""


def _run_twice(
    candidate: Function,
    make_inputs: Callable[[int], Mapping[str, Tensor]],
    task: Task,
    seeds: tuple[int, int],
    answering: tuple[Function, Function],
) -> tuple[_Ran, _Ran]:
    """Run the candidate twice, the second time with other values in the memory of the first run's inputs.

    Raises AssertionError if the second run overwrites what the first one returned.
    """
    first_inputs = dict(make_inputs(seeds[0]))
    first_copies = _copies(first_inputs)
    with held(candidate, first_inputs, task, answering) as function:
        first = run_candidate(function, first_inputs, task, seeds[0], "run 1")

        second_inputs = _into_the_same_memory(make_inputs(seeds[1]), first_inputs)
        second_copies = _copies(second_inputs)
        kept = {name: tensor.clone() for name, tensor in first.live.items()}
        second = run_candidate(function, second_inputs, task, seeds[1], "run 2")
    overwritten = [name for name, tensor in first.live.items() if not same_bits(tensor, kept[name])]
    if overwritten:
        raise AssertionError(
            f"run 2 overwrote what run 1 had returned ({', '.join(overwritten)}): the candidate keeps a "
            f"buffer and hands it out again; allocate the output in each call"
        )

    first, second = (
        Run(with_float64(run.results), with_float64(run.live), with_float64(run.upstream)) for run in (first, second)
    )
    first_copies, second_copies, second_inputs = map(with_float64, (first_copies, second_copies, second_inputs))
    return _Ran(first, first_copies, first_copies), _Ran(second, second_copies, second_inputs)


@dataclass(frozen=True, slots=True)
class _Answer:
    """The reference's and plain's results for one set of inputs, and the magnitude of the terms behind them."""

    reference: Mapping[str, Tensor]
    plain: Mapping[str, Tensor]
    magnitudes: Mapping[str, Tensor]

    def plain_errors(self) -> dict[str, Errors]:
        return {name: measure_errors(self.plain[name], wanted) for name, wanted in self.reference.items()}


def _copies(inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.detach().clone() for name, tensor in inputs.items()}


def _into_the_same_memory(fresh: Mapping[str, Tensor], old: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the fresh values in the old inputs' memory, if they fit, so that a cache keyed on addresses shows."""
    moved = dict(fresh)
    for name, tensor in fresh.items():
        if name not in old:
            continue
        source, target = tensor.untyped_storage(), old[name].untyped_storage()
        if source.nbytes() == target.nbytes():
            target.copy_(source, False)
            moved[name] = torch.empty(0, dtype=tensor.dtype, device=tensor.device).set_(
                target, tensor.storage_offset(), tensor.shape, tensor.stride()
            )
    return moved


def _complaints(reports: Sequence[Report], seeds: Sequence[int], first: Run, second: Run) -> list[str]:
    lines: list[str] = []
    for number, (report, seed) in enumerate(zip(reports, seeds, strict=True), start=1):
        if not report.ok and not lines:
            lines += [f"run {number}, seed {seed}:", str(report)]
        elif not report.ok:  # one full report is enough to read
            names = [tensor.name for tensor in report.tensors if not tensor.ok]
            lines.append(
                f"run {number}, seed {seed}: {', '.join(names)} {'is' if len(names) == 1 else 'are'} wrong too"
            )
    wrong = {tensor.name for tensor in reports[1].tensors if not tensor.ok}
    stale = [
        name
        for name, tensor in first.results.items()
        if tensor is not None and (other := second.results[name]) is not None and same_bits(tensor, other)
        if torch.isfinite(tensor).any()
    ]
    if stale and reports[0].ok:
        lines.append(f"run 2 returned run 1's {', '.join(stale)} bit by bit, for other inputs: is it cached?")
    elif constant := [name for name in stale if name in wrong]:
        lines.append(f"both runs returned the same {', '.join(constant)}, for other inputs: is it a constant?")
    return lines
