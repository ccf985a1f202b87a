"""Traces on disk, so that each is made once: what a pass needs does not change while its code does not.

A file is named by all that its numbers depend on: configuration, pass, PyTorch's version, and the sources of the lab
and of the mixer. A file that cannot be read is made anew, and one that cannot be written is left out.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import os
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import torch

from perflab.lab.files import written_whole
from perflab.lab.models.config import ModelConfig
from perflab.lab.models.mixers import target_of

LAB = Path(__file__).parents[1]
Numbers = dict[str, dict[str, int]]


def remembered(trace: Callable[[ModelConfig, Any], Numbers], config: ModelConfig, one: object) -> Numbers:
    """`trace(config, one)`, from its file or into it. `config` and `one` are told apart by their `repr`."""
    path = _folder() / f"{_digest(config, one)}.json"
    try:
        found = json.loads(path.read_bytes())
        return {stage: {name: int(size) for name, size in parts.items()} for stage, parts in found.items()}
    except (OSError, ValueError, AttributeError):
        pass  # not there, or not whole
    numbers = trace(config, one)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with written_whole(path) as file:
            file.write(json.dumps(numbers).encode())
    except OSError:
        pass  # a home that cannot be written to: traced again next time
    return numbers


def _folder() -> Path:
    """Return the folder for files that can be made again (XDG Base Directory Specification)."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "perflab" / "memory"


def _digest(config: ModelConfig, one: object) -> str:
    mixer = inspect.getsourcefile(inspect.unwrap(target_of(config)))
    of_mixer = "" if mixer is None else Path(mixer).read_text(encoding="utf-8")
    versions = torch.__version__, sys.version_info[:2], _lab_source()
    return hashlib.sha256(repr((versions, of_mixer, config, one)).encode()).hexdigest()[:32]


@cache
def _lab_source() -> str:
    digest = hashlib.sha256()
    for path in sorted(LAB.rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()
