"""A training step under torch.compile: the same gradients within budget, the model as it was, nothing uncompiled."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.utils import counters

from perflab.correctness import compare
from perflab.lab.attention import compiling
from perflab.lab.models import build_model
from perflab.lab.train import TrainingConfig, TrainingStep, random_tokens
from perflab.lab.train import step as step_module
from perflab.lab.train.compiled import replays_cuda_graphs

from .training import gradients_of, reference_gradients, tiny

pytestmark = pytest.mark.correctness


class Averaging(nn.Module):
    """Attention at its smallest: positions (B, T, 8) averaged by how alike they are, none looking ahead."""

    def __init__(self) -> None:
        super().__init__()
        self.value = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        ahead = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool, device=x.device).triu(1)
        mixed: Tensor = (x @ x.mT).masked_fill(ahead, float("-inf")).softmax(-1) @ self.value(x)
        return mixed


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = Averaging()

    def forward(self, x: Tensor) -> Tensor:
        return x + self.attention(x)


class Small(nn.Module):
    """A model of the user's own with blocks and their attention: it compiles in a tenth of `tiny`'s time."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table, self.head = nn.Embedding(50, 8), nn.Linear(8, 50)
        self.blocks = nn.ModuleList(Block() for _ in range(2))

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.table(tokens)
        for block in self.blocks:
            x = block(x)
        logits: Tensor = self.head(x)
        return logits


@pytest.fixture(autouse=True)
def forget_compiled_code() -> Iterator[None]:
    torch._dynamo.reset()  # what other tests compiled of the same attention may have made its sizes dynamic
    yield
    torch._dynamo.reset()


@pytest.fixture
def modes(monkeypatch: pytest.MonkeyPatch) -> list[str | None]:
    """Dynamo alone, without a compiler behind it; the modes that were asked for."""
    asked: list[str | None] = []
    compile = torch.compile

    def trace(function: Callable[..., Any], *, mode: str | None) -> Any:
        asked.append(mode)
        return compile(function, backend="eager")

    monkeypatch.setattr(torch, "compile", trace)
    return asked


def graphs() -> int:
    return counters["stats"]["unique_graphs"]


def step_of(device: torch.device, **switches: Any) -> TrainingStep:
    tokens = random_tokens(4, 16, vocab_size=50, device=device)
    return TrainingStep(tiny(device), tokens, TrainingConfig(**switches))


@pytest.mark.parametrize(("compile", "make_model"), [("default", tiny), ("attention", Small)])
def test_compiled_gradients_are_the_eager_ones_within_budget(
    compile: str, make_model: Callable[..., nn.Module], device: torch.device
) -> None:
    model = make_model(device) if make_model is tiny else make_model().to(device)
    tokens = random_tokens(4, 16, vocab_size=50, device=device)
    reference = reference_gradients(model, tokens)
    plain, before = gradients_of(TrainingStep(copy.deepcopy(model), tokens)), graphs()
    got = gradients_of(TrainingStep(model, tokens, TrainingConfig(compile=compile)))
    assert graphs() == before + 1
    for name, wanted in reference.items():
        report = compare(name, got[name], wanted, plain[name])
        assert report.ok, str(report)


def test_compiled_attention_has_the_eager_gradients_whatever_is_kept_for_backward(device: torch.device) -> None:
    """The lab's own attention, compiled once for all policies."""
    model, tokens = tiny(device), random_tokens(4, 16, vocab_size=50, device=device)
    reference = reference_gradients(model, tokens)
    plain, before = gradients_of(TrainingStep(copy.deepcopy(model), tokens)), graphs()
    step = TrainingStep(model, tokens, TrainingConfig(compile="attention", checkpointing="selective"))
    for policy in ("selective", "every-block", "none"):
        model.checkpointing = policy  # type: ignore[assignment]
        got = gradients_of(step)
        for name, wanted in reference.items():
            report = compare(f"{policy}: {name}", got[name], wanted, plain[name])
            assert report.ok, str(report)
        step.adamw.zero_grad()
    assert graphs() == before + 1


@pytest.mark.parametrize("compile", ["eager", "default", "reduce-overhead", "max-autotune", "attention"])
def test_the_mode_is_torch_compiles_and_the_model_keeps_its_keys(
    compile: str, modes: list[str | None], device: torch.device
) -> None:
    keys, before = list(tiny(device).state_dict()), graphs()
    step = step_of(device, compile=compile, learning_rate=0.01)
    losses = [step().item() for _ in range(3)]
    assert modes == {"eager": [], "attention": [None]}.get(compile, [compile])
    assert graphs() - before == (compile != "eager")
    assert losses == sorted(losses, reverse=True)
    assert list(step.model.state_dict()) == keys == [name for name, _ in step.model.named_parameters()]


def test_what_is_compiled_for_one_block_serves_them_all(modes: list[str | None], device: torch.device) -> None:
    model = build_model("tiny", vocab_size=50, context_length=16, num_layers=3, device=device)
    before = graphs()
    TrainingStep(model, random_tokens(2, 16, vocab_size=50, device=device), TrainingConfig(compile="attention"))()
    assert graphs() == before + 1


def test_more_models_than_dynamo_keeps_are_all_compiled(modes: list[str | None], device: torch.device) -> None:
    many = torch._dynamo.config.recompile_limit + 2
    for compile in ("default", "attention"):
        before = graphs()
        for _ in range(many):
            tokens = random_tokens(2, 6, vocab_size=50, device=device)
            gradients_of(TrainingStep(Small().to(device), tokens, TrainingConfig(compile=compile)))
        assert graphs() == before + many


def test_a_copy_of_a_model_with_compiled_attention_runs_its_own_weights(
    modes: list[str | None], device: torch.device
) -> None:
    step = step_of(device, compile="attention")
    twin = copy.deepcopy(step.model)
    wanted = twin(step.tokens)
    for _ in range(2):
        step()
    assert torch.equal(twin(step.tokens), wanted)


def test_a_whole_model_stays_uncompiled_where_it_is_called_otherwise(
    modes: list[str | None], device: torch.device
) -> None:
    step = step_of(device, compile="default")
    before = graphs()
    step.model(step.tokens)
    assert graphs() == before
    step.forward()
    assert graphs() == before + 1


def test_attention_alone_wants_blocks_that_have_it() -> None:
    tokens = random_tokens(2, 6, vocab_size=50)
    wanted = (
        r"wants a model whose `blocks`, an nn.ModuleList, each have a module `attention`, and Embedding has none; give"
    )
    with pytest.raises(ValueError, match=wanted):
        TrainingStep(nn.Embedding(50, 50), tokens, TrainingConfig(compile="attention"))


def test_a_model_of_ones_own_is_compiled_as_a_whole(modes: list[str | None]) -> None:
    tokens = random_tokens(2, 6, vocab_size=50)
    step = TrainingStep(nn.Embedding(50, 50), tokens, TrainingConfig(compile="default", learning_rate=0.1))
    losses = [step().item() for _ in range(3)]
    assert losses == sorted(losses, reverse=True)


def test_compiling_without_a_compiler_is_refused_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiling.shutil, "which", lambda name: None)
    monkeypatch.delenv("CXX", raising=False)
    with pytest.raises(RuntimeError, match=r"compile='default' compiles C\+\+ .* or choose compile='eager'"):
        step_of(torch.device("cpu"), compile="default")


def test_gradients_that_a_cuda_graph_would_overwrite_have_memory_of_their_own(
    modes: list[str | None], monkeypatch: pytest.MonkeyPatch, device: torch.device
) -> None:
    plain = step_of(device, micro_batches=2)
    monkeypatch.setattr(step_module, "replays_cuda_graphs", lambda compile, device: True)
    kept = step_of(device, micro_batches=2)
    addresses: list[list[int]] = []
    for _ in range(3):
        torch.testing.assert_close(kept(), plain())
        gradients = [parameter.grad for parameter in kept.model.parameters()]
        assert not any(gradient.any() for gradient in gradients)
        addresses.append([gradient.data_ptr() for gradient in gradients])
    assert addresses[0] == addresses[1] == addresses[2]


def test_cuda_graphs_are_replayed_in_two_modes_on_a_gpu() -> None:
    cuda, cpu = torch.device("cuda"), torch.device("cpu")
    modes = ("eager", "default", "reduce-overhead", "max-autotune", "attention")
    assert [mode for mode in modes if replays_cuda_graphs(mode, cuda)] == ["reduce-overhead", "max-autotune"]
    assert not any(replays_cuda_graphs(mode, cpu) for mode in modes)
