"""The fused kernels against their float64 definitions: results and gradients, within derived budgets.

Shapes: x, gate, up (R, D); weight (D,); logits (N, V); targets (N,). What PyTorch may ask of them as operators is in
test_fused_operators.py.
"""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from perflab.correctness import expanded_ones
from perflab.lab.kernels import cross_entropy, rms_norm, tiles, triton_rms_norm
from perflab.lab.kernels.tiles import MAX_PARTIALS, TILE_ELEMENTS, num_partials
from perflab.lab.kernels.triton_rms_norm import WHOLE_ROW_COLUMNS

from .fused_operators import CROSS_ENTROPY, OPERATORS, RMS_NORM, SWIGLU, WEIGHTED_SUM, MakeInputs, Operator, normal

pytestmark = [
    pytest.mark.correctness,
    # In the interpreter NumPy speaks up for what lanes outside of the mask compute, which nobody reads.
    pytest.mark.filterwarnings("ignore::RuntimeWarning:triton"),
]

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
SHAPES = [(1, 1), (1, 1023), (3, 17), (17, 97), (1023, 1), (1024, 3), (97, 257), (17, 1024), (5, 1023)]

every_operator = pytest.mark.parametrize("operator", OPERATORS, ids=str)
every_dtype = pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES.keys())


@every_operator
@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: "x".join(map(str, shape)))
def test_a_kernel_is_right_in_float32(operator: Operator, shape: tuple[int, int], device: torch.device) -> None:
    operator.hold(operator.make_inputs(shape, torch.float32, device))


@every_operator
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bf16", "fp16"])
@pytest.mark.parametrize("shape", [(3, 17), (65, 130)], ids=["3x17", "65x130"])
def test_a_kernel_is_right_in_16_bits(
    operator: Operator, dtype: torch.dtype, shape: tuple[int, int], device: torch.device
) -> None:
    operator.hold(operator.make_inputs(shape, dtype, device))


@pytest.mark.parametrize("operator", [WEIGHTED_SUM, RMS_NORM, SWIGLU], ids=str)
def test_any_leading_dimensions_are_rows(operator: Operator, device: torch.device) -> None:
    operator.hold(operator.make_inputs((2, 3, 4, 37), torch.float32, device))
    operator.hold(operator.make_inputs((37,), torch.float32, device))


@pytest.mark.parametrize("columns", [WHOLE_ROW_COLUMNS, WHOLE_ROW_COLUMNS + 1])
def test_the_longest_row_that_a_tile_holds_and_a_longer_one(columns: int, device: torch.device) -> None:
    RMS_NORM.hold(RMS_NORM.make_inputs((1, columns), torch.float32, device))


@every_dtype
@pytest.mark.parametrize("shape", [(19, 65), (67, 300)], ids=["19x65", "67x300"])
def test_rows_that_are_walked_over(
    shape: tuple[int, int], dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch, device: torch.device
) -> None:
    """As rows longer than a tile are, at lengths that the interpreter gets through."""
    monkeypatch.setattr(triton_rms_norm, "WHOLE_ROW_COLUMNS", 64)
    monkeypatch.setattr(triton_rms_norm, "WALKING_COLUMNS", 64)
    monkeypatch.setattr(tiles, "MAX_PARTIALS", 2)
    RMS_NORM.hold(RMS_NORM.make_inputs(shape, dtype, device))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("vocab_size", [TILE_ELEMENTS, TILE_ELEMENTS + 3])
def test_a_vocabulary_of_several_tiles_is_right(vocab_size: int, dtype: torch.dtype, device: torch.device) -> None:
    CROSS_ENTROPY.hold(CROSS_ENTROPY.make_inputs((3, vocab_size), dtype, device))


def test_more_tiles_of_rows_than_partial_sums(monkeypatch: pytest.MonkeyPatch, device: torch.device) -> None:
    """Each program then has several tiles, and not all of them as many."""
    assert num_partials(2**20, rows_per_tile=4) == MAX_PARTIALS
    monkeypatch.setattr(tiles, "MAX_PARTIALS", 3)
    for operator in (WEIGHTED_SUM, RMS_NORM):
        operator.hold(operator.make_inputs((70, 300), torch.float32, device))


def large(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    return 300 * normal(shape, generator)


def constant_rows(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    return normal((*shape[:-1], 1), generator).expand(shape)


def zero_rows(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    numbers = normal(shape, generator)
    numbers[::2] = 0.0
    return numbers


def tiny(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """Below eps, for a norm."""
    return 1e-4 * normal(shape, generator)


def plus_or_minus_ten_thousand(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    return 1e4 * normal(shape, generator).sign() + normal(shape, generator)


@every_operator
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("draw", [large, constant_rows, zero_rows, tiny], ids=lambda draw: draw.__name__)
def test_unusual_numbers_are_right(
    operator: Operator,
    draw: Callable[[tuple[int, ...], torch.Generator], Tensor],
    dtype: torch.dtype,
    device: torch.device,
) -> None:
    operator.hold(operator.make_inputs((19, 70), dtype, device, draw))


@pytest.mark.parametrize("operator", [SWIGLU, CROSS_ENTROPY], ids=str)
def test_no_exponential_overflows(operator: Operator, device: torch.device) -> None:
    operator.hold(operator.make_inputs((19, 70), torch.float32, device, plus_or_minus_ten_thousand))


@pytest.mark.parametrize("eps", [0.0, 1e-5, 0.5])
def test_any_eps_is_right(eps: float, device: torch.device) -> None:
    RMS_NORM.hold(RMS_NORM.make_inputs((9, 40), torch.float32, device), eps=eps)


def transposed(x: Tensor) -> Tensor:
    return x.mT.contiguous().mT if x.dim() == 2 else x


def inside_a_larger_tensor(x: Tensor) -> Tensor:
    """With an offset, a gap after each row, and one after each element."""
    larger = torch.zeros(*x.shape[:-1], 2 * x.shape[-1] + 5, dtype=x.dtype, device=x.device)
    view = larger[..., 3:-2:2]
    view.copy_(x)
    return view


def one_row_for_all(x: Tensor) -> Tensor:
    return x[:1].expand(x.shape)


LAYOUTS = (transposed, inside_a_larger_tensor, one_row_for_all)


def laid_out(make: MakeInputs, layout: Callable[[Tensor], Tensor]) -> MakeInputs:
    return lambda seed: {name: layout(x) for name, x in make(seed).items()}


@every_operator
@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.__name__)
def test_any_strides_are_right(operator: Operator, layout: Callable[[Tensor], Tensor], device: torch.device) -> None:
    settings = {"reduction": "none"} if operator is CROSS_ENTROPY else {}
    operator.hold(laid_out(operator.make_inputs((19, 70), torch.float32, device), layout), **settings)


@pytest.mark.parametrize("operator", [WEIGHTED_SUM, RMS_NORM, SWIGLU], ids=str)
def test_leading_dimensions_in_any_order_are_right(operator: Operator, device: torch.device) -> None:
    make = operator.make_inputs((3, 5, 37), torch.float32, device)
    operator.hold(laid_out(make, lambda x: x.transpose(0, 1) if x.dim() == 3 else x))


def transposed_ones(output: Tensor, seed: int) -> Tensor:
    return random_columns(output, seed).mT.contiguous().mT if output.dim() == 2 else random_columns(output, seed)


def random_columns(output: Tensor, seed: int) -> Tensor:
    """A gradient that is the same for all columns: stride 0 in the last dimension."""
    generator = torch.Generator(output.device).manual_seed(seed)
    column = torch.randn((*output.shape[:-1], 1) if output.dim() else (), generator=generator, device=output.device)
    return column.to(output.dtype).expand(output.shape)


@every_operator
@pytest.mark.parametrize("upstream", [expanded_ones, random_columns, transposed_ones], ids=lambda f: f.__name__)
def test_gradients_of_any_strides_are_right(
    operator: Operator, upstream: Callable[[Tensor, int], Tensor], device: torch.device
) -> None:
    settings = {"reduction": "none"} if operator is CROSS_ENTROPY else {}
    operator.hold(operator.make_inputs((19, 70), torch.bfloat16, device), upstream=upstream, **settings)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("ignore_index", [-100, 3])
def test_every_reduction_leaves_out_what_is_ignored(reduction: str, ignore_index: int, device: torch.device) -> None:
    make = CROSS_ENTROPY.make_inputs((40, 7), torch.float32, device)

    def with_this_index(seed: int) -> dict[str, Tensor]:
        inputs = make(seed)
        return {**inputs, "targets": inputs["targets"].where(inputs["targets"] >= 0, ignore_index)}

    CROSS_ENTROPY.hold(with_this_index, reduction=reduction, ignore_index=ignore_index)


def test_where_all_rows_are_ignored_loss_and_gradient_are_pytorchs(device: torch.device) -> None:
    targets = torch.full((5,), -100, device=device)
    for reduction in ("mean", "sum", "none"):
        results = []
        for function in (cross_entropy, F.cross_entropy):
            logits = torch.randn(5, 9, generator=torch.Generator(device).manual_seed(0), device=device)
            loss = function(logits.requires_grad_(), targets, reduction=reduction)
            results += [(loss.detach(), *torch.autograd.grad(loss.sum(), logits))]
        for got, wanted in zip(*results, strict=True):
            assert torch.equal(got.nan_to_num(7.0), wanted.nan_to_num(7.0))
    assert cross_entropy(torch.zeros(5, 9, device=device), targets).isnan()


def test_masked_words_and_infinite_logits_are_treated_as_by_pytorch(device: torch.device) -> None:
    logits = torch.randn(6, TILE_ELEMENTS + 9, generator=torch.Generator(device).manual_seed(0), device=device)
    logits[0, :TILE_ELEMENTS] = -torch.inf  # a whole tile of masked words before the first other one
    logits[1, 5:] = -torch.inf
    logits[2] = -torch.inf
    logits[3, 8] = torch.inf
    logits[4, 1] = torch.nan
    targets = torch.tensor([TILE_ELEMENTS + 1, 3, 0, 0, 0, 1], device=device)
    got = cross_entropy(logits, targets, reduction="none")
    wanted = F.cross_entropy(logits, targets, reduction="none")
    assert got.isnan().tolist() == wanted.isnan().tolist() == [False, False, True, True, True, False]
    torch.testing.assert_close(got, wanted, equal_nan=True)


def test_a_target_outside_of_the_vocabulary_gives_nan_in_its_row_and_no_other(device: torch.device) -> None:
    logits = torch.zeros(4, 10, device=device, requires_grad=True)
    losses = cross_entropy(logits, torch.tensor([0, 10, -1, 9], device=device), reduction="none")
    (gradient,) = torch.autograd.grad(losses.sum(), logits)
    assert losses.isnan().tolist() == [False, True, True, False]
    assert gradient.isnan().all(dim=1).tolist() == gradient.isnan().any(dim=1).tolist() == [False, True, True, False]


def test_a_row_of_zeros_is_normalised_to_zeros_and_without_eps_to_nan(device: torch.device) -> None:
    x, weight = torch.zeros(2, 8, device=device), torch.ones(8, device=device)
    assert torch.equal(rms_norm(x, weight), x)
    assert rms_norm(x, weight, eps=0.0).isnan().all()


@every_operator
def test_no_rows_give_empty_results_and_gradients_of_zero(operator: Operator, device: torch.device) -> None:
    leaves = [
        x.requires_grad_(x.is_floating_point()) for x in operator.make_inputs((0, 5), torch.float32, device)(0).values()
    ]
    out = operator.function(*leaves)
    assert out.shape == operator.plain(*leaves).shape
    for leaf in leaves:
        if leaf.requires_grad:
            (gradient,) = torch.autograd.grad(out.sum(), leaf, retain_graph=True)
            assert torch.equal(gradient, torch.zeros_like(leaf))


@every_operator
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
def test_a_kernel_repeats_bit_by_bit(operator: Operator, dtype: torch.dtype, device: torch.device) -> None:
    def run() -> tuple[Tensor, ...]:
        inputs = operator.make_inputs((67, 130), dtype, device)(0).values()
        leaves = [x.requires_grad_(x.is_floating_point()) for x in inputs]
        out = operator.function(*leaves)
        return out, *torch.autograd.grad(out.sum(), [x for x in leaves if x.requires_grad])

    for one, other in zip(run(), run(), strict=True):
        assert torch.equal(one, other)


@every_operator
def test_a_row_has_the_same_bits_whatever_else_is_in_the_batch(operator: Operator, device: torch.device) -> None:
    inputs = operator.make_inputs((67, 130), torch.float32, device)(0)
    settings = {"reduction": "none"} if operator is CROSS_ENTROPY else {}
    alone = {name: x if name == "weight" else x[40:41] for name, x in inputs.items()}
    together = operator.function(*inputs.values(), **settings)
    assert torch.equal(operator.function(*alone.values(), **settings), together[40:41])


def far_apart(x: Tensor) -> Tensor:
    """Two rows, the second one 2**31 + 8 elements behind the first, in memory that is never touched between them."""
    try:
        memory = torch.empty(2**31 + 8 + x.shape[1], dtype=x.dtype, device=x.device)
    except RuntimeError:
        pytest.skip("needs 4 GiB for each input, on a CPU of addresses alone")
    return memory.as_strided(x.shape, (2**31 + 8, 1)).copy_(x)


@every_operator
def test_a_row_more_than_two_to_the_31_elements_away_is_reached(operator: Operator, device: torch.device) -> None:
    inputs = operator.make_inputs((2, 24), torch.float16, device)(0)
    results = []
    for layout in (lambda x: x, far_apart):
        leaves = [
            (layout(x) if x.dim() == 2 else x).detach().requires_grad_(x.is_floating_point()) for x in inputs.values()
        ]
        out = operator.function(*leaves)
        results += [(out, *torch.autograd.grad(out.sum(), [x for x in leaves if x.requires_grad]))]
    for near, far in zip(*results, strict=True):
        assert torch.equal(near, far)


@every_operator
@settings(
    max_examples=8, deadline=None, derandomize=True, database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)  # fmt: skip
@given(
    rows=st.integers(1, 40),
    columns=st.integers(1, 90),
    dtype=st.sampled_from(list(DTYPES.values())),
    layout=st.sampled_from([*LAYOUTS, lambda x: x]),
    scale=st.sampled_from([0.01, 1.0, 30.0]),
)
def test_any_shape_layout_and_scale_is_right(
    operator: Operator,
    device: torch.device,
    rows: int,
    columns: int,
    dtype: torch.dtype,
    layout: Callable[[Tensor], Tensor],
    scale: float,
) -> None:
    make = operator.make_inputs((rows, columns), dtype, device, lambda *arguments: scale * normal(*arguments))
    settings = {"reduction": "none"} if operator is CROSS_ENTROPY else {}
    operator.hold(laid_out(make, layout), **settings)
