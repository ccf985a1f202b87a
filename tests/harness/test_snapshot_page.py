"""The page of a memory snapshot in a browser: blocks are found by pointing and by search, and the page stays small."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from perflab.page.render import policy
from perflab.snapshots import page as page_module
from perflab.snapshots.analysis import alive_at, levels, peak_moment, shown_stack
from perflab.snapshots.model import Block, Frame, Snapshot
from perflab.snapshots.page import as_page
from perflab.snapshots.picture import Axes, Stacking, by_category, by_largest
from perflab.snapshots.summary import summarize
from perflab.units import format_bytes, format_ns
from tests.harness.browser import Seen, needs_browser, opened
from tests.harness.command import Command
from tests.harness.made_snapshots import MIB, TRAIN, Recording, content, of_few_kinds, read, training, written


def unlike_blocks(events: int, function: str) -> Snapshot:
    """Blocks that have nothing in common, each with names of its own."""
    blocks = []
    for number in range(events):
        stack = (Frame(f"/home/me/project/a folder of some length/{number}.py", number, function),)
        blocks.append(Block(512 + number, 512 + number, number, 0, stack, "unknown", "", "", number + 1, None))
    return Snapshot("made", "cuda:0", blocks, range(0, 7_000_000 * events, 7_000_000), events)


def assert_small(page: str, found: Snapshot, most_bytes: int, *, whole: bool) -> None:
    """Assert that a page has so many bytes at most, the peak, and says whether its search lacks blocks."""
    assert len(page.encode()) < most_bytes
    assert ("no room for all of them in its search" in page) is not whole
    level = levels(found)
    assert f"peak {format_bytes(max(level))} at moment {peak_moment(level):,}</text>" in page


def test_a_page_of_blocks_that_are_all_unlike_takes_less_than_5_mb() -> None:
    found = unlike_blocks(10_000, "<" * 200)
    assert_small(as_page(summarize(found, "long"), [("long", found)]), found, 5_000_000, whole=False)


@needs_browser
@pytest.mark.parametrize("key", ["category", "largest"])
def test_pointing_at_a_block_says_what_it_is_and_a_click_lists_what_is_alive_there(
    tmp_path: Path, command: Command, browser: Any, key: str
) -> None:
    path = written(tmp_path / "a.pickle", content(training(3)))
    found, page = read(path), tmp_path / "a.html"
    page.write_text(command("memory", path, "--format=html"), encoding="utf-8")
    level = levels(found)
    peak = peak_moment(level)
    axes = Axes(found.moments, level[peak])
    stacking = by_category(found) if key == "category" else by_largest(found)
    with opened(browser, page) as seen:
        seen.page.check(f"input[value={key}]")
        shown = seen.page.locator("figure svg[role=img]:visible")
        assert shown.count() == 1
        box = shown.bounding_box()
        scale = box["width"] / float(shown.get_attribute("viewBox").split()[2])

        def point(size: int) -> tuple[float, float]:
            return box["x"] + scale * axes.x(peak + 0.5), box["y"] + scale * axes.y(size)

        below = 0
        order = sorted(range(len(found.blocks)), key=lambda number: (stacking.band_of[number], number))
        alive = {id(one) for one in alive_at(found, peak)}
        for number in order:
            block = found.blocks[number]
            if id(block) not in alive:
                continue
            seen.page.mouse.move(*point(below + block.size_bytes // 2))
            freed = "never" if block.freed_at is None else f"{block.freed_at} ({when(found, block.freed_at)})"
            lines = seen.page.locator(".tip > *").all_inner_texts()
            assert lines[0] == f"{format_bytes(block.size_bytes)} {block.category}"
            assert lines[2] == f"allocated: {block.allocated_at} ({when(found, block.allocated_at)}), freed: {freed}"
            then = " at the peak" if key == "largest" else ""
            assert f"band: {stacking.names[stacking.band_of[number]]}{then}; here " in lines[-2]
            assert lines[-1] == f"moment {peak} ({when(found, peak)}), backward: {format_bytes(level[peak])} alive"
            assert outline(seen.page) == pytest.approx(drawn_as(found, stacking, number, axes), abs=0.1)
            below += block.size_bytes
        assert below == level[peak]
        seen.page.mouse.click(*point(below // 2))
        assert seen.page.locator(".blocks output").inner_text() == (
            f"{len(alive)} blocks, {format_bytes(below)} ({below:,} B)"
        )
        assert seen.page.locator(".blocks tbody tr").count() == len(alive)
        assert seen.said == []


def open_list(seen: Seen) -> None:
    """Open the list of blocks: the browser says so to the script a little later."""
    seen.page.click(".blocks summary")
    seen.page.wait_for_selector(".blocks tbody tr")


def outline(page: Any) -> tuple[float, float, float, float]:
    """What is marked in the picture: its left, top, right and bottom."""
    box = page.evaluate(
        "(({x, y, width, height}) => [x, y, x + width, y + height])"
        "([...document.querySelectorAll('.mark')].find(one => one.getAttribute('points')).getBBox())"
    )
    return (box[0], box[1], box[2], box[3])


def drawn_as(found: Snapshot, stacking: Stacking, number: int, axes: Axes) -> tuple[float, float, float, float]:
    """A block's outline, from when it comes to when it goes, on the blocks that are below it at each moment."""
    block, lows = found.blocks[number], []
    end = found.moments + 1 if block.freed_at is None else block.freed_at
    for moment in range(block.allocated_at, end):
        alive = {id(one) for one in alive_at(found, moment)}
        place = (stacking.band_of[number], number)
        lows.append(
            sum(
                one.size_bytes
                for other, one in enumerate(found.blocks)
                if id(one) in alive and (stacking.band_of[other], other) < place
            )
        )
    top, bottom = max(lows) + block.size_bytes, min(lows)
    return axes.x(block.allocated_at), axes.y(top), axes.x(end), axes.y(bottom)


def when(found: Snapshot, moment: int) -> str:
    return format_ns(found.times_ns[moment - 1] - found.times_ns[0])


MOVE_MS, CLICK_MS = 100, 1000
"""What a page of 100,000 events may take to follow the pointer, and to list what is alive: ten times what is usual."""


@needs_browser
def test_a_page_of_a_hundred_thousand_events_takes_less_than_3_mb_and_follows_the_pointer(
    tmp_path: Path, browser: Any
) -> None:
    found, page = read(written(tmp_path / "long.pickle", content(of_few_kinds(1, 100_000)))), tmp_path / "long.html"
    assert found.moments == 100_000
    level, text = levels(found), as_page(summarize(found, "long"), [("long", found)])
    assert_small(text, found, 3_000_000, whole=True)
    page.write_text(text, encoding="utf-8")
    with opened(browser, page) as seen:
        shown = seen.page.locator("figure svg[role=img]:visible")
        drawn = shown.locator("polygon:not(.mark)").evaluate_all("ones => ones.map(one => one.getBBox().height)")
        assert len(drawn) == len(by_category(found).names)
        assert max(drawn) > 100
        took_ms = shown.locator(".over").evaluate(
            """over => {
              const box = over.getBoundingClientRect(), took = [];
              for (let number = 0; number < 40; number++) {
                const clientX = box.x + box.width * (number * 17 % 40 + 0.5) / 40;
                const clientY = box.y + box.height * (1 - (number * 13 % 20) / 40);
                const start = performance.now();
                over.dispatchEvent(new PointerEvent("pointermove", { clientX, clientY }));
                took.push(performance.now() - start);
              }
              return took.sort((one, other) => one - other);
            }"""
        )
        assert took_ms[len(took_ms) // 2] < MOVE_MS
        assert seen.page.locator(".tip").inner_text().endswith(" alive")
        click_ms = shown.locator(".over").evaluate(
            """over => {
              const box = over.getBoundingClientRect(), start = performance.now();
              over.dispatchEvent(new MouseEvent("click", { clientX: box.x + box.width / 2, clientY: box.y + 9 }));
              return performance.now() - start;
            }"""
        )
        assert click_ms < CLICK_MS
        moment = int(seen.page.input_value(".blocks [name=moment]"))
        alive = alive_at(found, moment)
        assert abs(moment - found.moments / 2) < found.moments / 100
        assert seen.page.locator(".blocks output").inner_text() == (
            f"{len(alive):,} blocks, {format_bytes(level[moment])} ({level[moment]:,} B); the 200 largest are listed"
        )
        assert seen.said == []


@needs_browser
def test_a_search_finds_blocks_by_line_size_and_category(tmp_path: Path, command: Command, browser: Any) -> None:
    path = written(tmp_path / "a.pickle", content(of_few_kinds(2, 5000)))
    found, page = read(path), tmp_path / "a.html"
    page.write_text(command("memory", path, "--format=html"), encoding="utf-8")
    wanted = [one for one in found.blocks if one.stack[0].line == 117 and format_bytes(one.size_bytes) == "1.25 MiB"]
    assert len(wanted) > 5
    with opened(browser, page) as seen:
        open_list(seen)
        total = sum(one.size_bytes for one in found.blocks)
        assert seen.page.locator(".blocks output").inner_text() == (
            f"{len(found.blocks):,} blocks, {format_bytes(total)} ({total:,} B); the 200 largest are listed"
        )
        sizes = seen.page.locator(".blocks tbody tr td:first-child").all_inner_texts()
        largest = sorted((one.size_bytes for one in found.blocks), reverse=True)
        assert sizes == [format_bytes(size) for size in largest[:200]]
        seen.page.fill(".blocks [name=q]", "model.py:117  1.25 mib")
        assert seen.page.locator(".blocks output").inner_text().startswith(f"{len(wanted)} blocks, ")
        came = seen.page.locator(".blocks tbody tr td:nth-child(6)").all_inner_texts()
        assert sorted(came) == sorted(f"{one.allocated_at:,} ({when(found, one.allocated_at)})" for one in wanted)
        seen.page.fill(".blocks [name=q]", "nowhere")
        assert seen.page.locator(".blocks output").inner_text() == "0 blocks, 0 B (0 B)"


@needs_browser
def test_a_list_that_lacks_blocks_says_how_much(
    tmp_path: Path, command: Command, browser: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page_module, "MOST_CHARACTERS", 12_000)
    path, page = written(tmp_path / "a.pickle", content(of_few_kinds(3, 2000, 2))), tmp_path / "a.html"
    found, level = read(path), levels(read(path))
    page.write_text(command("memory", path, "--format=html"), encoding="utf-8")
    (data,) = re.findall(r'<script type="application/json">(.*?)</script>', page.read_text(encoding="utf-8"))
    listed = len(json.loads(data)["kind"])
    drawn = json.loads(data)["shown"]
    with opened(browser, page) as seen:
        open_list(seen)
        output = seen.page.locator(".blocks output")
        assert f" of the {listed:,} blocks that the page has" in output.inner_text()
        seen.page.fill(".blocks [name=moment]", str(peak_moment(level)))
        alive = alive_at(found, peak_moment(level))
        assert output.inner_text().split("; the")[0] == (
            f"{len(alive)} blocks, {format_bytes(max(level))} ({max(level):,} B)"
        )
        lacking = 0
        for moment in drawn[::50]:
            seen.page.fill(".blocks [name=moment]", str(moment))
            text = output.inner_text().split("; the")[0]
            (in_text,) = re.findall(r"\(([\d,]+) B\)", text)
            in_list = int(in_text.replace(",", ""))
            assert in_list <= level[moment]
            if in_list < level[moment]:
                lacking += 1
                more = format_bytes(level[moment] - in_list)
                assert text.endswith(f" of {format_bytes(level[moment])} alive; {more} more are in the picture alone")
        assert lacking > 1
        unseen = next(moment for moment in range(found.moments) if moment not in {*drawn})
        seen.page.fill(".blocks [name=moment]", str(unseen))
        assert f" of the {listed:,} blocks that the page has" in output.inner_text()
        assert seen.said == []


@needs_browser
def test_a_long_stack_is_read_whole_in_the_list(tmp_path: Path, command: Command, browser: Any) -> None:
    calls = [
        (f"/home/me/project/a_module_of_a_long_name_{one}.py", one, "a_function_of_a_long_name") for one in range(5)
    ]
    made = Recording().alloc(0, MIB, *calls).alloc(64 * MIB, MIB, (f"/home/me/project/{'x' * 200}.py", 1, "main"))
    path, page = written(tmp_path / "a.pickle", content(made)), tmp_path / "a.html"
    page.write_text(command("memory", path, "--format=html"), encoding="utf-8")
    for width in (1280, 500):
        with opened(browser, page, viewport={"width": width, "height": 900}) as seen:
            open_list(seen)
            stack = seen.page.locator(".blocks tbody td:last-child").first
            assert stack.inner_text() == shown_stack(read(path).blocks[0].stack)
            cut = "ones => ones.filter(one => one.scrollWidth > one.clientWidth).map(one => one.textContent)"
            assert seen.page.eval_on_selector_all(".blocks tbody td", cut) == []
            assert stack.bounding_box()["width"] > 200


@needs_browser
def test_without_script_the_stacking_is_switched_and_bands_have_names(
    tmp_path: Path, command: Command, browser: Any
) -> None:
    path, page = written(tmp_path / "a.pickle", content(training(3))), tmp_path / "a.html"
    page.write_text(command("memory", path, "--format=html"), encoding="utf-8")
    with opened(browser, page, java_script_enabled=False) as seen:
        assert not seen.page.locator(".blocks").is_visible()
        for key, other in (("category", "largest"), ("largest", "category"), ("category", "largest")):
            seen.page.check(f"input[value={key}]")
            assert seen.page.locator(f".by-{key}").is_visible()
            assert not seen.page.locator(f".by-{other}").is_visible()
        names = seen.page.locator(".by-largest polygon > title").all_text_contents()
        assert names == [*by_largest(read(path)).names]


@needs_browser
def test_what_a_recording_names_ends_no_script(tmp_path: Path, command: Command, browser: Any) -> None:
    hostile = "</script><script>alert(1)</script><!--<script>\u2028\u202e\x1b"
    made = Recording().alloc(0, MIB, (f"/home/me/{hostile}.py", 7, hostile), TRAIN)
    path, page = written(tmp_path / "a.pickle", content(made)), tmp_path / "a.html"
    text = command("memory", path, "--format=html")
    assert f'content="{policy("timeline.js")}"' in text
    assert (text.count("<script"), text.count("</script>"), text.count("<style")) == (2, 2, 1)
    page.write_text(text, encoding="utf-8")
    with opened(browser, page) as seen:
        open_list(seen)
        assert "alert(1)" in seen.page.locator(".blocks tbody tr").inner_text()
        assert "\u202e" not in seen.page.content()
        assert seen.said == []


@needs_browser
def test_numbers_of_the_script_are_written_as_all_others(tmp_path: Path, command: Command, browser: Any) -> None:
    sizes = [1, 512, 1023, 1024, 10 * 1024 - 1, 99_900, 1_048_500, MIB, 3 * MIB + 77, 2**30 - 600_000, 2**41, 2**52]
    sizes += [1025 * 512, 1027 * 512, MIB * 9 // 8, MIB * 11 // 8, MIB * 41 // 4]  # in the middle of two texts
    events, at_us = [], 0
    for number, size in enumerate(sizes):
        at_us += 13**number if number < 9 else 0
        events.append([at_us * 1000 + 137 * number, size])
    path, page = tmp_path / "a.json", tmp_path / "a.html"
    path.write_text(json.dumps({"schema": 1, "device": "cpu", "events": events}), encoding="utf-8")
    found = read(path)
    page.write_text(command("memory", path, "--format=html"), encoding="utf-8")
    with opened(browser, page) as seen:
        open_list(seen)
        for row, block in zip(
            seen.page.locator(".blocks tbody tr").all(),
            sorted(found.blocks, key=lambda one: -one.size_bytes),
            strict=True,
        ):
            cells = row.locator("td").all_inner_texts()
            assert cells[0] == format_bytes(block.size_bytes)
            assert cells[5] == f"{block.allocated_at} ({when(found, block.allocated_at)})"


@needs_browser
@pytest.mark.parametrize(("scheme", "width"), [("light", 1280), ("dark", 400)])
def test_axe_finds_no_violation_in_a_page_of_two_pictures(
    tmp_path: Path, command: Command, browser: Any, scheme: str, width: int
) -> None:
    from axe_playwright_python.sync_playwright import Axe

    both = [str(written(tmp_path / f"{steps}.pickle", content(training(steps)))) for steps in (2, 3)]
    page = tmp_path / "both.html"
    page.write_text(command("memory", *both, "--format=html"), encoding="utf-8")
    with opened(browser, page, color_scheme=scheme, viewport={"width": width, "height": 900}) as seen:
        seen.page.evaluate("for (const one of document.querySelectorAll('details')) one.open = true")
        seen.page.locator("input[value=largest]").last.check()
        assert [one.get_attribute("class") for one in seen.page.locator("figure > div:visible").all()] == [
            "by-category",
            "by-largest",
        ]
        found = Axe().run(seen.page)
        assert found.violations_count == 0, found.generate_report()
        assert seen.said == []
