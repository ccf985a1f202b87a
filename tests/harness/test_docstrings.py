"""Docstrings stand alone: none begins with a word that leans on the code around it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

HOUSE = Path(__file__).parents[2] / "perflab"
LEANING = re.compile(
    r"\s*(What|Of|That|Those|These|This|It|Its|They|Their|As|And|Or|Else|Than|To|For|By|From|In|On|At|With|Without|Until"
    r"|Before|After|Both|Same|So|Such|Which|Who|Where|Here|There|None|Nothing|Nobody|Everything|All|Each|More|Most"
    r"|Then)\b"
)
"""First words of fragments: "Of the device it is on", "As it was asked for", "What a call keeps"."""
OF_KERNELS = re.compile(r"lab/\w+/triton_\w+\.py")
"""Kernels and launches, whose digests and compiled code a docstring changes: rewritten when they change."""


def docstrings(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Line and text of each docstring of functions, classes, and names that are assigned; modules' left out."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            text = ast.get_docstring(node)
            if text is not None:
                yield node.body[0].lineno, text
        body = getattr(node, "body", None)
        for one, below in pairwise(body) if isinstance(body, list) else ():
            if isinstance(one, ast.Assign | ast.AnnAssign) and isinstance(below, ast.Expr):
                text = getattr(below.value, "value", None)
                if isinstance(text, str):
                    yield below.lineno, text


def leaning(source: str) -> list[tuple[int, str]]:
    """The docstrings of a source text that begin with a leaning word: lines and first lines of the texts."""
    found = [(line, text.strip().partition("\n")[0]) for line, text in docstrings(ast.parse(source))]
    return sorted((line, first) for line, first in found if LEANING.match(first))


def test_no_docstring_begins_with_a_word_that_leans_on_what_is_around_it() -> None:
    sources = {path.relative_to(HOUSE).as_posix(): path.read_text(encoding="utf-8") for path in HOUSE.rglob("*.py")}
    assert len(sources) > 400
    found = {file: leaning(source) for file, source in sources.items() if not OF_KERNELS.fullmatch(file)}
    assert {file: lines for file, lines in found.items() if lines} == {}


def test_the_rule_sees_functions_classes_and_names() -> None:
    source = (
        'def f():\n    """What is left."""\n\nclass C:\n    """Of a call."""\n\n    held: int\n    """As asked."""\n'
        'x = 1\n"""Its name."""\n\ndef g():\n    """Return the name."""\n\ny = 2\n"""The settings."""\n'
    )
    assert [line for line, _ in leaning(source)] == [2, 5, 8, 10]
