"""A module of plain Python, and single edits of it, each with the function and the line that are its cause."""

from __future__ import annotations

from dataclasses import dataclass

MODULE = '''"""Reads, cleans and writes records."""
import copy
import json
import logging
import re

LOG = logging.getLogger("records")
WORD = re.compile(r"[a-z]+")


class Record:
    def __init__(self, number, text):
        self.number = number
        self.text = text
        self.tags = [number % 3, number % 5, number % 7]


class Wide(Record):
    pass


def read(count):
    found = []
    for number in range(count):
        kind = Wide if number % 4 == 0 else Record
        found.append(kind(number, f"some text {number % 180} of a record"))
    return found


def words(record):
    return WORD.findall(record.text)


def distinct(records):
    seen = set()
    kept = []
    for record in records:
        if record.text not in seen:
            seen.add(record.text)
            kept.append(record)
    return kept


def weight(record):
    total = 0
    for tag in record.tags:
        total += tag * tag
    return total


def score(records):
    total = 0
    for record in records:
        total += weight(record)
    return total


WEIGHTS = {Record: 1, Wide: 2}


def kinds(records):
    counted = 0
    for record in records:
        counted += WEIGHTS[type(record)]
    return counted


def written(records):
    lines = []
    for record in records:
        lines.append(record.text)
    return "".join(lines)


def run(count=400):
    records = read(count)
    kept = distinct(records)
    found = [words(record) for record in kept]
    total = score(records)
    return len(found), total, kinds(records), len(written(records))
'''


@dataclass(frozen=True)
class Edit:
    """What is written instead of what, and what an explanation has to name first."""

    name: str
    old: str
    new: str
    function: str
    at: tuple[str, ...]
    """Texts of lines, any of which is right."""

    @property
    def module(self) -> str:
        """The module with the edit."""
        assert MODULE.count(self.old) == 1, self.name
        return MODULE.replace(self.old, self.new)

    def is_at(self, line: str) -> bool:
        """Whether a line, ``records.py:12``, is one of those."""
        number = int(line.rpartition(":")[2] or 0)
        lines = self.module.split("\n")
        return 0 < number <= len(lines) and lines[number - 1].strip() in self.at


EDITS = (
    Edit(
        "a loop that does more",
        "    for tag in record.tags:\n",
        "    for tag in record.tags * 12:\n",
        "weight",
        ("for tag in record.tags * 12:", "total += tag * tag"),
    ),
    Edit(
        "a list instead of a set",
        "    seen = set()\n    kept = []\n    for record in records:\n        if record.text not in seen:\n"
        "            seen.add(record.text)\n",
        "    seen = []\n    kept = []\n    for record in records:\n        if record.text not in seen:\n"
        "            seen.append(record.text)\n",
        "distinct",
        ("if record.text not in seen:", "seen = []", "seen.append(record.text)"),
    ),
    Edit(
        "json.dumps added",
        "        lines.append(record.text)\n",
        "        lines.append(json.dumps({'n': record.number, 'text': record.text}))\n",
        "written",
        ("lines.append(json.dumps({'n': record.number, 'text': record.text}))",),
    ),
    Edit(
        "a sort added",
        '    return "".join(lines)\n',
        '    for _ in range(40):\n        lines = sorted(lines, key=str.upper)\n    return "".join(lines)\n',
        "written",
        ("lines = sorted(lines, key=str.upper)",),
    ),
    Edit(
        "a sort in a loop",
        "        total += weight(record)\n",
        "        total += weight(record)\n        ranked = sorted(records, key=id)\n",
        "score",
        ("ranked = sorted(records, key=id)",),
    ),
    Edit(
        "a regex compiled in a loop",
        "    return WORD.findall(record.text)\n",
        '    return re.compile(rf"[a-z]+|{record.number}").findall(record.text)\n',
        "words",
        ('return re.compile(rf"[a-z]+|{record.number}").findall(record.text)',),
    ),
    Edit(
        "a function called twice",
        "    total = score(records)\n",
        "    total = score(records)\n    total = max(total, score(records))\n",
        "run",
        ("total = max(total, score(records))",),
    ),
    Edit(
        "a function called twice on its line",
        "        total += weight(record)\n",
        "        total += weight(record) + weight(record)\n",
        "score",
        ("total += weight(record) + weight(record)",),
    ),
    Edit(
        "logging in a loop",
        "        counted += WEIGHTS[type(record)]\n",
        '        counted += WEIGHTS[type(record)]\n        LOG.debug("counted %s", counted)\n',
        "kinds",
        ('LOG.debug("counted %s", counted)',),
    ),
    Edit(
        "deepcopy",
        "    kept = distinct(records)\n",
        "    kept = distinct(copy.deepcopy(records))\n",
        "run",
        ("kept = distinct(copy.deepcopy(records))",),
    ),
    Edit(
        "a string put together bit by bit",
        '    lines = []\n    for record in records:\n        lines.append(record.text)\n    return "".join(lines)\n',
        '    text = ""\n    for record in records:\n        for character in record.text:\n'
        "            text = text + character\n    return text\n",
        "written",
        ("text = text + character", "for character in record.text:"),
    ),
    Edit(
        "dispatch by isinstance",
        "        counted += WEIGHTS[type(record)]\n",
        "        for kind, weighs in sorted(WEIGHTS.items(), key=lambda item: -item[1]):\n"
        "            if isinstance(record, kind):\n                counted += weighs\n                break\n",
        "kinds",
        (
            "for kind, weighs in sorted(WEIGHTS.items(), key=lambda item: -item[1]):",
            "if isinstance(record, kind):",
        ),
    ),
    Edit(
        "more records",
        "def run(count=400):\n",
        "def run(count=700):\n",
        "read",
        ("for number in range(count):", 'found.append(kind(number, f"some text {number % 180} of a record"))'),
    ),
    Edit(
        "the same again for each record",
        "        counted += WEIGHTS[type(record)]\n",
        "        counted += WEIGHTS[type(record)] + len(words(record))\n",
        "kinds",
        ("counted += WEIGHTS[type(record)] + len(words(record))",),
    ),
)
