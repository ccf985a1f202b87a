"""Which models and shapes the options name, checked before anything is collected. PyTorch is loaded for sizes alone."""

from __future__ import annotations

import pytest

ALL = "all"
"""The five published sizes."""
LEAST_TRAINING = 10
"""Steps: the first few belong to the set-up, and a schedule has to have a shape."""


def model_names(config: pytest.Config) -> list[str]:
    """The models that --model names, each once, `all` as the sizes it stands for."""
    names: dict[str, None] = {}
    for name in _listed(config, "--model"):
        names.update(dict.fromkeys(_published_sizes() if name == ALL else [name]))
    return list(names)


def study_model_name(config: pytest.Config, device_type: str) -> str:
    """The model of the studies of switches, compilation and memory."""
    asked: str = config.getoption("--study-model")
    return asked or (model_names(config)[0] if device_type == "cuda" else "tiny")


def context_lengths(config: pytest.Config) -> list[int]:
    """The lengths that --context-length names, each once."""
    return list(dict.fromkeys(int(length) for length in _listed(config, "--context-length")))


def check_choices(config: pytest.Config) -> None:
    """Refuse what cannot be run, in one line.

    Raises:
        pytest.UsageError: an option's value, with what was wanted.
    """
    named = _listed(config, "--model")
    if not named:
        raise pytest.UsageError("--model: no name; give one or more, such as --model=small,medium, or all")
    _check_models("--model", [name for name in named if name != ALL])
    study_model: str = config.getoption("--study-model")
    if study_model == ALL or "," in study_model:
        raise pytest.UsageError(f"--study-model={study_model}: wanted one model, such as --study-model=small")
    _check_models("--study-model", [study_model] if study_model else [])
    lengths: str = config.getoption("--context-length")
    listed = _listed(config, "--context-length")
    if not listed or not all(length.isdecimal() and int(length) >= 2 for length in listed):
        raise pytest.UsageError(
            f"--context-length={lengths}: wanted lengths of 2 tokens or more, such as 128 or 128,256"
        )
    for option, least in (("--batch-size", 1), ("--train-steps", LEAST_TRAINING)):
        if config.getoption(option) < least:
            raise pytest.UsageError(f"{option}={config.getoption(option)}: wanted {least} or more")


def _listed(config: pytest.Config, option: str) -> list[str]:
    text: str = config.getoption(option)
    return [part.strip() for part in text.split(",") if part.strip()]


def _check_models(option: str, names: list[str]) -> None:
    """Sizes are looked up only where one was named: that loads PyTorch."""
    for name in names:
        if name in ("tiny", "small") or ":" in name:
            continue
        from perflab.lab.models import size_config

        try:
            size_config(name)
        except ValueError as error:
            raise pytest.UsageError(f"{option}: {error}") from None


def _published_sizes() -> list[str]:
    from perflab.lab.models import MODEL_SIZES

    return [name for name in MODEL_SIZES if name not in ("tiny", "70B")]
