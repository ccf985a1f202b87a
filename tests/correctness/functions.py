"""Which function a line of code stands in: lines move when a file is edited, and functions keep their names."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

_Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def function_at(line: str) -> str:
    """``net.py:Net.forward`` of ``net.py:9``; the file alone, ``net.py:``, of a line in no function."""
    file, _, number = line.rpartition(":")
    return f"{file}:{_around(file).get(int(number), '')}" if number.isdecimal() else ""


@cache
def _around(file: str) -> dict[int, str]:
    """The innermost function or class of each line that has one."""
    found: dict[int, str] = {}

    def visit(node: ast.AST, name: str) -> None:
        for child in ast.iter_child_nodes(node):
            inner = f"{name}.{child.name}".lstrip(".") if isinstance(child, _Function) else name
            if isinstance(child, _Function):
                found.update(dict.fromkeys(range(child.lineno, (child.end_lineno or child.lineno) + 1), inner))
            visit(child, inner)

    visit(ast.parse(Path(file).read_text()), "")
    return found
