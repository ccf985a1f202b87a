"""docs/files.md: every module of the packages with its first line. ``make map`` writes it anew."""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "files.md"
_HEAD = """\
# Files

Every module of the packages, with the first line of its docstring. Written by `make map`.
"""


def drawn() -> str:
    """The page as it should be."""
    lines = [_HEAD]
    packages = [path.parent for name in ("perflab", "nocuda") for path in sorted((ROOT / name).rglob("__init__.py"))]
    for package in packages:
        name = package.relative_to(ROOT).as_posix()
        lines += [f"## {name}/\n", f"{_first_line(package / '__init__.py')}\n"]
        modules = [path for path in sorted(package.glob("*.py")) if path.name != "__init__.py"]
        lines += [f"- `{path.name}`: {_first_line(path)}" for path in modules]
        lines += [""] * bool(modules)
    return "\n".join(lines).rstrip("\n") + "\n"


def _first_line(path: Path) -> str:
    text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    return " ".join(text.partition("\n\n")[0].split()).replace("``", "`")


if __name__ == "__main__":
    PAGE.write_text(drawn(), encoding="utf-8")
