"""Mamba's selective scan and mixer: every form against the definition, the definition against its authors' equations.

Shapes: x, dt, z, y (B, T, E); a (E, N); b, c (B, T, N); d (E,); state (B, E, N); starts (B, T).
"""

import math
from functools import partial

import pytest
import torch
from torch import Tensor

from perflab.correctness import compare
from perflab.lab.models.config import ModelConfig
from perflab.lab.scan import chunked, selective_scan, triton_scan
from perflab.lab.scan import mamba as mamba_module
from perflab.lab.scan.definition import reference_selective_scan
from perflab.lab.scan.mamba import Mamba, causal_taps

from .scan_cases import ScanCase, hold_scan, scan_cases
from .wrong_scans import WRONG_SCANS, WrongScan, faulty_scan

pytestmark = [
    pytest.mark.correctness,
    # In the interpreter NumPy speaks up for what lanes outside of the mask compute, which nobody reads.
    pytest.mark.filterwarnings("ignore::RuntimeWarning:triton"),
]

FORMS = ("chunked", "triton")
# Short, so that sequences of several chunks are short: in the interpreter a position costs 20 ms.
CHUNKS = {"chunked": 16, "triton": 4}
MODULES = {"chunked": chunked, "triton": triton_scan}
CONFIG = ModelConfig(vocab_size=11, d_model=24, d_ff=32, num_layers=2, num_heads=2)


@pytest.mark.parametrize(
    ("form", "case"), [(form, case) for form in FORMS for case in scan_cases(CHUNKS[form])], ids=str
)
def test_a_scan_is_right(form: str, case: ScanCase, device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MODULES[form], "CHUNK", CHUNKS[form])
    hold_scan(partial(selective_scan, form=form), case, device)


@pytest.mark.parametrize("form", FORMS)
def test_a_sequence_longer_than_a_chunk_of_the_shipped_length_is_right(form: str, device: torch.device) -> None:
    shape = (1, 3, 16)
    hold_scan(partial(selective_scan, form=form), ScanCase(65, "bf16", "weak", gate="normal", shape=shape), device)


@pytest.mark.parametrize("wrong", WRONG_SCANS, ids=str)
def test_a_wrong_scan_is_caught(wrong: WrongScan, device: torch.device) -> None:
    hold_scan(faulty_scan, wrong.case, device)  # without its fault it is right
    with pytest.raises(AssertionError, match=wrong.clue):
        hold_scan(wrong.candidate, wrong.case, device)


def test_the_definition_is_the_equation_worked_by_hand() -> None:
    """One channel, one number of state, exp(dt a) = 1/2: h_1 = 6 log 2, h_2 = h_1 / 2 + 20 log 2."""
    step = math.log(2.0)
    x, b, c = (torch.tensor(numbers).view(1, 2, 1) for numbers in ([2.0, 4.0], [3.0, 5.0], [1.0, 2.0]))
    dt = torch.full((1, 2, 1), step, dtype=torch.float64)
    a, d = torch.tensor([[-1.0]]), torch.tensor([0.5])
    y, state = reference_selective_scan(x, dt, a, b, c, d)
    assert y.flatten().tolist() == pytest.approx([6 * step + 1.0, 46 * step + 2.0], rel=1e-15)
    assert state.item() == pytest.approx(23 * step, rel=1e-15)
    # From a state of 10 the first becomes 5 + 6 log 2; where a sequence begins at the second, it is that one's alone.
    given = torch.full((1, 1, 1), 10.0)
    starts = torch.tensor([[False, True]])
    y, state = reference_selective_scan(x, dt, a, b, c, state=given, starts=starts)
    assert y.flatten().tolist() == pytest.approx([5 + 6 * step, 40 * step], rel=1e-15)
    assert state.item() == pytest.approx(20 * step, rel=1e-15)
    # silu(log 3) = log 3 * 3/4.
    z = torch.full((1, 2, 1), math.log(3.0), dtype=torch.float64)
    assert reference_selective_scan(x, dt, a, b, c, z=z)[0][0, 0, 0].item() == pytest.approx(
        6 * step * 0.75 * math.log(3.0), rel=1e-15
    )


def test_two_numbers_of_state_decay_apart_and_are_read_together() -> None:
    """dt = log 2, a = -1 and -2: decays 1/2 and 1/4; h = (1, 1) log 2, then (1/2, 1/4) log 2 with no further input."""
    step = math.log(2.0)
    x = torch.tensor([1.0, 0.0]).view(1, 2, 1)
    dt = torch.full((1, 2, 1), step, dtype=torch.float64)
    ones = torch.ones(1, 2, 2)
    y, state = reference_selective_scan(x, dt, torch.tensor([[-1.0, -2.0]]), ones, ones)
    assert y.flatten().tolist() == pytest.approx([2 * step, 0.75 * step], rel=1e-15)
    assert state.flatten().tolist() == pytest.approx([step / 2, step / 4], rel=1e-15)


@pytest.mark.parametrize("form", ["definition", *FORMS])
def test_a_sequence_in_two_parts_is_the_whole(form: str, device: torch.device) -> None:
    inputs = dict(ScanCase(70, decay="weak", state=True).make_inputs(device)(0))
    whole, last = selective_scan(**inputs, form=form)
    state, parts = inputs.pop("state"), []
    for rows in (slice(0, 1), slice(1, 67), slice(67, 70)):
        given = {name: x[:, rows] if x.dim() == 3 else x for name, x in inputs.items()}
        y, state = selective_scan(**given, state=state, form=form)
        parts.append(y)
    reference, behind = reference_selective_scan(
        **inputs, state=ScanCase(70, decay="weak", state=True).make_inputs(device)(0)["state"]
    )
    assert compare("y", torch.cat(parts, 1), reference, whole).ok
    assert compare("state", state, behind, last).ok


def test_memory_of_the_chunked_form_does_not_hold_a_state_for_each_position(device: torch.device) -> None:
    """What autograd keeps, in bytes: four chunks' inputs and states, and nothing of (B, T, E, N)."""
    length, channels, states = 256, 8, 16
    inputs = ScanCase(length, shape=(1, channels, states)).make_inputs(device)(0)
    kept: dict[int, int] = {}

    def keep(x: Tensor) -> Tensor:
        kept[x.untyped_storage().data_ptr()] = x.untyped_storage().nbytes()
        return x

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x):
        y, _ = selective_scan(*(x.clone().requires_grad_() for x in inputs.values()), form="chunked")
    assert y.requires_grad
    assert 0 < sum(kept.values()) < length * channels * states * 4


@pytest.mark.parametrize("form", FORMS)
def test_a_scan_repeats_bit_by_bit(form: str, device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MODULES[form], "CHUNK", CHUNKS[form])

    def run() -> list[Tensor]:
        leaves = [x.requires_grad_() for x in ScanCase(21, "bf16", gate="normal").make_inputs(device)(0).values()]
        y, state = selective_scan(*leaves[:6], z=leaves[6], form=form)
        return [y, state, *torch.autograd.grad(y.float().square().sum() + state.sum(), leaves)]

    assert all(torch.equal(one, other) for one, other in zip(run(), run(), strict=True))


def far_apart(x: Tensor, dimension: int) -> Tensor:
    """Two rows 2**32 + 8 elements apart, in memory that is never touched between them."""
    try:
        memory = torch.empty(2**32 + 8 + x.numel(), dtype=x.dtype, device=x.device)
    except RuntimeError:
        pytest.skip("needs 8 GiB for each input, on a CPU of addresses alone")
    strides = list(x.stride())
    strides[dimension] = 2**32 + 8
    return memory.as_strided(x.shape, strides).copy_(x)


def wrapped(x: Tensor) -> Tensor:
    """The elements that offsets of 32 bits would reach: a stride of 2**32 + 8 is one of 8."""
    return x.as_strided(x.shape, [stride % 2**32 for stride in x.stride()], x.storage_offset())


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dimension", [0, 1], ids=["batch", "time"])
def test_a_row_more_than_two_to_the_32_elements_away_is_reached(
    dimension: int, form: str, device: torch.device
) -> None:
    case = ScanCase(2, "fp16", gate="normal", steps="same", decay="weak", shape=(2, 3, 4))
    inputs = case.make_inputs(device)(0)
    results = []
    for move in (lambda x: x, partial(far_apart, dimension=dimension)):
        leaves = [(move(x) if x.dim() == 3 else x).detach().requires_grad_() for x in inputs.values()]
        y, _ = selective_scan(*leaves[:6], z=leaves[6], form=form)
        results.append([y, *torch.autograd.grad(y.float().square().sum(), leaves)])
    assert all(torch.equal(near, far) for near, far in zip(*results, strict=True))
    # Offsets of 32 bits give numbers, finite and wrong.
    moved = {name: far_apart(x, dimension) if name == "x" else x for name, x in inputs.items()}
    wrong, _ = selective_scan(**(moved | {"x": wrapped(moved["x"])}), form=form)
    assert torch.isfinite(wrong).all()
    assert not torch.equal(wrong, results[0][0])


ERRORS = [
    (
        {"dt": torch.ones(1, 3, 2)},
        ValueError,
        r"wants one T in all its tensors; got T=4 in x and 3 in dt .*Transpose or",
    ),
    ({"a": torch.ones(2)}, ValueError, r"wants a \(E, N\), each 1 at least; got \(2,\)\. Reshape it"),
    ({"x": torch.ones(1, 4, 2, dtype=torch.int64)}, TypeError, r"wants x of a floating dtype; got torch.int64\. Cast"),
    ({"b": torch.ones(1, 4, 3).half()}, TypeError, r"wants b in float32 beside x in float32; got float16\. Cast"),
    ({"starts": torch.ones(1, 4)}, TypeError, r"wants starts in bool beside x in float32; got float32\. Cast"),
    ({"a": torch.ones(2, 3, device="meta")}, ValueError, r"on one device; got x on cpu and a on meta\. Move it"),
    ({"form": "fast"}, ValueError, r"unknown form 'fast' .* choose one of: definition, chunked, triton"),
]


@pytest.mark.parametrize(("given", "error", "text"), ERRORS)
def test_what_does_not_fit_is_refused_with_a_remedy(
    given: dict[str, Tensor], error: type[Exception], text: str
) -> None:
    right = {"x": torch.ones(1, 4, 2), "dt": torch.ones(1, 4, 2), "a": -torch.ones(2, 3)}
    right |= {"b": torch.ones(1, 4, 3), "c": torch.ones(1, 4, 3)}
    with pytest.raises(error, match=text):
        selective_scan(**(right | given))


def test_the_mixer_is_transformers_mixer_with_its_weights() -> None:
    transformers = pytest.importorskip("transformers.models.mamba.modeling_mamba")
    configuration = transformers.MambaConfig(
        hidden_size=CONFIG.d_model, state_size=16, expand=2, conv_kernel=4, num_hidden_layers=1, time_step_rank=2,
        use_bias=False, use_conv_bias=True, vocab_size=11,
    )  # fmt: skip
    torch.manual_seed(3)
    theirs = transformers.MambaMixer(configuration, 0).eval()
    ours = Mamba(CONFIG)
    assert ours.rank == 2
    with torch.no_grad():
        theirs.conv1d.bias.normal_()
        theirs.D.normal_()
        for mine, other in (
            (ours.project_in.weight, theirs.in_proj.weight), (ours.select.weight, theirs.x_proj.weight),
            (ours.project_out.weight, theirs.out_proj.weight), (ours.dt_weight, theirs.dt_proj.weight),
            (ours.dt_bias, theirs.dt_proj.bias), (ours.a_log, theirs.A_log), (ours.d, theirs.D),
            (ours.taps, theirs.conv1d.weight.squeeze(1).flip(1).T), (ours.taps_bias, theirs.conv1d.bias),
        ):  # fmt: skip
            mine.copy_(other)
        x = torch.randn(2, 75, CONFIG.d_model)
        got, plain = theirs(x), ours(x)
        definition = ours.double()
        definition.form = "definition"
        report = compare("out", got, definition(x.double()), plain)
    assert report.ok, report


@pytest.mark.parametrize("form", ["definition", *FORMS])
def test_the_mixer_decodes_what_it_computes_at_once(form: str) -> None:
    mixer = mixer_of(form)
    x = torch.randn(2, 9, CONFIG.d_model)
    with torch.no_grad():
        whole, exact = mixer(x), mixer_of("definition").double()(x.double())
        state, parts = mixer.initial_state(2, x.device, x.dtype), []
        sizes = {tuple(tensor.shape for tensor in state)}
        for first, last in ((0, 1), (1, 2), (2, 7), (7, 8), (8, 9)):
            y, state = mixer.advance(x[:, first:last], state)
            parts.append(y)
            sizes.add(tuple(tensor.shape for tensor in state))
    assert len(sizes) == 1, "the state's size depends on the length"
    assert compare("out", torch.cat(parts, 1), exact, whole).ok


def mixer_of(form: str) -> Mamba:
    torch.manual_seed(5)
    mixer = Mamba(CONFIG)
    mixer.form = form
    return mixer


def sees_the_future(mixer: Mamba) -> bool:
    x = torch.randn(1, 8, CONFIG.d_model)
    changed = x.clone()
    changed[:, 5:] += 1.0
    with torch.no_grad():
        return not torch.equal(mixer(x)[:, :5], mixer(changed)[:, :5])


def test_the_mixer_is_causal_and_a_convolution_one_step_ahead_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not sees_the_future(mixer_of("chunked"))
    # Outputs one place to the left: each sees the input after its own.
    monkeypatch.setattr(mamba_module, "causal_taps", lambda *inputs: causal_taps(*inputs).roll(-1, dims=1))
    assert sees_the_future(mixer_of("chunked"))


@pytest.mark.parametrize("form", ["definition", *FORMS])
def test_packed_sequences_do_not_bleed(form: str) -> None:
    """Three sequences in a row of 11 are what each is alone, at any place and behind any state."""
    mixer = mixer_of(form)
    x = torch.randn(1, 11, CONFIG.d_model)
    starts = torch.zeros(1, 11, dtype=torch.bool)
    starts[0, [0, 2, 9]] = True
    with torch.no_grad():
        _, state = mixer.advance(torch.randn(1, 6, CONFIG.d_model), mixer.initial_state(1, x.device, x.dtype))
        packed, _ = mixer.advance(x, state, starts)
        alone = torch.cat([mixer(x[:, first:last]) for first, last in ((0, 2), (2, 9), (9, 11))], dim=1)
        exact = mixer_of("definition").double()(x.double(), starts)
        bleeding, _ = mixer.advance(x, state)
    assert compare("out", packed, exact, alone).ok
    assert not compare("out", bleeding, exact, alone).ok


def test_a_fresh_mixer_has_the_papers_step_sizes_and_decays() -> None:
    mixer = mixer_of("chunked")
    dt = torch.nn.functional.softplus(mixer.dt_bias)
    assert dt.min().item() >= 1e-3
    assert dt.max().item() <= 0.1 + 1e-6
    assert torch.allclose(mixer.a_log.exp(), torch.arange(1.0, 17.0).expand_as(mixer.a_log))
    assert torch.equal(mixer.d, torch.ones(2 * CONFIG.d_model))


def test_every_parameter_of_the_mixer_has_a_gradient() -> None:
    mixer = mixer_of("chunked")
    mixer(torch.randn(2, 70, CONFIG.d_model)).square().sum().backward()
    assert all(p.grad is not None and p.grad.any() for p in mixer.parameters())
