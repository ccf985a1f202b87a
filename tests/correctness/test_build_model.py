"""`build_model`: sizes by name, models of the reader's own, and what is said when a name leads nowhere."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

from perflab.lab.models import MODEL_SIZES, TransformerLM, build_model, size_config
from perflab.lab.train import random_tokens

pytestmark = pytest.mark.correctness

OWN_MODELS = """
import torch
from torch import nn

class Bigram(nn.Module):
    def __init__(self, vocab_size):
        super().__init__()
        self.table = nn.Embedding(vocab_size, vocab_size)

    def forward(self, tokens):
        return self.table(tokens)

def make_bigram(*, vocab_size, context_length, scale=1.0):
    model = Bigram(vocab_size)
    model.arguments = (vocab_size, context_length, scale)
    return model

def takes_anything(**settings):
    model = Bigram(settings["vocab_size"])
    model.arguments = settings
    return model

def wants_more(path, vocab_size):
    return Bigram(vocab_size)

def forgets_to_return(vocab_size):
    Bigram(vocab_size)

class Zoo:
    Bigram = Bigram

number = 7
"""


@pytest.fixture
def own_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Modules `own_models`, and `broken_models` that fails while it loads, importable for one test."""
    (tmp_path / "own_models.py").write_text(OWN_MODELS)
    (tmp_path / "broken_models.py").write_text("import no_such_dependency\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "own_models", raising=False)


def test_the_largest_size_builds_on_meta_without_memory() -> None:
    model = build_model("2.7B", vocab_size=10_000, context_length=512, device="meta")
    assert sum(parameter.numel() for parameter in model.parameters()) == 3_406_809_600
    assert {tensor.device.type for tensor in (*model.parameters(), *model.buffers())} == {"meta"}


def test_an_ambient_meta_device_is_followed() -> None:
    with torch.device("meta"):
        model = build_model("2.7B")
    assert {tensor.device.type for tensor in (*model.parameters(), *model.buffers())} == {"meta"}


def test_settings_reach_the_configuration() -> None:
    model = build_model("tiny", vocab_size=50, context_length=20, device="meta", attention="naive", num_layers=3)
    assert isinstance(model, TransformerLM)
    assert model.config == size_config("tiny", vocab_size=50, context_length=20, attention="naive", num_layers=3)
    assert MODEL_SIZES["tiny"].num_layers == 2


@pytest.mark.gpu_numbers
def test_one_seed_gives_one_model_in_every_dtype(device: torch.device) -> None:
    torch.manual_seed(0)
    narrow = build_model("tiny", vocab_size=50, device=device, dtype=torch.bfloat16)
    torch.manual_seed(0)
    wide = build_model("tiny", vocab_size=50, device=device)
    for name, parameter in narrow.named_parameters():
        assert torch.equal(parameter, wide.get_parameter(name).bfloat16()), name


@pytest.mark.usefixtures("own_models")
@pytest.mark.parametrize("name", ["own_models:make_bigram", "own_models:Bigram", "own_models:Zoo.Bigram"])
def test_a_model_of_the_readers_own_is_built_and_moved(name: str, device: torch.device) -> None:
    model = build_model(name, vocab_size=11, context_length=8, device=device, dtype=torch.bfloat16)
    logits = model(random_tokens(2, 8, vocab_size=11, device=device))
    assert (logits.shape, logits.dtype, logits.device) == ((2, 8, 11), torch.bfloat16, device)


@pytest.mark.usefixtures("own_models")
def test_a_factory_is_given_the_settings_that_it_accepts() -> None:
    model = build_model("own_models:make_bigram", vocab_size=11, context_length=8, scale=2.0)
    assert model.arguments == (11, 8, 2.0)
    model = build_model("own_models:takes_anything", vocab_size=11, context_length=8, depth=3)
    assert model.arguments == {"vocab_size": 11, "context_length": 8, "depth": 3}


@pytest.mark.usefixtures("own_models")
def test_a_factory_builds_nothing_on_meta() -> None:
    model = build_model("own_models:Bigram", vocab_size=1_000_000, device="meta")  # 4 TB anywhere else
    assert model.table.weight.is_meta


@pytest.mark.usefixtures("own_models")
@pytest.mark.parametrize(
    ("name", "settings", "error", "texts"),
    [
        ("smal", {}, ValueError, ["unknown model 'smal' (did you mean 'small'?)", "package.module:factory"]),
        ("2.7b", {}, ValueError, ["did you mean '2.7B'?"]),
        ("gpt", {}, ValueError, ["unknown model 'gpt': wanted one of tiny"]),
        ("tiny", {"heads": 2}, TypeError, ["model 'tiny' has no setting 'heads'", "num_heads"]),
        ("own_models:", {}, ValueError, ["wanted package.module:factory, a name on each side of the colon"]),
        ("no.such:thing", {}, ImportError, ["importing 'no.such' failed", "ModuleNotFoundError"]),
        ("broken_models:f", {}, ImportError, ["importing 'broken_models' failed", "no_such_dependency"]),
        ("own_models:make_bigrams", {}, ValueError, ["no attribute 'make_bigrams'", "near names there: make_bigram"]),
        ("own_models:number", {}, TypeError, ["'number' is of type int; wanted a callable"]),
        ("own_models:wants_more", {}, TypeError, ["wants_more(vocab_size=10000)", "'path'", "defaults"]),
        ("own_models:make_bigram", {"attention": "naive"}, TypeError, ["only settings that it accepts"]),
        ("own_models:forgets_to_return", {}, TypeError, ["returned NoneType; wanted a torch.nn.Module"]),
    ],
)  # fmt: skip
def test_a_name_that_leads_nowhere_says_what_was_wanted(
    name: str, settings: dict[str, object], error: type[Exception], texts: list[str]
) -> None:
    with pytest.raises(error) as caught:
        build_model(name, **settings)  # type: ignore[arg-type]
    for text in texts:
        assert text in str(caught.value)
