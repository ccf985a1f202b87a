"""What the study of mixers compares: each mixer, and a mixture of experts, at the parameters of the same model with
attention; and the lines of code that each is made of.
"""

from __future__ import annotations

import ast
import importlib.util
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from perflab.lab.models import MIXERS, ModelConfig, parameter_count
from perflab.lab.models.mixers import ATTENTION, FEED_FORWARDS

from .switches import Switch

EXPERTS, TWIN = "experts", "attention, seed 1"
NAMES = (ATTENTION, TWIN, *(name for name in MIXERS if name != ATTENTION), EXPERTS)
"""Attention first, which the others are held against, and once more from other weights and batches."""
WITHIN_SHARE = 0.02
"""How far parameters may lie apart."""
_D_FF_STEP = 8
"""Widths of the feed-forward that are tried: multiples of this, which two experts a token divide."""
_TARGETS = {ATTENTION: "perflab.lab.attention", TWIN: "perflab.lab.attention", EXPERTS: FEED_FORWARDS["moe"]}


def mixer_switch(name: str, base: ModelConfig) -> Switch:
    """The model `base`, which has attention, with this mixer, or with experts, at `base`'s context.

    The feed-forward is as wide as makes up for the parameters that the mixer has more, or fewer, than attention; where
    it would vanish there are fewer layers.

    Raises:
        ValueError: no width and number of layers gives as many parameters, or the mixer refuses a field of `base`.
    """
    switch = Switch(f"{name} at {base.context_length}", context_length=base.context_length)
    if name in (ATTENTION, TWIN):
        return replace(switch, seed=int(name == TWIN))
    what: dict[str, Any] = {"feed_forward": "moe"} if name == EXPERTS else {"mixer": name}
    wanted = parameter_count(base)
    for num_layers in range(base.num_layers, 0, -1):
        narrow, wider = (
            parameter_count(replace(base, d_ff=d_ff, num_layers=num_layers, **what))
            for d_ff in (_D_FF_STEP, 2 * _D_FF_STEP)
        )
        d_ff = _D_FF_STEP * (1 + round((wanted - narrow) / (wider - narrow)))
        if d_ff < _D_FF_STEP:
            continue
        changes = {**what, "d_ff": d_ff, "num_layers": num_layers}
        if abs(parameter_count(replace(base, **changes)) / wanted - 1) <= WITHIN_SHARE:
            against = f"{ATTENTION} at {base.context_length}"
            return replace(switch, model=changes, against=against)
    raise ValueError(f"{name}: no d_ff and num_layers give {wanted:,} parameters within {WITHIN_SHARE:.0%}")


@cache
def code_lines(name: str) -> int:
    """Lines of the files that a mixer is made of: those of its folder that its module imports, and so on; of attention
    all variants, of experts all products.
    """
    first = (_TARGETS.get(name) or str(MIXERS[name].target)).partition(":")[0]
    folder = first if _file(first).name == "__init__.py" else first.rpartition(".")[0]
    found: dict[str, int] = {}
    waiting = [first]
    while waiting:
        module = waiting.pop()
        if module not in found and (module == folder or module.startswith(f"{folder}.")):
            source = _file(module).read_text(encoding="utf-8")
            found[module] = len(source.splitlines())
            waiting += _imported(source)
    return sum(found.values())


def _imported(source: str) -> Iterator[str]:
    """Modules that a source imports, wherever in it, or names as "package.module:name"."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module
            yield from (name for one in node.names if _is_module(name := f"{node.module}.{one.name}"))


def _is_module(name: str) -> bool:
    if not name.startswith("perflab.lab."):
        return False
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:  # its parent is no package
        return False


def _file(module: str) -> Path:
    spec = importlib.util.find_spec(module)
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin)
