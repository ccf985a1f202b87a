"""docs/files.md names every file, README and workflows install perflab from where it is, and links lead somewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.harness.file_map import PAGE, drawn

ROOT = Path(__file__).parents[2]


def test_the_map_of_files_is_todays() -> None:
    assert PAGE.read_text(encoding="utf-8") == drawn(), "write it anew: make map"


def test_it_is_installed_from_the_repository_as_long_as_no_index_has_it() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    workflows = [path.read_text(encoding="utf-8") for path in (ROOT / "docs").glob("github-workflow*.yml")]
    named = [
        re.findall(r"(\S*perflab\[[^]]*\])(.*)", text) for text in (readme.split("## In your project")[1], *workflows)
    ]
    assert len(named) == 5
    for found in named:
        assert found
        for name, rest in found:
            assert name.strip("\"'").startswith("./") or rest.startswith(" @ git+https://")


def slug(heading: str) -> str:
    """A heading's anchor, as GitHub makes it."""
    return re.sub(r"[^\w\- ]", "", heading.replace("`", "").lower()).replace(" ", "-")


PAGES = [*sorted(ROOT.glob("*.md")), *sorted(ROOT.glob("docs/**/*.md")), *sorted(ROOT.glob("nocuda/*.md"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_every_link_leads_somewhere(page: Path) -> None:
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.S | re.M)
    for address in re.findall(r"\]\(([^)\s]+)\)", text):
        if "://" in address:
            continue
        place, _, anchor = address.partition("#")
        target = (page.parent / place).resolve() if place else page
        assert target.exists(), address
        if anchor and target.suffix == ".md":
            there = target.read_text(encoding="utf-8")
            named = re.findall(r'<a id="([^"]+)"', there)
            assert anchor in [*named, *map(slug, re.findall(r"^#+ (.+)$", there, flags=re.M))], address
