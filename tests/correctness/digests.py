"""Which kernels have to be checked again: those that differ from the committed digests, and each day another fortieth.

A digest is of what a result depends on: the statements of a kernel and of everything of this repository that it
calls, without comments and docstrings, with the constants that they read; its arguments; the configuration; Triton's
version. `kernels.digests.json` holds those that `make kernels` has compiled and proven. PERFLAB_KERNELS=all checks
everything, PERFLAB_ROTATION=7 the fortieth of that day.
"""

import ast
import hashlib
import inspect
import json
import os
import textwrap
import types
import zlib
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

from torch import Tensor

FILE = Path(__file__).with_name("kernels.digests.json")
PARTS = 40
_OURS = ("perflab.", "tests.")
_CONSTANT = (int, float, str, tuple, dict)


def digest(code: tuple[Any, ...], *facts: object) -> str:
    """A short hash of functions or kernels, with all that they call, and of facts."""
    # By their functions: a kernel in Gluon, which calls others, has no hash where these are interpreted.
    functions = tuple(getattr(one, "fn", one) for one in code)
    return hashlib.sha256(repr((_sources(functions), facts, version("triton"))).encode()).hexdigest()[:12]


def arguments_digest(kernel: Any, arguments: Mapping[str, Any], *facts: object) -> str:
    """That of a kernel with the arguments of a launch: tensors count by dtype, shape and strides."""
    # Whether the interpreter runs it is of this process, and not of what is compiled.
    given = {name: _fact(value) for name, value in sorted(arguments.items()) if name != "EMULATE_BF16"}
    return digest((kernel,), given, *facts)


def rotation() -> int:
    """Whose turn it is today, 0 to 39."""
    return int(os.environ.get("PERFLAB_ROTATION") or datetime.now(UTC).toordinal()) % PARTS


def is_due(name: str, now: str) -> bool:
    """Whether what has this digest now is to be checked in this run."""
    if os.environ.get("PERFLAB_KERNELS") == "all" or proven().get(name) != now:
        return True
    return turn_of(name) == rotation()


def turn_of(name: str) -> int:
    """On which of forty days an unchanged one is checked: the same in every process."""
    return zlib.crc32(name.encode()) % PARTS


@cache
def proven() -> Mapping[str, str]:
    """The committed digests by name."""
    return dict(json.loads(FILE.read_text(encoding="utf-8"))) if FILE.exists() else {}


def write(digests: Mapping[str, str]) -> None:
    """Replace the committed digests."""
    FILE.write_text(json.dumps(digests, indent=0, sort_keys=True) + "\n", encoding="utf-8")


@cache
def _sources(code: tuple[Any, ...]) -> str:
    found: dict[str, str] = {}

    def visit(one: Any) -> None:
        function = getattr(one, "fn", one)  # of a kernel, compiled or interpreted
        if not inspect.isfunction(function) or not function.__module__.startswith(_OURS):
            return
        name = f"{function.__module__}.{function.__qualname__}"
        if name in found:
            return
        found[name] = statements(inspect.getsource(function))
        for read in _names(function.__code__):
            value = function.__globals__.get(read)
            if isinstance(value, _CONSTANT) and " at 0x" not in repr(value):
                found[f"{function.__module__}.{read}"] = repr(value)
            else:
                visit(value)

    for one in code:
        visit(one)
    return repr(sorted(found.items()))


def statements(source: str) -> str:
    """A function's source without comments, docstrings and layout, none of which changes what it does."""
    tree = ast.parse(textwrap.dedent(source))
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and ast.get_docstring(node) is not None:
            node.body = node.body[1:] or [ast.Pass()]
    return ast.unparse(tree)


def _names(code: types.CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names(constant)


def _fact(value: Any) -> object:
    base = getattr(value, "base", None)
    if isinstance(base, Tensor):  # a tensor descriptor
        return _fact(base), list(value.block_shape)
    if isinstance(value, Tensor):
        return str(value.dtype), tuple(value.shape), value.stride()
    return repr(value)
