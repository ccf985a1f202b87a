"""The page of a report, seen in a real browser: what it shows, that nothing in a name runs, and who can use it."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from jinja2 import Environment, FileSystemLoader

from perflab.base.data import changed
from perflab.base.git import commit_page, page_of_remote, repository_page
from perflab.cli import main
from perflab.page.charts import Bar, Strand, bars, ratios, stack, steps, strip, ticks
from perflab.page.pictures import pictures_of
from perflab.page.render import policy, render
from perflab.page.report import sentences_of
from perflab.page.table import Cell, Column, PageTable, Row
from perflab.results.documents import write_document
from perflab.results.measurement import Evidence
from perflab.results.records import Judgement, Verdict
from perflab.results.result import Document, Result
from perflab.tables.contents import Case, Quantity, Times
from perflab.units import format_bytes, format_change, format_noise, format_ns, format_percent, format_ratio
from tests.harness.browser import assert_accessible, needs_browser, numbers_in, opened
from tests.harness.histories import git
from tests.harness.large_page import large_run
from tests.harness.make import document, environment, in_turns, measurement, record, replicate, result
from tests.harness.test_damage import run_of_everything

CASES = 54
HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)>\"'`\n\x1b[31m\u202e{{ 7 * 7 }}&amp;"
LONG = "x" * 10_000
CALM = Judgement(verdict=Verdict.OK)


def page_of(folder: Path, *documents: Document, name: str = "run") -> Path:
    """The page of these runs; ``name-1.json`` and so on stand beside it."""
    files = [folder / f"{name}-{number}.json" for number, _ in enumerate(documents, 1)]
    for path, one in zip(files, documents, strict=True):
        write_document(one, path)
    page = folder / f"{name}.html"
    assert main(["report", *map(str, files), "--format=html", f"--output={page}"]) == 0
    return page


def page_and_json(folder: Path, capsys: pytest.CaptureFixture[str], run: Document) -> tuple[str, Any]:
    """The page of a run, and what stands in the JSON beside it."""
    page = page_of(folder, run).read_text(encoding="utf-8")
    capsys.readouterr()
    assert main(["report", str(folder / "run-1.json"), "--format=json"]) == 0
    return page, json.loads(capsys.readouterr().out)


def hostile_run() -> Document:
    """Nothing in it is what it seems."""
    judged = Judgement(verdict=Verdict.REGRESSED, reasons=[HOSTILE, LONG], beside=[HOSTILE], worse=["latency"])
    bad = result(
        f"tests/{HOSTILE}.py::test_a[{HOSTILE}]",
        judgement=judged,
        outcome=record(parameters={HOSTILE: HOSTILE}, facts={HOSTILE: HOSTILE}, work={HOSTILE: 1.0}),
        failure=HOSTILE,
        study=HOSTILE,
        columns=["median", HOSTILE],
        side_by_side=HOSTILE,
    )
    strange = environment(device_name=HOSTILE, machine=HOSTILE)
    other = result(f"t.py::test_b[{LONG}]", outcome=record(environment=strange, parameters={HOSTILE: LONG}))
    quiet = Result(case=f"t.py::{HOSTILE}", judgement=Judgement(verdict=Verdict.SKIPPED, reasons=[HOSTILE]))
    made = document(bad, other, quiet, preface=[HOSTILE], findings={HOSTILE: [HOSTILE]}, exitstatus=1)
    return changed(made, commit=HOSTILE, command=HOSTILE, other_failures=[HOSTILE])


# --- what it is ---------------------------------------------------------------------------------------------------


_WITH_UNIT = r"[-+]?\d[\d,.]*(?:e[+-]\d+)?(?: (?:ns|µs|ms|s|min|B|KiB|MiB|GiB)\b|%)|×[\d.]+"


def figures_of(page: str) -> set[str]:
    """Each number with a unit that a page shows, or says to those who do not see its pictures; without axes."""
    plain = re.sub(r"<(style|script)>.*?</\1>", "", page, flags=re.DOTALL)
    plain = re.sub(r'<text[^>]*class="faint (?:middle|end)"[^>]*>[^<]*</text>', "", plain)
    return set(re.findall(_WITH_UNIT, html.unescape(re.sub(r"<[^>]*>", "\n", plain))))


def figures_in(contents: Any) -> set[str]:
    """Each number of plain data in every way in which it may be written; and what stands in its sentences."""
    numbers = {*numbers_in(contents)}
    for run in contents["runs"]:
        for case in run["cases"]:
            numbers.add(sum(case.get("memory", {}).values()))
            for one in case["quantities"].values():
                before = one.get("before", 0)
                numbers |= {before * one[name] for name in ("low", "high", "limit") if name in one}
                numbers.add(one["now"] - before)
    ways = [
        *(format_ns, lambda one: format_ns(1e9 * one), format_noise, format_change, format_percent, format_ratio),
        *(
            lambda one: format_bytes(round(one)),
            lambda one: f"{100 * one:.1f}%",
            lambda one: f"+{format_percent(one - 1)}",
        ),
    ]
    written = {way(one) for one in numbers for way in ways if 0 <= one < 1e20}
    written |= {f"{sign}{format_bytes(abs(one))}" for one in numbers if isinstance(one, int) for sign in "+-"}
    written |= {part for text in written for part in re.findall(_WITH_UNIT, text)}
    return written | set(re.findall(_WITH_UNIT, json.dumps(contents, ensure_ascii=False)))


def uneven_run() -> Document:
    """Two cases whose calibration, counters and noise differ, levels of one parameter and of one study."""

    def one(level: str, noise: float, **changes: Any) -> Result:
        summary = replicate(
            1.2345e6, noise=noise, calibration_ns={"memory": (2.345e6 + 1e5 * ("study" in changes)) * (1 + noise)}
        )
        seen = Evidence(span_ns=10**9, load_average=1.5 + noise, neighbours_cores=noise)
        taken = measurement([1_234_500] * 9, evidence=seen)
        made = record(summary, parameters={"impl": level}, measurement=taken)
        return result(f"t.py::test_{changes.get('study', 'a')}[{level}]", outcome=made, **changes)

    levels = {"calm": 0.0321, "rough": 0.321, "wild": 9.566}
    disturbed = Judgement(verdict=Verdict.OK, beside=["other processes used 1.6 cores"])
    study: dict[str, Any] = {"study": "switches", "versus": "impl=calm", "judgement": disturbed}
    return document(
        *in_turns(*(one(name, noise, side_by_side="impl") for name, noise in levels.items())),
        *(one(name, noise, **study) for name, noise in levels.items()),
    )


def test_a_ratio_of_times_has_its_interval_and_rows_without_turns_say_why_they_have_none(tmp_path: Path) -> None:
    page = page_of(tmp_path, uneven_run()).read_text(encoding="utf-8")
    study, levels = page[page.index("Study: switches") :].split("a, by impl", 1)
    assert len(re.findall(r"×1\.00 <small>\(0\.99…1\.01\)</small>", levels)) == 2
    assert "…" not in re.sub(r"<title>.*?</title>", "", study.split("</table>")[0])
    assert "no ratio of times: they were not measured in turns" in study


@pytest.mark.parametrize("run", [run_of_everything, uneven_run, lambda: large_run(3, profiled=1)])
def test_every_number_that_is_drawn_written_or_said_stands_in_the_json_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], run: Callable[[], Document]
) -> None:
    page, contents = page_and_json(tmp_path, capsys, run())
    known = {float(f"{number:.6g}") for number in numbers_in(contents)}
    drawn = {float(f"{float(number):.6g}") for number in re.findall(r'data-v="([^"]+)"', page)}
    shown = figures_of(page)
    assert min(len(drawn), len(shown)) > 10
    assert drawn - known == set()
    assert shown - figures_in(contents) == set()
    if run is uneven_run:  # a median between two cases is no case's
        contents["runs"] = [{**one, "machine": []} for one in contents["runs"]]
        assert shown - figures_in(contents) != set()


def test_an_interval_is_named_has_no_negative_end_and_is_none_where_nobody_can_tell(tmp_path: Path) -> None:
    page = page_of(tmp_path, uneven_run()).read_text(encoding="utf-8")
    charts = [found for found in re.findall(r"<desc>([^<]*)</desc>", page) if "calm" in found]
    assert len(charts) == 2
    for told in charts:
        assert "1.23 ms (1.19 ms to 1.27 ms)" in told
        assert "1.23 ms (838 µs to 1.63 ms)" in told
        assert re.search(r"wild( \*)? 1.23 ms, can&#39;t tell", told)
        assert not re.search(r"[( ]-\d", told)
    captions = [found for found in re.findall(r"<figcaption>([^<]*)", page) if "end of a bar" in found]
    assert len(captions) == 2
    for told in captions:
        assert "95 % interval of the median" in told
        assert "can&#39;t tell: the noise is as large as the median" in told


def test_a_disturbed_case_is_marked_in_the_table_and_the_mark_has_a_legend(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page, contents = page_and_json(tmp_path, capsys, uneven_run())
    explorer, study = page[page.index('id="table"') :].split("Study: switches", 1)
    marked = re.findall(r"<td><a[^>]*>([^<]*)</a> <small>\*</small>", explorer)
    assert marked == [f"switches[{name}]" for name in ("calm", "rough", "wild")]
    legend = "* disturbed while it was measured"
    assert legend in explorer
    assert legend in study[: study.index("</figcaption>")]
    assert ">rough *</text>" in study
    assert "&gt;±100%" in explorer  # as in the terminal, and not 956.6 %
    tables = contents["runs"][0]["tables"]
    rows = tables["studies"][0]["tables"][0]["rows"]
    assert [(row["label"], row["disturbed"]) for row in rows] == [("calm", True), ("rough", True), ("wild", True)]
    assert [row.get("intervals", {}).get("median") is None for row in rows] == [False, False, True]
    assert not any("disturbed" in level for level in tables["side_by_side"][0]["levels"])


def test_failures_are_first_in_the_table_and_in_the_list_and_numbers_stand_as_in_the_terminal(tmp_path: Path) -> None:
    page = page_of(tmp_path, large_run(10)).read_text(encoding="utf-8")
    for place in ('id="table"', 'id="cases"'):
        assert re.findall(r"step\[[^]]*-(\d)\]", page[page.index(place) :])[0] == "3"
    table = page[page.index("What got worse in step") :]
    heads = re.findall(r"<th[^>]*>([^<]*)</th>", table[: table.index("</thead>")])
    assert heads == ["quantity", "before", "now", "change", "95 % interval", "limit"]


def test_what_is_known_of_times_is_no_reason_of_a_failure_by_counts() -> None:
    times = Times(samples=1, repetitions=1, median_ns=1.0, noise=0.0, clock="host")
    for worse, title in (("operators", "Besides"), ("latency", "Why")):
        found = {
            name: Quantity(unit="count", exact=name != "latency", now=2, before=1, ratio=2.0, worse=name == worse)
            for name in ("latency", "operators")
        }
        told = sentences_of(case_of(times=times, quantities=found, reasons=["other processes used 1.5 cores"]))
        assert [name for name, lines in told.items() if lines == ["other processes used 1.5 cores"]] == [title]


def test_many_failures_are_folded_so_that_the_table_is_in_reach(tmp_path: Path) -> None:
    bad = Judgement(verdict=Verdict.REGRESSED, worse=["latency"])
    run = document(*(result(f"t.py::test_{at}", judgement=bad, outcome=record()) for at in range(14)))
    page = page_of(tmp_path, run).read_text(encoding="utf-8")
    assert page[: page.index('id="table"')].count("<article") == 14
    assert "<summary>4 more that failed</summary>" in page


# --- commits ------------------------------------------------------------------------------------------------------

COMMIT = "4b49b6e9f4f3aa00112233445566778899aabbcc"


@pytest.mark.parametrize(
    ("remote", "page"),
    [
        ("git@github.com:owner/name.git", "https://github.com/owner/name/commit/"),
        ("https://me:ghp_secret@github.com/owner/name.git/", "https://github.com/owner/name/commit/"),
        ("ssh://git@gitlab.example.org:2222/group/sub/name.git", "https://gitlab.example.org/group/sub/name/-/commit/"),
        ("https://gitlab-ci-token:t0k:en@gitlab.com/g/name", "https://gitlab.com/g/name/-/commit/"),
        ("http://git.example.org:8080/owner/name", "http://git.example.org:8080/owner/name/commit/"),
        ("git@bitbucket.org:owner/name.git", "https://bitbucket.org/owner/name/commits/"),
        ("/srv/git/name.git", None),
        (r"C:\git\name", None),
        ("work:owner/name.git", None),
        ("https://github.com/owner/name?token=secret", None),
        ("javascript:alert(1)//a.b/c/d", None),
    ],
)
def test_a_commit_has_a_page_by_the_remote_without_anybody_s_name_or_password(remote: str, page: str | None) -> None:
    repository = page_of_remote(remote)
    assert commit_page(repository, f"{COMMIT}+dirty") == (page and f"{page}{COMMIT}")
    assert not re.search("secret|t0k|me:|git@", repository or "")


def test_a_repository_names_its_page(tmp_path: Path) -> None:
    git(tmp_path, "init", "--quiet")
    assert repository_page(tmp_path) is None
    git(tmp_path, "remote", "add", "origin", "https://x:ghp_secret@github.com/owner/name.git")
    assert repository_page(tmp_path) == "https://github.com/owner/name"


def test_the_commit_leads_to_its_page_and_nothing_else_in_a_file_becomes_a_link(tmp_path: Path) -> None:
    run = changed(large_run(1), commit=COMMIT, repository="https://github.com/owner/name")
    link = f'<a href="https://github.com/owner/name/commit/{COMMIT}">commit 4b49b6e9f4</a>'
    assert link in page_of(tmp_path, run).read_text(encoding="utf-8")
    for bad in ({"repository": "javascript:alert(1)"}, {"repository": f"https://a.b/c{HOSTILE}"}, {"commit": HOSTILE}):
        page = page_of(tmp_path, changed(run, **bad)).read_text(encoding="utf-8")
        assert not re.search(r'href="(?!#)', page)


def test_each_run_of_a_comparison_has_its_filters_and_names_lead_to_the_newest_run(tmp_path: Path) -> None:
    here = document(*(result(f"t.py::test_{name}", outcome=record()) for name in ("both", "gone")))
    there = document(result("t.py::test_both", outcome=record(), judgement=Judgement(verdict=Verdict.NEW)))
    page = page_of(tmp_path, here, there).read_text(encoding="utf-8")
    assert re.findall(
        r'<legend>(Run \d)</legend>\s*<label[^>]*><input[^>]* value="([^"]*)"> (\w+) <small>\((\d)\)', page
    ) == [("Run 1", "1 ok", "ok", "2"), ("Run 2", "2 new", "new", "1")]
    assert '<a href="#run-2-case-1">both</a>' in page
    assert '<a href="#run-1-case-2">gone</a>' in page


def test_a_thousand_cases_take_less_than_5_mb(tmp_path: Path) -> None:
    small, page = (page_of(tmp_path, large_run(cases)).read_text(encoding="utf-8") for cases in (50, 100))
    fifty = len(page.encode()) - len(small.encode())
    assert len(page.encode()) + 18 * fifty < 5_000_000, "each further fifty takes as much as the second"
    assert page.count('<details class="case"') == 100


def test_the_page_allows_one_style_and_one_script_and_asks_for_nothing(tmp_path: Path) -> None:
    page = page_of(tmp_path, run_of_everything()).read_text(encoding="utf-8")
    assert f'content="{policy()}"' in page
    assert (page.count("<script"), page.count("<style")) == (1, 1)
    assert not re.search(r"\b(src|srcset|action|data)\s*=|@import|url\(|https?://|\sstyle=|\son\w+=", page)


@needs_browser
def test_a_browser_runs_no_script_but_ours(tmp_path: Path, browser: Any) -> None:
    page = page_of(tmp_path, run_of_everything())
    text = page.read_text(encoding="utf-8")
    page.write_text(text.replace("<main>", "<main><script>document.title = 'taken'</script>"), encoding="utf-8")
    with opened(browser, page) as seen:
        assert seen.page.title() == "perflab: run-1.json"
        assert any("Content Security Policy" in said for said in seen.said)


@needs_browser
@pytest.mark.parametrize(("width", "runs"), [(400, 1), (2000, 2)])
def test_hostile_names_do_nothing_and_are_shown_as_text(tmp_path: Path, browser: Any, width: int, runs: int) -> None:
    page = page_of(tmp_path, *[hostile_run()] * runs)
    assert not {"\x1b", "\u202e"} & {*page.read_text(encoding="utf-8")}
    with opened(browser, page, viewport={"width": width, "height": 900}) as seen:
        assert seen.said == []
        assert seen.page.evaluate("document.scripts.length") == 1
        assert seen.page.evaluate("document.images.length") == 0
        high = seen.page.eval_on_selector_all(
            "th, td, h1, h2, h3, summary, p, li", "ones => Math.max(...ones.map(one => one.clientHeight))"
        )
        assert high < 900  # no name fills a screen
        text = seen.page.evaluate("document.body.textContent")
        assert "<img src=x onerror=alert(2)>" in text
        assert "{{ 7 * 7 }}&amp;" in text
        assert seen.page.evaluate("document.documentElement.scrollWidth") <= width


# --- who can use it -----------------------------------------------------------------------------------------------


@needs_browser
@pytest.mark.parametrize(("scheme", "width", "runs"), [("light", 400, 1), ("dark", 1000, 2)])
def test_axe_finds_no_violation_and_every_chart_has_a_name_and_its_numbers_in_words(
    tmp_path: Path, browser: Any, scheme: str, width: int, runs: int
) -> None:
    charts = assert_accessible(browser, page_of(tmp_path, *[run_of_everything()] * runs), scheme, width)
    assert len(charts) > 5 or runs > 1
    for (title, name), (desc, numbers) in charts:
        assert (title, desc) == ("title", "desc")
        assert name
        assert re.search(r"\d", numbers)


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of CASES cases, two of which became slower."""
    return page_of(tmp_path_factory.mktemp("page"), large_run(CASES))


@needs_browser
def test_the_table_is_used_by_keyboard_alone(large: Path, browser: Any) -> None:
    with opened(browser, large) as seen:
        seen.page.focus("th[data-key=latency] button")
        outline = seen.page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
        seen.page.keyboard.press("Enter")
        assert seen.page.get_attribute("th[data-key=latency]", "aria-sort") == "descending"
        seen.page.keyboard.press("Enter")
        assert seen.page.get_attribute("th[data-key=latency]", "aria-sort") == "ascending"
        assert seen.page.get_attribute("th[data-key=peak]", "aria-sort") == "none"
        values = seen.page.eval_on_selector_all(".explore tbody tr", "rows => rows.map(row => +row.cells[2].dataset.v)")
        assert values == sorted(values)
        assert outline is not None
        seen.page.focus(".explore tbody tr a")
        seen.page.keyboard.press("Enter")
        opened_one = seen.page.evaluate("document.activeElement.closest('details').open")
        assert opened_one
        assert seen.said == []


@needs_browser
def test_without_script_there_is_a_plain_table_with_sections_it_links_to(large: Path, browser: Any) -> None:
    with opened(browser, large, java_script_enabled=False) as seen:
        assert seen.page.locator(".explore tbody tr").count() == CASES
        assert not seen.page.locator(".controls").first.is_visible()
        assert seen.page.locator("th[data-key=peak]").is_visible()
        assert not seen.page.locator("th[data-key=file]").is_visible()
    with opened(browser, large, "#case-7", java_script_enabled=False) as seen:
        assert seen.page.locator("#case-7").is_visible()  # a browser opens what a link leads into


@needs_browser
@pytest.mark.parametrize("width", [390, 1280])
def test_what_got_worse_is_seen_whole_or_the_table_scrolls(tmp_path: Path, browser: Any, width: int) -> None:
    with opened(browser, page_of(tmp_path, large_run(5)), viewport={"width": width, "height": 900}) as seen:
        seen.page.click(".columns summary")
        wide = seen.page.locator(".finding .wide").first
        over = wide.evaluate("one => one.scrollWidth - one.clientWidth")
        assert (over > 0) == (width < 500)
        cut = "ones => ones.filter(one => one.getBoundingClientRect().left < 0).map(one => one.textContent)"
        assert seen.page.eval_on_selector_all("svg.chart text", cut) == []
        assert seen.page.evaluate("document.documentElement.scrollWidth") <= width


# --- the address --------------------------------------------------------------------------------------------------


@needs_browser
def test_sort_filter_search_and_columns_are_kept_in_the_address(large: Path, browser: Any) -> None:
    rows = ".explore tbody tr"
    with opened(browser, large) as seen:
        assert len(seen.texts(rows)) == CASES
        seen.page.check("input[name=verdict][value=regressed]")
        assert len(seen.texts(rows)) == 2
        assert seen.texts("details.case > summary > span:first-child") == seen.texts(f"{rows} td:first-child")
        seen.page.fill("input[name=q]", "LARGE-512 bf16")
        seen.page.click(".columns summary")
        seen.page.uncheck("input[name=column][value=peak]")
        seen.page.check("input[name=column][value=operators]")
        seen.page.keyboard.press("Escape")
        seen.page.click("th[data-key=latency] button")
        assert seen.texts(".controls output") == [f"1 of {CASES} cases"]
        shown, heads, address = seen.texts(rows), seen.texts(".explore th"), seen.page.url
        assert "peak" not in heads
        assert "operators" in heads
        seen.page.reload()
        assert seen.page.url == address
        assert (seen.texts(rows), seen.texts(".explore th")) == (shown, heads)
        assert seen.page.get_attribute("th[data-key=latency]", "aria-sort") == "descending"
        assert seen.page.input_value("input[name=q]") == "LARGE-512 bf16"
        seen.page.click("button[name=reset]")
        assert "#" not in seen.page.url
        assert len(seen.texts(rows)) == CASES
        assert seen.said == []
    with opened(browser, large, "#" + address.partition("#")[2]) as seen:
        assert seen.texts(rows) == shown


@needs_browser
def test_a_link_to_a_case_opens_it_keeps_the_filter_and_leads_back(large: Path, browser: Any) -> None:
    with opened(browser, large, "#verdict=regressed&at=case-1") as seen:
        assert seen.page.locator("#case-1").is_visible(), "though the filter hides it"
    with opened(browser, large, "#verdict=ok&sort=-latency") as seen:
        seen.page.click(".explore tbody tr:first-child a")
        assert re.search(r"#verdict=ok&sort=-latency&at=case-\d+$", seen.page.url)
        at = seen.page.url.rpartition("=")[2]
        assert seen.page.locator(f"#{at}").is_visible()
        seen.page.go_back()
        assert seen.page.url.endswith("#verdict=ok&sort=-latency")
        seen.page.click(".tally a >> nth=0")
        assert seen.page.url.endswith("#verdict=regressed")
        assert len(seen.texts(".explore tbody tr")) == 2


@needs_browser
def test_a_filter_of_several_runs_holds_in_each_of_them(tmp_path: Path, browser: Any) -> None:
    first = large_run(60)
    second = changed(first, results=[changed(one, judgement=CALM) for one in first.results])
    page = page_of(tmp_path, first, second)
    sections = "details.case > summary > span:first-child"
    with opened(browser, page) as seen:
        assert len(seen.texts(sections)) == 120
        seen.page.fill("input[name=q]", "large-512 -11")
        names = seen.texts(".explore tbody tr td:first-child")
        assert 0 < len(names) < 5
        assert seen.texts(sections) == names * 2
        seen.page.click("button[name=reset]")
        seen.page.click(".tally a >> nth=0")
        assert seen.page.url.endswith("#verdict=1+regressed")
        assert seen.page.is_checked("input[name=verdict][value='1 regressed']")
        names = seen.texts(".explore tbody tr td:first-child")
        assert len(names) == 2
        assert seen.texts(sections) == names * 2
        seen.page.check("input[name=verdict][value='2 ok']")
        assert len(seen.texts(".explore tbody tr")) == 60
        seen.page.reload()
        assert len(seen.texts(".explore tbody tr")) == 60
        assert seen.said == []


@needs_browser
@pytest.mark.parametrize(("what", "words"), [("case", "3 cases"), ("series", "3 series")])
def test_rows_are_counted_in_words_that_exist(tmp_path: Path, browser: Any, what: str, words: str) -> None:
    page = tmp_path / "table.html"
    macros = FileSystemLoader(Path(render.__code__.co_filename).with_name("templates"))
    text = "{% from 'macros.html' import explorer %}{{ explorer(table, 'All', what) }}"
    text += "<script>{% include 'explore.js' %}</script>"
    table = PageTable([Column("name", "name")], [Row([Cell(name)]) for name in "abc"])
    made = Environment(loader=macros, autoescape=True).from_string(text)
    page.write_text(made.render(table=table, what=what), encoding="utf-8")
    with opened(browser, page) as seen:
        assert seen.texts(".controls output") == [words]
        assert seen.said == []


@needs_browser
@pytest.mark.parametrize(("cases", "whole"), [(60, True), (201, False)])
def test_print_opens_sections_or_says_that_it_does_not(tmp_path: Path, browser: Any, cases: int, whole: bool) -> None:
    with opened(browser, page_of(tmp_path, large_run(cases))) as seen:
        seen.page.emulate_media(media="print")
        assert not seen.page.locator(".controls").is_visible()
        tall = "(() => { const t = document.querySelector('.tall'); return t.scrollHeight - t.clientHeight })()"
        assert seen.page.evaluate(tall) <= 1, "tables are whole"
        opened_before = seen.page.locator("details.case[open]").count()
        seen.page.evaluate("dispatchEvent(new Event('beforeprint'))")
        assert seen.page.locator("details.case[open]").count() == (cases if whole else opened_before)
        assert opened_before > 0
        assert seen.page.locator("details.case[open] details.more:not([open])").count() == 0
        assert seen.page.locator(".unprinted").is_visible() != whole
        seen.page.evaluate("dispatchEvent(new Event('afterprint'))")
        assert seen.page.locator("details.case[open]").count() == opened_before
        seen.page.emulate_media(media="screen")
        assert not seen.page.locator(".unprinted").is_visible()


# --- charts -------------------------------------------------------------------------------------------------------


def places(svg: str, kind: str) -> list[float]:
    """Where circles of a class are drawn, from left to right as they stand."""
    return [float(x) for x in re.findall(rf'<circle cx="([\d.]+)"[^>]*class="{kind}"', svg)]


def test_a_strip_draws_readings_baseline_limit_and_interval_on_one_axis() -> None:
    strands = [Strand("samples", "tick", [10.0, 10.5, 11.0]), Strand("fresh", "dot", [10.0, 12.0])]
    strands.append(Strand("baseline", "old", [8.0, 9.0]))
    svg = strip("times", strands, str, limit=9.5, interval=(8.5, 13.0), middle=11.0)
    old, dots = places(svg, "old"), places(svg, "dot")
    assert old[0] < old[1] < dots[0] < dots[1]
    (line,) = re.findall(r'd="M([\d.]+) 2V\d+" class="limit"', svg)
    assert old[1] < float(line) < dots[0]
    (low, high) = re.findall(r'd="M([\d.]+) \d+H([\d.]+)" class="interval"', svg)[0]
    assert old[0] < float(low) < old[1]
    assert float(high) > dots[1]
    assert "limit 9.5" in svg
    assert "95 % interval 8.5 to 13.0" in svg


def test_a_reading_that_is_off_the_axis_is_said_and_not_drawn() -> None:
    svg = strip("times", [Strand("samples", "tick", [1.0, 1.1, 1.2, 1.3, 5.63])], "{:.2f} ms".format)
    (drawn,) = re.findall(r'd="([^"]+)" class="tick"', svg)
    assert drawn.count("M") == 4
    assert ">1 beyond: 5.63 ms</text>" in svg
    assert "samples: 1.00 ms, 1.10 ms, 1.20 ms, 1.30 ms, 5.63 ms" in svg
    ends = [float(x) for x in re.findall(r"M([\d.]+)", drawn)]
    assert max(ends) < 520 - len("1 beyond: 5.63 ms") * 6  # beside the words, and not below them


def test_a_few_slow_readings_and_disturbed_processes_squeeze_nothing_into_a_corner() -> None:
    usual = [1.0 + 0.01 * at for at in range(17)]
    strands = [Strand("quantiles", "tick", [*usual, 1.2, 9.0, 11.0]), Strand("set aside", "ring", [1.5, 700.0])]
    svg = strip("times", strands, "{:.4g} ms".format)
    assert ">2 beyond, up to 11 ms</text>" in svg
    assert ">1 beyond: 700 ms</text>" in svg
    assert len(places(svg, "ring")) == 1
    (drawn,) = re.findall(r'd="([^"]+)" class="tick"', svg)
    found = [float(x) for x in re.findall(r"M([\d.]+)", drawn)]
    assert len(found) == 18
    assert found[-1] - found[0] > 80  # pixels; with all readings on the axis less than one


@pytest.mark.parametrize(("high", "words"), [(None, "1.3 and more"), (50.0, "1.3 to 50.0"), (1.6, "1.3 to 1.6")])
def test_an_interval_without_an_end_in_sight_runs_out_as_an_arrow(high: float | None, words: str) -> None:
    svg = strip("times", [Strand("samples", "tick", [1.0, 1.1, 1.2])], str, interval=(1.3, high), middle=1.4)
    (line,) = re.findall(r'd="([^"]+)" class="interval"', svg)
    assert ("L" in line) == (high is None or high > 3)
    assert f"95 % interval {words}</desc>" in svg


def test_a_picture_has_the_interval_that_the_table_has() -> None:
    def told(low: float, high: float | None) -> tuple[str, str]:
        times = Times(
            samples=3, repetitions=1, median_ns=2e4, noise=0.1, clock="host", samples_ns=[1.9e4, 2e4, 2.1e4],
        )  # fmt: skip
        latency = Quantity(unit="ns", exact=False, now=2e4, before=1e4, ratio=2.0, low=low, high=high, limit=1.05)
        found = case_of(times=times, quantities={"latency": latency})
        (picture,) = pictures_of(found)
        return str(picture.svg), picture.caption

    svg, caption = told(3.37, None)
    assert "95 % interval 33.7 µs and more" in svg
    assert "can't tell" not in caption
    svg, caption = told(0.5, None)
    assert "95 % interval" not in svg
    assert "95 % interval: can't tell" in caption


def case_of(**changes: Any) -> Case:
    """A case of a report's contents."""
    fields: dict[str, Any] = {
        **{"case": "t.py::test_a", "name": "a", "variant": "", "tier": "measured", "environment": None},
        **{"verdict": "ok", "reasons": [], "parameters": {}, "quantities": {}},
    }
    return Case(**{**fields, **changes})


@pytest.mark.parametrize("values", [[1.0], [0.0, 0.0], [1e-9, 1e9], [5.0] * 21])
def test_charts_of_odd_numbers_stay_within_their_picture(values: list[float]) -> None:
    made = [
        strip("a", [Strand("b", "dot", values)], str, limit=max(values) * 50, interval=(0.0, 1e12), middle=values[0]),
        bars("a", [Bar(str(at), value, "x", 0.0, 2 * value) for at, value in enumerate(values)], str),
        steps("a", values, str, [("forward", 0)]),
        stack("a", [(str(at), value) for at, value in enumerate(values)], str),
    ]
    for svg in made:
        assert "nan" not in svg
        width = float(re.findall(r'viewBox="0 0 ([\d.]+)', svg)[0])
        across = re.findall(r'(?:\bx|cx|x1)="(-?[\d.]+)"', svg) + re.findall(r"[MH](-?[\d.]+)", svg)
        assert all(-1 <= float(x) <= width + 1 for x in across), svg


def test_two_runs_have_a_chart_of_what_differs_between_them(tmp_path: Path) -> None:
    def run(**medians_ms: float) -> Document:
        return document(
            *(result(f"t.py::test_{name}", outcome=record(replicate(ms * 1e6))) for name, ms in medians_ms.items())
        )

    here, there = run(same=5, slower=10, faster=10, gone=1), run(same=5, slower=20, faster=5, new=1)
    page = page_of(tmp_path, here, there).read_text(encoding="utf-8")
    section = page[page.index('id="differences"') : page.index('id="compared"')]
    assert re.findall(r"<desc>([^<]*)</desc>", section) == ["slower +100.0%; faster -50.0%"]
    assert "Time of run 2 against the first run that has numbers of a case, 2 of 3 cases differ; not judged" in section
    (line,) = re.findall(r'd="M([\d.]+) 0V[\d.]+" class="edge"', section)
    bars = [(float(x), float(size)) for x, size in re.findall(r'<rect x="([\d.]+)" y="\d+" width="([\d.]+)"', section)]
    (slower, long), (faster, as_long) = bars
    assert slower == pytest.approx(float(line), abs=0.2)
    assert faster + as_long == pytest.approx(float(line), abs=0.2)
    assert long == pytest.approx(as_long, abs=0.2)  # twice is as far as half
    elsewhere = record(replicate(20e6), environment=environment(machine="b"))
    page = page_of(tmp_path, here, document(result("t.py::test_slower", outcome=elsewhere))).read_text(encoding="utf-8")
    assert 'id="differences"' not in page


@pytest.mark.parametrize(
    ("ratios_given", "marks"),
    [([2.0, 0.5], ["0.0%", "+100.0%", "-50.0%"]), ([1.02], ["0.0%", "+2.0%"]), ([1.5, 2.0, 200.0], ["0.0%", "x100"])],
)
def test_an_axis_of_ratios_has_round_marks_with_room_between_them_and_names_its_sides(
    ratios_given: list[float], marks: list[str]
) -> None:
    svg = ratios("a", [Bar("b", one, "x") for one in ratios_given], format_change, "faster", "slower")
    found = re.findall(r'<text x="([\d.]+)" y="[\d.]+" class="faint middle">([^<]*)', svg)
    assert {*marks} <= {text for _, text in found}
    places_found = sorted(float(x) for x, _ in found)
    assert all(b - a >= 63 for a, b in pairwise(places_found))
    assert ("← faster" in svg, "slower →" in svg) == (min(ratios_given) < 1, True)


def test_ticks_are_round_numbers_within_their_bounds() -> None:
    assert ticks(0, 10, 5) == [0, 2, 4, 6, 8, 10]
    assert ticks(9.7, 11.2, 4) == [10.0, 10.5, 11.0]
    assert ticks(0, 3 * 2**20, 4, "bytes") == [0, 2**20, 2 * 2**20, 3 * 2**20]
    assert ticks(5, 5) == [5]
