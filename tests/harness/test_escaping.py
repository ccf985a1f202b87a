"""Hostile text in every field that a user can fill: none of it acts on a terminal, in Markdown, or as a file's name."""

from __future__ import annotations

import html
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

from perflab.base.data import Data, changed, with_texts
from perflab.measured.report.failure import explain
from perflab.report.summary import markdown, summary
from perflab.results.documents import read_document, write_document
from perflab.results.result import Document
from perflab.running.config.folder import file_name_for
from perflab.store.case_files import module_of
from perflab.tables.escaping import code, escape, lines_of, one_line
from tests.attack import HOSTILE
from tests.harness.test_damage import run_of_everything

MARK = "zqx"
"""Stands at both ends of a hostile text, so that it is found wherever it is shown."""


def hostile(text: str) -> Document:
    """A run in which each text is hostile, keys and titles included; what has a meaning of its own stays."""
    whole = run_of_everything()
    kept = {"cpu", "host", "--perf-budget", "impl", "impl=one", "flops", "tokens", "tokens/s", "memory", "latency"}
    kept |= {"warm", "mean", "quoted", "MFU", "counts", "forward", "backward", "operators", "optimizer"}
    return with_texts(whole, lambda old: old if old in kept else f"{old}{MARK}{text}{MARK}")


def texts_of(value: Any) -> list[str]:
    if isinstance(value, str):
        return [value]
    if isinstance(value, dict):
        return [text for pair in value.items() for one in pair for text in texts_of(one)]
    if isinstance(value, list):
        return [text for one in value for text in texts_of(one)]
    return texts_of(msgspec.to_builtins(value)) if isinstance(value, Data) else []


def is_plain(line: str) -> bool:
    """Whether a terminal shows it as it is, on one line."""
    return all(character.isprintable() or character == "\u00a0" for character in line)


@pytest.mark.parametrize("text", HOSTILE, ids=ascii)
def test_no_text_acts_on_a_terminal_or_begins_a_line(text: str) -> None:
    run = hostile(text)
    assert sum(MARK in one for one in texts_of(run)) > 60
    lines = [line.text for line in summary(run, notes=[f"note {text}".replace("\n", " ")])]
    lines += [line for result in run.results for line in explain(result, None).split("\n")]
    assert sum(MARK in line for line in lines) > 15
    assert [line for line in lines if not is_plain(line)] == []
    without_findings = summary(changed(run, findings={}))  # which have lines of their own
    assert begun_by(text, [line.text for line in without_findings]) == []


def begun_by(text: str, lines: list[str]) -> list[str]:
    """Lines that begin with what stands behind a line break of the text."""
    parts = tuple(part for part in text.splitlines()[1:] if part.strip())
    return [line for line in lines if parts and line.startswith(parts)]


@pytest.mark.parametrize("text", HOSTILE, ids=ascii)
def test_no_text_is_html_or_markdown_and_every_row_has_its_cells(text: str) -> None:
    page = markdown(hostile(text))
    assert MARK in page
    blocks = re.sub(r"(?ms)^(`{3,})text\n.*?\n\1$", "", page)  # what stands in a fence is nobody's
    bare = re.sub(r"`[^`\n]*`", "", blocks)  # and in code
    assert not re.search(r"@[a-z]|://|www\.", bare)  # notifies nobody and links nowhere, in a summary either
    bare = re.sub(r"<summary>[^<>]*</summary>", "", bare)  # in HTML all but a tag is text
    assert re.findall(r"<(?!/?(?:code|br|details|summary)>)", bare) == []
    assert bare.count("<details>") == bare.count("</details>") == page.count("\n\n<details>")
    for table in re.findall(r"(?m)^\|.*(?:\n\|.*)+", blocks):
        assert len({len(re.findall(r"(?<!\\)\|", row)) for row in table.splitlines()}) == 1, table
    for line in blocks.splitlines():
        assert is_plain(line), line
    assert not re.search(r"(?<!\\)\[link", bare)
    assert not re.search(r"(?<!\\)\*\*bold", bare)


@pytest.mark.parametrize("text", HOSTILE, ids=ascii)
def test_a_run_with_hostile_texts_is_written_and_read(tmp_path: Path, text: str) -> None:
    path = tmp_path / "perf.json"
    run = hostile(text)
    write_document(run, path)
    read = read_document(path)
    assert markdown(read) == markdown(run)
    if "\udc80" not in text:
        assert read == run


@pytest.mark.parametrize("text", HOSTILE, ids=ascii)
def test_a_text_names_a_file_in_the_folder_that_it_is_meant_for(tmp_path: Path, text: str) -> None:
    for name in (file_name_for(f"../{text}/../x"), module_of(f"../../{text}.py::test_x")[:200]):
        (tmp_path / f"{name}.json").write_text("x")
        assert (tmp_path / f"{name}.json").resolve().parent == tmp_path.resolve()
        assert len(name) < 240


def test_each_text_names_a_file_of_its_own_and_a_plain_one_is_readable() -> None:
    cases = ["test_x.py::test_y", "a/test_x.py::test_y", "a_test_x.py::test_y", "test_x.py::TestY::test_y"]
    cases += ["test_x.py::test_y[a b]", "test_x.py::test_y[a_b]", "test_x.py::test_y {cold}", "test_x.py::test_y_cold"]
    cases += ["v1/2/test_x.py::test_y", "v1.2/test_x.py::test_y", "_x", "x", "x_", "x" * 500, "x" * 501, "größe", "µ"]
    assert len({file_name_for(case) for case in cases}) == len(cases)
    assert file_name_for(cases[0]) == "test_x.py_test_y"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain – µs 中", "plain – µs 中"),
        ("a\x1b[31mb", "a\\x1b[31mb"),
        ("a\nb\tc\u2028d", "a b c d"),
        ("\u202eabc", "\\u202eabc"),
        ("half \udc80", "half \\udc80"),
    ],
)
def test_what_nobody_can_see_is_shown_by_its_code(text: str, shown: str) -> None:
    assert one_line(text) == shown
    assert one_line(shown) == shown


def test_of_a_text_with_lines_the_lines_stay() -> None:
    assert lines_of("a\x1b\nb\r\nc") == "a\\x1b\nb\nc"


@pytest.mark.parametrize(
    ("text", "escaped"),
    [
        ("10.0 ms ×2.00", "10.0 ms ×2.00"),
        ("1. item", r"1\. item"),
        ("ask @org/team", "ask @&#8203;org/team"),
        ("https://x.org www.x.org a: b", "https&#58;//x.org www&#46;x.org a: b"),
        ("- item", r"\- item"),
        ("---", r"\---"),
        ("-12 %", "-12 %"),
        ("a|b <i> & $x$", r"a\|b &lt;i&gt; &amp; \$x\$"),
    ],
)
def test_markdown_leaves_escaped_text_as_it_is(text: str, escaped: str) -> None:
    assert escape(text) == escaped


@pytest.mark.parametrize("text", HOSTILE, ids=ascii)
def test_code_is_one_cell_of_a_table(text: str) -> None:
    shown = code(text)
    assert is_plain(shown)
    assert not re.search(r"(?<!\\)\|", shown)
    inner = (
        shown[1:-1] if shown.startswith("`") else html.unescape(shown.removeprefix("<code>").removesuffix("</code>"))
    )
    assert inner == one_line(text)
