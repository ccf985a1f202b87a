"""Makes the tensors of one case, verifies a candidate in it, and gives the verdict if the candidate is wrong.

The values make errors show, in the layouts that reach a kernel in practice. Shapes: q, and the gradient of out
(B, H, N_q, D); k, v (B, H_kv, N_k, D); the gradient of logsumexp (B, H, N_q).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from perflab.attention.candidate import Candidate
from perflab.attention.diagnosis import HYPOTHESES, explain_attention
from perflab.attention.grid import Case
from perflab.attention.plain import attention_magnitudes, plain_attention
from perflab.correctness import Evidence, Explanation, find_causes, verify
from perflab.correctness.diagnosis import wrapped
from perflab.correctness.operator import DTYPES, LAYOUTS, upstream_in
from perflab.lab.attention import reference_attention
from perflab.lab.attention.scoring import expand_heads

# With a score of 4 |k|^2 / sqrt(D), and |k|^2 near D, one key takes all of a row.
PEAK = 4.0
LARGE_Q, LARGE_KV = 5.0, 3.0


def inputs_of(case: Case, device: torch.device) -> Callable[[int], Mapping[str, Tensor]]:
    """Return make_inputs(seed) -> q, k and v of a case."""

    def make(seed: int) -> Mapping[str, Tensor]:
        generator = torch.Generator(device).manual_seed(seed)
        q, k, v = (torch.randn(shape, generator=generator, device=device) for shape in case.shapes.values())
        if case.data == "large":
            q, k, v = LARGE_Q * q, LARGE_KV * k, LARGE_KV * v
        elif case.data == "peaked":
            chosen = torch.randint(case.n_k, (case.n_q,), generator=generator, device=device)
            q = q + PEAK * expand_heads(k, q)[..., chosen, :]
        elif case.data == "constant":
            k = k[..., :1, :].expand(k.shape)
        return {name: LAYOUTS[case.layout](x.to(DTYPES[case.dtype])) for name, x in zip("qkv", (q, k, v), strict=True)}

    return make


def upstream_of(case: Case) -> Callable[[Tensor, int], Tensor]:
    """Return upstream(output, seed) -> a gradient for the output, in the layout of the case."""
    return upstream_in(case.upstream)


GRADIENT_OF = {"": ("out",), "gboth": ("out", "logsumexp"), "glse": ("logsumexp",)}


@dataclass(frozen=True)
class Complaint:
    """The verdict on a candidate in one case, for a reader, and the likely causes that it names.

    Both are empty if the candidate is right.
    """

    text: str = ""
    causes: Sequence[str] = ()


def complaint(candidate: Candidate, case: Case, device: torch.device) -> Complaint:
    """Return the verdict on a candidate in one case. The candidate's own exceptions pass through."""
    causes: list[Explanation] = []

    def explain(evidence: Evidence) -> list[str]:
        causes.extend(find_causes(evidence, HYPOTHESES))
        return explain_attention(evidence, causes)

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
            explain=explain,
        )
    except AssertionError as error:
        head = wrapped(f"{candidate.name} is wrong for {described(case)}")
        text = "\n".join([head, str(error), *getattr(error, "__notes__", [])])
        return Complaint(text, [one.hypothesis.cause for one in causes])
    return Complaint()


def hold(candidate: Candidate, case: Case, device: torch.device, note: Callable[[str, Any], None]) -> None:
    """Fail with a verdict if the candidate is wrong; skip if the candidate refuses the case as unsupported.

    note(name, value) keeps a result for the tally at the end of a run.
    """
    try:
        found = complaint(candidate, case, device)
    except Exception as error:
        if isinstance(error, (NotImplementedError, *candidate.refusals)):
            pytest.skip(f"{candidate.name}: {error}")
        if not candidate.known_variant:
            error.add_note(
                f"in {described(case)}. If {candidate.name} does not support it, let it raise NotImplementedError, or "
                f"declare what it supports by its attributes (docs/correctness.md)"
            )
        raise
    about = {"candidate": candidate.name, "case": described(case), "levels": case.levels}
    note("attention", {**about, "text": found.text, "causes": list(found.causes)})
    if found.text:
        pytest.fail(found.text, pytrace=False)


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
