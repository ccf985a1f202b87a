"""A text of source files as passages, and questions about it with the passage that answers each.

The text is that of `perflab.lab.train.text`: bytes, files set apart by `SEPARATOR`. Passages have no gap or overlap,
and none reaches over the edge of a file. What is asked occurs once in the text, so that one passage is the right one.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from perflab.lab.train.text import SEPARATOR

DOCUMENTED = re.compile(rb'def (\w+)\([^\n]*:\n +"""([^\n"]{24,})')
"""A function's name, and the first line of its docstring."""
CODE = re.compile(rb"\n +((?=[^\n]*(?: = |\(\w))[^\s#\"'][^\n]{35,})(?=\n)")
"""A whole line that assigns or calls, without its indent."""


class Question(NamedTuple):
    """A question with its answer, and the number of the passage that holds the answer."""

    asked: bytes
    answer: bytes
    passage: int


def split_passages(text: bytes, max_bytes: int = 512) -> list[bytes]:
    """Cut a text into passages of 1 to `max_bytes` bytes: behind an empty line in the second half of one, else behind a
    line, and within a line only where it is longer than a passage. ValueError if there is nothing to cut.
    """
    if max_bytes < 1 or not text.strip(SEPARATOR):
        raise ValueError(f"{len(text)} bytes with max_bytes={max_bytes}: wanted text, and passages of 1 byte or more")
    found = []
    for content in text.split(SEPARATOR):
        at = 0
        while at < len(content):
            stop = at + max_bytes
            if stop < len(content):
                blank = content.rfind(b"\n\n", at + max_bytes // 2, stop)
                stop = blank + 2 if blank >= 0 else content.rfind(b"\n", at, stop) + 1 or stop
            found.append(content[at:stop])
            at = stop
    return found


def function_questions(text: bytes, passages: Sequence[bytes], number: int) -> list[Question]:
    """Ask which function does what its docstring's first line says: evenly spread. ValueError if there are fewer."""
    found = [(at, match) for at, passage in enumerate(passages) for match in DOCUMENTED.finditer(passage)]
    return _spread([Question(m[2].strip(), m[1], at) for at, m in found if text.count(m[2].strip()) == 1], number)


def code_completions(text: bytes, passages: Sequence[bytes], number: int) -> list[Question]:
    """Ask for the last third of a line of code, given the first two: evenly spread. ValueError if there are fewer."""
    found = [(at, match[1]) for at, passage in enumerate(passages) if (match := CODE.search(passage))]
    cut = [Question(line[: len(line) * 2 // 3], line[len(line) * 2 // 3 :], at) for at, line in found]
    return _spread([question for question in cut if text.count(question.asked) == 1], number)


def _spread(found: Sequence[Question], number: int) -> list[Question]:
    if not 1 <= number <= len(found):
        raise ValueError(f"number={number}: wanted 1 to {len(found)}, the questions that the text has; give more text")
    return [found[at * len(found) // number] for at in range(number)]
