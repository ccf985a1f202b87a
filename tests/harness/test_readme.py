"""The README's map names every file of the package."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_map_names_every_module_and_no_other() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    drawn = text.split("## Map", 1)[1].split("```")[1]
    words = {word.rsplit("/", 1)[-1] for word in drawn.replace(",", " ").split() if word.endswith(".py")}
    modules = {path.name for path in (ROOT / "perflab").rglob("*.py")}
    assert modules - words - {"__init__.py"} == set()
    assert words - modules - {"conftest.py", "wrong_kernels.py"} == set()
