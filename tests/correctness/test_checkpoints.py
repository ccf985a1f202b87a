"""Checkpoints: what makes one another's, what never does, and what is said of a file that is none."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from perflab.lab.experts.config import ExpertConfig
from perflab.lab.models import MODEL_SIZES, ModelConfig, TransformerLM, architecture, load_checkpoint, save_checkpoint
from perflab.lab.models.config import WITHOUT_A_TENSOR
from perflab.lab.models.rope_scaling import RopeScaling
from perflab.lab.train import random_tokens

pytestmark = pytest.mark.correctness

TINY = replace(MODEL_SIZES["tiny"], vocab_size=31, context_length=16, num_layers=1, attention="naive")
HOW = {"attention": "tiled", "mixer_form": "definition", "fused_norm": True, "fused_feed_forward": True}
HOW_OF_EXPERTS = {"experts.expert_product"}
YARN = RopeScaling(kind="yarn", factor=4.0)
# Of each switch of the architecture, another value.
OTHERWISE: dict[str, Any] = {
    "vocab_size": 32,
    "d_model": 72,
    "d_ff": 128,
    "num_layers": 2,
    "num_heads": 2,
    "num_kv_heads": 1,
    "norm": "layer",
    "norm_eps": 1e-6,
    "positions": "learned",
    "rope_theta": 500.0,
    "feed_forward": "gelu",
    "tied_head": True,
    "window": 4,
    "attention_dropout": 0.1,
    "residual_dropout": 0.1,
    "embedding_dropout": 0.1,
}


def make(config: ModelConfig = TINY, seed: int = 0) -> TransformerLM:
    torch.manual_seed(seed)
    return TransformerLM(config)


def same_weights(one: nn.Module, other: nn.Module) -> bool:
    pairs = zip(one.parameters(), other.parameters(), strict=True)
    return all(a.dtype == b.dtype and torch.equal(a, b) for a, b in pairs)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "model.pt"


def test_every_setting_is_either_architecture_or_how_it_is_computed() -> None:
    """A switch that is added has to be put on one of the two sides."""
    learned = architecture(replace(TINY, positions="learned"))
    moe = architecture(replace(TINY, feed_forward="moe"))
    scaled = architecture(replace(TINY, rope_scaling=YARN))
    within = {f"experts.{field.name}" for field in fields(ExpertConfig)}
    within |= {f"rope_scaling.{field.name}" for field in fields(RopeScaling)}
    known = {*architecture(TINY), *learned, *moe, *scaled, *HOW, *HOW_OF_EXPERTS}
    assert known == {field.name for field in fields(ModelConfig)} - {"experts", "rope_scaling"} | within
    # Of another mixer, and of experts: test_mixers.py and test_experts.py.
    assert OTHERWISE.keys() | HOW.keys() | {"context_length", "mixer"} == known - within
    assert moe.keys() - HOW_OF_EXPERTS == moe.keys()
    assert "context_length" not in architecture(TINY)
    assert {"rope_theta", "rope_scaling.kind"}.isdisjoint(learned)
    assert architecture(replace(TINY, **HOW)) == architecture(TINY)  # type: ignore[arg-type]
    assert architecture(replace(TINY, num_kv_heads=4)) == architecture(TINY)  # as many as there are anyway


def test_what_was_saved_comes_back_with_what_was_saved_beside_it(path: Path) -> None:
    model, other = make(), make(seed=1)
    optimizer = torch.optim.AdamW(model.parameters())
    model(random_tokens(1, 8, vocab_size=31)).sum().backward()
    optimizer.step()
    save_checkpoint(path, model, step=3, optimizer=optimizer.state_dict(), losses=[1.5, 2.5])
    extra = load_checkpoint(path, other)
    assert same_weights(model, other)
    assert (extra["step"], extra["losses"]) == (3, [1.5, 2.5])
    torch.optim.AdamW(other.parameters()).load_state_dict(extra["optimizer"])


def test_the_weights_of_another_module_can_be_saved_beside_it(path: Path) -> None:
    """A moving average of the weights, say: a state_dict() is an OrderedDict, with an attribute of its own."""
    save_checkpoint(path, make(), ema=make(seed=1).state_dict())
    ema, model = load_checkpoint(path, make())["ema"], make(seed=2)
    model.load_state_dict(ema)
    assert same_weights(model, make(seed=1))
    assert ema._metadata == make().state_dict()._metadata  # type: ignore[attr-defined]


@pytest.mark.parametrize("switch", OTHERWISE)
def test_another_architecture_is_refused_by_the_name_of_the_switch(switch: str, path: Path) -> None:
    saved, wanted = replace(TINY, **{switch: OTHERWISE[switch]}), TINY
    save_checkpoint(path, make(saved))
    model, before = make(wanted, seed=1), make(wanted, seed=1)
    with pytest.raises(ValueError, match="is a checkpoint of another architecture") as caught:
        load_checkpoint(path, model)
    text = str(caught.value)
    was, wants = architecture(saved)[switch], architecture(wanted)[switch]
    assert str(path) in text
    assert f"{switch}: saved {was!r}, wanted {wants!r}" in text
    assert f"build the model with {switch}={was!r}" in text or switch == "num_heads"
    assert (f"accept=('{switch}',)" in text) == (switch in WITHOUT_A_TENSOR)
    assert same_weights(model, before)


@pytest.mark.parametrize("switch", [name for name in WITHOUT_A_TENSOR if "." not in name])
def test_a_switch_that_changes_no_tensor_can_be_accepted(switch: str, path: Path) -> None:
    saved, model = make(replace(TINY, **{switch: OTHERWISE[switch]})), make(seed=1)
    save_checkpoint(path, saved)
    load_checkpoint(path, model, accept=(switch,))
    assert same_weights(saved, model)


def test_a_stretched_context_is_another_function_of_the_same_weights(path: Path) -> None:
    """Refused in one line and accepted by name; of two stretched ones the settings that differ are told."""
    save_checkpoint(path, make())
    model = make(replace(TINY, rope_scaling=YARN), seed=1)
    with pytest.raises(ValueError, match=r"rope_scaling\.kind: saved 'none', wanted 'yarn'") as caught:
        load_checkpoint(path, model)
    assert "rope_scaling.factor" not in str(caught.value)
    load_checkpoint(path, model, accept=("rope_scaling.kind",))
    assert same_weights(make(), model)
    assert not torch.equal(model(random_tokens(1, 8, vocab_size=31)), make()(random_tokens(1, 8, vocab_size=31)))
    save_checkpoint(path, model)
    further = replace(YARN, factor=8.0)
    with pytest.raises(ValueError, match=r"rope_scaling\.factor: saved 4\.0, wanted 8\.0"):
        load_checkpoint(path, make(replace(TINY, rope_scaling=further)))


def test_a_checkpoint_that_knows_no_scaling_is_of_a_model_without(path: Path) -> None:
    save_checkpoint(path, make())
    document = torch.load(path, weights_only=True)
    del document["architecture"]["rope_scaling.kind"]
    torch.save(document, path)
    load_checkpoint(path, make(seed=1))


def test_each_switch_that_differs_is_named_and_the_accepted_is_not(path: Path) -> None:
    save_checkpoint(path, make(replace(TINY, norm="layer", window=4)))
    with pytest.raises(ValueError, match="norm: saved 'layer', wanted 'rms'") as caught:
        load_checkpoint(path, make(), accept=("window",))
    assert "window: saved" not in str(caught.value)
    assert "accept=" not in str(caught.value)  # which would not help
    with pytest.raises(ValueError, match="window: saved 4, wanted None"):
        load_checkpoint(path, make())


def test_positions_differ_in_one_line_and_a_learned_table_has_its_length(path: Path) -> None:
    learned = replace(TINY, positions="learned")
    save_checkpoint(path, make(learned))
    with pytest.raises(ValueError, match="positions: saved 'learned', wanted 'rope'") as caught:
        load_checkpoint(path, make())
    assert len(str(caught.value).splitlines()) == 3
    with pytest.raises(ValueError, match="context_length: saved 16, wanted 24"):
        load_checkpoint(path, make(replace(learned, context_length=24)))
    save_checkpoint(path, make())
    load_checkpoint(path, make(replace(TINY, context_length=24)))


@pytest.mark.parametrize("accept", [("norm",), ("rope",), "window"])
def test_what_cannot_be_accepted_is_refused(accept: Any, path: Path) -> None:
    save_checkpoint(path, make())
    with pytest.raises(
        ValueError, match=r"wanted a tuple of switches that change no tensor, out of rope_theta, rope_s"
    ):
        load_checkpoint(path, make(), accept=accept)


def test_how_it_was_computed_and_trained_never_refuses(path: Path) -> None:
    torch._dynamo.reset()
    pytest.importorskip("triton")
    trained = make(replace(TINY, attention="sdpa", fused_norm=True, fused_feed_forward=True, num_layers=2))
    trained.checkpointing = "selective"
    trained.blocks[0] = torch.compile(trained.blocks[0], backend="eager")  # type: ignore[assignment]
    trained.blocks[1].compile(backend="eager")  # type: ignore[operator]
    save_checkpoint(path, torch.compile(trained, backend="eager"))  # type: ignore[arg-type]
    plain = make(replace(TINY, num_layers=2), seed=1)
    load_checkpoint(path, plain)
    assert same_weights(trained, plain)
    save_checkpoint(path, plain)
    again = make(replace(TINY, num_layers=2, attention="tiled"), seed=2)
    again.blocks[0] = torch.compile(again.blocks[0], backend="eager")  # type: ignore[assignment]
    load_checkpoint(path, torch.compile(again, backend="eager"))  # type: ignore[arg-type]
    assert same_weights(again, plain)


def test_loading_into_another_dtype_rounds_to_it(path: Path) -> None:
    model = make()
    save_checkpoint(path, model)
    narrow = make(seed=1).bfloat16()
    load_checkpoint(path, narrow)
    assert same_weights(narrow, make().bfloat16())
    save_checkpoint(path, narrow)
    load_checkpoint(path, model)
    assert same_weights(model, make().bfloat16().float())


def test_weights_go_to_the_models_device(path: Path, device: torch.device) -> None:
    save_checkpoint(path, make())
    model = make(seed=1).to(device)
    load_checkpoint(path, model)
    assert same_weights(model.cpu(), make())


def test_a_tied_head_is_one_tensor_in_the_file_and_stays_tied(path: Path) -> None:
    save_checkpoint(path, make(replace(TINY, tied_head=True)))
    with torch.device("meta"):
        model = TransformerLM(replace(TINY, tied_head=True))
    model.to_empty(device="cpu")
    load_checkpoint(path, model)
    assert [name for name, _ in model.named_parameters() if "head" in name] == []
    tokens = random_tokens(2, 8, vocab_size=31)
    assert torch.equal(model(tokens), make(replace(TINY, tied_head=True))(tokens))


def test_a_failed_save_leaves_the_file_that_was_there_and_nothing_else(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_checkpoint(path, make(), step=1)

    def write_half(document: Any, file: Any) -> None:
        file.write(b"PK half")
        raise OSError("no space left on device")

    monkeypatch.setattr(torch, "save", write_half)
    with pytest.raises(OSError, match="no space left"):
        save_checkpoint(path, make(seed=1), step=2)
    assert load_checkpoint(path, make(seed=2)) == {"step": 1}
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize("name", ["cut", "flipped", "text", "empty", "other", "newer", "no weights", "odd weights"])
def test_a_damaged_or_foreign_file_is_named_with_the_remedy(name: str, path: Path) -> None:
    save_checkpoint(path, make())
    whole = path.read_bytes()
    document = torch.load(path, weights_only=True)
    if name == "cut":
        path.write_bytes(whole[: len(whole) // 2])
    elif name == "flipped":
        middle = len(whole) // 2
        path.write_bytes(
            whole[:middle] + bytes(255 - byte for byte in whole[middle : middle + 9]) + whole[middle + 9 :]
        )
    elif name in ("text", "empty"):
        path.write_text("weights" if name == "text" else "")
    elif name == "other":
        torch.save(make().state_dict(), path)
    elif name == "newer":
        torch.save(document | {"version": 99}, path)
    elif name == "no weights":
        torch.save({key: value for key, value in document.items() if key != "weights"}, path)
    else:
        document["weights"]["head.weight"] = torch.zeros(3)
        torch.save(document, path)
    model = make(seed=1)
    with pytest.raises(
        ValueError, match=r"model\.pt cannot be loaded: .*Wanted a file that save_checkpoint wrote; sav"
    ):
        load_checkpoint(path, model)
    assert same_weights(model, make(seed=1))


def test_a_file_that_would_run_code_is_not_loaded(path: Path) -> None:
    class Runs:
        def __reduce__(self) -> tuple[Any, ...]:
            return exec, ("raise SystemExit('it ran')",)

    torch.save({"format": "perflab checkpoint", "version": 1, "weights": Runs()}, path)
    with pytest.raises(ValueError, match="cannot be loaded: UnpicklingError"):
        load_checkpoint(path, make())


def test_what_loading_would_refuse_is_refused_when_it_is_saved(path: Path) -> None:
    with pytest.raises(TypeError, match=r"extra\['run'\]\['schedule'\]\[1\] is of type object, .* save its state_dict"):
        save_checkpoint(path, make(), run={"schedule": [1.0, object()]})
    ordered: Any = OrderedDict(weights=1.0)
    ordered.written_too = object()
    with pytest.raises(TypeError, match=r"extra\['ema'\]\.written_too is of type object"):
        save_checkpoint(path, make(), ema=ordered)
    assert not path.exists()


def test_a_model_that_holds_no_weights_or_is_none_of_ours_is_refused(path: Path) -> None:
    save_checkpoint(path, make())
    with torch.device("meta"):
        empty = TransformerLM(TINY)
    with pytest.raises(ValueError, match=r"the model is on meta .*; call model.to_empty first"):
        load_checkpoint(path, empty)
    with pytest.raises(TypeError, match="Linear has no ModelConfig; wanted a TransformerLM"):
        save_checkpoint(path, nn.Linear(2, 2))
