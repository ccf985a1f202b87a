"""The study of mixers compares like with like, counts the code of each, and says what its numbers show."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch
from syrupy.assertion import SnapshotAssertion

import perflab.lab
from perflab import Result
from perflab.lab.models import MIXERS, MODEL_SIZES, ModelConfig, TransformerLM, model_cost, parameter_count
from tests.correctness.test_study_findings import case
from tests.perf.studies.findings import findings_of
from tests.perf.studies.mixers import EXPERTS, NAMES, TWIN, WITHIN_SHARE, code_lines, mixer_switch
from tests.perf.studies.training import BATCH_SIZE, CONTEXT_LENGTH, setup_of

pytestmark = pytest.mark.correctness

TINY = dataclasses.replace(MODEL_SIZES["tiny"], vocab_size=256)
LAB = Path(perflab.lab.__file__).parent


def test_every_mixer_and_experts_are_in_the_study() -> None:
    assert {*MIXERS} | {EXPERTS, TWIN} == {*NAMES}


@pytest.mark.parametrize("name", NAMES)
def test_models_of_a_study_have_as_many_parameters_when_built(name: str) -> None:
    switch = mixer_switch(name, TINY)
    with torch.device("meta"):
        models = [TransformerLM(config) for config in (TINY, dataclasses.replace(TINY, **switch.model))]
    base, other = (sum(weight.numel() for weight in model.parameters()) for model in models)
    assert abs(other / base - 1) <= WITHIN_SHARE
    assert (switch.model == {}) == (name in (NAMES[0], TWIN))


@pytest.mark.parametrize("name", NAMES)
def test_what_a_model_of_the_study_costs_is_known_before_it_is_built(name: str) -> None:
    base = dataclasses.replace(TINY, context_length=128)
    shape = {"batch_size": 8, "seq_len": 128}
    config = dataclasses.replace(base, **mixer_switch(name, base).model)
    # Of as many parameters, operations differ by what is done between tokens, and by experts that rest.
    assert 0.5 < model_cost(config, **shape).flops / model_cost(base, **shape).flops < 3


@pytest.mark.parametrize("size", ["small", "medium"])
def test_larger_models_are_matched_as_well(size: str) -> None:
    base = MODEL_SIZES[size]
    for name in NAMES:
        changed = dataclasses.replace(base, **mixer_switch(name, base).model)
        assert abs(parameter_count(changed) / parameter_count(base) - 1) <= WITHIN_SHARE, name


def test_layers_go_where_a_narrow_feed_forward_cannot_make_up_for_a_mixer() -> None:
    base = ModelConfig(d_model=64, d_ff=16, num_layers=4, num_heads=4, vocab_size=256)
    changes = mixer_switch("rwkv6", base).model
    assert changes["num_layers"] < 4
    with pytest.raises(ValueError, match=r"rwkv6: no d_ff and num_layers give .* parameters within 2%"):
        mixer_switch("rwkv6", dataclasses.replace(base, num_layers=1))


@pytest.mark.parametrize("length", [128, 512])
def test_batches_of_every_length_hold_as_many_tokens(length: int, pytestconfig: pytest.Config) -> None:
    switch = mixer_switch(TWIN, dataclasses.replace(TINY, context_length=length))
    setup = setup_of(switch, pytestconfig, torch.device("cpu"))
    assert (setup.context_length, setup.seed) == (length, 1)
    assert setup.batch_size * setup.context_length == BATCH_SIZE * CONTEXT_LENGTH


def test_the_code_of_a_mixer_is_the_files_of_its_folder_that_it_imports() -> None:
    def lines(folder: str, *files: str) -> int:
        return sum(len((LAB / folder / file).read_text(encoding="utf-8").splitlines()) for file in files)

    assert code_lines("hyena") == lines("hyena", "hyena.py")
    recurrence = [path.name for path in (LAB / "recurrence").glob("*.py")]
    others = {"gla.py", "mamba2.py", "rwkv6.py", "examples.py", "__init__.py"}
    assert code_lines("retnet") >= lines("recurrence", "retnet.py", "mixer.py", "recurrence.py", "chunked.py")
    assert code_lines("retnet") <= lines("recurrence", *({*recurrence} - others), "__init__.py")
    assert code_lines(EXPERTS) >= lines("experts", "mixture.py", "router.py", "products.py", "config.py")
    assert all(code_lines(name) > 100 for name in NAMES)


def measured(mixer: str, length: int = 128, peak_bytes: int = 1000, **facts: object) -> Result:
    parameters = {"mixer": mixer, "context_length": length}
    return case("test_mixer", parameters, facts={"loss": 2.0, "setup_ns": 0, **facts}, peak_bytes=peak_bytes)


def test_each_mixer_is_advised_on_by_length_against_attention_and_its_twin(snapshot: SnapshotAssertion) -> None:
    lines = findings_of(
        "mixers",
        [
            measured(NAMES[0], 512, speed_ratio=1.0),
            measured("hyena", 512, 900, speed_ratio=1.5, speed_noise_share=0.01),
            measured(NAMES[0], speed_ratio=1.0),
            measured(TWIN, speed_ratio=1.04, loss=2.03),
            measured("retnet", speed_ratio=0.5, speed_noise_share=0.01, loss=1.9),
            measured("gla", speed_ratio=1.03, speed_noise_share=0.01, loss=2.02),
        ],
    )
    assert lines == snapshot


def test_without_attention_there_is_no_advice_at_that_length(snapshot: SnapshotAssertion) -> None:
    assert findings_of("mixers", [measured("gla")]) == snapshot
