"""Which models and shapes the options name. No PyTorch, unless sizes are looked up."""

from __future__ import annotations

import pytest


def model_names(config: pytest.Config) -> list[str]:
    """The models that --model names, each once; `all` is the five published sizes."""
    text: str = config.getoption("--model")
    named = [name.strip() for name in text.split(",") if name.strip()]
    if not named:
        raise pytest.UsageError("--model: no name; give one or more, such as --model=small,medium, or all")
    if "all" not in named:
        return list(dict.fromkeys(named))
    from perflab.lab.models import MODEL_SIZES

    return [name for name in MODEL_SIZES if name != "tiny"]


def study_model_name(config: pytest.Config, device_type: str) -> str:
    """The model of the studies of switches, compilation and memory."""
    asked: str = config.getoption("--study-model")
    return asked or (model_names(config)[0] if device_type == "cuda" else "tiny")


def check_models(config: pytest.Config) -> None:
    """Refuse unknown models at once. Sizes are looked up only where one was named: that loads PyTorch."""
    for option, names in (("--model", model_names(config)), ("--study-model", [config.getoption("--study-model")])):
        for name in names:
            if name in ("", "tiny", "small") or ":" in name:
                continue
            from perflab.lab.models import size_config

            try:
                size_config(name)
            except ValueError as error:
                raise pytest.UsageError(f"{option}: {error}") from None
    if config.getoption("--train-steps") < 1:
        raise pytest.UsageError(f"--train-steps={config.getoption('--train-steps')}: wanted 1 or more")


def context_lengths(config: pytest.Config) -> list[int]:
    """The lengths that --context-length names."""
    text: str = config.getoption("--context-length")
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and int(part) > 0 for part in parts):
        raise pytest.UsageError(f"--context-length={text}: wanted lengths such as 128 or 128,256")
    if config.getoption("--batch-size") < 1:
        raise pytest.UsageError(f"--batch-size={config.getoption('--batch-size')}: wanted 1 or more")
    return [int(part) for part in parts]
