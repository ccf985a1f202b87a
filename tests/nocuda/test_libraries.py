"""Operators that call cuDNN, cuBLAS, cuFFT, cuSOLVER and cuSPARSE run, and what nothing is known of is named."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from nocuda import Seen, library

from .active import needs_nocuda, said_by, told

pytestmark = needs_nocuda


def image(**how: Any) -> torch.Tensor:
    return torch.zeros(4, 3, 16, 16, device="cuda", **how).requires_grad_()


def square() -> torch.Tensor:
    return torch.eye(64, device="cuda")


def batch() -> torch.Tensor:
    return torch.eye(4).expand(3, 4, 4).contiguous().cuda()


def csr() -> torch.Tensor:
    return torch.eye(8).to_sparse_csr().cuda()


def trained(module: nn.Module, x: torch.Tensor) -> None:
    out = module.cuda()(x)
    (out[0] if isinstance(out, tuple) else out).sum().backward()


def channels_last() -> torch.Tensor:
    return image().detach().contiguous(memory_format=torch.channels_last).requires_grad_()


RUN: dict[str, Callable[[], object]] = {
    "convolution": lambda: trained(nn.Conv2d(3, 8, 3), image()),
    "convolution, channels last": lambda: trained(nn.Conv2d(3, 8, 3), channels_last()),
    "convolution, bf16": lambda: trained(nn.Conv2d(3, 8, 3).bfloat16(), image(dtype=torch.bfloat16)),
    "convolution, transposed": lambda: trained(nn.ConvTranspose2d(3, 8, 3), image()),
    "convolution, depthwise": lambda: trained(nn.Conv2d(3, 3, 3, groups=3), image()),
    "convolution, 1 dimension": lambda: trained(nn.Conv1d(3, 4, 3), image()[:, :, 0]),
    "batch norm": lambda: trained(nn.BatchNorm2d(3), image()),
    "batch norm, half, channels last": lambda: trained(nn.BatchNorm2d(3), channels_last().half()),
    "layer norm": lambda: trained(nn.LayerNorm(16), image()),
    "pooling": lambda: trained(nn.MaxPool2d(2), image()),
    "fft": lambda: torch.fft.irfft(torch.fft.rfft(image())),
    "fft, 2 dimensions": lambda: torch.fft.fft2(image()),
    "solve": lambda: torch.linalg.solve(square(), square()),
    "solve, batch": lambda: torch.linalg.solve(batch(), batch()),
    "inv": lambda: torch.linalg.inv(square()),
    "svd": lambda: torch.linalg.svd(square()),
    "svd, batch": lambda: torch.linalg.svd(batch()),
    "qr": lambda: torch.linalg.qr(square()),
    "qr, batch": lambda: torch.linalg.qr(batch()),
    "eigh": lambda: torch.linalg.eigh(square()),
    "cholesky": lambda: torch.linalg.cholesky(square()),
    "lstsq": lambda: torch.linalg.lstsq(square(), square()),
    "lu_factor": lambda: torch.linalg.lu_factor(square()),
    "ldl_factor": lambda: torch.linalg.ldl_factor(square()),
    "pinv": lambda: torch.linalg.pinv(square()),
    "sparse times dense": lambda: csr() @ torch.zeros(8, 8, device="cuda"),
    "sparse times vector": lambda: csr() @ torch.zeros(8, device="cuda"),
    "sparse times sparse": lambda: csr() @ csr(),
    "sampled product": lambda: torch.sparse.sampled_addmm(csr(), *[torch.zeros(8, 8, device="cuda")] * 2),
    "coo": lambda: torch.sparse.mm(torch.eye(8).to_sparse().cuda(), torch.zeros(8, 8, device="cuda")),
    "to sparse": lambda: torch.eye(8).cuda().to_sparse(),
    "embedding": lambda: trained(nn.Embedding(10, 4), torch.zeros(3, 4, dtype=torch.long, device="cuda")),
    "sort": lambda: image().sort(),
    "multinomial": lambda: torch.multinomial(torch.ones(8, device="cuda"), 2),
    "compiled at run time": lambda: torch.special.zeta(image(), image()),
    "float8": lambda: torch._scaled_mm(
        torch.zeros(32, 32, device="cuda").to(torch.float8_e4m3fn),
        torch.zeros(32, 32, device="cuda").to(torch.float8_e4m3fn).t(),
        *[torch.ones((), device="cuda")] * 2,
        out_dtype=torch.bfloat16,
    ),
}


@pytest.mark.parametrize("name", RUN)
def test_it_runs_and_launches(name: str) -> None:
    torch.cuda.empty_cache()
    reserved = torch.cuda.memory_reserved()
    before = library().launches
    RUN[name]()
    torch.cuda.synchronize()
    assert library().launches > before
    assert torch.cuda.memory_reserved() - reserved < 100 << 20, "no size was made of what nobody wrote"


@pytest.mark.parametrize("kind", [nn.RNN, nn.GRU, nn.LSTM])
@pytest.mark.parametrize("how", [{}, {"num_layers": 2, "bidirectional": True}, {"bias": False}], ids=str)
def test_parameters_of_a_recurrent_network_share_one_block(kind: type[nn.RNNBase], how: dict[str, Any]) -> None:
    """As cuDNN has them: the matrices of all layers, then the biases, without gaps."""
    module = kind(8, 16, **how)
    values = {name: one.detach().clone() for name, one in module.named_parameters()}
    module.cuda()
    assert len({one.untyped_storage().data_ptr() for one in module.parameters()}) == 1
    spans = sorted((one.storage_offset(), one.numel()) for one in module.parameters())
    assert [start for start, _ in spans] == [sum(size for _, size in spans[:at]) for at in range(len(spans))]
    matrices = [one.storage_offset() for name, one in module.named_parameters() if "weight" in name]
    biases = [one.storage_offset() for name, one in module.named_parameters() if "bias" in name]
    assert matrices == sorted(matrices)
    assert not biases or min(biases) > max(matrices)
    assert {name: one.shape for name, one in values.items()} == {
        name: one.shape for name, one in module.named_parameters()
    }
    x = torch.zeros(5, 2, 8, device="cuda", requires_grad=True)
    out, _ = module(x)
    out.sum().backward()
    assert all(one.grad is not None for one in module.parameters())
    module.eval()(x)


def test_each_function_without_a_body_is_named_once() -> None:
    lines = said_by(
        "import torch\nfrom nocuda import Seen, library\n"
        "seen = []\n"
        "with library().observing(Seen.UNKNOWN, lambda what, name, *rest: seen.append(name)):\n"
        "    for _ in range(2):\n"
        "        torch.linalg.solve(torch.eye(64, device='cuda'), torch.eye(64, device='cuda'))\n"
        "        torch.fft.fft(torch.zeros(8, device='cuda'))\n"
        "print(*sorted(one for one in seen if one.startswith(('cusolver', 'cufft'))))\n"
        "library().reset()\n"
        "print(*sorted(library().counts().unknown))\n"
    )
    assert lines == ["cufftSetAutoAllocation cufftSetWorkArea cusolverDnSgetrf_bufferSize"] * 2


def test_an_observer_is_called_only_within_and_for_what_it_asked_for() -> None:
    x = torch.zeros(4, device="cuda")
    with told(Seen.COPY) as seen:
        x.add_(1)
        torch.cuda.synchronize()
        x.cpu()
    x.cpu()
    assert [one.what for one in seen] == [Seen.COPY]
