"""--model and --study-model: names, and settings behind them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.perf.choice import check_choices, model_names, study_model_name
from tests.perf.setup import Setup

pytestmark = pytest.mark.correctness


def given(**options: Any) -> pytest.Config:
    usual = {
        "--model": "small",
        "--study-model": "",
        "--context-length": "128",
        "--batch-size": 4,
        "--train-steps": 100,
        "--collective-size": "1MB",
    }
    values = {**usual, **{f"--{name.replace('_', '-')}": value for name, value in options.items()}}
    return cast(pytest.Config, SimpleNamespace(getoption=values.__getitem__))


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("small", ["small"]),
        ("small,small, tiny", ["small", "tiny"]),
        ("small,mixer=mamba,2.7B", ["small+mixer=mamba", "2.7B"]),
        ("small,small,mixer=mamba,window=none", ["small", "small+mixer=mamba+window=none"]),
        ("all,tied_head=true", [f"{size}+tied_head=true" for size in ("small", "medium", "large", "xl", "2.7B")]),
        ("gpt:GPT,small,feed_forward=moe", ["gpt:GPT", "small+feed_forward=moe"]),
    ],
)
def test_a_setting_belongs_to_the_model_before_it(text: str, names: list[str]) -> None:
    assert model_names(given(model=text)) == names
    check_choices(given(model=text))


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"model": ","}, "--model: no name; give one or more"),
        ({"model": "mixer=mamba,small"}, "--model: mixer=mamba before any model; .*: --model=small,mixer=mamba"),
        ({"model": "gpt:GPT,mixer=mamba"}, "--model: mixer=mamba behind gpt:GPT, a model of your own; settings are of"),
        ({"model": "small,mixer=mambo"}, r"--model: mixer='mambo' \(did you mean 'mamba'\?\)"),
        ({"model": "small,mixr=mamba"}, "--model: model 'small.mixr=mamba': 'mixr' is no setting; wanted one of"),
        ({"model": "small,mixer=mamba,window=8"}, "--model: window=8 means nothing to mixer='mamba'; give window=None"),
        ({"study_model": "tiny,small"}, "--study-model=tiny,small: wanted one model"),
        ({"study_model": "all"}, "--study-model=all: wanted one model"),
        ({"study_model": "tiny,mixr=mamba"}, "--study-model: model 'tiny.mixr=mamba'"),
    ],
)
def test_what_cannot_be_built_is_refused_in_a_line(options: dict[str, str], text: str) -> None:
    with pytest.raises(pytest.UsageError, match=text):
        check_choices(given(**options))


def test_the_studies_take_a_model_with_settings() -> None:
    assert study_model_name(given(study_model="tiny,mixer=mamba"), "cpu") == "tiny+mixer=mamba"
    assert study_model_name(given(model="small,mixer=mamba"), "cpu") == "tiny"
    assert study_model_name(given(model="small,mixer=mamba"), "cuda") == "small+mixer=mamba"


def test_a_cases_set_up_is_of_the_model_that_its_name_says() -> None:
    setup = Setup("tiny+norm=layer+feed_forward=gelu", 2, 32, cast(Any, "cpu"), vocab_size=61)
    assert setup.is_ours
    assert (setup.config.norm, setup.config.feed_forward, setup.config.context_length) == ("layer", "gelu", 32)
    assert setup.switched(training={}, changes={"norm": "rms"}).config.norm == "rms"
    assert not Setup("gpt:GPT", 2, 32, cast(Any, "cpu")).is_ours
