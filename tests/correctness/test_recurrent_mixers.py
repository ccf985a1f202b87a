"""The recurrent mixers as layers: a state of fixed size, cut anywhere, in every form and dtype."""

from collections.abc import Callable
from functools import partial
from unittest.mock import patch

import pytest
import torch
from torch import Tensor
from torch.func import functional_call

from perflab.correctness import Operator, OperatorCase
from perflab.lab.models.config import ModelConfig
from perflab.lab.recurrence import linear_recurrence
from perflab.lab.recurrence.gla import GatedLinearAttention
from perflab.lab.recurrence.mamba2 import Mamba2
from perflab.lab.recurrence.mixer import Mixer
from perflab.lab.recurrence.retnet import RetNet
from perflab.lab.recurrence.rwkv6 import RWKV6

from .recurrence import plain

pytestmark = [pytest.mark.correctness, pytest.mark.filterwarnings("ignore::RuntimeWarning:triton")]

CONFIG = ModelConfig(d_model=32, d_ff=64, num_layers=2, num_heads=2)
KINDS = (RetNet, GatedLinearAttention, Mamba2, RWKV6)
every_kind = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)


def made(kind: type[Mixer], device: torch.device, dtype: torch.dtype = torch.float64) -> tuple[Mixer, Tensor]:
    torch.manual_seed(0)
    mixer, x = kind(CONFIG).to(device, dtype), torch.randn(2, 20, 32, dtype=dtype, device=device)
    with torch.no_grad():
        for parameter in mixer.parameters():  # so that none is 0 or 1 and hides
            parameter.add_(0.1 * torch.randn_like(parameter))
    return mixer, x


@every_kind
@pytest.mark.parametrize("cuts", [(20,), (1,) * 20, (1, 2, 1, 16), (3, 17)], ids=str)
def test_a_sequence_cut_anywhere_is_the_whole(kind: type[Mixer], cuts: tuple[int, ...], device: torch.device) -> None:
    """One token at a time is decoding; a single cut is prefill."""
    mixer, x = made(kind, device)
    state, pieces = mixer.initial_state(2, x.device, x.dtype), []
    for piece in x.split(cuts, dim=1):
        out, state = mixer.advance(piece, state)
        pieces.append(out)
    torch.testing.assert_close(torch.cat(pieces, dim=1), mixer(x))


@every_kind
def test_no_token_sees_what_comes_after_it(kind: type[Mixer], device: torch.device) -> None:
    mixer, x = made(kind, device)
    changed = x.clone()
    changed[:, 11:] = 7.0
    torch.testing.assert_close(mixer(changed)[:, :11], mixer(x)[:, :11], rtol=0, atol=1e-14)
    assert not torch.allclose(mixer(changed)[:, 11:], mixer(x)[:, 11:])


@every_kind
def test_every_parameter_has_a_gradient_that_finite_differences_confirm(
    kind: type[Mixer], device: torch.device
) -> None:
    mixer, x = made(kind, device)
    mixer(x).sin().sum().backward()
    for name, parameter in mixer.named_parameters():
        direction, step = torch.randn_like(parameter), 1e-6
        with torch.no_grad():
            ahead = parameter.add_(step * direction) is not None and mixer(x).sin().sum()
            parameter.sub_(2 * step * direction)
            behind = mixer(x).sin().sum()
            parameter.add_(step * direction)
        slope = (ahead - behind) / (2 * step)
        assert parameter.grad is not None
        torch.testing.assert_close((parameter.grad * direction).sum(), slope, rtol=1e-5, atol=1e-6, msg=name)


def layer(kind: type[Mixer], form: str, device: torch.device) -> Callable[[Tensor], Tensor]:
    """The layer as a function of its input, in the input's dtype: with weights that bf16 and fp16 have as they are."""
    mixer, _ = made(kind, device)
    mixer.form = form
    weights = {name: torch.where(w.abs() < 1e-3, 0.0, w.bfloat16().double()) for name, w in mixer.named_parameters()}
    return lambda x: functional_call(mixer, {name: w.to(x.dtype) for name, w in weights.items()}, x)


def operator(kind: type[Mixer], device: torch.device) -> Operator:
    """The layer with the recurrence's definition; its budgets come from the layer with the plain recurrence."""
    exact = layer(kind, "definition", device)

    def plain_recurrence(*given: Tensor, form: str, **more: Tensor) -> tuple[Tensor, Tensor]:
        return plain(*given, **more)

    def plainly(x: Tensor) -> Tensor:
        with patch(f"{kind.__module__}.linear_recurrence", plain_recurrence):
            return exact(x)

    return Operator(kind.__name__, definition=exact, plain=plainly, inputs=inputs, factors={"length": (17, 1)})


def inputs(case: OperatorCase, generator: torch.Generator) -> dict[str, Tensor]:
    """Two sequences."""
    return {"x": torch.randn(2, case["length"], 32, generator=generator, device=generator.device)}


ANY = operator(RetNet, torch.device("cpu"))
CASES = [("chunked", case) for case in ANY.cases(layout=("", "offset"), upstream=("", "dones"))]
CASES += [("triton", ANY.case(dtype="bf16"))]  # every dtype of the kernels: test_recurrence.py


@every_kind
@pytest.mark.parametrize(("form", "case"), CASES, ids=str)
def test_a_form_costs_a_layer_no_more_than_its_dtype_does(
    kind: type[Mixer], form: str, case: OperatorCase, device: torch.device
) -> None:
    """Output, and the gradient of the input; those of parameters are held to finite differences, above."""
    # In Triton's interpreter a chunk of 64 takes as long as four of 16; and 17 tokens are more than one of 16.
    chunk = {"chunk": 16} if form == "triton" else {}
    held_to, right = operator(kind, device), layer(kind, form, device)
    with patch(f"{kind.__module__}.linear_recurrence", partial(linear_recurrence, **chunk)):
        held_to.check(right, case, device)


@every_kind
def test_the_state_has_one_size_whatever_it_has_seen(kind: type[Mixer], device: torch.device) -> None:
    mixer, x = made(kind, device, torch.bfloat16)
    empty = mixer.initial_state(2, x.device, x.dtype)
    _, after = mixer.advance(x, empty)
    _, later = mixer.advance(x[:, :1], after)
    assert [(s.shape, s.dtype) for s in empty] == [(s.shape, s.dtype) for s in after]
    assert [(s.shape, s.dtype) for s in empty] == [(s.shape, s.dtype) for s in later]


@every_kind
def test_parameters_are_drawn_again_by_reset(kind: type[Mixer], device: torch.device) -> None:
    with torch.device("meta"):
        mixer = kind(CONFIG)
    mixer = mixer.to_empty(device=device)
    for module in mixer.modules():
        if hasattr(module, "reset_parameters"):
            module.reset_parameters()
    assert all(torch.isfinite(parameter).all() for parameter in mixer.parameters())
    assert torch.isfinite(mixer(torch.randn(1, 3, 32, device=device))).all()


@pytest.mark.parametrize(
    ("kind", "d_model", "num_heads", "text"),
    [
        (RetNet, 30, 4, "30 channels of keys together, which is not whole a head; choose num_heads that divides 30"),
        (RetNet, 6, 2, "pairs of channels, and 3 a head is odd"),
        (GatedLinearAttention, 32, 32, "32 heads 16 channels of keys"),
        (RWKV6, 30, 4, "RWKV-6 gives its 4 heads 30 channels"),
    ],
)
def test_heads_that_do_not_come_out_whole_are_refused(
    kind: type[Mixer], d_model: int, num_heads: int, text: str
) -> None:
    config = ModelConfig(d_model=32, d_ff=64, num_layers=1, num_heads=2)
    object.__setattr__(config, "d_model", d_model)
    object.__setattr__(config, "num_heads", num_heads)
    with pytest.raises(ValueError, match=text):
        kind(config)
