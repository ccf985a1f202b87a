"""``make docs``: runs what README and docs show, and writes the outputs into the pages. Comments in a page say how.

A page is a script, read from top to bottom. Its commands run in a project of its own, a new folder. In a page

- ``<!-- docs: project -->`` begins an empty project;
- a fenced block that then begins with ``# name.py`` or ``# name.ini`` is a file of the project, and is written;
- ``<!-- docs: run``, commands, ``-->`` runs what no reader sees; after ``<!-- docs: runs -->``, a fence has commands;
- ``<!-- docs: made -->`` before a fence: its first line is ``$ command``, and what follows is what that prints. Words
  behind ``made``: ``exit=1``, the status that it ends with; ``exact``, no line hangs on the machine, and a test holds
  it; ``quiet``, run again until nothing speaks of noise; ``in=repository``, run there; ``from=TEXT`` and ``to=TEXT``,
  once or several times, only from the next line that holds the text, up to the one that does;
- ``<!-- docs: kept, REASON -->`` before such a fence: nothing here can make it.

What pytest prints above the first test file is left out. ``make docs PAGES=docs/start.md`` makes one page.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("**/*.md"))]
"""All that may hold such blocks."""
OUTPUTS = re.compile(r"^\$ ", re.M)
ASIDES = re.compile(r"(?<!nothing )disturbed|waiting for|inconclusive|too noisy|is noisy|other processes|stolen")
"""What a quiet machine does not say."""
ATTEMPTS = 6
WIDTH = 80
"""Of the terminal."""
_TOKEN = re.compile(
    r"^[ \t]*<!-- docs: (?P<said>.*?) ?-->\n|^(?P<fence>```+)(?P<language>\w*)\n(?P<body>.*?)^(?P=fence)\n", re.M | re.S
)


def has_asides(output: str) -> bool:
    """Whether an output speaks of noise."""
    return ASIDES.search(" ".join(output.split())) is not None


@dataclass(frozen=True)
class Block:
    """A fenced block, or a comment of its own, with what was said before it."""

    said: str
    """The comment's text: ``made exit=1``, ``run`` and commands, ``project``; empty without a comment."""
    body: str = ""
    span: tuple[int, int] = (0, 0)
    """Where the body stands in the page."""

    @property
    def words(self) -> list[str]:
        """The comment's words; of a reason only the first."""
        return [self.said] if self.said.startswith(("run\n", "kept")) else shlex.split(self.said)

    def value(self, name: str) -> str | None:
        """What ``name=`` gives."""
        return next((word.partition("=")[2] for word in self.words if word.startswith(f"{name}=")), None)

    @property
    def is_made(self) -> bool:
        """Whether its output is made by a command."""
        return self.words[:1] == ["made"]


def blocks_of(page: str) -> Iterator[Block]:
    """A page's blocks in their order."""
    said = ""
    for token in _TOKEN.finditer(page):
        if token["fence"]:
            yield Block(said, token["body"], token.span("body"))
            said = ""
        elif token["said"].startswith(("run\n", "project")):
            yield Block(token["said"].strip())
        else:
            said = token["said"].strip()


def shown(output: str, block: Block) -> str:
    """What a page shows of an output."""
    output = re.sub(r"^=+ test session starts =+\n.*?^(?:collect|\d+ workers).*?\n\n", "", output, flags=re.M | re.S)
    output = re.sub(r"^(measuring|predicting) .* so far\n", "", output, flags=re.M)  # a terminal's is overwritten
    output = re.sub(r"^  this is a container, .*\n", "", output, flags=re.M)  # a reader's machine is none, mostly
    output = re.sub(r"^(\S+\.py )\n+([.FEs]+ *)", r"\1\2", output, flags=re.M)
    output = re.sub(
        r"^(\S+\.py [.FEs]+) +(\[ *\d+%\])$", lambda m: f"{m[1]}{m[2]:>{WIDTH - 1 - len(m[1])}}", output, flags=re.M
    )
    lines = [line.rstrip() for line in output.strip("\n").splitlines()]
    kept, at = [], 0
    for word in block.words:
        key, _, text = word.partition("=")
        if key in ("from", "to"):
            place = next(place for place in range(at, len(lines)) if text in lines[place])
            kept += lines[at:place] if key == "to" else ["…"] * (place > at)
            at = place
    ends = [word.partition("=")[0] for word in block.words if word.startswith(("from=", "to="))][-1:]
    kept += ["…"] if ends == ["to"] else lines[at:]
    return "".join(f"{line}\n" for line in kept)


@dataclass
class Scratch:
    """A project in which a page's commands run."""

    folder: Path
    python: Path = Path(sys.executable)
    options: str = ""
    """Given to every pytest."""
    attempts: int = ATTEMPTS
    """At an output that is to speak of no noise."""
    path: tuple[str, ...] = ()
    """Folders whose commands come before those of this Python's environment."""
    installed: bool = False
    """Whether perflab is taken from this Python's environment, not from the repository."""
    projects: int = field(default=0, init=False)
    _known: dict[str, tuple[int, str]] = field(default_factory=dict, init=False)
    """Of commands in the repository that hang on nothing: several pages show parts of one output."""

    def begin(self) -> None:
        """Begin another project."""
        self.projects += 1
        self.place.mkdir(parents=True)

    @property
    def place(self) -> Path:
        """The project's folder."""
        return self.folder / f"project-{self.projects}"

    def run(self, command: str, cwd: Path | None = None) -> tuple[int, str]:
        """A command's exit status and output, errors among it."""
        (self.folder / "gitconfig").write_text(
            "[user]\nname = You\nemail = you@example.org\n[init]\ndefaultBranch = main\n"
        )
        environment = {
            key: value for key, value in os.environ.items() if not key.startswith(("PYTEST", "GITHUB", "CI"))
        }
        environment |= {
            "PATH": os.pathsep.join([*self.path, str(self.python.parent), os.environ["PATH"]]),
            "COLUMNS": str(WIDTH),
            "GIT_CONFIG_GLOBAL": str(self.folder / "gitconfig"),
            "PYTEST_ADDOPTS": f"-p no:cacheprovider {self.options}",
        }
        environment.pop("PYTHONPATH", None)
        if not self.installed:
            environment["PYTHONPATH"] = str(ROOT)
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", command],
            cwd=cwd or self.place,
            env=environment,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            check=False,
        )
        return done.returncode, done.stdout

    def output_of(self, block: Block) -> str:
        """A made block's body, made anew."""
        command = block.body.partition("\n")[0].removeprefix("$ ")
        cwd, wanted = (ROOT if block.value("in") == "repository" else None), int(block.value("exit") or 0)
        before = self.folder / "before"
        if "quiet" in block.words:
            shutil.rmtree(before, ignore_errors=True)
            shutil.copytree(self.place, before, symlinks=True)
        status, output = self._known.get(command) or self.run(command, cwd)
        if cwd is not None and "exact" in block.words:
            self._known[command] = status, output
        for _ in range(self.attempts - 1 if "quiet" in block.words else 0):
            if status == wanted and not has_asides(output):
                break
            shutil.rmtree(self.place)
            shutil.copytree(before, self.place, symlinks=True)
            status, output = self.run(command, cwd)
        if status != wanted:
            raise SystemExit(f"$ {command}\nended with {status} instead of {wanted}:\n{output}")
        if self.attempts > 1 and "quiet" in block.words and has_asides(output):
            print(
                f"  noise in {self.attempts} attempts: left as it was; make it again on a quieter machine", flush=True
            )
            return block.body
        return f"$ {command}\n{shown(output, block)}"


def made(page: str, scratch: Scratch, *, exact: bool = False) -> str:
    """A page with its outputs made anew; with ``exact``, just those that hang on nothing."""
    parts, done = [], 0
    for block in blocks_of(page):
        if block.is_made and (not exact or "exact" in block.words):
            print("$", block.body.partition("\n")[0].removeprefix("$ "), flush=True)
            parts += [page[done : block.span[0]], scratch.output_of(block)]
            done = block.span[1]
        elif block.said == "project":
            scratch.begin()
        elif scratch.projects:
            _take(block, scratch, must=not exact)
    return "".join([*parts, page[done:]])


def _take(block: Block, scratch: Scratch, *, must: bool) -> None:
    """Write a block that is a file, or run one that has commands; they may hang on outputs that were not made."""
    named = re.match(r"# ([\w/]+\.(?:py|ini|toml))\n", block.body)
    commands = block.body if block.said == "runs" else block.said.removeprefix("run\n")
    if named and not block.said.startswith("kept"):
        path = scratch.place / named[1]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(block.body, encoding="utf-8")
    elif block.said.startswith("run"):
        status, output = scratch.run(commands)
        if status and must:
            raise SystemExit(f"{commands}\nended with {status}:\n{output}")


def main() -> None:
    """Make pages anew, or run them."""
    parser = argparse.ArgumentParser(prog="python -m tests.harness.make_docs", description=__doc__.partition("\n")[0])
    parser.add_argument("pages", nargs="*", type=Path, default=PAGES)
    parser.add_argument("--run", action="store_true", help="run the pages' commands, and write nothing")
    parser.add_argument("--python", type=Path, help="an environment's Python in which perflab is installed")
    given = parser.parse_args()
    for path in given.pages:
        page = path.read_text(encoding="utf-8")
        if not any(block.is_made or block.said == "project" for block in blocks_of(page)):
            continue
        print(f"== {path}", flush=True)
        with tempfile.TemporaryDirectory() as folder:
            scratch = Scratch(Path(folder), installed=given.python is not None)
            if given.python is not None:
                scratch.python = given.python.absolute()
            if given.run:  # it asks whether the page works, on a machine as noisy as it is
                scratch.options, scratch.attempts = "-o perf_noisy=accept", 1
            anew = made(page, scratch)
        if not given.run:
            path.write_text(anew, encoding="utf-8")


if __name__ == "__main__":
    main()
