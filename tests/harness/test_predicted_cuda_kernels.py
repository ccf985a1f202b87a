"""What kernels take in passing, and how many there are, also over lists: held to the sources' formulas done by hand."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from perflab.internals.of_torch import TorchDispatchMode
from perflab.internals.of_torch.tracing import storage_key
from perflab.predicted.cuda import recipes
from perflab.predicted.cuda.as_cuda import as_cuda
from perflab.predicted.cuda.fake import fake_tensors
from perflab.predicted.cuda.kernels import ON_CUDA, OnCuda
from perflab.predicted.data_sheets import MODELLED
from perflab.predicted.prediction import Work, traced
from perflab.predicted.trace.trace import CHUNK, MOST_BLOCKS, MOST_TENSORS, Lists, Part
from tests.harness.routed_calls import ATEN, CALLS, Call
from tests.harness.traced import ops, phased

BF16, FP32 = torch.bfloat16, torch.float32


def meta(*shape: int, dtype: torch.dtype = FP32) -> Tensor:
    return torch.empty(*shape, dtype=dtype, device="meta")


def attention(batch: int, heads: int, length: int, size: int, dtype: torch.dtype, groups: int = 0) -> list[Any]:
    """grad, query, key, value, out as a model's heads have them: ``(B, N, H, D)`` in memory."""

    def one(count: int) -> Tensor:
        return meta(batch, length, count, size, dtype=dtype).transpose(1, 2)

    groups = groups or heads
    return [one(heads), one(heads), one(groups), one(groups), one(heads)]


def hidden_blocks(operator: str, arguments: list[Any]) -> tuple[int, ...]:
    return ON_CUDA.blocks_of(operator, arguments, {})


def launches(operator: str, arguments: list[Any]) -> int:
    return ON_CUDA.launches_of(operator, arguments, {})


def hidden_bytes(operator: str, arguments: list[Any]) -> int | None:
    """The sum of the hidden blocks; None where nothing is known of any."""
    blocks = hidden_blocks(operator, arguments)
    return sum(blocks) if blocks else None


FLASH_BACKWARD = "aten::_scaled_dot_product_flash_attention_backward"
EFFICIENT = "aten::_scaled_dot_product_efficient_attention"
LOGSUMEXP = meta(1)


def test_flash_attentions_backward_accumulates_dq_in_float32_of_rounded_size() -> None:
    arguments = [*attention(2, 4, 200, 80, BF16), LOGSUMEXP]
    dq, softmax_d = 2 * 256 * 4 * 96 * 4, 2 * 4 * 256 * 4
    assert hidden_bytes(FLASH_BACKWARD, arguments) == dq + softmax_d
    assert launches(FLASH_BACKWARD, arguments) == 3


def test_the_backward_of_flash_attention_has_more_for_grouped_heads_and_other_layouts() -> None:
    plain, grouped = attention(2, 4, 128, 64, BF16), attention(2, 4, 128, 64, BF16, groups=2)
    assert hidden_bytes(FLASH_BACKWARD, grouped) - hidden_bytes(FLASH_BACKWARD, plain) == 2 * 2 * 128 * 4 * 64 * 2
    assert launches(FLASH_BACKWARD, grouped) == 5
    given = attention(2, 4, 128, 64, BF16)
    copied = [meta(2, 4, 128, 64, dtype=BF16), *given[1:]]
    assert hidden_bytes(FLASH_BACKWARD, copied) - hidden_bytes(FLASH_BACKWARD, given) == 2 * 4 * 128 * 64 * 2


def test_efficient_attention_in_float32_has_products_or_a_workspace_whichever_is_more() -> None:
    grad, query, key, value, out = attention(2, 4, 256, 64, FP32)
    delta = 2 * 4 * 256 * 4
    workspace = 2 * 4 * (256 // 64) * (16 + 64 * 64 * 4)
    assert workspace > 2 * 4 * 256 * 64 * 4
    assert hidden_bytes(f"{EFFICIENT}_backward", [grad, query, key, value, None, out]) == delta + workspace
    assert launches(f"{EFFICIENT}_backward", [grad, query, key, value, None, out]) == 5


def test_efficient_attention_in_half_precision_keeps_the_output_in_float32_above_128() -> None:
    _, query, key, value, _ = attention(2, 4, 256, 160, BF16)
    assert hidden_bytes(EFFICIENT, [query, key, value]) == 2 * 4 * 256 * 160 * 4
    assert hidden_bytes(EFFICIENT, attention(2, 4, 256, 128, BF16)[1:4]) == 0


def test_the_gradient_of_an_embedding_is_summed_in_parts_above_3072_tokens() -> None:
    name = "aten::embedding_dense_backward"
    few, many = meta(3072, dtype=torch.long), meta(4, 1024, dtype=torch.long)
    assert hidden_bytes(name, [meta(3072, 64), few, 50_000, -1, False]) == 0
    assert launches(name, [meta(3072, 64), few, 50_000, -1, False]) == 2
    parts = 4096 // 10 + 4096
    indices = (3 * 4096 + 2 * 4096 + parts) * 8 + 16
    for dtype in (FP32, BF16):
        assert hidden_bytes(name, [meta(4, 1024, 64, dtype=dtype), many, 50_000, -1, False]) == parts * 64 * 4 + indices
    assert hidden_bytes(name, [meta(3072, 64), few, 50_000, -1, True]) > 0


def test_what_is_not_known_takes_nothing_and_is_one_launch() -> None:
    assert hidden_bytes("aten::relu", [meta(4, 4)]) is None
    assert launches("aten::relu", [meta(4, 4)]) == 1
    assert launches("mylib::op", []) == 1
    assert launches("aten::empty_like", [meta(4)]) == 0


@pytest.mark.parametrize(
    ("name", "arguments", "count"),
    [
        ("_foreach_mul_", lambda some: [some, 2.0], 1),
        ("_foreach_sqrt", lambda some: [some], 2),
        ("_foreach_addcdiv_", lambda some: [some, some, some, [1.0] * len(some)], 3),
        ("_fused_adamw_", lambda some: [some, some, some, some, [], some], 4),
        ("_foreach_norm", lambda some: [some, 2.0], 3),
    ],
)
def test_a_multi_tensor_operator_launches_once_for_as_many_tensors_as_fit(
    name: str, arguments: Any, count: int
) -> None:
    assert launches(f"aten::{name}", arguments([meta(8)] * MOST_TENSORS[0])) == count


def test_and_once_for_as_many_chunks_as_fit() -> None:
    whole = meta(CHUNK * MOST_BLOCKS)
    assert launches("aten::_foreach_mul_", [[whole], 2.0]) == 1
    assert launches("aten::_foreach_mul_", [[whole, meta(1)], 2.0]) == 2
    assert launches("aten::_foreach_mul_", [[meta(CHUNK * MOST_BLOCKS + 1), meta(1)], 2.0]) == 2
    assert launches("aten::_foreach_mul_", [[meta(0)], 2.0]) == 0
    assert launches("aten::_foreach_mul_", [[meta(8)] * (MOST_TENSORS[0] + 1), 2.0]) == 2
    assert launches("aten::_foreach_norm", [[], 2.0]) == 0


def test_lists_and_joins_launch_by_chunks_and_dimensions() -> None:
    assert hidden_bytes("aten::_foreach_norm", [[meta(3 * CHUNK), meta(5)], 2.0]) == 2 * 3 * 4
    assert launches("aten::cat", [[meta(2, 3)] * 3]) == 1
    assert launches("aten::stack", [[meta(2, 3, 4, 5)] * 3, -1]) == 3
    assert launches("aten::constant_pad_nd", [meta(2, 3), [0, 1], 0.0]) == 2
    assert launches("aten::constant_pad_nd", [meta(2, 3), [0, -1], 0.0]) == 1


def test_counting_steps_on_the_host_launches_nothing() -> None:
    with fake_tensors(), as_cuda():
        weight = torch.ones(4, requires_grad=True)
        optimizer = torch.optim.AdamW([weight])
        weight.sum().backward()
        optimizer.step()
        step = optimizer.state[weight]["step"]
        assert launches("aten::_foreach_add_", [[step], 1]) == 0
        assert launches("aten::_foreach_add_", [[weight], 1]) == 1


@pytest.mark.parametrize(
    ("shape", "dims", "dtype", "blocks"),
    [
        # 4 results a thread, 32 threads across, 4 down: 512 numbers a thread, so 32 blocks for 20 groups of results.
        ((4, 512, 2560), (0, 1), FP32, (4 * 2560 * 32 * 128, 4 * 20)),
        ((4, 512, 64), (0, 1), FP32, (4 * 64 * 16 * 64, 4 * 1)),
        ((4, 512, 2560), (2,), FP32, (0, 0)),
        ((4, 512, 2560), (0, 1), BF16, (4 * 2560 * 32 * 128, 4 * 20)),  # summed in float32
        ((1 << 24,), (), FP32, (4 * 528, 4)),
    ],
)
def test_a_sum_of_many_numbers_is_staged_by_block(
    shape: tuple[int, ...], dims: tuple[int, ...], dtype: torch.dtype, blocks: tuple[int, int]
) -> None:
    assert hidden_blocks("aten::sum", [meta(*shape, dtype=dtype), list(dims), True]) == (*blocks, 0)


def test_a_smaller_gpu_divides_a_sum_among_fewer_blocks() -> None:
    t4 = OnCuda(MODELLED["t4"]).blocks_of("aten::sum", [meta(4, 512, 2560), [0, 1], True], {})
    assert t4 == (4 * 2560 * 16 * 128, 4 * 20, 0)


def test_softmax_masks_empty_rows_and_its_gradient_is_a_product_first() -> None:
    scores = meta(2, 4, 8, 16)
    assert hidden_blocks("aten::_softmax_backward_data", [scores, scores, -1, FP32]) == (0, 0, 1024 * 4)
    assert launches("aten::_softmax_backward_data", [scores, scores, -1, FP32]) == 2
    assert hidden_bytes("aten::_safe_softmax", [meta(2, 4, 8, 16), -1]) == 1024 + 64 + 4


class Dispatched(TorchDispatchMode):
    """Asks a question while it dispatches an operator, as a trace does."""

    found: tuple[int, int] | None = None

    def __init__(self, ask: Callable[[], tuple[int, int]]) -> None:
        super().__init__()
        self.ask = ask

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.found = self.ask()
        return func(*args, **(kwargs or {}))


def asked(call: Call, arguments: list[Any]) -> tuple[int, int]:
    """Launches and bytes in passing."""
    blocks = ON_CUDA.blocks_of(call.name, arguments, call.keywords)
    return ON_CUDA.launches_of(call.name, arguments, call.keywords), sum(blocks)


@pytest.mark.parametrize("call", CALLS, ids=lambda call: call.name.removeprefix("aten::"))
def test_a_call_launches_and_takes_what_it_did_on_cuda(call: Call) -> None:
    arguments = call.arguments(meta)
    assert asked(call, arguments) == (call.launches, call.hidden_bytes)
    with Dispatched(lambda: asked(call, arguments)) as within:
        meta(1).neg()
    assert within.found == (call.launches, call.hidden_bytes)


@pytest.mark.parametrize(
    ("name", "arguments", "expected"),
    [
        ("roll", lambda: [meta(64, 32).T, [1], [0]], (2, 8192)),
        ("_cdist_backward", lambda: [meta(64, 128), meta(32, 64).T, meta(128, 32), 2.0, meta(64, 128)], (3, 1_056_768)),
        ("_safe_softmax", lambda: [meta(8, 64, dtype=torch.float16), -1, FP32], (6, 2048)),
    ],
)
def test_a_trace_sees_the_calls_of_composite_operators(name: str, arguments: Any, expected: tuple[int, int]) -> None:
    call = Call(getattr(ATEN, name).default, arguments, *expected)
    with Dispatched(lambda: asked(call, arguments())) as within:
        meta(1).neg()
    assert within.found == expected


@pytest.mark.parametrize(
    ("operator", "arguments", "launches", "hidden_bytes"),
    [
        (ATEN.abs.out, [meta(64, dtype=torch.complex64)], 2, 512),
        (ATEN.angle.out, [meta(64, dtype=torch.complex64)], 2, 512),
        (ATEN.pow.Scalar_out, [2.0, meta(64)], 2, 8),
        (ATEN.mse_loss.out, [meta(64), meta(64)], 2, 256),
        (ATEN.logsumexp.out, [meta(64, 64), [0]], 9, 16640),
        (ATEN.binary_cross_entropy.out, [meta(64), meta(64)], 3, 4),
        (ATEN.multinomial.out, [meta(8, 1000), 4], 14, 32138),
    ],
)
def test_a_call_that_is_given_its_result_is_one_that_makes_it(
    operator: Any, arguments: list[Any], launches: int, hidden_bytes: int
) -> None:
    call = Call(operator, lambda _: arguments, launches, hidden_bytes, {"out": meta(0)})
    assert asked(call, arguments) == (launches, hidden_bytes)


def test_a_transform_into_a_given_result_is_predicted() -> None:
    x, out = torch.randn(4, 8, dtype=torch.complex64), torch.empty(4, 8, dtype=torch.complex64)
    trace = traced(Work(lambda _mark: torch.fft.fft(x, out=out), (x, out)), ON_CUDA).trace
    assert [op.name for op in ops(trace)] == ["aten::_fft_c2c"]


def test_a_result_at_the_address_of_memory_that_was_freed_is_not_taken_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each storage has the lowest address that is free."""
    used: dict[int, int] = {}

    def lowest(storage: torch.UntypedStorage) -> int:
        key = storage_key(storage)
        if key not in used:
            used[key] = next(one for one in itertools.count() if one not in used.values())
            weakref.finalize(storage, used.pop, key)
        return used[key]

    monkeypatch.setattr(recipes, "storage_key", lowest)
    assert hidden_bytes("aten::_cdist_forward", [meta(3, 64, 32), meta(3, 128, 32), 2.0, None]) == 78336


SIZES = (3 * CHUNK, 40 * CHUNK + 1, 5)
"""Of the tensors of a layer."""


def model(layers: dict[str, int], depth: int = 2) -> Lists:
    """An embedding, stacks of layers one after another, a head."""
    parts = [Part(7 * CHUNK)]
    for stack, number in layers.items():
        parts += [Part(size, stack, layer) for layer in range(number) for size in SIZES]
    return Lists((*parts, Part(9), Part(2 * CHUNK)), depth, scalars=True, besides=1)


@pytest.mark.parametrize("wanted", [3, 4, 5, 17, 100])
def test_lists_grow_by_a_layer_s_tensors_in_their_place(wanted: int) -> None:
    assert model({"blocks": 4}).with_layers({"blocks": 4}, {"blocks": wanted}) == model({"blocks": wanted})


def test_stacks_grow_by_themselves_and_together() -> None:
    few = {"encoder": 3, "decoder": 4}
    for wanted in ({"encoder": 3, "decoder": 9}, {"encoder": 12, "decoder": 6}):
        assert model(few).with_layers(few, wanted) == model(wanted)


def test_lists_that_are_sorted_otherwise_keep_their_order() -> None:
    """All weights of all layers, then all biases."""

    def by_kind(layers: int) -> Lists:
        return Lists(tuple(Part(size, "blocks", layer) for size in SIZES for layer in range(layers)), 1)

    assert by_kind(4).with_layers({"blocks": 4}, {"blocks": 11}) == by_kind(11)


def test_launches_are_no_straight_line_over_the_layers() -> None:
    counts = [model({"blocks": number}).launches for number in range(3, 200)]
    assert counts == sorted(counts)
    assert len({later - sooner for sooner, later in itertools.pairwise(counts)}) > 1
    chunks = sum(-(-part.numbers // CHUNK) for part in model({"blocks": 199}).parts)
    assert -(-chunks // MOST_BLOCKS) <= counts[-1] - 1 <= chunks


class Deep(nn.Module):
    """(4, 256) -> (4, 256): layers large enough that launches over all parameters are many."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(2048, 2048) for _ in range(layers))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return x


def trained(layers: int) -> Work:
    net, x = Deep(layers), torch.zeros(4, 2048)
    adam = torch.optim.AdamW(net.parameters())

    def update() -> None:
        adam.step()
        adam.zero_grad()

    return phased(backward=lambda: net(x).sum().backward(), optimizer=update)


def test_a_prediction_from_few_layers_has_the_launches_of_all_of_them() -> None:
    with fake_tensors(), as_cuda():
        few = traced(trained(90), ON_CUDA)
        every = traced(trained(90), ON_CUDA, whole=True)
    assert few.layers_run
    over_lists = [[op.launches for op in ops(one.trace) if "_foreach_" in op.name] for one in (few, every)]
    assert over_lists[0] == over_lists[1]
    assert max(over_lists[0]) > 2
