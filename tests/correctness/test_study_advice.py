"""The advice of the studies: it follows from the numbers, and from nothing else."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st
from syrupy.assertion import SnapshotAssertion

from perflab import Comparison, Verdict
from perflab.lab.models import MODEL_SIZES, ModelConfig
from perflab.lab.train import TrainingConfig
from tests.perf.studies.recommendation import Noise, Outcome, noise_of, recommendation
from tests.perf.studies.switches import BASELINE, BOTTOM, SEEDS, ladder, switches
from tests.perf.studies.training import tokens_per_second

pytestmark = pytest.mark.correctness

BASE = Outcome(step_ns=1e6, peak_bytes=1000, loss=2.0, setup_ns=1e6)
NOISE = Noise(time_share=0.03, loss=0.02)


def advice(**changes: float) -> str:
    if "step_ns" in changes:
        changes = {"speed": BASE.step_ns / changes["step_ns"], **changes}
    return recommendation("x", BASE, dataclasses.replace(BASE, **changes), NOISE)


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"step_ns": 0.8e6}, id="faster, and costs nothing"),
        pytest.param({"step_ns": 1.25e6, "peak_bytes": 600}, id="saves memory, and costs time"),
        # 2 s more of set-up, 0.5 ms saved a step.
        pytest.param({"step_ns": 0.5e6, "setup_ns": 1e6 + 2e9}, id="set-up that steps pay for"),
        pytest.param({"step_ns": 2e6, "loss": 2.1}, id="only costs"),
        pytest.param({"step_ns": 1.02e6, "peak_bytes": 1005, "loss": 1.99}, id="within the noise"),
        pytest.param({"step_ns": 0.7e6, "noise": 0.1}, id="faster than its own noise"),
        pytest.param({"step_ns": 0.7e6, "noise": 0.5}, id="a reading that does not know itself"),
        pytest.param({"step_ns": 2e6, "speed": 1.25, "noise": 0.01}, id="speed is that of turns"),
        pytest.param({"step_ns": 2e6, "speed": 1.01, "noise": 0.01}, id="alike in turns"),
        pytest.param({"step_ns": 0.5e6, "loss": float("nan")}, id="a loss that is no number"),
    ],
)
def test_advice_follows_from_the_numbers(changes: dict[str, float], snapshot: SnapshotAssertion) -> None:
    assert advice(**changes) == snapshot


def test_without_turns_nothing_is_said_of_speed(snapshot: SnapshotAssertion) -> None:
    assert recommendation("x", BASE, dataclasses.replace(BASE, step_ns=2e6), NOISE) == snapshot


@given(
    speed=st.floats(0.2, 5.0), memory=st.integers(100, 5000), loss=st.floats(1.0, 3.0), setup_s=st.floats(0.0, 100.0)
)
def test_a_gain_and_a_cost_are_never_both_claimed_of_one_quantity(
    speed: float, memory: int, loss: float, setup_s: float
) -> None:
    said = advice(step_ns=1e6 / speed, peak_bytes=memory, loss=loss, setup_ns=setup_s * 1e9)
    assert max(said.count("steps/s"), said.count("peak "), said.count("loss +") + said.count("loss -")) <= 1
    assert ("×" in said) == (not 1 - NOISE.time_share <= speed <= 1 + NOISE.time_share)
    if "use when time is short" in said:
        assert speed > 1 + NOISE.time_share


def test_noise_is_what_the_baseline_and_its_seeds_show_against_the_baseline() -> None:
    outcomes = {
        BASELINE: BASE,
        SEEDS[0]: dataclasses.replace(BASE, loss=2.03, speed=0.9),
        SEEDS[1]: dataclasses.replace(BASE, loss=1.95),
    }
    noise = noise_of(outcomes)
    assert noise.time_share == pytest.approx(0.1)
    assert noise.loss == pytest.approx(0.08)  # of any two, not from the baseline alone


def every_switch() -> list[object]:
    return [pytest.param(switch, id=switch.name) for switch in [*switches(100, "cpu"), *ladder("cpu"), *ladder("cuda")]]


@pytest.mark.parametrize("switch", every_switch())
def test_every_switch_is_a_configuration_that_can_be_built(switch: object) -> None:
    model = dataclasses.replace(MODEL_SIZES["tiny"], **switch.model)  # type: ignore[attr-defined]
    training = TrainingConfig(**switch.training)  # type: ignore[attr-defined]
    changed = [*switch.model, *switch.training]  # type: ignore[attr-defined]
    assert isinstance(model, ModelConfig)
    defaults = (MODEL_SIZES["tiny"], TrainingConfig())
    # What is named is changed; but for the ladder's last rungs, which may come back to the lab's defaults.
    for name in changed:
        owner, default = (model, defaults[0]) if hasattr(model, name) else (training, defaults[1])
        if switch.name in {one.name for one in switches(100, "cpu")}:  # type: ignore[attr-defined]
            assert getattr(owner, name) != getattr(default, name)


def test_attention_that_takes_no_float32_on_a_gpu_is_switched_under_bf16_and_held_against_it() -> None:
    by_name = {switch.name: switch for switch in switches(100, "cuda")}
    for name in ("sdpa-flash", "sdpa-cudnn"):
        switch = by_name[f"attention-{name}"]
        assert (switch.training, switch.against) == ({"precision": "bf16"}, "bf16")
    assert by_name["attention-sdpa-efficient"].against == BASELINE
    assert {switch.against for switch in by_name.values()} <= by_name.keys()


def test_a_model_of_another_size_is_told(snapshot: SnapshotAssertion) -> None:
    base = dataclasses.replace(BASE, parameters=100_000)
    smaller = dataclasses.replace(BASE, step_ns=0.8e6, speed=1.25, parameters=80_000)
    assert recommendation("gelu", base, smaller, NOISE) == snapshot


def test_switches_cover_every_choice_of_the_configurations() -> None:
    turned = switches(100, "cpu")
    assert len({switch.name for switch in turned}) == len(turned)
    model_fields = {field.name for field in dataclasses.fields(ModelConfig)}
    dimensions = {
        "vocab_size",
        "context_length",
        "d_model",
        "d_ff",
        "num_layers",
        "num_heads",
        "rope_theta",
        "rope_scaling",
        "norm_eps",
    }
    of_mixers = {"mixer", "mixer_form", "experts"}  # have a study of their own: tests/perf/studies/test_mixers.py
    assert {name for switch in turned for name in switch.model} == model_fields - dimensions - of_mixers
    rates = {"learning_rate", "weight_decay", "betas", "final_learning_rate_share", "skip_non_finite"}  # of all studies
    rates |= {"balance_weight", "router_z_weight", "router_bias_rate"}  # of experts, which no switch has
    rates |= {"exchange", "bucket_mb", "shard_optimizer"}  # of many processes: tests/perf/test_parallel.py
    training_fields = {field.name for field in dataclasses.fields(TrainingConfig)}
    assert {name for switch in turned for name in switch.training} == training_fields - rates


@pytest.mark.parametrize("device_type", ["cpu", "cuda"])
def test_the_ladder_has_each_rung_and_every_pair(device_type: str) -> None:
    names = [switch.name for switch in ladder(device_type)]
    assert names[0] == BOTTOM
    assert {"bf16", "bf16+flash", "bf16+flash+compile", "bf16+flash+compile+fused"} <= set(names)
    assert len({frozenset(name.split("+")) for name in names if name.count("+") == 1}) == 6
    assert len(set(names)) == len(names) == 1 + 4 + 5


def test_a_model_of_ones_own_has_a_ladder_without_what_only_the_labs_can_switch() -> None:
    rungs = ladder("cpu", ours=False)
    assert [switch.name for switch in rungs][:3] == [BOTTOM, "bf16", "bf16+fused"]
    assert all(not switch.model for switch in rungs)


def test_rates_stand_to_each_other_as_the_speeds_do_whenever_each_was_read() -> None:
    paces: dict[str, float] = {}

    def rate(name: str, base: str, speed: float, call_ns: float) -> float:
        ratio = 1 / speed
        found = Comparison(
            verdict=Verdict.OK,
            ratio=ratio,
            low_ratio=ratio,
            high_ratio=ratio,
            base_ns=call_ns * speed,
            candidate_ns=call_ns,
            pairs=7,
            threshold=0.05,
        )
        return tokens_per_second(name, base, 1000, found, paces)

    assert rate("baseline", "baseline", 1.0, 1e9) == pytest.approx(1000)
    assert rate("fused", "baseline", 1.55, 1e9) == pytest.approx(1550)  # the machine was busier: the base took 1.55 s
    assert rate("window", "written-out", 2.0, 1e9) == pytest.approx(1000)
    assert rate("written-out", "baseline", 0.5, 3e9) == pytest.approx(500)
    assert rate("baseline", "baseline", 1.02, 4e9) == pytest.approx(1000)
