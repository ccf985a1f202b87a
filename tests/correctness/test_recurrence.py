"""The gated linear recurrence: every form against the definition, within derived budgets, and what it refuses."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from perflab.correctness import OperatorCase, same_bits
from perflab.lab.recurrence import linear_recurrence
from perflab.lab.recurrence.recurrence import FORMS, TRITON_CHUNKS

from .recurrence import RECURRENCE

pytestmark = [
    pytest.mark.correctness,
    # In the interpreter NumPy speaks up for what lanes outside of the mask compute, which nobody reads.
    pytest.mark.filterwarnings("ignore::RuntimeWarning:triton"),
]

# In Triton's interpreter a chunk of 16 tokens and one head costs some 50 ms, forward and backward.
INTERPRETED = RECURRENCE.cases(
    length=(1, 16, 17),  # three chunks and more: CHOSEN
    batch=(1,),
    heads=(1, 2),
    width=("k16v16", "k5v3", "k1v1"),
    decay=("mixed", "none", "shut"),
    upstream=("", "dones", "dtransposed", "dcolumnwise"),
)
# A chunk, one more, and several with a rest; inputs that kernels pad.
CHOSEN = [
    (chunk, RECURRENCE.case(length=length, width="k5v3", decay="mixed", state=True, starts=True, dtype=dtype))
    for chunk in TRITON_CHUNKS[1:]
    for dtype, length in (("bf16", chunk), ("fp32", chunk + 1), ("fp16", 2 * chunk + 1))
]
WIDE, WIDE_KEYS = (RECURRENCE.case(length=17, width=width, bonus=True, state=True) for width in ("k40v70", "k70v5"))
every_form = pytest.mark.parametrize("form", FORMS)


def drawn(device: torch.device, **levels: Any) -> dict[str, Tensor]:
    return dict(RECURRENCE.inputs(RECURRENCE.case(**levels), torch.Generator(device).manual_seed(0)))


@pytest.mark.parametrize("case", RECURRENCE.cases(), ids=str)
def test_the_chunked_form_is_right(case: OperatorCase, device: torch.device) -> None:
    RECURRENCE.check(linear_recurrence, case, device, form="chunked", chunk=16 if case["length"] < 64 else 64)


@pytest.mark.parametrize("chunk", [1, 2, 16, 256])
def test_the_chunked_form_is_right_whatever_the_chunk(chunk: int, device: torch.device) -> None:
    case = RECURRENCE.case(length=65, width="k5v3", decay="mixed", state=True, starts=True)
    RECURRENCE.check(linear_recurrence, case, device, form="chunked", chunk=chunk)


@pytest.mark.parametrize("case", INTERPRETED, ids=str)
def test_the_triton_kernels_are_right(case: OperatorCase, device: torch.device) -> None:
    RECURRENCE.check(linear_recurrence, case, device, form="triton", chunk=16)


@pytest.mark.parametrize(("chunk", "case"), CHOSEN, ids=str)
def test_every_longer_chunk_that_may_be_chosen_is_right(chunk: int, case: OperatorCase, device: torch.device) -> None:
    RECURRENCE.check(linear_recurrence, case, device, form="triton", chunk=chunk)


def test_widths_of_several_tiles_are_right(device: torch.device) -> None:
    """70 columns of values are two tiles, and of keys too where q and k are wide."""
    RECURRENCE.check(linear_recurrence, WIDE, device, form="triton", chunk=16)
    RECURRENCE.check(linear_recurrence, WIDE_KEYS, device, form="triton", chunk=16)


@pytest.mark.parametrize("outputs", [("out",), ("state",)], ids=str)
@pytest.mark.parametrize("form", ["chunked", "triton"])
def test_gradients_of_one_output_alone_are_right(form: str, outputs: tuple[str, ...], device: torch.device) -> None:
    """Autograd hands no gradient to the other, not even zeros."""
    case = RECURRENCE.case(length=17, width="k5v3", state=True, starts=True)
    replace(RECURRENCE, gradient_of=outputs).check(linear_recurrence, case, device, form=form, chunk=16)


@pytest.mark.parametrize("form", ["chunked", "triton"])
def test_the_same_inputs_give_the_same_bits(form: str, device: torch.device) -> None:
    def run() -> list[Tensor]:
        given = drawn(device, length=33, width="k16v16", heads=3, state=True, bonus=True)
        leaves = [x.requires_grad_() for x in given.values()]
        out, last = linear_recurrence(**given, form=form, chunk=16)
        return [out, last, *torch.autograd.grad(out.sum() + last.square().sum(), leaves)]

    assert all(same_bits(one, other) for one, other in zip(run(), run(), strict=True))


@every_form
def test_a_sequence_in_pieces_is_the_whole(form: str, device: torch.device) -> None:
    given = drawn(device, length=33, width="k16v16", bonus=True, state=True)
    whole, last = linear_recurrence(**given, form=form, chunk=16)
    pieces, state = [], given["state"]
    for tokens in (slice(0, 1), slice(1, 18), slice(18, 33)):
        cut = {name: x[:, :, tokens] if x.dim() == 4 and name != "state" else x for name, x in given.items()}
        out, state = linear_recurrence(**cut | {"state": state}, form=form, chunk=16)
        pieces.append(out)
    torch.testing.assert_close(torch.cat(pieces, dim=2), whole, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(state, last, rtol=1e-5, atol=1e-5)


@every_form
def test_nothing_bleeds_from_one_sequence_into_the_next(form: str, device: torch.device) -> None:
    """Not one bit: two sequences in a row, and the second alone, whatever the first was."""
    results = []
    for first in (1.0, 1e4):
        given = drawn(device, length=21, width="k5v3", decay="none", bonus=True)
        for name in ("q", "k", "v"):
            given[name][:, :, :9] *= first
        starts = torch.zeros(1, 21, dtype=torch.bool, device=device)
        starts[:, 9] = True
        leaves = {name: x.requires_grad_() for name, x in given.items()}
        out, last = linear_recurrence(**leaves, starts=starts, form=form, chunk=16)
        gradients = torch.autograd.grad(out[:, :, 9:].sum() + last.sum(), [leaves[name] for name in ("q", "k", "v")])
        results.append([out[:, :, 9:], last, *gradients])
    for one, other in zip(*results, strict=True):
        assert same_bits(one.contiguous(), other.contiguous())
    assert all(not x[:, :, :9].any() for x in results[0][2:]), "the first sequence has no gradient of the second"


def far_apart(x: Tensor) -> Tensor:
    """(2, ...) with the second 2**31 + 8 elements behind the first, in memory that is never touched between them."""
    try:
        memory = torch.empty(2**31 + 8 + x[0].numel(), dtype=x.dtype, device=x.device)
    except RuntimeError:
        pytest.skip("needs 4 GiB for each input, on a CPU of addresses alone")
    return memory.as_strided(x.shape, (2**31 + 8, *x[0].stride())).copy_(x)


def test_what_lies_more_than_two_to_the_31_elements_away_is_reached(device: torch.device) -> None:
    """Results and gradients are those of the same numbers side by side; of offsets in 32 bits they would not be."""
    given = {name: x.half() for name, x in drawn(device, batch=2, length=17, width="k5v3", heads=1).items()}

    def results(*leaves: Tensor) -> tuple[Tensor, ...]:
        out, last = linear_recurrence(*leaves, form="triton", chunk=16)
        return out, last, *(torch.autograd.grad(out.sum(), leaves) if out.requires_grad else ())

    near = results(*(x.requires_grad_() for x in given.values()))
    far = [far_apart(x.detach()) for x in given.values()]
    assert all(torch.equal(*pair) for pair in zip(near, results(*(x.requires_grad_() for x in far)), strict=True))
    wrapped = [x.detach().as_strided(x.shape, [stride % 2**31 for stride in x.stride()]) for x in far]
    assert not torch.equal(near[0], results(*wrapped)[0])


@pytest.mark.parametrize("name", ["gated_recurrence", "gated_recurrence_backward"])
def test_pytorch_may_ask_all_of_the_operators(name: str, device: torch.device) -> None:
    given = drawn(device, length=17, width="k5v3", heads=2, state=True)
    q, k, v, log_decay, state = given.values()
    linear_recurrence(**given, form="triton", chunk=16)  # defines them
    operator = getattr(torch.ops.perflab, name).default
    if name == "gated_recurrence":
        arguments: tuple[Any, ...] = (*(x.requires_grad_() for x in (q, k, v, log_decay, state)), 16)
    else:
        entering = torch.randn(1, 2, 2, 5, 3, device=device)
        arguments = (torch.randn_like(v), torch.randn_like(state), q, k, v, log_decay, entering, 16)
    torch.library.opcheck(operator, arguments)


def test_operations_are_counted_by_the_equation(device: torch.device) -> None:
    given = drawn(device, batch=2, heads=3, length=32, width="k16v16")
    leaves = [x.requires_grad_() for x in given.values()]
    linear_recurrence(*leaves, form="triton", chunk=16)  # loads the operators, which a counter asks for once
    tokens, pairs = 2 * 3 * 32, 17
    with FlopCounterMode(display=False) as forward:
        out, _ = linear_recurrence(*leaves, form="triton", chunk=16)
    assert forward.get_total_flops() == tokens * (4 * 16 * 16 + pairs * (16 + 16))
    with FlopCounterMode(display=False) as backward:
        out.sum().backward()
    assert backward.get_total_flops() == tokens * (8 * 16 * 16 + pairs * (3 * 16 + 2 * 16))


@pytest.mark.parametrize(
    ("changed", "error", "text"),
    [
        ({"q": torch.ones(2, 3, 4)}, ValueError, r"wants q, k \(B, H, T, K\) and v \(B, H, T, V\), none empty"),
        ({"k": torch.ones(1, 2, 4, 6)}, ValueError, r"wants k \(1, 2, 4, 5\) beside q .* got .*k \(1, 2, 4, 6\)"),
        ({"log_decay": torch.ones(1, 2)}, ValueError, r"log_decay \(1, 2, 4, 5\) or \(1, 2, 4\) .*\.expand\(\)"),
        ({"bonus": torch.ones(5)}, ValueError, r"wants bonus \(2, 5\)"),
        ({"state": torch.ones(1, 2, 3, 5)}, ValueError, r"wants state \(1, 2, 5, 3\)"),
        ({"starts": torch.ones(1, 2, 4)}, ValueError, r"wants starts \(1, 4\)"),
        ({"starts": torch.ones(1, 4)}, TypeError, r"starts bool.*Cast"),
        ({"starts": torch.ones(1, 4, dtype=torch.int64)}, TypeError, r"starts as bool, got torch\.int64"),
        ({"v": torch.ones(1, 2, 4, 3, dtype=torch.float16)}, TypeError, r"one floating dtype.*v .* float16"),
        ({"k": torch.ones(1, 2, 4, 5, device="meta")}, ValueError, r"on one device.*k .* on meta.*\.to\(device\)"),
        ({"form": "fast"}, ValueError, r"the forms definition, chunked, triton; got form='fast'"),
        ({"chunk": 48}, ValueError, r"got chunk=48; give a power of two, such as 64"),
        ({"form": "triton", "chunk": 128}, ValueError, r"chunks of 16, 32, 64 tokens, got chunk=128; .*form='chunked'"),
    ],
)
def test_what_does_not_fit_is_refused_with_a_remedy(changed: dict[str, Any], error: type[Exception], text: str) -> None:
    given: dict[str, Any] = {"q": torch.ones(1, 2, 4, 5), "k": torch.ones(1, 2, 4, 5), "v": torch.ones(1, 2, 4, 3)}
    with pytest.raises(error, match=text):
        linear_recurrence(**{**given, "log_decay": -torch.ones(1, 2, 4), **changed})


def test_triton_refuses_float64_and_strides_of_32_bits(device: torch.device) -> None:
    q, v, decay = (torch.ones(1, 1, 2, 4, dtype=torch.float64, device=device) for _ in range(3))
    with pytest.raises(TypeError, match=r"float64; cast, or give form='chunked'"):
        linear_recurrence(q, q, v, decay, form="triton")
    far = torch.empty(2**25, device=device).as_strided((1, 1, 2, 4), (1, 1, 2**24, 1))
    with pytest.raises(ValueError, match=r"strides of up to 16777215 elements .* for x; call \.contiguous\(\)"):
        linear_recurrence(far, far, far, far, form="triton")
