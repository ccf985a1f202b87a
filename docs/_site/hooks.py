"""What the documentation's builder adds to the pages in docs/: the API, the map of files, and pages from elsewhere.

mkdocs loads this file (``hooks`` in ``mkdocs.yml``). It reads source text and imports nothing of perflab.
"""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Iterator
from pathlib import Path
from posixpath import dirname, normpath, relpath
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[2]
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
"""The public modules, in the order of the API's page."""
ELSEWHERE = {
    "DESIGN.md": "design.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "README.md": "about.md",
    "nocuda/README.md": "nocuda.md",
}
"""Pages that do not stand in docs/ -> their places in the site."""
_PLACES = {place: path for path, place in ELSEWHERE.items()}
_LINK = re.compile(r"\[([^\]]*)\]\((?!https?:|mailto:|#|<)([^)#\s]+)(#[^)\s]*)?\)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are made when the site is built, and those that stand elsewhere."""
    from mkdocs.structure.files import File

    made = {"api.md": api(), "files.md": file_map()}
    made |= {place: (ROOT / path).read_text(encoding="utf-8") for path, place in ELSEWHERE.items()}
    for place, text in made.items():
        files.append(File.generated(config, place, content=text))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Lead links between files of the repository to their pages, or to the repository where there is no page."""
    place = page.file.src_uri
    return _LINK.sub(lambda link: _led(link, place), markdown)


def _led(link: re.Match[str], place: str) -> str:
    text, target, anchor = link[1], link[2], link[3] or ""
    path = normpath(f"{dirname(_PLACES.get(place, f'docs/{place}'))}/{target}").lstrip("/")
    if path in ELSEWHERE:
        return f"[{text}]({relpath(ELSEWHERE[path], dirname(place) or '.')}{anchor})"
    if path.startswith("docs/") and (ROOT / path).is_file():
        return f"[{text}]({relpath(path.removeprefix('docs/'), dirname(place) or '.')}{anchor})"
    repository = os.environ.get("GITHUB_REPOSITORY")
    if not (ROOT / path).exists():
        return link[0]  # the builder says that it leads nowhere
    return text if repository is None else f"[{text}](https://github.com/{repository}/blob/main/{path}{anchor})"


def api() -> str:
    """Return the page of every public name; the builder fills in signatures and docstrings."""
    parts = ["# API\n\nEvery public name, by the module to import it from.\n"]
    for module in MODULES:
        first = _docstring(module).split("\n\n")[0].replace("``", "`")
        parts.append(f"## `{module}`\n\n{first}\n")
        parts += [f"::: {home}.{name}\n" for name, home in _public(module)]
    return "\n".join(parts)


def file_map() -> str:
    """Return the page with the first line of each module, by its folder."""
    lines = ["# Files\n\nEvery module of the packages, with the first line of its docstring.\n"]
    for package in (one.parent for name in ("perflab", "nocuda") for one in sorted((ROOT / name).rglob("__init__.py"))):
        name = package.relative_to(ROOT).as_posix()
        lines.append(f"\n## {name}/\n\n{_first_line(name)}\n")
        modules = [path for path in sorted(package.glob("*.py")) if path.name != "__init__.py"]
        lines += [f"- `{path.name}`: {_first_line(f'{name}/{path.stem}')}" for path in modules]
    return "\n".join(lines) + "\n"


def _public(module: str) -> Iterator[tuple[str, str]]:
    """Yield each public name, and the module that defines it: names in ``__all__``, else what the module defines."""
    body = ast.parse(_source(module)).body
    homes = {alias.asname or alias.name: str(node.module) for node in _imports(body) for alias in node.names}
    for node in body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            names = sorted(name for name in ast.literal_eval(node.value) if not name.startswith("__"))
            yield from ((name, _home(name, homes.get(name, module))) for name in names)
            return
    kinds = (ast.FunctionDef, ast.ClassDef)
    yield from ((one.name, module) for one in body if isinstance(one, kinds) and not one.name.startswith("_"))


def _home(name: str, module: str) -> str:
    """Return the module that defines a name, where ``module`` may only import it."""
    imports = _imports(ast.parse(_source(module)).body)
    homes = {alias.asname or alias.name: str(one.module) for one in imports for alias in one.names}
    return _home(name, homes[name]) if name in homes else module


def _imports(body: list[ast.stmt]) -> Iterator[ast.ImportFrom]:
    for node in body:
        if isinstance(node, ast.If):
            yield from _imports(node.body)
        elif isinstance(node, ast.ImportFrom):
            yield node


def _docstring(module: str) -> str:
    return ast.get_docstring(ast.parse(_source(module))) or ""


def _first_line(module: str) -> str:
    return " ".join(_docstring(module).partition("\n\n")[0].split()).replace("``", "`")


def _source(module: str) -> str:
    path = ROOT.joinpath(*re.split(r"[./]", module))
    package = path / "__init__.py"  # a folder alone may be what is left of one, with its __pycache__
    return (package if package.is_file() else path.with_suffix(".py")).read_text(encoding="utf-8")
