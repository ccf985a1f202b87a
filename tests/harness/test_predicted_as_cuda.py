"""What runs on fake CPU tensors within ``as_cuda`` has CUDA's operators and dtypes."""

from __future__ import annotations

import re
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode

from perflab.predicted.cuda.as_cuda import as_cuda
from perflab.predicted.cuda.autocast import LOWER as LOWER_PRECISION
from perflab.predicted.cuda.autocast import OTHER, first_call
from perflab.predicted.cuda.devices import on_host
from perflab.predicted.cuda.fake import fake_tensors

optimizers: Any = sys.modules["torch.optim.optimizer"]
BF16, FP16, FP32, FP64 = torch.bfloat16, torch.float16, torch.float32, torch.float64
SEEN_ON_EVERY_DEVICE = ("prim::", "profiler::")
VIEWS = (
    "view",
    "t",
    "transpose",
    "expand",
    "detach",
    "alias",
    "split",
    "unsqueeze",
    "select",
    "slice",
    "permute",
    "_unsafe_view",
)


class Recorder(TorchDispatchMode):
    """Names of the operators that run, without views, and the dtype of their first result."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[str, torch.dtype | None]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        name = func._schema.name
        if not name.startswith(SEEN_ON_EVERY_DEVICE) and name.removeprefix("aten::") not in VIEWS:
            first = out[0] if isinstance(out, list | tuple) and out else out
            self.calls.append((name.removeprefix("aten::"), getattr(first, "dtype", None)))
        return out

    @property
    def names(self) -> list[str]:
        return [name for name, _ in self.calls]


@contextmanager
def on_cuda(capability: tuple[int, int] = (8, 0)) -> Iterator[Recorder]:
    with fake_tensors(), as_cuda(capability), Recorder() as recorder:
        yield recorder


# Autocast.


def x(*shape: int, dtype: torch.dtype = FP32) -> Tensor:
    return torch.ones(*(shape or (4, 4)), dtype=dtype)


def h(*shape: int) -> Tensor:
    return x(*shape, dtype=BF16)


def labels(*shape: int) -> Tensor:
    return torch.ones(*shape, dtype=torch.long)


ATEN = torch.ops.aten
CONVOLUTION = ([1], [0], [1], False, [0], 1)

LOWER: dict[str, Callable[[], Any]] = {
    "_convolution": lambda: ATEN._convolution(x(1, 2, 5), x(2, 2, 3), None, *CONVOLUTION, False, False, True, True),
    "_convolution.deprecated": lambda: ATEN._convolution.deprecated(
        x(1, 2, 5), x(2, 2, 3), None, *CONVOLUTION, False, False, True
    ),
    "conv1d": lambda: F.conv1d(x(1, 2, 5), x(2, 2, 3)),
    "conv2d": lambda: F.conv2d(x(1, 2, 5, 5), x(2, 2, 3, 3)),
    "conv3d": lambda: F.conv3d(x(1, 2, 5, 5, 5), x(2, 2, 3, 3, 3)),
    "conv_tbc": lambda: torch.conv_tbc(x(5, 1, 2), x(3, 2, 2), x(2)),
    "conv_transpose1d": lambda: F.conv_transpose1d(x(1, 2, 5), x(2, 2, 3)),
    "conv_transpose2d.input": lambda: F.conv_transpose2d(x(1, 2, 5, 5), x(2, 2, 3, 3)),
    "conv_transpose3d.input": lambda: F.conv_transpose3d(x(1, 2, 5, 5, 5), x(2, 2, 3, 3, 3)),
    "convolution": lambda: ATEN.convolution(x(1, 2, 5), x(2, 2, 3), None, *CONVOLUTION),
    "prelu": lambda: F.prelu(x(), x(1)),
    "addmm": lambda: torch.addmm(x(), x(), x()),
    "addmv": lambda: torch.addmv(x(4), x(), x(4)),
    "addr": lambda: torch.addr(x(), x(4), x(4)),
    "matmul": lambda: x() @ x(),
    "einsum": lambda: torch.einsum("ij,jk->ik", x(), x()),
    "mm": lambda: x().mm(x()),
    "mv": lambda: x().mv(x(4)),
    "linalg_vecdot": lambda: torch.linalg.vecdot(x(), x()),
    "linear": lambda: F.linear(x(), x(), x(4)),
    "addbmm": lambda: torch.addbmm(x(), x(2, 4, 4), x(2, 4, 4)),
    "baddbmm": lambda: torch.baddbmm(x(2, 4, 4), x(2, 4, 4), x(2, 4, 4)),
    "bmm": lambda: torch.bmm(x(2, 4, 4), x(2, 4, 4)),
    "chain_matmul": lambda: ATEN.chain_matmul([x(), x()]),
    "linalg_multi_dot": lambda: torch.linalg.multi_dot([x(), x(), x()]),
    "lstm_cell": lambda: ATEN.lstm_cell(x(2, 4), [x(2, 4), x(2, 4)], x(16, 4), x(16, 4))[0],
    "gru_cell": lambda: ATEN.gru_cell(x(2, 4), x(2, 4), x(12, 4), x(12, 4)),
    "rnn_tanh_cell": lambda: ATEN.rnn_tanh_cell(x(2, 4), x(2, 4), x(4, 4), x(4, 4)),
    "rnn_relu_cell": lambda: ATEN.rnn_relu_cell(x(2, 4), x(2, 4), x(4, 4), x(4, 4)),
    "_scaled_dot_product_flash_attention": lambda: ATEN._scaled_dot_product_flash_attention(*[x(1, 2, 8, 8)] * 3)[0],
    "scaled_dot_product_attention": lambda: F.scaled_dot_product_attention(*[x(1, 2, 8, 8)] * 3),
}
"""Given float32, they compute in autocast's dtype. Left out are those of cuDNN and of fused cells, which a CPU build
cannot run on any tensor."""

FULL: dict[str, Callable[[], Any]] = {
    **{
        name: (lambda name=name: getattr(torch, name)(h()))  # type: ignore[misc]
        for name in "acos asin cosh erfinv exp expm1 log log10 log2 log1p reciprocal rsqrt sinh tan".split()  # noqa: SIM905
    },
    "pow.Tensor_Scalar": lambda: h() ** 2,
    "pow.Tensor_Tensor": lambda: h() ** h(),
    "pow.Scalar": lambda: 2 ** h(),
    "softplus": lambda: F.softplus(h()),
    "layer_norm": lambda: F.layer_norm(h(), (4,)),
    "native_layer_norm": lambda: torch.native_layer_norm(h(), (4,), None, None, 1e-5)[0],
    "rms_norm": lambda: F.rms_norm(h(), (4,)),
    "group_norm": lambda: F.group_norm(h(2, 4, 3), 2),
    "frobenius_norm.dim": lambda: ATEN.frobenius_norm.dim(h(), [1]),
    "nuclear_norm": lambda: ATEN.nuclear_norm.default(h()),
    "nuclear_norm.dim": lambda: ATEN.nuclear_norm.dim(h(), [0, 1]),
    "cosine_similarity": lambda: F.cosine_similarity(h(), h()),
    "poisson_nll_loss": lambda: F.poisson_nll_loss(h(), h()),
    "cosine_embedding_loss": lambda: F.cosine_embedding_loss(h(), h(), h(4)),
    "nll_loss": lambda: F.nll_loss(h(), labels(4)),
    "nll_loss2d": lambda: F.nll_loss(h(2, 4, 3, 3), labels(2, 3, 3)),
    "hinge_embedding_loss": lambda: F.hinge_embedding_loss(h(), h()),
    "kl_div": lambda: F.kl_div(h(), h(), reduction="batchmean"),
    "l1_loss": lambda: F.l1_loss(h(), h()),
    "smooth_l1_loss": lambda: F.smooth_l1_loss(h(), h()),
    "huber_loss": lambda: F.huber_loss(h(), h()),
    "mse_loss": lambda: F.mse_loss(h(), h()),
    "margin_ranking_loss": lambda: F.margin_ranking_loss(h(4), h(4), h(4)),
    "multilabel_margin_loss": lambda: F.multilabel_margin_loss(h(), labels(4, 4)),
    "soft_margin_loss": lambda: F.soft_margin_loss(h(), h()),
    "triplet_margin_loss": lambda: F.triplet_margin_loss(h(), h(), h()),
    "multi_margin_loss": lambda: F.multi_margin_loss(h(), labels(4)),
    "binary_cross_entropy_with_logits": lambda: F.binary_cross_entropy_with_logits(h(), h()),
    "dist": lambda: torch.dist(h(), h()),
    "pdist": lambda: F.pdist(h()),
    "cdist": lambda: torch.cdist(h(), h()),
    "renorm": lambda: torch.renorm(h(), 2, 0, 1.0),
    "logsumexp": lambda: torch.logsumexp(h(), -1),
    "upsample_nearest1d": lambda: F.interpolate(h(1, 2, 4), scale_factor=2),
    "upsample_nearest2d": lambda: F.interpolate(h(1, 2, 4, 4), scale_factor=2),
    "upsample_nearest3d": lambda: F.interpolate(h(1, 2, 4, 4, 4), scale_factor=2),
    "upsample_linear1d": lambda: ATEN.upsample_linear1d(h(1, 2, 4), [8], False),
    "upsample_bilinear2d": lambda: ATEN.upsample_bilinear2d(h(1, 2, 4, 4), [8, 8], False),
    "upsample_trilinear3d": lambda: ATEN.upsample_trilinear3d(h(1, 2, 4, 4, 4), [8, 8, 8], False),
    "upsample_bicubic2d": lambda: ATEN.upsample_bicubic2d(h(1, 2, 4, 4), [8, 8], False),
    "_upsample_nearest_exact1d": lambda: ATEN._upsample_nearest_exact1d(h(1, 2, 4), [8]),
    "_upsample_nearest_exact2d": lambda: ATEN._upsample_nearest_exact2d(h(1, 2, 4, 4), [8, 8]),
    "_upsample_nearest_exact3d": lambda: ATEN._upsample_nearest_exact3d(h(1, 2, 4, 4, 4), [8, 8, 8]),
    "_upsample_bilinear2d_aa": lambda: ATEN._upsample_bilinear2d_aa(h(1, 2, 4, 4), [8, 8], False),
    "_upsample_bicubic2d_aa": lambda: ATEN._upsample_bicubic2d_aa(h(1, 2, 4, 4), [8, 8], False),
    # Asked for float32, where the caller asks for nothing.
    "prod": lambda: h().prod(),
    "prod.dim_int": lambda: h().prod(-1),
    "softmax.int": lambda: h().softmax(-1),
    "log_softmax.int": lambda: h().log_softmax(-1),
    "cumprod": lambda: h().cumprod(-1),
    "cumsum": lambda: h().cumsum(-1),
    "linalg_vector_norm": lambda: torch.linalg.vector_norm(h()),
    "linalg_matrix_norm": lambda: torch.linalg.matrix_norm(h(), 1),
    "linalg_matrix_norm.str_ord": lambda: torch.linalg.matrix_norm(h()),
    "sum": lambda: h().sum(),
    "sum.dim_IntList": lambda: h().sum(-1),
    "norm.Scalar": lambda: ATEN.norm.Scalar(h()),
    "norm.ScalarOpt_dim": lambda: ATEN.norm.ScalarOpt_dim(h(), 2, [-1]),
}
"""Given bfloat16, they compute in float32."""

WIDEST: dict[str, Callable[[Callable[..., Tensor], Callable[..., Tensor]], Any]] = {
    "addcdiv": lambda a, b: torch.addcdiv(a(), b(), a()),
    "addcmul": lambda a, b: torch.addcmul(a(), b(), a()),
    "atan2": lambda a, b: torch.atan2(a(), b()),
    "bilinear": lambda a, b: F.bilinear(a(), b(), a(4, 4, 4)),
    "cross": lambda a, b: torch.cross(a(4, 3), b(4, 3), dim=-1),
    "dot": lambda a, b: torch.dot(a(4), b(4)),
    "vdot": lambda a, b: torch.vdot(a(4), b(4)),
    "grid_sampler": lambda a, b: torch.grid_sampler(a(1, 2, 4, 4), b(1, 3, 3, 2), 0, 0, False),
    "index_put": lambda a, b: torch.index_put(a(), [labels(2)], b(2, 4)),
    "tensordot": lambda a, b: torch.tensordot(a(), b(), 1),
    "scatter_add": lambda a, b: torch.scatter_add(a(), 0, labels(4, 4), b()),
}
AVAILABLE = torch.cuda.is_available()
CANNOT_RUN = {
    "cudnn_convolution",
    "cudnn_convolution_transpose",
    "_cudnn_rnn",
    "_thnn_fused_lstm_cell",
    "_thnn_fused_gru_cell",
}


VARIES = {"_cudnn_rnn", "rms_norm"}
"""Where a build has no cuDNN, and where PyTorch is older than 2.13 and casts what names dimensions, too."""


def registered(key: str) -> set[str]:
    names = torch._C._dispatch_get_registrations_for_dispatch_key(key)
    return {name.removeprefix("aten::") for name in names if name.startswith("aten::")}


def test_each_operator_that_cuda_casts_is_in_one_table_here() -> None:
    tables = [{*LOWER, *CANNOT_RUN}, {*FULL}, {*WIDEST}, {"binary_cross_entropy"}]
    assert sum(map(len, tables)) == len(set().union(*tables))
    here = {name for name in registered("AutocastCUDA") if not re.search("[Dd]imname|names", name)}
    assert set().union(*tables) - VARIES == here - VARIES


def test_autocast_lowers_what_no_cpu_can_run() -> None:
    for name in (CANNOT_RUN - VARIES) & registered("AutocastCUDA"):
        assert first_call(getattr(ATEN, name).default, OTHER).casts_to == LOWER_PRECISION, name


def test_what_only_a_cpu_casts_is_passed_by_and_all_that_cuda_casts_is_not() -> None:
    on_cpu, on_cuda_too = registered("AutocastCPU"), registered("AutocastCUDA")
    with as_cuda():
        for name in on_cpu | on_cuda_too:
            is_left_alone = torch._C._dispatch_kernel_for_dispatch_key_is_fallthrough(f"aten::{name}", "AutocastCPU")
            assert is_left_alone == (name not in on_cuda_too), name


def test_autocast_computes_in_the_dtype_in_which_it_does_on_cuda() -> None:
    full = [name for name in FULL if name not in VARIES or name in registered("AutocastCUDA")]
    with on_cuda(), torch.autocast("cpu", dtype=BF16):
        assert {name: make().dtype for name, make in LOWER.items()} == dict.fromkeys(LOWER, BF16)
        assert {name: FULL[name]().dtype for name in full} == dict.fromkeys(full, FP32)
        widest = {name: (make(h, x).dtype, make(h, h).dtype) for name, make in WIDEST.items()}
        assert widest == dict.fromkeys(WIDEST, (FP32, BF16))


def test_autocast_leaves_doubles_and_asked_dtypes_and_what_only_a_cpu_casts_alone() -> None:
    with on_cuda(), torch.autocast("cuda", dtype=BF16):
        assert F.layer_norm(x(dtype=FP64), (4,)).dtype == FP64
        assert h().softmax(-1, dtype=FP64).dtype == FP64
        assert h().sum(-1, dtype=BF16).dtype == BF16
        assert F.avg_pool3d(h(1, 2, 4, 4, 4), 2).dtype == BF16  # float32 on a CPU
        assert F.gelu(h()).dtype == BF16


def test_binary_cross_entropy_is_refused_under_autocast_as_on_cuda() -> None:
    with on_cuda(), torch.autocast("cuda"), pytest.raises(RuntimeError, match="binary_cross_entropy_with_logits"):
        F.binary_cross_entropy(x(), x())


def test_outside_and_after_autocast_is_the_cpus() -> None:
    before = torch._C._dispatch_get_registrations_for_dispatch_key("AutocastCPU")

    def dtypes() -> list[torch.dtype]:
        with fake_tensors(), torch.autocast("cpu", dtype=BF16):
            return [FULL[name]().dtype for name in ("softmax.int", "pow.Tensor_Scalar", "norm.Scalar", "cumsum")]

    first = dtypes()
    with on_cuda():
        pass
    assert dtypes() == first == [BF16] * 4
    assert sorted(torch._C._dispatch_get_registrations_for_dispatch_key("AutocastCPU")) == sorted(before)


@contextmanager
def somebodys_operator(**dtypes: torch.dtype) -> Iterator[Callable[[Tensor], Tensor]]:
    """An operator that is not PyTorch's, with what it registered for autocast, by device."""
    with torch.library._scoped_library("perflab_as_cuda_test", "FRAGMENT") as library:
        library.define("same(Tensor x) -> Tensor")
        library.impl("same", torch.clone, "CompositeExplicitAutograd")
        torch.library.register_fake("perflab_as_cuda_test::same", torch.empty_like, lib=library)
        for device, dtype in dtypes.items():
            torch.library.register_autocast("perflab_as_cuda_test::same", device, dtype, lib=library)
        yield torch.ops.perflab_as_cuda_test.same


def test_autocast_does_with_somebodys_operator_what_that_registered_for_cuda() -> None:
    with somebodys_operator(cuda=FP16) as same, on_cuda(), torch.autocast("cuda"):
        assert same(x()).dtype == FP16
    with somebodys_operator(cuda=FP32, cpu=BF16) as same:
        with on_cuda(), torch.autocast("cuda"):
            assert same(h()).dtype == FP32
        with torch.autocast("cpu"):
            assert same(torch.ones(2)).dtype == BF16
    with somebodys_operator(cpu=BF16) as same, on_cuda(), torch.autocast("cuda"):
        assert same(x()).dtype == FP32


def test_autocast_of_cuda_is_asked_for_and_asked_about_as_with_a_gpu() -> None:
    with warnings.catch_warnings(), on_cuda():
        warnings.simplefilter("error")
        assert {torch.is_autocast_enabled(), torch.is_autocast_enabled("cuda")} == {False}
        with torch.autocast("cuda"):
            assert {torch.is_autocast_enabled(), torch.is_autocast_enabled("cuda")} == {True}
            assert torch.get_autocast_dtype("cuda") == (x() @ x()).dtype == FP16
            with torch.amp.autocast(device_type="cuda", enabled=False):
                assert (x() @ x()).dtype == FP32
        with torch.autocast("cpu", dtype=BF16):
            assert torch.get_autocast_dtype("cuda") == BF16
    assert torch.get_autocast_dtype("cpu") == BF16
    assert torch.get_autocast_dtype("cuda") == FP16


@pytest.mark.parametrize("product", [F.linear, lambda a, w: torch.einsum("ij,kj->ik", a, w)])
def test_a_parameter_is_cast_once_in_a_region_and_again_in_the_next(product: Callable[..., Tensor]) -> None:
    with on_cuda() as recorder:
        weight, rows = nn.Parameter(x()), h()
        for _ in range(2):
            recorder.calls.clear()
            with torch.autocast("cuda", dtype=BF16):
                product(rows, weight), product(rows, weight)
            assert recorder.names.count("_to_copy") == 1


# Operators that a CPU makes of others.


def test_dropout_is_one_operator_each_way_and_none_where_it_does_nothing() -> None:
    with on_cuda() as recorder:
        rows = x().requires_grad_()
        recorder.calls.clear()
        F.dropout(rows, 0.1).sum().backward()
        names = recorder.names
    assert {"native_dropout", "native_dropout_backward"} <= {*names}
    assert not {"bernoulli_", "div_", "mul"} & {*names}
    with on_cuda() as recorder:
        rows = x()
        recorder.calls.clear()
        assert F.dropout(rows, 0.0) is rows
        assert F.dropout(rows, 0.5, training=False) is rows
    assert recorder.names == []


def test_rms_norm_is_one_operator_each_way_and_real_tensors_are_refused() -> None:
    with on_cuda() as recorder:
        rows, weight = x().requires_grad_(), x(4).requires_grad_()
        recorder.calls.clear()
        F.rms_norm(rows, (4,), weight).sum().backward()
    assert [name for name in recorder.names if "rms" in name] == ["_fused_rms_norm", "_fused_rms_norm_backward"]
    assert "rsqrt" not in recorder.names
    with as_cuda(), pytest.raises(RuntimeError, match=r"a kernel on CUDA only; .* CPU tensors have to be fake"):
        F.rms_norm(x(), (4,))


def test_layer_norm_keeps_its_statistics_in_float32() -> None:
    def statistics() -> set[torch.dtype]:
        out, mean, rstd = torch.native_layer_norm(h(), (4,), None, None, 1e-5)
        assert out.dtype == BF16
        return {mean.dtype, rstd.dtype}

    with fake_tensors():
        assert statistics() == {BF16}
    with on_cuda():
        assert statistics() == {FP32}
    with fake_tensors():
        assert statistics() == {BF16}


@pytest.mark.parametrize("softmax", [torch.softmax, torch.log_softmax])
def test_a_softmax_of_halves_in_float32_is_one_operator_and_of_bfloat16_two(softmax: Callable[..., Tensor]) -> None:
    with on_cuda() as recorder:
        halves, brains = x(dtype=FP16), h()
        for rows, copies in ((halves, 0), (brains, 1)):
            recorder.calls.clear()
            assert softmax(rows, -1, dtype=FP32).dtype == FP32
            assert recorder.names.count("_to_copy") == copies


def test_inference_mode_has_the_same_operators_as_no_grad() -> None:
    def run() -> None:
        F.dropout(F.rms_norm(F.linear(x(), x()), (4,)), 0.1)
        F.scaled_dot_product_attention(*[h(1, 2, 8, 8)] * 3)

    seen = []
    for without in (torch.inference_mode, torch.no_grad):
        with on_cuda() as recorder, without():
            run()
        seen.append(recorder.names)
    assert seen[0] == seen[1]
    assert "_scaled_dot_product_flash_attention" in seen[0]
    with torch.inference_mode():
        assert torch.is_inference_mode_enabled()


# Attention.


def chosen(
    capability: tuple[int, int] = (8, 0), dtype: torch.dtype = BF16, size: int = 16, groups: int = 4, **keywords: Any
) -> str:
    """Which operator computes ``(2, 4, 32, size)`` attention, forward and backward."""
    with on_cuda(capability) as recorder:
        query = x(2, 4, 32, size, dtype=dtype).requires_grad_()
        key = x(2, groups, 32, size, dtype=dtype).requires_grad_()
        value = x(2, groups, 32, size, dtype=dtype).requires_grad_()
        if keywords.pop("masked", False):
            keywords["attn_mask"] = torch.ones(32, 32, dtype=torch.bool)
        recorder.calls.clear()
        out = F.scaled_dot_product_attention(query, key, value, **keywords)
        assert (out.shape, out.dtype) == (query.shape, dtype)
        out.sum().backward()
        assert [one.grad.shape for one in (query, key, value)] == [one.shape for one in (query, key, value)]
    fused = [name for name in recorder.names if name.startswith("_scaled_dot_product")]
    if not fused:
        assert "_safe_softmax" in recorder.names
        return "math"
    forward, backward = fused
    assert backward == f"{forward}_backward"
    return forward.removeprefix("_scaled_dot_product_").removesuffix("_attention")


@pytest.mark.parametrize(
    ("wanted", "given"),
    [
        ("flash", {}),
        ("flash", {"dtype": FP16, "is_causal": True, "dropout_p": 0.1}),
        ("flash", {"groups": 2, "enable_gqa": True}),
        ("flash", {"size": 20}),
        ("flash", {"size": 256}),
        ("flash", {"size": 256, "capability": (8, 9)}),
        ("efficient", {"size": 256, "capability": (8, 9), "dropout_p": 0.1}),
        ("efficient", {"size": 264}),
        ("efficient", {"dtype": FP32}),
        ("efficient", {"masked": True}),
        ("math", {"dtype": FP32, "groups": 2, "enable_gqa": True}),
        ("math", {"dtype": FP32, "size": 18}),
        ("math", {"dtype": FP64}),
        ("cudnn", {"capability": (9, 0)}),
        ("cudnn", {"capability": (10, 0), "masked": True}),
        ("flash", {"capability": (9, 0), "dropout_p": 0.1}),
        ("flash", {"capability": (12, 0)}),
        ("math", {"dtype": BF16, "capability": (7, 5)}),
    ],
)
def test_attention_is_computed_by_the_kernel_that_cuda_chooses(wanted: str, given: dict[str, Any]) -> None:
    assert chosen(**given) == wanted


@pytest.mark.parametrize(
    ("pinned", "wanted"),
    [
        (SDPBackend.MATH, "math"),
        (SDPBackend.EFFICIENT_ATTENTION, "efficient"),
        (SDPBackend.FLASH_ATTENTION, "flash"),
        (SDPBackend.CUDNN_ATTENTION, "cudnn"),
    ],
)
def test_a_pinned_kernel_is_taken(pinned: SDPBackend, wanted: str) -> None:
    with sdpa_kernel(pinned):
        assert chosen() == wanted


def test_the_environment_says_that_cudnn_is_not_to_come_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_CUDNN_SDPA_DEPRIORITIZED", "1")
    assert chosen(capability=(9, 0)) == "flash"


def test_what_attention_refuses_on_cuda_it_refuses() -> None:
    with on_cuda():
        query = h(1, 2, 8, 8)
        with pytest.raises(RuntimeError, match="attn_mask should not be set when is_causal=True"):
            F.scaled_dot_product_attention(query, query, query, attn_mask=h(8, 8), is_causal=True)
        with pytest.raises(RuntimeError, match=r"same dtype, but got torch\.bfloat16, torch\.float32"):
            F.scaled_dot_product_attention(query, query.float(), query)


def test_a_pinned_kernel_that_cannot_run_is_refused_as_on_cuda() -> None:
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION), pytest.raises(RuntimeError, match=r"^No available kernel"):
        chosen(dtype=FP32)


def test_an_order_of_preference_is_kept() -> None:
    with sdpa_kernel([SDPBackend.EFFICIENT_ATTENTION, SDPBackend.FLASH_ATTENTION], set_priority=True):
        assert chosen() == "efficient"


@pytest.mark.parametrize(
    "given", [{"is_causal": True}, {"scale": 0.1}, {"dtype": FP32}, {"groups": 2, "enable_gqa": True}]
)
def test_unfused_attention_is_pytorchs_own_with_the_mask_added_in_place(given: dict[str, Any]) -> None:
    given = dict(given)
    dtype, groups = given.pop("dtype", BF16), given.pop("groups", 4)

    def run(attention: Callable[..., Any]) -> list[str]:
        with fake_tensors(), as_cuda(), Recorder() as recorder:
            query, key, value = (x(2, heads, 8, 8, dtype=dtype) for heads in (4, groups, groups))
            recorder.calls.clear()
            attention(query, key, value, **given)
        return recorder.names

    with sdpa_kernel(SDPBackend.MATH):
        ours = run(F.scaled_dot_product_attention)
    theirs = run(ATEN._scaled_dot_product_attention_math)
    assert sorted(ours) == sorted("add_" if name == "add" else name for name in theirs)


# Devices.


def test_cuda_is_the_device_that_the_fake_tensors_are_on() -> None:
    with on_cuda():
        device = torch.device("cuda", 0)
        assert device.type == "cuda"
        model = nn.Linear(4, 4).cuda().to("cuda:0").to(device, BF16)
        rows = torch.randn(4, 4, device="cuda", dtype=BF16, pin_memory=True).pin_memory().cuda(non_blocking=True)
        seeded = torch.Generator(device="cuda").manual_seed(0)
        noise = torch.empty_like(rows, device=device).normal_(generator=seeded)
        with torch.cuda.stream(torch.cuda.Stream()), torch.device("cuda"):
            out = model(rows + noise) + torch.ones(4)
        out.record_stream(torch.cuda.current_stream())
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record(), end.record(), torch.cuda.synchronize(), torch.cuda.empty_cache()
        assert start.elapsed_time(end) == 0.0
        torch.cuda.nvtx.range_push("step")
        torch.cuda.nvtx.range_pop()
        torch.cuda.reset_peak_memory_stats()
        assert torch.cuda.max_memory_allocated() == 0
        assert {one.device for one in (out, rows, noise, model.weight)} == {torch.device("cuda", 0)}
        assert all(one.is_cuda for one in (out, rows, noise, model.weight))
        assert torch.zeros(2, device=out.device).to(rows.device).sum().device.type == torch.zeros(2).device.type
        assert isinstance(seeded, torch.Generator)
        assert torch.cuda.get_device_capability() == (8, 0)
        assert torch.cuda.is_available() is AVAILABLE  # it stays as it is


class Mirrored(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor) -> Tensor:
        return rows.flip(0)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        (grad,) = grads
        return grad * torch.ones(grad.shape, device=grad.device)


@pytest.mark.parametrize(
    "differentiate", [lambda out, rows: out.backward(), lambda out, rows: torch.autograd.grad(out, rows)]
)
def test_a_backward_of_the_users_own_makes_its_tensors_there_too(
    differentiate: Callable[[Tensor, Tensor], Any],
) -> None:
    with on_cuda() as recorder:
        rows = torch.randn(4, device="cuda", requires_grad=True)
        differentiate(Mirrored.apply(rows).sum(), rows)
    assert recorder.names.count("ones") == 1


def test_everything_is_put_back_whatever_was_raised() -> None:
    def state() -> list[object]:
        tables = [
            torch._C._dispatch_get_registrations_for_dispatch_key(key) for key in ("AutocastCPU", "AutogradCPU", "CPU")
        ]
        return [
            *map(sorted, tables),
            *(vars(torch.cuda)[name] for name in ("synchronize", "Stream", "current_stream")),
            *(vars(torch)[name] for name in ("Generator", "is_autocast_enabled", "clear_autocast_cache", "compile")),
            *(vars(one)["__init__"] for one in (torch.autocast, torch.amp.GradScaler)),
            vars(torch.inference_mode)["__enter__"],
            list(optimizers._foreach_supported_types),
            optimizers._get_foreach_kernels_supported_devices,
            torch.get_autocast_dtype("cpu"),
            torch.autograd._engine_run_backward,
            vars(FakeTensor)["device"],
            torch.overrides._len_torch_function_stack(),
        ]

    def fail_if(changed: bool) -> None:
        if changed:
            raise RuntimeError("torn")

    before = state()
    with pytest.raises(RuntimeError, match="torn"), on_cuda(), as_cuda():
        fail_if(state() != before)
    assert state() == before


def test_within_itself_it_is_one_gpu() -> None:
    with as_cuda((9, 0)):
        with as_cuda((9, 0)):
            pass
        assert torch.cuda.get_device_capability() == (9, 0)
        with (
            pytest.raises(ValueError, match=r"as_cuda\(8, 0\) within as_cuda\(9, 0\).*leave the outer one first"),
            as_cuda(),
        ):
            pass


# Training.


def step(optimizer: Callable[..., torch.optim.Optimizer], **keywords: Any) -> tuple[list[str], torch.optim.Optimizer]:
    """Operators of a second step, whose first has made the optimizer's state."""
    with on_cuda() as recorder:
        model = nn.Linear(4, 4)
        made = optimizer(model.parameters(), **keywords)
        for _ in range(2):
            model(x()).sum().backward()
            recorder.calls.clear()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            made.step()
            names = recorder.names
            made.zero_grad()
    return names, made


@pytest.mark.parametrize(
    "optimizer", [torch.optim.AdamW, torch.optim.Adam, torch.optim.SGD, torch.optim.RMSprop, torch.optim.Adagrad]
)
def test_an_optimizer_and_clipping_are_multi_tensor_by_default(optimizer: Callable[..., torch.optim.Optimizer]) -> None:
    names, _ = step(optimizer)
    assert {"_foreach_norm", "_foreach_mul_"} <= {*names}
    assert not {"mul_", "addcdiv_", "add_"} & {*names}


def test_an_optimizer_that_is_told_otherwise_does_as_it_is_told() -> None:
    assert step(torch.optim.AdamW, fused=True)[0].count("_fused_adamw_") == 1
    assert "addcdiv_" in step(torch.optim.AdamW, foreach=False)[0]


@pytest.mark.parametrize("name", ["Adadelta", "Adagrad", "Adam", "NAdam", "RAdam", "RMSprop", "Rprop"])
def test_each_optimizer_counts_its_steps_on_the_host(name: str) -> None:
    with fake_tensors(), as_cuda():
        weight = torch.ones(4, device="cuda", requires_grad=True)
        optimizer = getattr(torch.optim, name)([weight])
        weight.sum().backward()
        optimizer.step()
        assert on_host(optimizer.state[weight]["step"])


def test_statistics_of_batch_norm_are_float32_and_log_sigmoid_keeps_no_buffer() -> None:
    with fake_tensors(), as_cuda():
        halves = torch.ones(2, 4, 3, dtype=torch.float16, device="cuda")
        scale = torch.ones(4, device="cuda")
        _, mean, deviation = torch.native_batch_norm(halves, scale, scale, scale, scale, True, 0.1, 1e-5)
        assert mean.dtype == deviation.dtype == torch.float32
        assert torch.ops.aten.log_sigmoid_forward(scale)[1].numel() == 0


def test_one_hot_writes_into_zeros() -> None:
    with fake_tensors(), as_cuda():
        numbers = torch.zeros(8, dtype=torch.int64, device="cuda")
        with Recorder() as recorder:
            assert F.one_hot(numbers, 5).shape == (8, 5)
    assert [name for name, _ in recorder.calls if name in ("zeros", "scatter_", "eq")] == ["zeros", "scatter_"]


def test_step_counters_are_on_the_host_save_those_of_fused_optimizers() -> None:
    for fused in (False, True):
        _, optimizer = step(torch.optim.AdamW, fused=fused)
        states = list(optimizer.state.values())
        assert [on_host(state["step"]) for state in states] == [not fused] * 2
        assert not any(on_host(state["exp_avg"]) for state in states)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.RMSNorm(32), nn.LayerNorm(32)
        self.qkv, self.out = nn.Linear(32, 96, bias=False), nn.Linear(32, 32, bias=False)
        self.up, self.down = nn.Linear(32, 64), nn.Linear(64, 32)

    def forward(self, rows: Tensor) -> Tensor:
        q, k, v = (one.unflatten(-1, (4, 8)).transpose(1, 2) for one in self.qkv(self.first(rows)).split(32, -1))
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(-2)
        rows = rows + F.dropout(self.out(attended), 0.1)
        return rows + self.down(F.gelu(self.up(self.second(rows))))


def test_a_step_of_a_transformer_has_the_operators_that_cuda_runs() -> None:
    with on_cuda() as recorder:
        model = Block().cuda()
        optimizer = torch.optim.AdamW(model.parameters())
        scaler = torch.amp.GradScaler("cuda")
        rows = torch.randn(2, 16, 32, device="cuda")
        for _ in range(2):
            recorder.calls.clear()
            with torch.autocast("cuda", dtype=BF16):
                loss = F.cross_entropy(model(rows).flatten(0, 1), torch.zeros(32, dtype=torch.long, device="cuda"))
            forward = list(recorder.calls)
            scaler.scale(loss).backward()
            backward = recorder.names[len(forward) :]
            recorder.calls.clear()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            update = recorder.names
            optimizer.zero_grad()
        assert scaler.get_scale() == 2.0**16

    assert forward == [
        ("_fused_rms_norm", FP32),
        ("_to_copy", BF16),  # its result, and the weight of the product
        ("_to_copy", BF16),
        ("mm", BF16),
        ("_scaled_dot_product_flash_attention", BF16),
        ("_to_copy", BF16),
        ("mm", BF16),
        ("native_dropout", BF16),
        ("add", FP32),
        ("native_layer_norm", FP32),
        ("_to_copy", BF16),
        ("_to_copy", BF16),
        ("_to_copy", BF16),
        ("addmm", BF16),
        ("gelu", BF16),
        ("_to_copy", BF16),
        ("_to_copy", BF16),
        ("addmm", BF16),
        ("add", FP32),
        ("zeros", torch.int64),
        ("_log_softmax", FP32),
        ("nll_loss_forward", FP32),
    ]
    assert [name for name in backward if name not in ("_to_copy", "mm", "sum", "add", "ones_like", "mul")] == [
        "nll_loss_backward",
        "_log_softmax_backward_data",
        "gelu_backward",
        "native_layer_norm_backward",
        "native_dropout_backward",
        "_scaled_dot_product_flash_attention_backward",
        "cat",
        "_fused_rms_norm_backward",
    ]
    assert backward.count("mm") == 8
    assert [name for name in update if name.startswith(("_foreach", "_amp"))] == [
        "_amp_foreach_non_finite_check_and_unscale_",
        "_foreach_norm",
        "_foreach_mul_",
        "_foreach_add_",
        "_foreach_mul_",
        "_foreach_lerp_",
        "_foreach_mul_",
        "_foreach_addcmul_",
        "_foreach_sqrt",
        "_foreach_div_",
        "_foreach_add_",
        "_foreach_addcdiv_",
        "_amp_update_scale_",
    ]


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_checkpointed_layers_under_autocast_run_forward_twice(use_reentrant: bool) -> None:
    from torch.utils.checkpoint import checkpoint

    with on_cuda() as recorder:
        model, rows = Block(), x(2, 16, 32).requires_grad_()
        recorder.calls.clear()
        with torch.autocast("cuda", dtype=BF16):
            checkpoint(model, rows, use_reentrant=use_reentrant).sum().backward()
    forward = "_scaled_dot_product_flash_attention"
    assert [recorder.names.count(name) for name in (forward, f"{forward}_backward")] == [2, 1]
