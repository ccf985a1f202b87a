"""The suite is held to its own word: kernels that are wrong on purpose must not pass it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from perflab.correctness import verify
from perflab.lab.attention import reference_attention

from .plain_attention import attention_magnitudes, plain_attention
from .wrong_kernels import WRONG_KERNELS, WrongKernel, online_softmax

pytestmark = pytest.mark.correctness


@dataclass(frozen=True)
class Case:
    """One shape, dtype and mask."""

    dtype: torch.dtype
    num_queries: int
    num_keys: int
    head_dim: int
    is_causal: bool

    def make_inputs(self, device: torch.device) -> Callable[[int], Mapping[str, Tensor]]:
        """Standard normal q, k and v of two heads, out of a seed."""

        def make(seed: int) -> Mapping[str, Tensor]:
            generator = torch.Generator(device).manual_seed(seed)
            lengths = {"q": self.num_queries, "k": self.num_keys, "v": self.num_keys}
            return {
                name: torch.randn(1, 2, n, self.head_dim, generator=generator, device=device).to(self.dtype)
                for name, n in lengths.items()
            }

        return make


CASES = (
    Case(torch.float32, 113, 113, 40, is_causal=True),
    Case(torch.float32, 97, 131, 40, is_causal=False),
    Case(torch.bfloat16, 64, 2048, 64, is_causal=False),
)


def complaints(
    kernel: Callable[..., tuple[Tensor, Tensor]], case: Case, device: torch.device, differentiable: bool
) -> str:
    try:
        verify(
            kernel,
            case.make_inputs(device),
            reference=reference_attention,
            plain=plain_attention,
            magnitudes=attention_magnitudes,
            outputs=("out", "logsumexp"),
            gradient_of=("out",) if differentiable else (),
            settings={"is_causal": case.is_causal},
        )
    except AssertionError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("wrong", WRONG_KERNELS, ids=lambda wrong: wrong.name)
def test_a_wrong_kernel_is_caught_and_its_report_says_why(wrong: WrongKernel, device: torch.device) -> None:
    text = "\n".join(complaints(wrong.make(), case, device, wrong.differentiable) for case in CASES)
    assert wrong.clue in text


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.num_queries}x{case.num_keys}-{case.dtype}")
def test_the_same_kernel_without_its_faults_passes(case: Case, device: torch.device) -> None:
    assert complaints(online_softmax, case, device, differentiable=True) == ""


def test_allclose_at_one_shape_passes_most_of_them(device: torch.device) -> None:
    """The habitual check: one shape, standard normal float32, atol = rtol = 1e-2, the output alone."""
    passed = set()
    inputs = Case(torch.float32, 128, 128, 64, is_causal=False).make_inputs(device)(0)
    wanted = reference_attention(*inputs.values())[0].float()
    for wrong in WRONG_KERNELS:
        out, _ = wrong.make()(*(x.clone() for x in inputs.values()))
        if torch.allclose(out, wanted, atol=1e-2, rtol=1e-2):
            passed.add(wrong.name)
    assert passed == {
        "tail-mask-missing",
        "causal-mask-off-by-one",
        "scale-of-the-padded-head-dim",
        "base-2-logsumexp",
        "bf16-accumulator",
        "unwritten-tail",
        "cached-output",
        "one-output-buffer",
        "scales-its-input",
        "backward-without-delta",
    }
