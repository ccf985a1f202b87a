"""docs/api.md, made of the docstrings of all public names.

python -m tests.harness.write_api      # from the repository's root

It reads source text and imports nothing: so the page is the same with every version of Python and PyTorch.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "api.md"
MODULES = (
    "perflab",
    "perflab.correctness",
    "perflab.attention.candidate",
    "perflab.attention.chosen",
    "perflab.attention.grid",
    "perflab.attention.hold",
    "perflab.instruments",
    "perflab.serving",
    "perflab.units",
    "perflab.lab.attention",
    "perflab.lab.kernels",
    "perflab.lab.models",
    "perflab.lab.train",
)
HEAD = """# API

Every public name with its signature and docstring, made by `python -m tests.harness.write_api`. Import a name from the
module that heads its section.
"""


def page() -> str:
    """The page as it should be."""
    return "\n".join([HEAD, *(section(module) for module in MODULES)])


def section(module: str) -> str:
    """One module: its docstring's first paragraph, and each of its public names."""
    first = (ast.get_docstring(tree(module)) or "").split("\n\n")[0]
    shown = [f"### `{name}`\n\n```python\n{stub(module, name)}\n```\n" for name in public(module)]
    return "\n".join([f"## `{module}`\n\n{first}\n", *shown])


def public(module: str) -> list[str]:
    """The names in ``__all__``; of a module without one, the functions and classes that it defines."""
    for node in tree(module).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return sorted(name for name in ast.literal_eval(node.value) if not name.startswith("__"))
    defined = [node.name for node in tree(module).body if isinstance(node, ast.FunctionDef | ast.ClassDef)]
    return [name for name in defined if not name.startswith("_")]


def stub(module: str, name: str) -> str:
    """A name's definition without its code, as it stands in the source.

    Raises:
        LookupError: the module neither defines nor imports it.
    """
    body = list(_statements(tree(module).body))
    for number, node in enumerate(body):
        if isinstance(node, ast.ImportFrom) and name in [alias.asname or alias.name for alias in node.names]:
            return stub(str(node.module), name)
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name == name:
            return re.sub(r"\n{3,}", "\n\n", "\n".join(_definition(node, lines(module)))).rstrip()
        target = _target(node)
        if target is not None and ast.unparse(target) == name:
            annotation = f": {ast.unparse(node.annotation)}" if isinstance(node, ast.AnnAssign) else " = ..."
            return "\n".join([f"{name}{annotation}", *_docstring(body[number + 1 : number + 2], lines(module))])
    raise LookupError(f"{module} has no {name}")


def _target(node: ast.stmt) -> ast.expr | None:
    """What a statement assigns to."""
    if isinstance(node, ast.AnnAssign):
        return node.target
    return node.targets[0] if isinstance(node, ast.Assign) else None


def _statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    for node in body:
        if isinstance(node, ast.If):
            yield from _statements(node.body)
        yield node


def _definition(node: ast.FunctionDef | ast.ClassDef, source: list[str]) -> Iterator[str]:
    first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
    yield from source[first - 1 : node.body[0].lineno - 1]
    yield from _docstring(node.body[:1], source)
    if isinstance(node, ast.FunctionDef):
        return
    yield ""
    for member, after in zip(node.body, [*node.body[1:], None], strict=True):
        target = _target(member)
        if target is not None and not ast.unparse(target).startswith("_"):
            yield from source[member.lineno - 1 : member.end_lineno]
            yield from _docstring([after] if after is not None else [], source)
        if isinstance(member, ast.FunctionDef) and (not member.name.startswith("_") or member.name == "__call__"):
            yield ""
            yield from _definition(member, source)


def _docstring(body: list[ast.stmt], source: list[str]) -> list[str]:
    """The lines of a statement that is a string alone."""
    for node in body:
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            return source[node.lineno - 1 : node.end_lineno]
    return []


@cache
def tree(module: str) -> ast.Module:
    """A module's source, parsed."""
    return ast.parse("\n".join(lines(module)))


@cache
def lines(module: str) -> list[str]:
    """A module's source."""
    path = ROOT.joinpath(*module.split("."))
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    return file.read_text(encoding="utf-8").splitlines()


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
