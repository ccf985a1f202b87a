"""Hyena: the convolution by FFT against the sum, the mixer against its equations, and faults that must show.

Shapes: u, y (B, T, d); h (L, d).
"""

import math
from collections.abc import Callable, Mapping

import pytest
import torch
from torch import Tensor

from perflab.correctness import compare, verify
from perflab.lab.hyena import hyena as hyena_module
from perflab.lab.hyena.hyena import (
    Hyena,
    fft_length,
    fft_long_convolution,
    reference_long_convolution,
)
from perflab.lab.models.config import ModelConfig

pytestmark = pytest.mark.correctness

CONFIG = ModelConfig(vocab_size=11, context_length=16, d_model=6, d_ff=8, num_layers=1, num_heads=1)
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def plain_long_convolution(u: Tensor, h: Tensor) -> Tensor:
    """Term by term, each rounded to the dtype of u, and sums in float32."""
    outputs = []
    for t in range(u.shape[1]):
        taps = min(t + 1, h.shape[0])
        outputs.append((h[:taps].flip(0) * u[:, t + 1 - taps : t + 1]).float().sum(dim=1).to(u.dtype))
    return torch.stack(outputs, dim=1)


def fft_magnitudes(u: Tensor, h: Tensor, *, upstream: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """What an FFT's rounding is relative to: the sequences' norms, not each output's own terms.

    Higham, "Accuracy and Stability of Numerical Algorithms", 2nd ed., theorem 24.2: of a transform of length n the
    error's norm is log2(n) eps times the result's. Here are three; the norm of a convolution is |u|_2 |h|_1 at most
    (Young), and each of T outputs has its even share of the error's norm.
    """
    length = u.shape[1]
    rounds = 3 * max(1, math.log2(fft_length(length, min(length, h.shape[0])))) / math.sqrt(length)
    of_h = h[:length].abs().sum(dim=0)
    found = {"y": (rounds * u.norm(dim=1, keepdim=True) * of_h).expand(u.shape)}
    if upstream:
        of_dy = upstream["y"].norm(dim=1, keepdim=True)
        found["du"] = (rounds * of_dy * of_h).expand(u.shape)
        found["dh"] = (rounds * of_dy * u.abs().sum(dim=1, keepdim=True)).sum(dim=0).expand(h.shape)
    return found


def hold(candidate: Callable[..., Tensor], length: int, taps: int, dtype: torch.dtype, layout: str = "") -> None:
    def make(seed: int) -> dict[str, Tensor]:
        generator = torch.Generator().manual_seed(1000 + seed)
        u, h = (torch.randn(*shape, generator=generator) for shape in ((2, length, 3), (taps, 3)))
        h = h * torch.exp(-torch.arange(taps)[:, None] / 5.0)
        u, h = u.to(dtype), h.to(dtype)
        return {"u": u.mT.contiguous().mT if layout else u, "h": h.mT.contiguous().mT if layout else h}

    verify(
        candidate,
        make,
        reference=reference_long_convolution,
        plain=plain_long_convolution,
        magnitudes=fft_magnitudes,
        outputs=("y",),
        gradient_of=("y",),
    )


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES.keys())
@pytest.mark.parametrize(("length", "taps"), [(1, 1), (2, 5), (16, 16), (17, 16), (31, 64), (64, 64), (100, 7)])
@pytest.mark.parametrize("layout", ["", "channels-outside"])
def test_the_convolution_by_fft_is_the_sum(length: int, taps: int, dtype: torch.dtype, layout: str) -> None:
    hold(fft_long_convolution, length, taps, dtype, layout)


def wraps_around(u: Tensor, h: Tensor) -> Tensor:
    """A transform of the sequence's own length: its end comes round to the beginning."""
    n = u.shape[1]
    product = torch.fft.rfft(u.float(), n=n, dim=1) * torch.fft.rfft(h[:n].float(), n=n, dim=0)
    return torch.fft.irfft(product, n=n, dim=1).to(u.dtype)


def sees_one_ahead(u: Tensor, h: Tensor) -> Tensor:
    return fft_long_convolution(torch.cat((u[:, 1:], torch.zeros_like(u[:, :1])), dim=1), h)


def one_tap_late(u: Tensor, h: Tensor) -> Tensor:
    return fft_long_convolution(u, torch.cat((torch.zeros_like(h[:1]), h[:-1])))


def correlates(u: Tensor, h: Tensor) -> Tensor:
    return fft_long_convolution(u.flip(1), h).flip(1)


def in_16_bits(u: Tensor, h: Tensor) -> Tensor:
    """A direct sum whose partial sums are rounded to the inputs' dtype."""
    y = torch.zeros_like(u)
    for k in range(min(u.shape[1], h.shape[0])):
        y = y + torch.nn.functional.pad(h[k] * u[:, : u.shape[1] - k], (0, 0, k, 0))
    return y


@pytest.mark.parametrize("wrong", [wraps_around, sees_one_ahead, one_tap_late, correlates], ids=lambda f: f.__name__)
def test_a_wrong_convolution_is_caught(wrong: Callable[..., Tensor]) -> None:
    with pytest.raises(AssertionError, match="y is wrong"):
        hold(wrong, 31, 64, torch.float32)


def test_sums_in_16_bits_are_caught() -> None:
    with pytest.raises(AssertionError, match="y is wrong"):
        hold(in_16_bits, 64, 64, torch.bfloat16)


def test_the_convolution_worked_by_hand() -> None:
    """h = (1, 1/2), u = (2, 4, 8): 2, 4 + 1, 8 + 2."""
    u, h = torch.tensor([2.0, 4.0, 8.0]).view(1, 3, 1), torch.tensor([[1.0], [0.5]])
    for convolution in (reference_long_convolution, fft_long_convolution):
        assert convolution(u, h).flatten().tolist() == pytest.approx([2.0, 5.0, 10.0], rel=1e-6)


def test_the_transform_holds_the_whole_convolution() -> None:
    for length, taps in ((1, 1), (2, 2), (3, 3), (1000, 1000), (1024, 1024), (1025, 4)):
        n = fft_length(length, taps)
        assert n >= length + taps - 1
        assert n == 1 or n < 2 * (length + taps - 1)


def mixer_of(form: str, dtype: torch.dtype = torch.float32) -> Hyena:
    torch.manual_seed(5)
    mixer = Hyena(CONFIG).to(dtype)
    mixer.form = form
    return mixer


def test_the_mixer_is_its_equations_written_out() -> None:
    """Section 3's definition 3.1, in the order in which the paper has it, with filters from the mixer's own network."""
    mixer, x = mixer_of("chunked", torch.float64), torch.randn(2, 13, 6, dtype=torch.float64)
    with torch.no_grad():
        projected = x @ mixer.project_in.weight.T
        short = torch.zeros_like(projected)
        for t in range(13):
            for k in range(3):
                short[:, t] += mixer.taps[k] * (projected[:, t - k] if t >= k else 0.0)
        v, x1, x2 = short.split(6, dim=-1)
        h1, h2 = mixer.filters(13)
        wanted = x2 * reference_long_convolution(x1 * reference_long_convolution(v, h1), h2)
        wanted = wanted @ mixer.project_out.weight.T
        got, plain = mixer(x), mixer_of("definition")(x.float()).double()
    # By FFT in float64 it is to be as right as the sum in float32 is.
    assert compare("out", got, wanted, plain).ok


def test_the_filter_is_a_function_of_the_position_alone_and_decays() -> None:
    filters = mixer_of("chunked").filters
    whole, part = filters(16), filters(9)
    assert torch.allclose(whole[:, :9], part, atol=1e-6)
    window = filters.window(torch.device("cpu"), torch.float32)
    assert torch.equal(window[0], torch.ones(6))
    # exp(-rate k / L): 1 % at 1.5 L in the first channel, at 0.3 L in the last.
    assert math.log(window[15, 0].item()) == pytest.approx(math.log(0.01) / 1.5 * 15 / 16, rel=1e-5)
    assert math.log(window[15, 5].item()) == pytest.approx(math.log(0.01) / 0.3 * 15 / 16, rel=1e-5)


def test_a_fresh_filter_keeps_the_variance() -> None:
    torch.manual_seed(0)
    filters = hyena_module.ImplicitFilter(64, 512)
    with torch.no_grad():
        filters.skips.zero_()
        norms = filters(512).norm(dim=1)
    assert 0.7 < norms.mean().item() < 1.3


@pytest.mark.parametrize("form", ["definition", "chunked"])
@pytest.mark.parametrize("length", [9, 16, 21])
def test_the_mixer_decodes_what_it_computes_at_once(length: int, form: str) -> None:
    """Beyond the context length, too: a filter has no more taps."""
    mixer, x = mixer_of(form), torch.randn(2, length, 6)
    with torch.no_grad():
        whole, exact = mixer(x), mixer_of("definition", torch.float64)(x.double())
        state, parts = mixer.initial_state(2, x.device, x.dtype), []
        shapes = {tuple(tensor.shape for tensor in state)}
        for first, last in ((0, 1), (1, 2), (2, 7), *((t, t + 1) for t in range(7, length))):
            y, state = mixer.advance(x[:, first:last], state)
            parts.append(y)
            shapes.add(tuple(tensor.shape for tensor in state))
        sums = mixer_of("definition")(x)
    assert len(shapes) == 1, "the state's size depends on the length"
    # By FFT rounding is relative to a sequence's norm, not to a small output's terms.
    magnitude = 2 * 3 * math.log2(64) * exact.abs().amax(dim=1, keepdim=True).expand(exact.shape)
    for got in (whole, torch.cat(parts, 1)):
        report = compare("out", got, exact, sums, magnitude=magnitude)
        assert report.ok, report


def test_the_mixer_is_causal_and_one_that_wraps_around_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    def sees_the_future() -> bool:
        torch.manual_seed(1)
        x = torch.randn(1, 12, 6, dtype=torch.float64)
        changed = x.clone()
        changed[:, 7:] += 1.0
        with torch.no_grad():
            mixer = mixer_of("chunked", torch.float64)
            return (mixer(x)[:, :7] - mixer(changed)[:, :7]).abs().max().item() > 1e-9

    assert not sees_the_future()
    monkeypatch.setattr(hyena_module, "fft_length", lambda length, taps: length)
    assert sees_the_future()


def test_a_form_that_it_has_not_is_refused_with_a_remedy() -> None:
    class Asked:
        mixer_form = "triton"

    with pytest.raises(ValueError, match=r"mixer_form='triton': Hyena is computed by the 'definition' or by FFT"):
        Hyena(Asked())  # type: ignore[arg-type]


def test_every_parameter_of_the_mixer_has_a_gradient() -> None:
    mixer = mixer_of("chunked")
    mixer(torch.randn(2, 12, 6)).square().sum().backward()
    assert all(p.grad is not None and p.grad.any() for p in mixer.parameters())
