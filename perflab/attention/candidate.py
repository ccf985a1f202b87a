"""Candidates: variants with their claims in the registry, or a reader's callable with what was found out about it.

A callable of the reader's is `f(q, k, v, *, is_causal, scale)` and returns out, or (out, logsumexp). Shapes: q, out
(B, H, N_q, D); k, v (B, H_kv, N_k, D); logsumexp (B, H, N_q), natural. `scale=None` means 1 / sqrt(D). The claims of a
callable come from

- its attributes (`ATTRIBUTES`),
- its signature: without a parameter `window_size`, `softcap`, `sinks` or `causal_alignment` it lacks that feature,
- a small call, which returns a log-sum-exp or none, gradients or none,
- NotImplementedError, if it raises that: the case is skipped, with the error's text. Any other exception is a failure.
"""

import inspect
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from perflab.attention.grid import HEAD_DIMS, LENGTHS, Claims
from perflab.correctness.operator import DTYPES
from perflab.lab.attention import IMPLEMENTATIONS, BackendRefusedError, attention, attention_with_logsumexp
from perflab.lab.attention.registry import FEATURES
from perflab.lab.attention.scoring import ALIGNMENTS

ATTRIBUTES = {
    "features": "what it can do, out of causal, bottom-right, window, sinks, softcap, grouped-heads, scale",
    "dtypes": "the dtypes that it takes: torch.float32, torch.bfloat16, torch.float16",
    "head_dims": "the head dimensions that it takes",
    "max_head_dim": "the largest head dimension that it takes",
    "causal_alignment": '"bottom-right" where is_causal=True means that the last query stands at the last key',
    "deterministic": "True where it promises the same bits for the same inputs, gradients included",
    "slow": "True where a call takes a second: every level of each factor, not every pair",
}
SUITE_FEATURES = (*FEATURES, "scale")
# Defects of PyTorch 2.13 on a CPU, by the field of Claims that leaves such cases out.
KNOWN_DEFECTS = {
    "negative_scale": "PyTorch's CPU kernel gives NaN for a negative scale under a causal mask",
    "grouped_16_bit": "PyTorch adds up the gradients of grouped heads in 16 bit on a CPU, up to 3.4 budgets off",
    # Seen under a soft cap alone, which makes small scores of large products count.
    "one_query_16_bit": "torch.compile's CPU code rounds each product of one query's scores to 16 bit, 2.1 budgets off",
}
HAVE_DEFECTS = {
    "sdpa": ("negative_scale", "grouped_16_bit"),
    "sdpa-flash": ("negative_scale", "grouped_16_bit"),
    "sdpa-math": ("grouped_16_bit",),
    "compiled": ("one_query_16_bit",),
}


class CandidateError(ValueError):
    """A given name or object is no candidate; the text says why, and what would be a candidate."""


@dataclass(frozen=True)
class Candidate:
    """One attention under test.

    name           the value of --attention, or the variant's name
    call           call(q, k, v, **settings), settings as the lab's `attention` has them, defaults left out
    claims         the capabilities that decide the candidate's cases
    logsumexp      whether the candidate returns (out, logsumexp)
    deterministic  whether the candidate promises to repeat itself bit by bit
    findings       what was found out about the candidate, for a reader
    refusals       exceptions, beside NotImplementedError, by which the candidate refuses a case
    known_variant  whether the candidate is a variant of the lab's
    """

    name: str
    call: Callable[..., Any]
    claims: Claims
    logsumexp: bool
    deterministic: bool
    findings: tuple[str, ...] = ()
    refusals: tuple[type[Exception], ...] = ()
    known_variant: bool = True

    @property
    def outputs(self) -> tuple[str, ...]:
        """The names of the tensors that the candidate returns."""
        return ("out", "logsumexp") if self.logsumexp else ("out",)

    @property
    def lacks(self) -> tuple[str, ...]:
        """The features that the candidate does not claim."""
        return tuple(name for name in SUITE_FEATURES if name not in self.claims.features)

    def __str__(self) -> str:
        return "; ".join((f"attention candidate {self.name}: claims {_listed(self.claims.features)}", *self.findings))


SHAPES: Mapping[str, tuple[tuple[int, ...], tuple[int, ...]]] = {
    "compiled": ((1, 17, 113, 128, 1023), (16, 59, 64, 256)),
    "interpreted": ((1, 2, 17, 97, 128, 203, 512, 1023), (16, 40, 59, 64, 128, 256)),
}
"""Lengths and head dimensions of variants whose cases are dear: each kind of boundary of a tile once.

The products of compiled attention are library calls, so no length is a boundary; each shape compiles for seconds.
"""


def from_registry(name: str, device: torch.device) -> Candidate:
    """Return a variant of the lab's as a candidate, with its claims on that type of device."""
    claimed = IMPLEMENTATIONS[name].on(device.type)
    interpreted = claimed.needs_triton and device.type == "cpu"
    defects = HAVE_DEFECTS.get(name, ()) if device.type == "cpu" else ()
    lengths, head_dims = SHAPES.get("interpreted" if interpreted else name, (LENGTHS, HEAD_DIMS))
    claims = Claims(
        dtypes=tuple(short for short, dtype in DTYPES.items() if dtype in claimed.dtypes),
        # Without dropout, whose results are drawn: tests/correctness/test_attention_dropout.py tests it.
        features=(claimed.features & frozenset(FEATURES)) | {"scale"},
        gradients=claimed.gradients,
        lse_gradients=claimed.gradients and claimed.logsumexp,
        negative_scale="negative_scale" not in defects,
        grouped_16_bit="grouped_16_bit" not in defects,
        one_query_16_bit="one_query_16_bit" not in defects,
        on_cpu=device.type == "cpu",
        interpreted=interpreted,
        lengths=lengths,
        head_dims=head_dims,
        # On a CPU two variants have every pair: tile by tile in PyTorch, and in Triton's interpreter. The others call
        # PyTorch's kernels, write the definition down, or share most of their kernels with another variant or, where
        # they are for generating, with those that read caches: they have every pair on a GPU alone.
        few=claimed.compiles or (device.type == "cpu" and name not in ("tiled", "triton")),
    )
    return Candidate(
        name=name,
        call=partial(attention_with_logsumexp if claimed.logsumexp else attention, impl=name),
        claims=claims,
        logsumexp=claimed.logsumexp,
        deterministic=claimed.deterministic,
        refusals=(BackendRefusedError,),
    )


def runs_on(name: str, device: torch.device) -> bool:
    """Whether a variant exists on that type of device."""
    return IMPLEMENTATIONS[name].runs_on(device.type)


def from_callable(name: str, function: Callable[..., Any], device: torch.device) -> Candidate:
    """Return a candidate for a reader's callable, from its attributes, its signature and a small call.

    CandidateError for attributes of no meaning.
    """
    accepted = _parameters(function)
    said = {key: getattr(function, key) for key in ATTRIBUTES if hasattr(function, key)}
    alignment = said.get("causal_alignment", "top-left")
    if alignment not in ALIGNMENTS:
        raise CandidateError(f"{name}.causal_alignment is {alignment!r}, wanted {' or '.join(map(repr, ALIGNMENTS))}")
    features = {"causal", "scale", "grouped-heads"}
    features |= {"window"} if "window_size" in accepted else set()
    features |= {"softcap", "sinks"} & set(accepted)
    features |= {"bottom-right"} if "causal_alignment" in accepted or alignment == "bottom-right" else set()
    for parameter, feature in (("is_causal", "causal"), ("scale", "scale")):
        features -= {feature} if parameter not in accepted else set()
    if "features" in said:
        unknown = sorted(set(said["features"]) - set(SUITE_FEATURES))
        if unknown:
            raise CandidateError(f"{name}.features has {_listed(unknown)}; known are {_listed(SUITE_FEATURES)}")
        features = set(said["features"]) | ({"bottom-right"} if alignment == "bottom-right" else set())
    claims = Claims(
        dtypes=_dtypes(name, said.get("dtypes")),
        features=frozenset(features),
        head_dims=_head_dims(name, said),
        is_causal=alignment,
        on_cpu=device.type == "cpu",
        interpreted=device.type == "cpu" and _is_interpreted_triton(function),
        few=bool(said.get("slow", False)),
    )
    call = partial(_call, function, frozenset(accepted))
    candidate = Candidate(name, call, claims, False, bool(said.get("deterministic", False)), known_variant=False)
    return _probed(candidate, device)


def _call(function: Callable[..., Any], accepted: frozenset[str], q: Tensor, k: Tensor, v: Tensor, **given: Any) -> Any:
    settings: dict[str, Any] = {"is_causal": False, "scale": None} | given
    return function(q, k, v, **{key: value for key, value in settings.items() if key in accepted})


def _probed(candidate: Candidate, device: torch.device) -> Candidate:
    """Return the candidate with what a small call shows: whether there is a log-sum-exp, and what is differentiable.

    Features that the candidate refuses in small calls are removed from its claims.
    """
    dtype, head_dim = DTYPES[candidate.claims.dtypes[0]], candidate.claims.head_dims[0]
    leaves = [torch.ones(1, 1, 16, head_dim, dtype=dtype, device=device, requires_grad=True) for _ in "qkv"]
    findings = []
    try:
        returned = candidate.call(*leaves)
    except Exception as error:  # each case will say the same, with its traceback
        text = f"a first small call raised {type(error).__name__}: {error}"
        return replace(candidate, findings=(text,))
    tensors = [returned] if isinstance(returned, Tensor) else list(returned)
    has_logsumexp = len(tensors) > 1
    if not has_logsumexp:
        findings.append("no log-sum-exp (it returns one tensor)")
    gradients = isinstance(tensors[0], Tensor) and tensors[0].requires_grad
    lse_gradients = gradients and has_logsumexp and tensors[1].requires_grad
    if not gradients:
        findings.append("no gradients (its output does not require them)")
    elif has_logsumexp and not lse_gradients:
        findings.append("no gradient through its log-sum-exp")
    findings.append("tested to repeat itself bit by bit" if candidate.deterministic else "no promise to repeat itself")
    if candidate.claims.is_causal == "bottom-right":
        findings.append("is_causal tested with the bottom-right alignment")
    if candidate.claims.interpreted:
        findings.append("small cases: Triton's interpreter")
    refused = dict(_refused(candidate, leaves))
    findings += [f'no {feature} (it says "{text}")' for feature, text in refused.items()]
    features = candidate.claims.features - set(refused)
    claims = replace(candidate.claims, features=features, gradients=gradients, lse_gradients=lse_gradients)
    return replace(candidate, claims=claims, logsumexp=has_logsumexp, findings=tuple(findings))


def _refused(candidate: Candidate, leaves: Sequence[Tensor]) -> Iterator[tuple[str, str]]:
    """Yield the assumed features for which the candidate raises NotImplementedError, each with the error's text."""
    asked: dict[str, dict[str, Any]] = {
        "causal": {"is_causal": True},
        "scale": {"scale": 0.5},
        "window": {"window_size": (3, 3)},
        "sinks": {"window_size": (3, 3), "sinks": 1},
        "softcap": {"softcap": 2.0},
        "bottom-right": {"is_causal": True, "causal_alignment": "bottom-right"},
        "grouped-heads": {},
    }
    for feature, settings in asked.items():
        if feature not in candidate.claims.features:
            continue
        q, k, v = leaves
        q = q.expand(1, 2, -1, -1).clone() if feature == "grouped-heads" else q
        try:
            candidate.call(q, k, v, **settings)
        except NotImplementedError as refusal:
            yield feature, str(refusal)
        except Exception:  # a failure, which its cases will show
            continue


def _parameters(function: Callable[..., Any]) -> set[str]:
    """Return the keyword arguments that a callable takes; for a builtin without a signature, `is_causal` and `scale`.

    Every candidate has to take these two.
    """
    every = {"is_causal", "scale", "window_size", "softcap", "causal_alignment"}
    # Few kernels have sinks, and these name the parameter: keywords that take anything are no claim of sinks.
    named = {*every, "sinks"}
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return {"is_causal", "scale"}
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return every | (named & {parameter.name for parameter in parameters})
    return named & {parameter.name for parameter in parameters}


def _dtypes(name: str, said: Any) -> tuple[str, ...]:
    found = tuple(short for short, dtype in DTYPES.items() if said is None or dtype in said)
    if not found:
        raise CandidateError(f"{name}.dtypes is {said!r}, wanted some of {_listed(map(str, DTYPES.values()))}")
    return found


def _head_dims(name: str, said: Mapping[str, Any]) -> tuple[int, ...]:
    most = said.get("max_head_dim", max(HEAD_DIMS))
    found = tuple(sorted(said["head_dims"])) if "head_dims" in said else tuple(d for d in HEAD_DIMS if d <= most)
    if not found:
        raise CandidateError(f"{name} takes no head dimension of {_listed(map(str, HEAD_DIMS))}; see its attributes")
    return found


def _is_interpreted_triton(function: Callable[..., Any]) -> bool:
    """Whether the callable's module holds a Triton kernel, and Triton runs its kernels in the interpreter."""
    named = getattr(inspect.unwrap(function), "__globals__", {})
    kernels = any(type(value).__name__ == "InterpretedFunction" for value in named.values())
    return kernels or ("triton" in named and os.environ.get("TRITON_INTERPRET") == "1")


def _listed(words: Any) -> str:
    return ", ".join(sorted(words)) or "nothing"
