"""A history as one page: every number is in the JSON, no name does harm, no picture lies."""

from __future__ import annotations

import bisect
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perflab.history import page as history_page
from perflab.history.page import thinned
from perflab.history.text import as_text, since_start
from perflab.tables.beside_text import value_text
from perflab.units import format_change
from tests.harness.browser import assert_accessible, needs_browser, numbers_in, opened
from tests.harness.command import Command
from tests.harness.histories import (
    beside_fixed_work,
    case_name,
    contents_in,
    everywhere,
    latency,
    noisy,
    page_of,
    some_nights,
    step,
    write_runs,
)

HOSTILE = "<script>alert(1)</script>\"'&amp;{{ 7 * 7 }}\n\u202e\x1b[2J<img src=x onerror=alert(2)>"


class Shown(HTMLParser):
    """What a reader of a page sees or hears: all texts but an axis's marks, which stand for no number."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self._open: list[tuple[str, str]] = []
        self.texts: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in ("meta", "link", "input", "br", "img", "col"):
            self._open.append((tag, dict(attrs).get("class") or ""))

    def handle_endtag(self, tag: str) -> None:
        while self._open and self._open.pop()[0] != tag:
            pass

    def handle_data(self, data: str) -> None:
        tag, kind = self._open[-1] if self._open else ("", "")
        if tag not in ("style", "script") and not (tag == "text" and "faint" in kind):
            self.texts.append(data)


VALUE = re.compile(r"(?<![\w.+-])\d[\d,]*(?:\.\d+)?(?:e[+-]\d+)? (?:ns|µs|ms|s|min|h|B|KiB|MiB|GiB)\b")
CHANGE = re.compile(r"[+-]\d+\.\d%|[+-]\d[\d.]* (?:B|KiB|MiB|GiB)\b")


def test_every_number_of_the_page_stands_in_the_json_beside_it(tmp_path: Path, command: Command) -> None:
    some_nights(tmp_path / "nights")
    cases = {
        case_name(3): beside_fixed_work(3, 1.2, **everywhere(1.1)),
        case_name(4): lambda run: {"peak": 4096 + 64 * (run > 5)},
    }
    write_runs(tmp_path / "nights/more", 40, cases)
    page = page_of(tmp_path).read_text(encoding="utf-8")
    numbers = set(numbers_in(json.loads(command("history", tmp_path / "nights", "--format=json"))))
    known = sorted(numbers)
    shown = [float(number) for number in re.findall(r'data-v="([^"]+)"', page)]
    assert len(shown) > 10
    nearest = [
        min(known[max(0, at - 1) : at + 1], key=lambda one: abs(one - number))
        for number in shown
        if (at := bisect.bisect(known, number)) >= 0
    ]
    assert nearest == pytest.approx(shown, rel=1e-6)

    said = " ".join(Shown(page).texts)
    values, changes = set(VALUE.findall(said)), set(CHANGE.findall(said))
    assert len(values) > 20
    assert {change[-1] for change in changes} >= {"%", "B"}
    assert values <= {value_text(abs(one), unit) for one in numbers for unit in ("ns", "bytes")}
    differences = {f"{'+' if one > 0 else '-'}{value_text(abs(one), 'bytes')}" for one in numbers}
    assert changes <= {format_change(one) for one in numbers} | differences
    assert "the machine changed too" in said


def test_commits_stand_on_the_axis_and_lead_to_their_pages(tmp_path: Path) -> None:
    nights = tmp_path / "nights"
    write_runs(nights, 30, {case_name(1): latency(step(20), 7)}, commits=lambda run: f"{run + 10:02}{'ab' * 19}")
    last = nights / "run-029.json"
    named = json.loads(last.read_text())
    named["runs"][0]["repository"] = "https://github.com/owner/name"
    last.write_text(json.dumps(named))
    page = page_of(tmp_path).read_text(encoding="utf-8")
    on_axis = re.findall(r'class="faint middle">(\d\d)ababa</text>', page)
    assert (on_axis[0], on_axis[-1], len(on_axis)) == ("10", "39", 7)
    assert f'<a href="https://github.com/owner/name/commit/39{"ab" * 19}">39ababa</a>' in page


def test_a_change_is_told_alike_in_its_event_and_in_the_table(tmp_path: Path) -> None:
    write_runs(tmp_path, 40, {case_name(1): latency(step(20), 7, noise=0.03)})
    contents = contents_in(tmp_path)
    (event,) = contents.events
    assert event.ratio is not None
    assert since_start(contents.series[0]) == format_change(event.ratio)


def test_a_page_of_many_series_says_what_it_leaves_out_and_stays_small(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert (history_page.MOST_CHARTS, history_page.MOST_ROWS) == (150, 2_000), "ten times as many as below"
    monkeypatch.setattr("perflab.history.page.MOST_CHARTS", 15)
    monkeypatch.setattr("perflab.history.page.MOST_ROWS", 200)
    cases = {case_name(number): latency(step(20 + number % 3), number) for number in range(20)}
    cases |= {case_name(number): latency(lambda run: 1e6, number) for number in range(20, 250)}
    write_runs(tmp_path / "nights", 40, cases)
    page = page_of(tmp_path)
    text = page.read_text(encoding="utf-8")
    assert page.stat().st_size < 500_000, "a tenth of all that it has in a tenth of 5 MB"
    assert "50 more series, in the JSON" in text
    assert "235 more series, in the table" in text


@needs_browser
@pytest.mark.parametrize(("scheme", "width"), [("light", 400), ("dark", 1000)])
def test_axe_finds_no_violation_and_every_chart_has_its_numbers_in_words(
    tmp_path: Path, browser: Any, scheme: str, width: int
) -> None:
    some_nights(tmp_path / "nights")
    charts = assert_accessible(browser, page_of(tmp_path), scheme, width)
    assert len(charts) == 4
    for (title, name), (desc, numbers) in charts:
        assert (title, desc) == ("title", "desc")
        assert " of step[" in name
        assert re.match(r"\d.* over \d+ points, 2026-", numbers)


def test_no_name_fills_a_screen_of_the_page(tmp_path: Path) -> None:
    times = noisy(step(20), 1)
    write_runs(
        tmp_path / "nights", 40, {f"t.py::test_{'x' * 10_000}": lambda run: {"latency": times[run], "y" * 999: 5}}
    )
    assert max(map(len, Shown(page_of(tmp_path).read_text(encoding="utf-8")).texts)) < 500


def test_the_page_tells_two_sizes_apart(tmp_path: Path) -> None:
    large = 473 * 2**20
    write_runs(tmp_path / "nights", 10, {case_name(1): lambda run: {"peak": large - 12 * 2**10 * (run >= 5)}})
    assert {"473.000 MiB", "472.988 MiB"} <= set(Shown(page_of(tmp_path).read_text(encoding="utf-8")).texts)


@needs_browser
def test_hostile_names_do_nothing(tmp_path: Path, browser: Any) -> None:
    times = noisy(step(20), 1)
    write_runs(
        tmp_path / "nights",
        40,
        {f"t.py::test_a[{HOSTILE}{'x' * 10_000}]": lambda run: {"latency": times[run], HOSTILE: times[run]}},
        commits=lambda run: f"{HOSTILE}{run}",
    )
    with opened(browser, page_of(tmp_path)) as seen:
        assert seen.said == []
        assert seen.page.evaluate("document.scripts.length") == 1
        assert seen.page.evaluate("document.images.length") == 0
    assert not {"\x1b", "\u202e"} & {*(tmp_path / "page.html").read_text(encoding="utf-8")}
    assert not {"\x1b", "\u202e"} & {*as_text(contents_in(tmp_path / "nights"), 80)}


@given(st.lists(st.floats(1, 2), min_size=1, max_size=400))
def test_a_small_picture_keeps_the_least_the_greatest_and_the_last_value(values: list[float]) -> None:
    few = thinned(values, 40)
    assert len(few) <= 40
    assert (min(few), max(few), few[-1]) == (min(values), max(values), values[-1])
    rest = iter(values)
    assert all(one in rest for one in few), "in their order"


def test_the_page_of_a_few_files_speaks_of_one_file_and_of_exact_changes(tmp_path: Path) -> None:
    nights = tmp_path / "nights"
    times = noisy(step(20, after=1.3e6), 1)
    cases = {
        case_name(1): lambda run: {"peak": 4096 * (1 + (run >= 10))},
        case_name(2): lambda run: {"latency": times[run]},
    }
    write_runs(nights, 40, cases)
    (nights / "broken.json").write_text("{")
    page = page_of(tmp_path).read_text(encoding="utf-8")
    assert "<summary>1 file left out</summary>" in page
    exact = page.index("a band lies between the two runs of a change</figcaption>")
    assert "<title>peak of step[1]</title>" in page[page.rindex("<figure>", 0, exact) : exact]
    noisy_one = page.index("a band is where a change lies, with 95 % certainty</figcaption>")
    assert "<title>latency of step[2]</title>" in page[page.rindex("<figure>", 0, noisy_one) : noisy_one]


def test_the_page_says_of_series_that_it_leaves_out_whether_they_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("perflab.history.page.MOST_ROWS", 2)
    for name, changing in (("some", 3), ("none", 1)):
        cases = {case_name(at): lambda run, at=at, many=changing: {"peak": 4096 + (at < many) * run} for at in range(4)}
        write_runs(tmp_path / name / "nights", 4, cases)
    assert "2 more series, in the JSON</p>" in page_of(tmp_path / "some").read_text(encoding="utf-8")
    assert "2 more series, in the JSON: all of them unchanged</p>" in page_of(tmp_path / "none").read_text(
        encoding="utf-8"
    )
