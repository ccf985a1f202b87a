"""``perflab memory`` says the same numbers as text, Markdown, JSON and a page in a browser, of each of several GPUs."""

from __future__ import annotations

import html.parser
import json
import re
from pathlib import Path
from typing import Any

import pytest

from perflab.snapshots.picture import COLORS
from perflab.snapshots.report import shown
from perflab.tables.escaping import one_line
from perflab.units import format_bytes
from tests.harness.browser import needs_browser, opened
from tests.harness.command import Command
from tests.harness.made_snapshots import MIB, MODEL, Recording, block, content, segment, training, written

HOSTILE = "</title><script>alert(1)</script>\x1b[31m|`*_\u202e&"
FORMATS = ("text", "markdown", "json", "html")


class Page(html.parser.HTMLParser):
    """The cells of each table by its id, and every tag."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tables: dict[str, list[list[str]]] = {}
        self.tags: set[str] = set()
        self.addresses: list[str] = []
        self._table: list[list[str]] = []
        self._in_cell = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.addresses += [value or "" for name, value in attrs if name in ("href", "src", "data", "action", "srcset")]
        if tag == "table":
            self._table = self.tables.setdefault(dict(attrs).get("id") or "", [])
        elif tag == "tr":
            self._table.append([])
        elif tag in ("td", "th"):
            self._table[-1].append("")
            self._in_cell = True

    def handle_endtag(self, tag: str) -> None:
        if tag in ("td", "th"):
            self._in_cell = False

    def handle_data(self, data: str) -> None:
        if self._in_cell:
            self._table[-1][-1] += data


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    first = content(training(2), segments=[segment([block(2 * MIB), block(18 * MIB, "inactive", 0)], 64 * MIB)])
    more = training(3)
    more.alloc(900 * MIB, 33 * MIB, (f"/home/me/project/{HOSTILE}.py", 7, HOSTILE))
    more.add("oom", 0, 70 * MIB, device_free=MIB)
    second = content(more, segments=[segment([block(2 * MIB)], 64 * MIB)])
    return written(tmp_path / "before.pickle", first), written(tmp_path / "after.pickle", second)


def unescaped(cell: str) -> str:
    return html.unescape(re.sub(r"\\(.)", r"\1", cell)).strip()


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("rows", [2, 12])
def test_all_four_formats_say_the_same_numbers(
    files: tuple[Path, Path], command: Command, count: int, rows: int
) -> None:
    given = [*files[:count], f"--rows={rows}"]
    text, markdown, data, page = (command("memory", *given, f"--format={one}") for one in FORMATS)
    content, tables = json.loads(data), Page(page).tables
    listed = [[unescaped(cell) for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in markdown.splitlines()]
    printed = [re.split(r"\s{2,}", line.strip()) for line in text.splitlines()]
    facts = {key: value for key, value in content.items() if key not in ("schema", "title", "tables", "notes")}
    for (key, value), cells in zip(facts.items(), tables["facts"], strict=True):
        assert cells[1] == shown(value, kind_of(key, value, bytes_are="exact")), key
        assert [cell.strip() for cell in cells] in listed, cells
        assert [one_line(cell).strip() for cell in cells] in printed, cells
    assert len(content["tables"]) == (9 if count == 1 else 2)
    for key, found in content["tables"].items():
        assert len(tables[key]) == len(found) + 1, key
        for row, cells in zip(found, tables[key][1:], strict=True):
            for (name, value), cell in zip(row.items(), cells, strict=True):
                assert clean(shown(value, kind_of(name, value))) == clean(cell), (key, name)
            assert [cell.strip() for cell in cells] in listed, (key, cells)
            assert [clean(cell, name) for name, cell in zip(row, cells, strict=True) if cell.strip()] in printed, cells
    if count == 1:
        peak = f"peak {format_bytes(content['peak_bytes'])} at moment {content['peak_moment']:,}"
        assert f">{peak}</text>" in page
        assert sum(row["bytes"] for row in content["tables"]["by_category"]) == content["peak_bytes"]
    else:
        change = content["after_peak_bytes"] - content["before_peak_bytes"]
        for found in content["tables"].values():
            assert sum(row["change_bytes"] for row in found) == content["change_bytes"] == change


def kind_of(name: str, value: object, bytes_are: str = "bytes") -> str:
    """Of a column or a fact of JSON, by its name and unit."""
    if isinstance(value, str):
        return "text"
    if name.endswith("_bytes") or name == "bytes":
        return "change" if name.startswith("change") else bytes_are
    return "share" if name == "share" else "ns" if name.endswith("_ns") else "count"


def clean(cell: str, column: str = "") -> str:
    """A cell as a terminal has it: in one line, no longer than 60 letters; of a path the last ones."""
    line = one_line(cell).strip()
    if len(line) <= 60:
        return line
    return "…" + line[-59:] if column == "line" else line[:59] + "…"


def test_lines_of_a_long_path_are_told_apart_in_a_terminal(tmp_path: Path, command: Command) -> None:
    folder = "/home/me/projects/a-language-model-of-ours/source/language_model/layers"
    made = Recording().alloc(0, 2 * MIB, ("/home/me/train.py", 3, "main"))
    for number, line in enumerate((190, 191, 191)):
        made.alloc((number + 1) * 64 * MIB, MIB, (f"{folder}/transformer.py", line, "forward"))
    path = written(tmp_path / "a.pickle", content(made))
    place = f"{folder.removeprefix('/home/me/')}/transformer.py"
    text = command("memory", path)
    for title in ("by line", "of one size and stack"):
        table = text.split(title)[1].split("\n\n")[0]
        assert [table.count(f"…{(place + line)[-59:]} ") for line in (":190", ":191")] == [1, 1], table
    later = written(
        tmp_path / "b.pickle", content(made.alloc(900 * MIB, MIB, (f"{folder}/transformer.py", 195, "forward")))
    )
    assert f"…{(place + ':195')[-59:]} " in command("memory", path, later).split("Change by line")[1]
    assert f"{place}:190" in unescaped(command("memory", path, "--format=markdown"))


def test_a_page_loads_nothing_and_shows_hostile_names_as_text(files: tuple[Path, Path], command: Command) -> None:
    for given in (files[1:], files):
        page = command("memory", *given, "--format=html")
        seen = Page(page)
        assert len(re.findall("<script", page)) == 1 + len(given)  # ours, and data of each picture
        assert seen.addresses == []
        assert "http" not in re.sub(r"http-equiv", "", page)
        assert "default-src 'none'" in page
        assert "alert(1)" in page
        assert not {"\x1b", "\u202e"} & {*page}
        text, markdown = (command("memory", *given, f"--format={one}") for one in ("text", "markdown"))
        assert not {"\x1b", "\u202e"} & {*text, *markdown}
        assert "<script>" not in markdown


def test_errors_of_the_command_name_the_remedy(tmp_path: Path, command: Command) -> None:
    path = written(tmp_path / "a.pickle", content(Recording().alloc(0, 5)))
    for given, named in [
        ([path, path, path], "3 files are given\n  -> give one to show it, or two to compare them"),
        ([path, "--rows=0"], "--rows=0\n  -> give how many rows"),
        ([path, "--device=4"], "nothing of device 4\n  -> choose of cuda:0"),
        ([tmp_path / "none"], "No such file"),
        ([tmp_path], "Is a directory"),
    ]:
        assert named in command("memory", *given, status=2)


def test_a_snapshot_of_nothing_but_one_free_is_shown(tmp_path: Path, command: Command) -> None:
    path = written(tmp_path / "a.pickle", content(Recording(frames=False, marks=False).free(0, 512)))
    for one in FORMATS:
        assert "512" in command("memory", path, f"--format={one}")


@needs_browser
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_browser_draws_the_timeline_in_both_schemes(
    tmp_path: Path, browser: Any, command: Command, scheme: str
) -> None:
    path = written(tmp_path / "training.pickle", content(training(3)))
    page = tmp_path / "page.html"
    page.write_text(command("memory", path, "--format=html"), encoding="utf-8")
    with opened(browser, page, color_scheme=scheme) as seen:
        back = seen.page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert back == ("rgb(255, 255, 255)" if scheme == "light" else "rgb(20, 23, 28)")
        drawn = seen.page.eval_on_selector_all(
            ".by-category polygon", "ones => ones.map(one => [one.getAttribute('fill'), one.getBBox().height])"
        )
        height = dict(drawn)
        assert all(height[COLORS[category]] > 1 for category in ("activations", "gradients", "optimizer state"))
        edges = seen.page.evaluate("getComputedStyle(document.querySelector('circle.peak')).fill")
        assert edges == ("rgb(28, 33, 39)" if scheme == "light" else "rgb(227, 230, 234)")
        assert seen.said == []


def steady() -> Recording:
    """Ten blocks of 1 MiB."""
    made = Recording()
    for number in range(10):
        made.alloc(number * 8 * MIB, MIB, MODEL)
    return made


def large(small_ones: int = 0) -> Recording:
    """One of 900 MiB, and so many of 512 B."""
    made = Recording().alloc(0, 900 * MIB, MODEL)
    for number in range(small_ones):
        made.alloc((1000 + number * 8) * MIB, 512, MODEL)
    return made


def full() -> Recording:
    return large().add("oom", 0, 80 * MIB, MODEL, device_free=MIB)


def test_the_device_that_ran_out_is_shown_and_a_note_names_the_others(tmp_path: Path, command: Command) -> None:
    path = written(tmp_path / "a.pickle", content(steady(), full(), large()))
    report = command.json("memory", path)
    assert (report["device"], report["peak_bytes"]) == ("cuda:1", 900 * MIB)
    others = "the file also has cuda:0 with a peak of 10.0 MiB; cuda:2 with a peak of 900 MiB (--device)"
    assert f"only cuda:1 is shown; {others}" in report["notes"]
    other = command.json("memory", path, "--device=0")
    assert (other["device"], other["peak_bytes"]) == ("cuda:0", 10 * MIB)
    assert any("cuda:1 with a peak of 900 MiB, out of memory; cuda:2" in note for note in other["notes"])
    alone = command.json("memory", written(tmp_path / "b.pickle", content(steady())))
    assert not [note for note in alone["notes"] if "--device" in note]


@pytest.mark.parametrize(
    ("before", "after", "given", "compared"),
    [
        ([steady(), large()], [steady(), large(24)], (), ("cuda:1", "cuda:1")),
        ([steady(), full()], [steady(), large(12)], (), ("cuda:1", "cuda:1")),
        ([steady(), full()], [steady()], (), ("cuda:0", "cuda:0")),
        ([steady(), large()], [steady(), large(12)], ("--device=0",), ("cuda:0", "cuda:0")),
        ([steady(), large()], [steady(), large(12)], ("--device=1,0",), ("cuda:1", "cuda:0")),
        ([steady()], [Recording(), large()], ("--device=0,1",), ("cuda:0", "cuda:1")),
    ],
    ids=["most events in both", "out of memory", "in both", "named", "each named", "none in both"],
)
def test_a_comparison_is_of_one_device(
    tmp_path: Path,
    command: Command,
    before: list[Recording],
    after: list[Recording],
    given: tuple[str, ...],
    compared: tuple[str, str],
) -> None:
    first, second = written(tmp_path / "a.pickle", content(*before)), written(tmp_path / "b.pickle", content(*after))
    report = command.json("memory", first, second, *given)
    assert [report[key].rsplit(" ", 1)[1] for key in ("before", "after")] == [f"{one})" for one in compared]
    assert (f"{first}: only {compared[0]} is shown" in " ".join(report["notes"])) == (len(before) > 1)


def test_files_that_have_no_device_in_common_are_not_compared_unless_both_are_named(
    tmp_path: Path, command: Command
) -> None:
    first = written(tmp_path / "a.pickle", content(Recording(), steady(), large()))
    second = written(tmp_path / "b.pickle", content(steady()))
    error = command("memory", first, second, status=2)
    assert f"no device is in both: {first} has cuda:1, cuda:2 and {second} has cuda:0" in error
    assert "-> name one of each: --device=1,0" in error
    assert command.json("memory", first, second, "--device=1,0")["change_bytes"] == 0
