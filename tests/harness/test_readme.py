"""README and docs: the site, installing, links that lead somewhere, and outputs that commands made."""

from __future__ import annotations

import importlib
import re
import runpy
import tomllib
from importlib.metadata import version
from pathlib import Path

import pytest

import perflab
from tests.harness.make_docs import OUTPUTS, Block, Scratch, blocks_of, has_asides, made, shown
from tests.harness.make_docs import PAGES as PAGES_WITH_OUTPUTS

ROOT = Path(__file__).parents[2]
HOOKS = runpy.run_path(str(ROOT / "docs" / "_site" / "hooks.py"))
MODULES, ELSEWHERE = HOOKS["MODULES"], HOOKS["ELSEWHERE"]


def test_the_site_has_every_page() -> None:
    named = re.findall(r"^ +- ([\w/-]+\.md)$", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"), flags=re.MULTILINE)
    pages = {path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")}
    assert sorted(named) == sorted(pages | {"api.md", "files.md"} | set(ELSEWHERE.values()))


def test_the_sites_api_has_every_public_module() -> None:
    said = re.findall(r"``(perflab\.\w+)``", perflab.__doc__ or "")
    assert said
    assert [module for module in said if not any(one.startswith(module) for one in MODULES)] == []
    for module in MODULES:
        found = importlib.import_module(module)
        assert all(hasattr(found, name) for name in getattr(found, "__all__", ()))


def test_the_site_is_built_beside_the_compiled_files_of_a_package_that_became_a_module(tmp_path: Path) -> None:
    for path in ("perflab/__init__.py", "perflab/once.py", "perflab/once/__pycache__/__init__.cpython-311.pyc"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text('"""Told."""\n')
    made = runpy.run_path(str(ROOT / "docs" / "_site" / "hooks.py"))["file_map"]
    made.__globals__["ROOT"] = tmp_path
    assert "- `once.py`: Told.\n" in made()


def test_it_is_installed_from_the_repository_as_long_as_no_index_has_it() -> None:
    workflows = [path.read_text(encoding="utf-8") for path in (ROOT / "docs").glob("github-workflow*.yml")]
    named = [re.findall(r"(\S*perflab\[[^]]*\])(.*)", text) for text in workflows]
    assert len(named) == 4
    for found in named:
        assert found
        for name, rest in found:
            assert name.strip("\"'").startswith("./") or rest.startswith(" @ git+https://")


@pytest.mark.parametrize("page", ["README.md", "docs/start.md"])
def test_the_file_that_is_installed_is_the_one_that_a_release_of_this_version_has(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    ((version, named),) = re.findall(r'pip install "\./perflab-(\S+)-py3-none-any\.whl\[([^]]*)\]"', text)
    assert version == perflab.__version__
    assert set(named.split(",")) <= set(extras)
    assert "THIS-REPOSITORY" not in text


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


# --- outputs -----------------------------------------------------------------------------------------------------

READ = {path: path.read_text(encoding="utf-8") for path in PAGES_WITH_OUTPUTS}


def test_every_output_is_made_by_its_command_or_says_why_it_is_not() -> None:
    unknown = [
        f"{path.relative_to(ROOT)}: {block.body.splitlines()[0]}"
        for path, text in READ.items()
        for block in blocks_of(text)
        if OUTPUTS.search(block.body) and not (block.is_made or re.match(r"kept, \w.*", block.said))
    ]
    assert unknown == []


def test_an_output_that_says_nothing_disturbed_it_has_nothing_to_explain() -> None:
    quiet = [block for text in READ.values() for block in blocks_of(text) if "quiet" in block.words]
    assert [block.body for block in quiet if has_asides(block.body)] == []
    assert all(len(block.body.splitlines()) > 3 for block in quiet), "make docs"


@pytest.fixture
def scratch(tmp_path: Path, python_of_ranks: str, warm_start: None) -> Scratch:
    """A project in which pytest starts with PyTorch and its compiler imported."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "pytest").write_text(f'#!/bin/sh\nexec {python_of_ranks} -m pytest "$@"\n')
    (tmp_path / "bin" / "pytest").chmod(0o755)
    return Scratch(tmp_path, path=(str(tmp_path / "bin"),))


def test_exact_outputs_are_what_their_commands_print_today(scratch: Scratch) -> None:
    pinned = re.search(r"^torch==([\d.]+)", (ROOT / "constraints.txt").read_text(), re.M)
    assert pinned is not None
    if version("torch").partition("+")[0] != pinned[1]:
        pytest.skip(f"the pages show what PyTorch {pinned[1]} needs, whose baselines are committed")

    def without_seconds(text: str) -> str:
        return re.sub(r"=* [^=\n]* in \d[^=\n]* =*", "", text)

    # Those of a page's own project hang on all that the page runs before them.
    of_the_lab = [one for text in READ.values() for one in blocks_of(text) if "in=repository" in one.words]
    for block in (one for one in of_the_lab if "exact" in one.words):
        assert without_seconds(scratch.output_of(block)) == without_seconds(block.body), "make docs"
    assert len(of_the_lab) > 1


def test_one_case_has_the_same_exact_numbers_on_every_page() -> None:
    """By the card and the case: peak, FLOPs, launches."""
    found: dict[tuple[str, str], set[tuple[str, ...]]] = {}
    for text in READ.values():
        for block in (block for block in blocks_of(text) if block.is_made and "--perf-predict" in block.body):
            card = re.search(r"--perf-gpu=(\S+)", block.body)
            rows = re.findall(
                r"^(\S+\[\S+\]) +(\S+ T) +(\S+ GiB) .*\n(?:  .*\n)*?  .* · (\S+) launches", block.body, re.M
            )
            for case, *numbers in rows:
                found.setdefault((card[1] if card else "h100", case), set()).add(tuple(numbers))
    assert ("h100", "step[2.7B-1024-bf16]") in found
    assert {key: numbers for key, numbers in found.items() if len(numbers) > 1} == {}


def test_every_line_to_write_is_right(scratch: Scratch) -> None:
    page = READ[ROOT / "docs/howto/write-a-case.md"]
    made(page, scratch, exact=True)
    files = sorted(path.name for path in scratch.place.glob("test_*.py"))
    assert len(files) == len(re.findall(r"^```python", page, flags=re.M)) == 9
    status, output = scratch.run("pytest -m perf --perf-budget=100ms")
    assert status == 0, output
    assert "9 passed" in output
    said = re.compile(r"differ from call|calls differ|ran on after|find nothing to do|exhausted")
    assert said.search(output) is None, output


def test_of_an_output_a_page_shows_what_a_terminal_would_and_the_parts_that_were_asked_for() -> None:
    output = """\
============================= test session starts ==============================
rootdir: /tmp
collected 1 item
perf: no GPU here

test_a.py 
measuring a: looks worse, 15 s so far
.                                                                        [100%]
first
second
third
"""
    dots = f"test_a.py .{'[100%]':>68}\n"
    assert shown(output, Block("made")) == f"{dots}first\nsecond\nthird\n"
    assert shown(output, Block("made from=second")) == "…\nsecond\nthird\n"
    assert shown(output, Block("made to=first from=third")) == f"{dots}…\nthird\n"
    assert shown(output, Block('made from="sec" to=thi')) == "…\nsecond\n…\n"


def test_a_page_is_read_as_a_script() -> None:
    page = "<!-- docs: project -->\n```python\n# a.py\n1\n```\n<!-- docs: run\nls\n-->\n"
    page += "<!-- docs: kept, no -->\n```\n$ b\n```\n"
    assert [(block.said, block.body) for block in blocks_of(page)] == [
        ("project", ""),
        ("", "# a.py\n1\n"),
        ("run\nls", ""),
        ("kept, no", "$ b\n"),
    ]
