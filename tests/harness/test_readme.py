"""The README's map names every file of the package, and it is installed from where it is."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_map_names_every_module_and_no_other() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    drawn = text.split("## Map", 1)[1].split("```")[1]
    words = {word.rsplit("/", 1)[-1] for word in drawn.replace(",", " ").split() if word.endswith(".py")}
    modules = {path.name for path in (ROOT / "perflab").rglob("*.py")}
    assert modules - words - {"__init__.py"} == set()
    assert words - modules - {"conftest.py", "wrong_kernels.py"} == set()


def test_it_is_installed_from_the_repository_as_long_as_no_index_has_it() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    workflows = [path.read_text(encoding="utf-8") for path in (ROOT / "docs").glob("github-workflow*.yml")]
    named = [
        re.findall(r"(\S*perflab\[[^]]*\])(.*)", text) for text in (readme.split("## In your project")[1], *workflows)
    ]
    assert len(named) == 4
    for found in named:
        assert found
        for name, rest in found:
            assert name.strip("\"'").startswith("./") or rest.startswith(" @ git+https://")
