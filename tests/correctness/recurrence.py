"""The gated linear recurrence as the suite sees it: its inputs, its budgets, and the faults that it is told from.

Shapes: q, k (B, H, T, K); v, out (B, H, T, V); log_decay (B, H, T, K) or (B, H, T); bonus (H, K); state (B, H, K, V);
starts (B, T).
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor

from perflab.correctness import Evidence, Hypothesis, Operator, OperatorCase
from perflab.lab.recurrence.definition import recurrence_definition

WIDTHS = {"k16v16": (16, 16), "k5v3": (5, 3), "k40v70": (40, 70), "k1v1": (1, 1), "k70v5": (70, 5)}
CHUNKS = (16, 32, 64)


def inputs(case: OperatorCase, generator: torch.Generator) -> dict[str, Tensor]:
    """Everything that a case has, contiguous float32."""
    device = generator.device
    batch, heads, length, (key, value) = case["batch"], case["heads"], case["length"], WIDTHS[case["width"]]

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, device=device)

    def chance(*shape: int) -> Tensor:
        return torch.rand(shape, generator=generator, device=device)

    per = (batch, heads, length) if case["per_head"] else (batch, heads, length, key)
    found = {
        "q": normal(batch, heads, length, key),
        "k": normal(batch, heads, length, key),
        "v": normal(batch, heads, length, value),
        "log_decay": DECAYS[case["decay"]](chance(*per)),
    }
    if case["bonus"]:
        found["bonus"] = normal(heads, key)
    if case["state"]:
        found["state"] = normal(batch, heads, key, value)
    if case["starts"]:
        # The first token starts in some sequences alone: there the given state is emptied before it is read.
        found["starts"] = chance(batch, length) < 0.15
    return found


DECAYS: Mapping[str, Callable[[Tensor], Tensor]] = {
    "mixed": lambda x: torch.where(x < 0.2, torch.full_like(x, -50.0), -x * x),  # strong between weak ones
    "weak": lambda x: -0.01 * x,
    "none": torch.zeros_like,
    "strong": lambda x: torch.full_like(x, -50.0),
    "shut": lambda x: torch.where(x < 0.2, torch.full_like(x, -torch.inf), -x),
}


def plain(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    log_decay: Tensor,
    bonus: Tensor | None = None,
    state: Tensor | None = None,
    starts: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """All pairs of tokens as one matrix, each step rounded to the inputs' dtype; exponents and the state in float32."""
    dtype, wide, length = q.dtype, torch.promote_types(q.dtype, torch.float32), q.shape[2]
    decay = (log_decay if log_decay.dim() == 4 else log_decay[..., None]).to(wide)
    i, j = (torch.arange(length, device=q.device)[:, None, None], torch.arange(length, device=q.device)[:, None])
    sequence = torch.zeros(q.shape[0], length, device=q.device) if starts is None else starts.cumsum(1)
    same = (sequence[:, :, None] == sequence[:, None, :])[:, None, ..., None]
    # Exponents as sums of what stands between: as differences of sums they would lose digits.
    between = torch.where(i > j, decay[:, :, :, None], 0.0).cumsum(2)
    since, after = decay.cumsum(2), torch.where(i > j, decay[:, :, :, None], 0.0).sum(2)
    if bonus is not None:
        none = torch.zeros_like(between[:, :, :1])
        between, since = torch.cat((none, between[:, :, :-1]), 2), torch.cat((none[:, :, :, 0], since[:, :, :-1]), 2)
    weights = torch.exp(torch.where((i >= j if bonus is None else i > j) & same, between, -torch.inf)).to(dtype)
    scores = ((q[:, :, :, None] * weights) * k[:, :, None]).sum(-1)
    if bonus is not None:
        scores = scores + torch.diag_embed((q * bonus[:, None].to(dtype) * k).sum(-1))
    out = scores @ v
    last = (sequence == sequence[:, -1:])[:, None, :, None]
    written = (k * torch.where(last, after.exp(), 0.0).to(dtype)).to(wide).mT @ v.to(wide)
    if state is not None:
        first = (sequence == 0)[:, None, :, None]
        reading = q * torch.where(first, since.exp(), 0.0).to(dtype)
        out = out + reading @ state.to(dtype)
        kept = torch.where(first[:, :, -1:], decay.sum(2, keepdim=True).exp(), 0.0).mT
        written = written + kept * state.to(wide)
    return out, written


def magnitudes(*, upstream: Mapping[str, Tensor], **given: Tensor) -> dict[str, Tensor]:
    """The sums of the absolute values of all terms, each with the rounding of its exponent: of exp(x), eps |x|.

    The definition is linear in each of its inputs but the decay, so the terms' sizes are what it gives of absolute
    values; and terms times exponents are how that changes as all log decays shrink by one factor.
    """
    step = 1e-3
    sizes, weaker = (
        _sizes(given | {"log_decay": factor * given["log_decay"]}, upstream) for factor in (1.0, 1.0 - step)
    )
    return {name: x + (weaker[name] - x).abs() / step for name, x in sizes.items()}


def _sizes(given: Mapping[str, Tensor], upstream: Mapping[str, Tensor]) -> dict[str, Tensor]:
    absolute = {name: x if name in ("log_decay", "starts") else x.abs() for name, x in given.items()}
    leaves = {name: x.detach().requires_grad_() for name, x in absolute.items() if x.is_floating_point()}
    results = dict(zip(("out", "state"), recurrence_definition(**absolute | leaves), strict=True))
    found = {name: x.detach() for name, x in results.items()}
    if upstream:
        gradients = torch.autograd.grad(
            [results[name] for name in upstream], list(leaves.values()), [x.abs() for x in upstream.values()],
            allow_unused=True,
        )  # fmt: skip
        found |= {f"d{name}": x for name, x in zip(leaves, gradients, strict=True) if x is not None}
    return found


def with_fault(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    log_decay: Tensor,
    bonus: Tensor | None = None,
    state: Tensor | None = None,
    starts: Tensor | None = None,
    *,
    edge: int = 0,
    factor: float = 1.0,
    late: int = 0,
    power: float = 1.0,
    own_bonus: bool = True,
    bonus_has_gradient: bool = True,
    state_has_gradient: bool = True,
    given_state: bool = True,
    bleeds: bool = False,
    starts_late: int = 0,
    first_head: bool = False,
    reads_itself: bool = True,
) -> tuple[Tensor, Tensor]:
    """What the recurrence gives with one fault, token by token in float64; differentiable.

    edge, factor   every `edge` tokens the state is multiplied by the factor
    late           decays are those of so many tokens before
    power          decays are taken to that power
    first_head     all heads have the first one's decays
    """
    q, k, v = q.double(), k.double(), v.double()
    decay = (log_decay if log_decay.dim() == 4 else log_decay[..., None]).double() * power
    decay = decay.roll(late, 2).exp()
    decay = decay[:, :1].expand(-1, q.shape[1], -1, -1) if first_head else decay
    held = q.new_zeros(*q.shape[:2], q.shape[-1], v.shape[-1])
    if state is not None and given_state:
        held = (state if state_has_gradient else state.detach() + 0.0 * state).double()
    if starts is not None:
        starts = starts.roll(starts_late, 1)
    outputs = []
    for t in range(q.shape[2]):
        if edge and t and t % edge == 0:
            held = held * factor
        if starts is not None and not bleeds:
            held = torch.where(starts[:, t, None, None, None], 0.0, held)
        written = k[:, :, t, :, None] * v[:, :, t, None, :]
        before, held = held, decay[:, :, t, :, None] * held + written
        read = held if reads_itself else held - written
        if bonus is not None:
            read = before
            own = bonus.double()[:, :, None] * written
            if own_bonus:
                read = read + (own if bonus_has_gradient else own.detach() + 0.0 * own)
        outputs.append((q[:, :, t, None, :] @ read).squeeze(-2))
    return torch.stack(outputs, dim=2), held


def predict(applies: Callable[[Evidence], bool], fault: Mapping[str, Any], evidence: Evidence) -> dict[str, Tensor]:
    """The faulty results and gradients, for the inputs of a run. A fault of the forward shows in what it returns."""
    of_backward = any(name.endswith("has_gradient") for name in fault)
    if not applies(evidence) or not (of_backward or {"out", "state"} & set(evidence.wrong)):
        return {}
    leaves = {
        name: x.detach().double().requires_grad_() if x.is_floating_point() else x
        for name, x in evidence.inputs.items()
    }
    results = dict(zip(("out", "state"), with_fault(**leaves, **fault), strict=True))
    found = {name: x.detach() for name, x in results.items()}
    wanted = {name: x for name, x in leaves.items() if x.is_floating_point()}
    if evidence.upstream:
        gradients = torch.autograd.grad(
            [results[name] for name in evidence.upstream], list(wanted.values()),
            [x.double() for x in evidence.upstream.values()], allow_unused=True,
        )  # fmt: skip
        found |= {
            f"d{name}": torch.zeros_like(leaf) if x is None else x
            for (name, leaf), x in zip(wanted.items(), gradients, strict=True)
        }
    return found


def has(*names: str) -> Callable[[Evidence], bool]:
    """The case has such inputs."""
    return lambda evidence: all(name in evidence.inputs for name in names)


def longer_than(tokens: int) -> Callable[[Evidence], bool]:
    """More tokens."""
    return lambda evidence: evidence.inputs["q"].shape[2] > tokens


def _hypothesis(
    name: str, cause: str, applies: Callable[[Evidence], bool] = lambda evidence: True, **fault: Any
) -> Hypothesis:
    return Hypothesis(name, cause, partial(predict, applies, fault))


HYPOTHESES = (
    _hypothesis(
        "bonus-backward", "the backward forgets the bonus, and with it the token's own share", has("bonus"),
        bonus_has_gradient=False,
    ),
    _hypothesis("state-backward", "the initial state's gradient is dropped", has("state"), state_has_gradient=False),
    *(
        _hypothesis(
            f"carried-twice-{edge}", f"the state is carried twice over the edge of a chunk of {edge} tokens",
            longer_than(edge), edge=edge, factor=2.0,
        )
        for edge in CHUNKS
    ),
    *(
        _hypothesis(
            f"not-carried-{edge}", f"the state is not carried over the edge of a chunk of {edge} tokens",
            longer_than(edge), edge=edge, factor=0.0,
        )
        for edge in CHUNKS
    ),
    _hypothesis("decay-twice", "the decay is applied twice", power=2.0),
    _hypothesis("no-decay", "the decay is ignored", power=0.0),
    _hypothesis("base-2-decay", "the decay is 2 to the power of its natural logarithm", power=0.6931471805599453),
    _hypothesis("decay-late", "the decay is off by one step: that of the token before", longer_than(1), late=1),
    _hypothesis("decay-early", "the decay is off by one step: that of the token after", longer_than(1), late=-1),
    _hypothesis(
        "first-head", "all heads have the decay of the first", lambda e: e.inputs["q"].shape[1] > 1, first_head=True
    ),
    _hypothesis("itself-unread", "a token does not read what it writes (j < i, not j <= i)", reads_itself=False),
    _hypothesis("no-bonus", "the bonus is left out", has("bonus"), own_bonus=False),
    _hypothesis("no-state", "the initial state is ignored", has("state"), given_state=False),
    _hypothesis("bleeds", "the state bleeds over the start of a sequence", has("starts"), bleeds=True),
    _hypothesis("starts-late", "a sequence starts one token late", has("starts"), starts_late=1),
)  # fmt: skip

COLUMNS = ("batch", "head", "token", "column")
RECURRENCE = Operator(
    "linear_recurrence",
    definition=recurrence_definition,
    plain=plain,
    inputs=inputs,
    factors={
        "length": (1, 15, 16, 17, 50, 64, 65),
        "width": ("k16v16", "k5v3", "k40v70", "k1v1"),
        "batch": (1, 2),
        "heads": (1, 3),
        "decay": tuple(DECAYS),
        "per_head": (False, True),
        "bonus": (False, True),
        "state": (False, True),
        "starts": (False, True),
    },
    outputs=("out", "state"),
    wide=("log_decay", "state"),
    magnitudes=magnitudes,
    hypotheses=HYPOTHESES,
    dimensions={
        "out": COLUMNS, "dq": COLUMNS, "dk": COLUMNS, "dv": COLUMNS, "dlog_decay": COLUMNS,
        "state": ("batch", "head", "key column", "column"), "dstate": ("batch", "head", "key column", "column"),
        "dbonus": ("head", "key column"),
    },
)  # fmt: skip
