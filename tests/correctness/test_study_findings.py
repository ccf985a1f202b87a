"""What the studies say of their cases: from results as a run leaves them to lines, and what saved tensors count as."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from syrupy.assertion import SnapshotAssertion
from torch import nn

from perflab import Judgement, Result, Verdict
from perflab.lab.experts.mixture import usage_facts
from perflab.lab.models import TransformerLM, size_config
from perflab.lab.train import random_tokens
from perflab.results.measurement import Measurement
from perflab.running.case.statements import checked_facts
from tests.harness.make import MS, in_turns, record, replicate, result
from tests.perf.choice import check_choices, context_lengths, model_names
from tests.perf.saved import saved_for_backward
from tests.perf.studies.findings import findings_of
from tests.perf.studies.switches import BASELINE, BOTTOM, SEEDS
from tests.perf.studies.training import FIRST_CALLS, LATER_CALLS, set_up

pytestmark = pytest.mark.correctness


def case(
    test: str, parameters: dict[str, Any], ms: float = 10.0, facts: dict[str, Any] | None = None, **summary: Any
) -> Result:
    taken = replicate(ms * MS, **summary)
    noted = checked_facts(facts or {})
    node = f"tests/perf/test_x.py::{test}[{'-'.join(map(str, parameters.values()))}]"
    return result(node, outcome=record(taken, case=node, parameters=parameters, facts=noted))


def switch(name: str, ms: float = 10.0, **facts: Any) -> Result:
    return case("test_switch", {"switch": name}, ms, {"loss": 2.0, "setup_ns": 0, **facts}, peak_bytes=1000)


def test_a_loss_that_became_nan_in_a_run_costs_the_switch_its_advice(snapshot: SnapshotAssertion) -> None:
    cases = [switch(BASELINE), switch("fp16", speed_ratio=2, loss=float("nan"))]
    assert findings_of("optimisations", cases) == snapshot


def test_what_advice_rests_on_stands_above_it(snapshot: SnapshotAssertion) -> None:
    seeds = (switch(name, loss=2.1, speed_ratio=speed) for name, speed in zip(SEEDS, (1.0, 0.95, 1.01), strict=True))
    assert findings_of("optimisations", [switch(BASELINE, speed_ratio=1.0), *seeds]) == snapshot


def test_without_a_baseline_there_is_no_advice(snapshot: SnapshotAssertion) -> None:
    assert findings_of("optimisations", [switch("bf16")]) == snapshot


def test_a_switch_of_several_things_is_held_against_the_one_that_shares_the_rest(snapshot: SnapshotAssertion) -> None:
    window = switch("window-32", 5.0, speed_ratio=2, against="attention-naive")
    assert findings_of("optimisations", [switch(BASELINE, 5.0), switch("attention-naive"), window]) == snapshot


def test_each_rung_stands_against_the_bottom_and_on_the_one_below(snapshot: SnapshotAssertion) -> None:
    speeds = {BOTTOM: 1.0, "bf16": 1.25, "bf16+flash": 2.5, "flash+fused": 2.0}
    rungs = [
        case("test_ladder", {"rung": name}, facts={"speed_ratio": speed, "speed_noise_share": 0.01})
        for name, speed in speeds.items()
    ]
    assert findings_of("ladder", rungs) == snapshot


def test_bf16_stands_against_fp32_at_each_length_that_has_both(snapshot: SnapshotAssertion) -> None:
    def step(length: int, precision: str, ms: float) -> Result:
        parameters = {"model_name": "small", "context_length": length, "precision": precision}
        return case("test_step", parameters, ms, phases_ns={"forward": ms * MS / 4, "backward": ms * MS / 2})

    pairs = [*in_turns(step(128, "fp32", 10.0), step(128, "bf16", 8.0)), step(256, "fp32", 9.0)]
    assert findings_of("end to end", [*pairs, step(256, "bf16", 16.0)]) == snapshot


def test_a_first_sample_that_is_slower_than_all_others_is_not_warm(snapshot: SnapshotAssertion) -> None:
    def warmup(steps: int, *samples_ms: float) -> Result:
        node = f"tests/perf/test_x.py::test_warmup[{steps}]"
        samples_ns = [round(ms * MS) for ms in samples_ms]
        taken = Measurement(samples_ns=samples_ns, repetitions=1, warmup_calls=steps, settled=None, clock="host")
        return result(node, outcome=record(case=node, parameters={"warmup_steps": steps}, measurement=taken))

    cases = [warmup(0, 30, 10, 11, 10), warmup(1, 12, 10, 14, 10), warmup(2, 10.1, 10, 10, 10)]
    assert findings_of("warm-up", cases) == snapshot


@pytest.mark.parametrize("turns", [None, 2.0, 1.01], ids=["no turns", "paid for", "never"])
def test_compiling_is_paid_for_after_so_many_steps_or_never(turns: float | None, snapshot: SnapshotAssertion) -> None:
    def model(how: str, ms: float, **facts: Any) -> Result:
        return case("test_compiled_model", {"how": how}, ms, facts, phases_ns={"forward": ms * MS / 2})

    noted = {} if turns is None else {"speed_ratio": turns, "speed_noise_share": 0.02}
    compiled = model("compiled", 5.0, setup_ns=5_000_000_000, **noted)
    assert findings_of("compile: model", [model("eager", 10.0), compiled]) == snapshot


def test_the_parts_of_a_peak_stand_beside_it_and_predictions_beside_the_truth(snapshot: SnapshotAssertion) -> None:
    def forward(length: int, activations: int, **facts: Any) -> Result:
        parameters = {"precision": "fp32", "context_length": length, "mode": "forward"}
        facts = {"parameters_bytes": 100, "activations_bytes": activations, **facts}
        return case("test_memory", parameters, facts=facts, peak_bytes=1000)

    cases = [forward(128, 200, predicted_bytes=950), forward(256, 400, logits_bytes=300)]
    assert findings_of("memory", cases) == snapshot


@pytest.mark.parametrize("study", ["end to end", "warm-up", "ladder", "compile: model", "memory"])
def test_a_study_of_skipped_cases_says_nothing(study: str) -> None:
    judgement = Judgement(verdict=Verdict.SKIPPED, reasons=["needs 50.8 GiB"])
    assert findings_of(study, [Result(case="tests/x.py::test_x[1]", judgement=judgement)]) == []


def test_a_study_that_is_not_the_labs_has_no_findings_of_its() -> None:
    assert findings_of("mine", []) is None


@pytest.mark.parametrize("autocast", [False, True])
def test_casts_of_weights_are_told_from_activations(autocast: bool) -> None:
    torch.manual_seed(0)
    layers = nn.Sequential(nn.Linear(64, 32, bias=False), nn.Linear(32, 16, bias=False))
    x = torch.randn(8, 64)
    with saved_for_backward(layers.parameters()) as saved, torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        out = layers(x)
    assert out.shape == (8, 16)
    size = 2 if autocast else 4
    # The first weight is not needed going back: nobody wants the gradient of x.
    assert saved.weight_copies_bytes == (32 * 16 * 2 if autocast else 0)
    assert saved.activations_bytes == (8 * 64 + 8 * 32) * size


def test_set_up_is_what_the_first_calls_took_beyond_later_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(stamp for spans in [(50, 30, 11, 10, 12)] for span in spans for stamp in (0, span))
    monkeypatch.setattr("tests.perf.studies.training.read_ns", lambda: next(clock))
    calls: list[int] = []
    assert set_up(lambda: calls.append(1), torch.device("cpu")) == (50 + 30 + 11 - 3 * 10, 10)
    assert len(calls) == FIRST_CALLS + LATER_CALLS


def test_set_up_within_one_call_is_not_told(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(stamp for span in (15, 11, 11, 10, 12) for stamp in (0, span))
    monkeypatch.setattr("tests.perf.studies.training.read_ns", lambda: next(clock))
    assert set_up(lambda: None, torch.device("cpu")) == (None, 10)


# --- options -----------------------------------------------------------------------------------------------------


def options(**given: Any) -> Any:
    known = {"model": "small", "study-model": "", "context-length": "128", "batch-size": 4, "train-steps": 100}
    known |= {"collective-size": "1MB"}
    values = {
        f"--{name}": value for name, value in {**known, **{k.replace("_", "-"): v for k, v in given.items()}}.items()
    }
    return SimpleNamespace(getoption=values.__getitem__)


def test_all_stands_for_the_five_sizes_wherever_it_is_named() -> None:
    assert model_names(options(model="tiny,all,small")) == ["tiny", "small", "medium", "large", "xl", "2.7B"]
    assert context_lengths(options(context_length="128, 256,128")) == [128, 256]


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("model", " , "),
        ("model", "all,smal"),
        ("study-model", "all"),
        ("study-model", "foo"),
        ("context-length", "128,1"),
        ("context-length", "1e3"),
        ("batch-size", 0),
        ("train-steps", 9),
    ],
)
def test_what_cannot_be_run_is_refused_at_once(option: str, value: object, snapshot: SnapshotAssertion) -> None:
    with pytest.raises(pytest.UsageError) as caught:
        check_choices(options(**{option: value}))
    assert str(caught.value) == snapshot


def test_advice_on_inference_follows_from_turns_and_peaks_alone(snapshot: SnapshotAssertion) -> None:
    def inference_switch(name: str, ms: float, peak_bytes: int) -> Result:
        return case("test_switch", {"model_name": "tiny", "switch": name}, ms, peak_bytes=peak_bytes)

    base, *rows = in_turns(
        inference_switch(BASELINE, 10, 1000),
        inference_switch("bf16", 5, 500),
        inference_switch("int8-cache", 12, 900),
        inference_switch("paged", 12, 1000),
        inference_switch("grouped-heads", 10, 1000),
    )
    alone = inference_switch("window", 5, 900)  # took no turns
    assert findings_of("inference switches", [base, *rows, alone]) == snapshot
    assert findings_of("inference switches", rows) == []


def test_a_load_says_from_where_on_it_falls_behind(snapshot: SnapshotAssertion) -> None:
    def load(offered: float, done: float) -> Result:
        return case("test_load", {"load": offered}, facts={"offered_per_s": offered, "requests_per_s": done})

    few, many, most = load(1.0, 0.99), load(4.0, 3.9), load(8.0, 5.0)
    assert [findings_of("load", loads) for loads in ([few, many, most], [few, many], [most])] == snapshot


def test_decode_says_what_share_of_a_copy_s_rate_it_reads_at(snapshot: SnapshotAssertion) -> None:
    facts = {"read_bytes": 2**20, "copy_bytes_per_s": 2**20 / 0.005}
    one = case("test_decode", {"model_name": "tiny", "batch": 1}, 10.0, facts)
    many = case("test_decode", {"model_name": "tiny", "batch": 8}, 10.0, facts)
    assert findings_of("decode", [one, many]) == snapshot


def test_how_experts_were_used_can_be_noted_as_it_is() -> None:
    torch.manual_seed(0)
    model = TransformerLM(size_config("tiny+feed_forward=moe+experts.capacity_factor=1.0", vocab_size=61)).train()
    model(random_tokens(2, 16, vocab_size=61))
    facts = usage_facts(model)
    assert checked_facts(facts) == facts
    assert 0 < facts["dropped_share"] < 0.5
