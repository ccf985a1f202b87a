"""A browser for tests of pages: the system's Chromium, driven by playwright. Without one such tests are skipped."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None)
needs_browser = pytest.mark.skipif(BROWSER is None, reason="no browser is installed: apt-get install chromium")


@dataclass
class Seen:
    """A page in a browser, and what its console said."""

    page: Any
    said: list[str] = field(default_factory=list)

    def texts(self, selector: str) -> list[str]:
        """The text of each element that is seen."""
        found: list[str] = self.page.eval_on_selector_all(
            selector, "ones => ones.filter(one => one.checkVisibility()).map(one => one.textContent.trim())"
        )
        return found


@dataclass
class Browser:
    """A running browser, and its tabs by the options that they were opened with: a new one has a process of its own."""

    chromium: Any
    tabs: dict[str, Any] = field(default_factory=dict)

    def tab(self, options: dict[str, Any]) -> Any:
        """A tab with these options, which shows nothing."""
        named = repr(sorted(options.items()))
        if named not in self.tabs:
            self.tabs[named] = self.chromium.new_context(**options).new_page()
        return self.tabs[named]


@contextmanager
def chromium() -> Iterator[Browser]:
    """A running browser. It asks for nothing: every request but the page's own file is refused, and noted."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        # A browser without a sandbox is what a container's root can start.
        browser = playwright.chromium.launch(executable_path=BROWSER, args=["--no-sandbox"])
        try:
            yield Browser(browser)
        finally:
            browser.close()


@contextmanager
def opened(browser: Browser, path: Path, fragment: str = "", **options: Any) -> Iterator[Seen]:
    """The page of a file. Errors, and whatever it asks the network for, are in ``said``.

    Args:
        browser: what ``chromium`` gave.
        path: the file.
        fragment: what stands behind the file's name, with its ``#``.
        options: of playwright's contexts: ``color_scheme``, ``viewport``, ``java_script_enabled``.
    """
    page = browser.tab(options)
    seen = Seen(page)
    own = path.resolve().as_uri()

    def dismiss(dialog: Any) -> None:
        seen.said.append(f"dialog: {dialog.message}")
        dialog.dismiss()

    listeners: dict[str, Callable[[Any], object]] = {
        "console": lambda message: seen.said.append(f"{message.type}: {message.text}"),
        "pageerror": lambda error: seen.said.append(str(error)),
        "dialog": dismiss,
        "request": lambda asked: None if asked.url.startswith(own) else seen.said.append(f"asks: {asked.url}"),
    }
    for event, listener in listeners.items():
        page.on(event, listener)
    try:
        page.goto(own + fragment)
        yield seen
    finally:
        for event, listener in listeners.items():
            page.remove_listener(event, listener)
        page.emulate_media(media="null")  # as it was opened
        page.mouse.move(0, 0)
        page.goto("about:blank")


def assert_accessible(browser: Browser, path: Path, scheme: str, width: int) -> list[list[list[str]]]:
    """Assert that axe finds no violation, in closed sections neither, and that each row has a cell for each column.

    Cells of hidden columns are hidden. Return each chart's first two elements.
    """
    from axe_playwright_python.sync_playwright import Axe

    with opened(browser, path, color_scheme=scheme, viewport={"width": width, "height": 900}) as seen:
        seen.page.evaluate("for (const one of document.querySelectorAll('details')) one.open = true")
        found = Axe().run(seen.page)
        assert found.violations_count == 0, found.generate_report()
        assert seen.said == []
        assert seen.page.evaluate("document.documentElement.scrollWidth") <= width
        ragged = seen.page.eval_on_selector_all(
            "table",
            "tables => tables.filter(t => t.tHead && [...t.tBodies[0].rows].some(row => row.cells.length !== "
            "t.tHead.rows[0].cells.length || [...row.cells].some((cell, at) => cell.checkVisibility() !== "
            "t.tHead.rows[0].cells[at].checkVisibility()))).length",
        )
        assert ragged == 0
        charts: list[list[list[str]]] = seen.page.eval_on_selector_all(
            "svg.chart",
            "ones => ones.map(one => [...one.children].slice(0, 2).map(part => [part.tagName, part.textContent]))",
        )
    return charts


def numbers_in(plain: Any) -> Iterator[float]:
    """Every number of plain data, such as the JSON beside a page."""
    if isinstance(plain, dict | list):
        for one in plain.values() if isinstance(plain, dict) else plain:
            yield from numbers_in(one)
    elif isinstance(plain, int | float) and not isinstance(plain, bool):
        yield plain
