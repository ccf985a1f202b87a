"""Verifies one case of one candidate, and gives the verdict if the candidate is wrong."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from perflab.attention.candidate import Candidate
from perflab.attention.diagnosis import explain_attention
from perflab.attention.grid import Case
from perflab.attention.plain import attention_magnitudes, plain_attention
from perflab.attention.tensors import inputs_of, upstream_of
from perflab.correctness import verify
from perflab.correctness.diagnosis import wrapped
from perflab.lab.attention import reference_attention

GRADIENT_OF = {"": ("out",), "gboth": ("out", "logsumexp"), "glse": ("logsumexp",)}


def complaint(candidate: Candidate, case: Case, device: torch.device) -> str:
    """Return a verdict for a reader; empty if the candidate is right. The candidate's own exceptions pass through."""
    try:
        verify(
            candidate.call,
            inputs_of(case, device),
            reference=reference_attention,
            plain=plain_attention,
            magnitudes=attention_magnitudes,
            outputs=candidate.outputs,
            gradient_of=GRADIENT_OF[case.gradients] if candidate.claims.gradients else (),
            upstream=upstream_of(case),
            settings=case.settings,
            explain=explain_attention,
        )
    except AssertionError as error:
        return f"{wrapped(f'{candidate.name} is wrong for {described(case)}')}\n{error}"
    return ""


def hold(candidate: Candidate, case: Case, device: torch.device, note: Callable[[str, Any], None]) -> None:
    """Fail with a verdict if the candidate is wrong; skip if the candidate refuses the case as unsupported.

    note(name, value) keeps a result for the tally at the end of a run.
    """
    try:
        text = complaint(candidate, case, device)
    except Exception as error:
        if isinstance(error, (NotImplementedError, *candidate.refusals)):
            pytest.skip(f"{candidate.name}: {error}")
        if not candidate.known_variant:
            error.add_note(
                f"in {described(case)}. If {candidate.name} does not support it, let it raise NotImplementedError, or "
                f"declare what it supports by its attributes (docs/correctness.md)"
            )
        raise
    note("attention", {"candidate": candidate.name, "case": described(case), "levels": case.levels, "text": text})
    if text:
        pytest.fail(text, pytrace=False)


def described(case: Case) -> str:
    """Describe a case in words, in one line or two."""
    shapes = case.shapes
    settings = ", ".join(f"{name}={value}" for name, value in case.settings.items())
    words = [f"q {shapes['q']}", f"k, v {shapes['k']}", case.dtype, settings or "no mask"]
    words += [f"{case.layout} inputs"] if case.layout else []
    words += [f"{case.data} data"] if case.data else []
    words += [f"upstream {case.upstream.removeprefix('d')}"] if case.upstream else []
    words += ["gradient of logsumexp too"] if case.gradients == "gboth" else []
    words += ["gradient of logsumexp alone"] if case.gradients == "glse" else []
    return "; ".join(words)
