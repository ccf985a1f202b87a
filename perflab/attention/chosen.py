"""Finds the candidates of a run from the value of --attention.

pytest -m correctness --attention=tiled,triton
pytest -m correctness --attention=my_package.my_module:flash
"""

import importlib
import sys
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
import torch

from perflab.attention.candidate import Candidate, CandidateError, from_callable, from_registry, runs_on
from perflab.base.errors import PerflabError
from perflab.devices.kinds import resolve_device
from perflab.lab.attention import IMPLEMENTATIONS, PROVEN
from perflab.running.config.kinds import worker_number
from perflab.running.config.reading import settings_of


def attention_candidates(config: pytest.Config, device: torch.device | None = None) -> tuple[Candidate, ...]:
    """Return the candidates that --attention names, or all proven variants; each is looked up once for a device.

    The device is the session's if none is given. UsageError for a name that is no candidate.
    """
    given = config.getoption("--attention")
    try:
        device = device or resolve_device(settings_of(config).device, worker_number(config))
        return find_candidates(given, device, Path.cwd())
    except (CandidateError, PerflabError) as error:
        raise pytest.UsageError(f"--attention: {error}" if given else str(error)) from None


def find_candidates(given: str, device: torch.device, folder: Path) -> tuple[Candidate, ...]:
    """Return the candidates that `given` names, separated by commas; if empty, all proven variants that the device has.

    Modules are imported from the import path, and from `folder`. CandidateError says what is wrong with a name.
    """
    names = [name.strip() for name in given.split(",") if name.strip()]
    if not names:
        return tuple(from_registry(name, device) for name in PROVEN if name != "reference" and runs_on(name, device))
    return tuple(_find(name, device, folder) for name in names)


@lru_cache
def _find(name: str, device: torch.device, folder: Path) -> Candidate:
    if name in IMPLEMENTATIONS:
        if not runs_on(name, device):
            raise CandidateError(f"the variant {name!r} does not exist on {device.type}")
        return from_registry(name, device)
    return from_callable(name, load(name, folder), device)


def load(name: str, folder: Path) -> Any:
    """Return the callable that `package.module:function` names. CandidateError says what is missing, and the remedy."""
    module_name, colon, path = name.partition(":")
    if not colon or not module_name or not path:
        raise CandidateError(
            f"{name!r} is not a variant; wanted one of {', '.join(IMPLEMENTATIONS)}, or package.module:function "
            f"for a kernel of your own"
        )
    if str(folder) not in sys.path:
        sys.path.append(str(folder))  # last, so that a module of the reader's hides none of ours
    try:
        found: Any = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise CandidateError(f"{module_name!r} imports {error.name!r}, which is not installed") from error
        raise CandidateError(
            f"there is no module {error.name!r} in {folder} or on the import path; "
            f"start pytest where it is, or set PYTHONPATH"
        ) from None
    except Exception as error:
        raise CandidateError(f"importing {module_name!r} raised {type(error).__name__}: {error}") from error
    for part in path.split("."):
        if not hasattr(found, part):
            public = ", ".join(key for key in vars(found) if not key.startswith("_") and callable(vars(found)[key]))
            raise CandidateError(f"{module_name!r} has no {path!r}; it has {public or 'no callable'}")
        found = getattr(found, part)
    if not callable(found):
        raise CandidateError(f"{name!r} is a {type(found).__name__}, wanted a callable f(q, k, v, *, is_causal, scale)")
    return found
