"""The gated linear recurrence as one calls it: inputs checked, a form chosen by name.

Shapes
    q, k               (B, H, T, K)
    v, out             (B, H, T, V)
    log_decay          (B, H, T, K), or (B, H, T): one number a head
    bonus              (H, K)
    state              (B, H, K, V)
    starts             (B, T), bool

`definition` says what is computed. Its other forms know neither bonus nor starts: both are the plain recurrence on
other inputs. A sequence that starts is a log decay of -inf. A bonus makes a token read the state *before* it: the
recurrence of keys, values and decays that come one step late, and the token's own share added.
"""

from collections.abc import Callable
from contextlib import nullcontext

import torch
import torch.nn.functional as F
from torch import Tensor

from perflab.lab.attention.inputs import accumulation_dtype
from perflab.lab.recurrence.chunked import chunked_recurrence
from perflab.lab.recurrence.definition import recurrence_definition

FORMS = ("definition", "chunked", "triton")
TRITON_CHUNKS = (16, 32, 64)
"""Tokens a chunk that the Triton kernels take; tl.dot wants 16 at least, and two 64 x 64 tiles fill a program."""

Form = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor | None, int], tuple[Tensor, Tensor]]


def linear_recurrence(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    log_decay: Tensor,
    *,
    bonus: Tensor | None = None,
    state: Tensor | None = None,
    starts: Tensor | None = None,
    form: str = "chunked",
    chunk: int = 64,
) -> tuple[Tensor, Tensor]:
    """S_t = exp(log_decay_t) S_{t-1} + k_t^T v_t and o_t = q_t S_t, token by token; see `definition`.

    Args:
        q, k, v: one dtype out of float32, bfloat16, float16 (float64 except in Triton); any strides. q carries the
            scale, if there is one.
        log_decay: at most 0, which is not looked at; any floating dtype, of which float32 is the one to choose.
        bonus: the token itself counts by it, and its output is read before the state decays (RWKV-6).
        state: what stands before the first token; None for nothing.
        starts: where a sequence begins: the state is emptied ahead of that token, and gets no gradient from it.
        form: "definition" (float64, token by token), "chunked" (PyTorch) or "triton".
        chunk: tokens that are computed at once; a power of two, in Triton 16, 32 or 64.

    Returns:
        out (B, H, T, V) in the dtype of q, and the state behind the last token, float32 (float64 for float64).
        Both are differentiable once by Triton, and as often as one likes by the other two.

    Raises:
        ValueError: for shapes or devices that do not fit, a form or chunk that there is not.
        TypeError: for dtypes.
        RuntimeError: where Triton can run neither on the device nor in its interpreter.
    """
    _check(q, k, v, log_decay, bonus, state, starts)
    if form == "definition":
        out, last = recurrence_definition(q, k, v, log_decay, bonus, state, starts)
        return out.to(q.dtype), last.to(accumulation_dtype(q.dtype))
    run = _form(form, chunk, q.dtype)
    # Under autocast, which `meta` has not, products would round what has to be summed in float32.
    kind = q.device.type
    with torch.autocast(kind, enabled=False) if torch.amp.is_autocast_available(kind) else nullcontext():
        decay = log_decay if log_decay.dim() == 4 else log_decay[..., None]
        if bonus is None:
            if starts is not None:
                decay = decay.masked_fill(starts[:, None, :, None], -torch.inf)
            return run(q, k, v, decay, state, chunk)
        # Token t reads what stands before it: step t of the recurrence whose keys, values and decays are those of
        # t - 1. One step more gives the state behind the last token.
        late_k, late_v, decay = (F.pad(x, (0, 0, 1, 0)) for x in (k, v, decay))
        if starts is not None:
            starting = F.pad(starts, (0, 1))[:, None, :, None]
            late_k, decay = late_k.masked_fill(starting, 0.0), decay.masked_fill(starting, -torch.inf)
        read, last = run(F.pad(q, (0, 0, 0, 1)), late_k, late_v, decay, state, chunk)
        wide = accumulation_dtype(q.dtype)
        own = (q.to(wide) * bonus[:, None].to(wide) * k.to(wide)).sum(-1, keepdim=True) * v.to(wide)
        return (read[:, :, :-1].to(wide) + own).to(q.dtype), last


def _form(form: str, chunk: int, dtype: torch.dtype) -> Form:
    if form == "chunked":
        if chunk < 1 or chunk & (chunk - 1):
            raise ValueError(
                f"linear_recurrence cuts chunks in halves, got chunk={chunk}; give a power of two, such as 64"
            )
        return chunked_recurrence
    if form != "triton":
        raise ValueError(f"linear_recurrence has the forms {', '.join(FORMS)}; got form={form!r}")
    if chunk not in TRITON_CHUNKS:
        raise ValueError(
            f"linear_recurrence in Triton has chunks of {', '.join(map(str, TRITON_CHUNKS))} tokens, got "
            f"chunk={chunk}; give one of these, or form='chunked'"
        )
    if dtype == torch.float64:
        raise TypeError("linear_recurrence in Triton sums in float32, got float64; cast, or give form='chunked'")
    from perflab.lab.recurrence.triton_recurrence import triton_recurrence  # loads Triton

    return triton_recurrence


def _check(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    log_decay: Tensor,
    bonus: Tensor | None,
    state: Tensor | None,
    starts: Tensor | None,
) -> None:
    given = {"q": q, "k": k, "v": v, "log_decay": log_decay, "bonus": bonus, "state": state, "starts": starts}
    tensors = {name: x for name, x in given.items() if x is not None}
    if q.dim() != 4 or v.dim() != 4 or 0 in q.shape or 0 in v.shape:
        raise ValueError(
            f"linear_recurrence wants q, k (B, H, T, K) and v (B, H, T, V), none empty; got {_said(tensors)}"
        )
    batch, heads, length, width = q.shape
    wanted: dict[str, set[tuple[int, ...]]] = {
        "k": {(batch, heads, length, width)},
        "v": {(batch, heads, length, v.shape[-1])},
        "log_decay": {(batch, heads, length, width), (batch, heads, length)},
        "bonus": {(heads, width)},
        "state": {(batch, heads, width, v.shape[-1])},
        "starts": {(batch, length)},
    }
    for name, shapes in wanted.items():
        if name in tensors and tuple(tensors[name].shape) not in shapes:
            said = " or ".join(map(str, sorted(shapes, key=len, reverse=True)))
            raise ValueError(
                f"linear_recurrence wants {name} {said} beside q {tuple(q.shape)}; got {_said(tensors)}. "
                f"Expand what is shared: .expand() copies nothing"
            )
    if len({x.device for x in tensors.values()}) > 1:
        raise ValueError(f"linear_recurrence wants all on one device; got {_said(tensors)}. Move them with .to(device)")
    if len({q.dtype, k.dtype, v.dtype}) > 1 or not all(
        x.is_floating_point() == (name != "starts") for name, x in tensors.items()
    ):
        raise TypeError(
            f"linear_recurrence wants q, k and v of one floating dtype, log_decay, bonus and state of any, starts "
            f"bool; got {_said(tensors)}. Cast with .to(dtype)"
        )
    if starts is not None and starts.dtype != torch.bool:
        raise TypeError(f"linear_recurrence wants starts as bool, got {starts.dtype}; give positions == 0, say")


def _said(tensors: dict[str, Tensor]) -> str:
    return ", ".join(
        f"{name} {tuple(x.shape)} {str(x.dtype).removeprefix('torch.')} on {x.device}" for name, x in tensors.items()
    )
