"""Which models and shapes the options name, checked before anything is collected. PyTorch is loaded for sizes alone."""

from __future__ import annotations

import pytest

ALL = "all"
"""The five published sizes."""
_UNITS = {"KB": 10**3, "MB": 10**6, "GB": 10**9}
LEAST_TRAINING = 10
"""Steps: the first few belong to the set-up, and a schedule has to have a shape."""


def model_names(config: pytest.Config) -> list[str]:
    """The models that --model names, each once, `all` as the sizes it stands for, settings as part of the name."""
    return list(dict.fromkeys(_models(config, "--model")))


def study_model_name(config: pytest.Config, device_type: str) -> str:
    """The model of the studies of switches, compilation and memory."""
    asked = _models(config, "--study-model")
    return asked[0] if asked else model_names(config)[0] if device_type == "cuda" else "tiny"


def context_lengths(config: pytest.Config) -> list[int]:
    """The lengths that --context-length names, each once."""
    return list(dict.fromkeys(int(length) for length in _listed(config, "--context-length")))


def collective_sizes(config: pytest.Config) -> dict[str, int]:
    """The sizes that --collective-size names -> bytes.

    Raises:
        pytest.UsageError: a size that is none.
    """
    found = {}
    for text in _listed(config, "--collective-size"):
        number, unit = text[:-2], text[-2:]
        if not number.isdecimal() or unit not in _UNITS or not int(number):
            raise pytest.UsageError(f"--collective-size={text}: wanted sizes such as 1MB,10MB or 1GB")
        found[text] = int(number) * _UNITS[unit]
    return found


def check_choices(config: pytest.Config) -> None:
    """Refuse what cannot be run, in one line.

    Raises:
        pytest.UsageError: an option's value, with what was wanted.
    """
    named = _models(config, "--model")
    if not named:
        raise pytest.UsageError("--model: no name; give one or more, such as --model=small,medium, or all")
    _check_models("--model", named)
    study_models = _models(config, "--study-model")
    if len(study_models) > 1 or ALL in _listed(config, "--study-model"):
        given: str = config.getoption("--study-model")
        raise pytest.UsageError(f"--study-model={given}: wanted one model, such as --study-model=small")
    _check_models("--study-model", study_models)
    collective_sizes(config)
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


def _models(config: pytest.Config, option: str) -> list[str]:
    """Names of models; a part `field=value` is a setting of the one before it: small,mixer=mamba,2.7B are two.

    Raises:
        pytest.UsageError: a setting comes first, or follows a model of the user's own.
    """
    groups: list[list[str]] = []
    for part in _listed(config, option):
        if "=" not in part:
            groups.append(_published_sizes() if part == ALL else [part])
            continue
        if not groups or ":" in groups[-1][0]:
            behind = f"behind {groups[-1][0]}, a model of your own" if groups else "before any model"
            raise pytest.UsageError(
                f"{option}: {part} {behind}; settings are of the lab's models, whose name they follow: "
                f"{option}=small,{part}"
            )
        groups[-1] = [f"{name}+{part}" for name in groups[-1]]
    return [name for group in groups for name in group]


def _check_models(option: str, names: list[str]) -> None:
    """Sizes are looked up only where one was named: that loads PyTorch."""
    for name in names:
        if name in ("tiny", "small") or ":" in name:
            continue
        from perflab.lab.models import size_config

        try:
            size_config(name)
        except (TypeError, ValueError) as error:
            raise pytest.UsageError(f"{option}: {error}") from None


def _published_sizes() -> list[str]:
    from perflab.lab.models import MODEL_SIZES

    return [name for name in MODEL_SIZES if name not in ("tiny", "70B")]
