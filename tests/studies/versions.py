"""Runs the tests in environments of the versions that perflab claims to support: ``make versions``.

The lowest versions of all packages stand in ``pyproject.toml``; beside them, each minor version of PyTorch that the
package index has up to the newest one that is claimed, with the Triton that it asks for. Needs 5 GB and some
minutes an environment: an index has the CUDA build of older versions. Each environment stays in ``.versions/``, and
in it what pytest printed (``tests.log``).
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import time
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from perflab.internals.lookup import TORCH

ROOT = Path(__file__).parents[2]
TESTS = ("tests/harness", "tests/plugin")
_BOUND = re.compile(r"([\w.-]+)\s*>=\s*([\d.]+)")
_COUNT = re.compile(r"(\d+) (passed|failed|skipped|errors?)\b")


class Row(NamedTuple):
    """The result of the tests in one environment."""

    name: str
    python: str
    """The version of Python, or the interpreter with which there is no environment."""
    counts: Mapping[str, int]
    """The number of tests by outcome, as pytest's last line has it; empty: pytest did not come to an end."""
    minutes: float
    failures: Sequence[str]
    """The names of tests that failed, or the error that kept the tests from running."""


def lowest(project: Mapping[str, Any]) -> list[str]:
    """Return ``package==version`` for the lowest claimed version of each package of the plugin and its extras.

    ``project`` is the table ``project`` of ``pyproject.toml``. The packages of the tests alone are not pinned.
    """
    extras = project["optional-dependencies"]
    declared = [*project["dependencies"], *(one for name in ("triton", "benchmark", "xdist") for one in extras[name])]
    found = [_BOUND.match(one) for one in declared]
    return [f"{one[1]}=={one[2]}{'.0' * (2 - one[2].count('.'))}" for one in found if one is not None]


def minors(available: Sequence[str], oldest: tuple[int, int], newest: tuple[int, int]) -> list[str]:
    """Return the newest release of each minor version from ``oldest`` to ``newest``, the oldest first."""
    best: dict[tuple[int, int], tuple[int, ...]] = {}
    for version in available:
        if re.fullmatch(r"\d+\.\d+\.\d+", version):
            numbers = tuple(map(int, version.split(".")))
            minor = numbers[0], numbers[1]
            if oldest <= minor <= newest:
                best[minor] = max(best.get(minor, numbers), numbers)
    return [".".join(map(str, best[minor])) for minor in sorted(best)]


def on_the_index(package: str) -> list[str]:
    """Return the versions of a package that the index has."""
    command = [sys.executable, "-m", "pip", "index", "versions", package]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    found = re.search(r"^Available versions: (.+)$", done.stdout, re.MULTILINE)
    if found is None:
        raise SystemExit(f"pip lists no versions of {package}, so none can be tried: {done.stderr.strip()}")
    return found[1].split(", ")


def run(name: str, pins: Sequence[str], python: str, tests: Sequence[str]) -> Row:
    """Build an environment with these pins, if it is not there, and run the tests in it."""
    folder = ROOT / ".versions" / name
    began = time.monotonic()
    try:
        if not (folder / "installed").exists():
            subprocess.run([python, "-m", "venv", "--clear", folder], check=True)
            pip = [folder / "bin/python", "-m", "pip", "install", "--quiet"]
            subprocess.run([*pip, *pins, f"{ROOT}[test]"], check=True)
            subprocess.run([*pip, "--no-deps", "--editable", ROOT], check=True)
            (folder / "installed").write_text("\n".join(pins))
    except subprocess.CalledProcessError as error:
        return Row(name, python, {}, (time.monotonic() - began) / 60, [f"not installed: {error}"])
    command = [folder / "bin/pytest", "-q", "-n", "2", "--dist", "worksteal", "-o", "faulthandler_timeout=600", *tests]
    path = f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}"
    log = folder / "tests.log"  # to be read while they run, half an hour
    with log.open("w") as file:
        subprocess.run(command, cwd=ROOT, env={**os.environ, "PATH": path}, stdout=file, check=False)
    output = log.read_text(encoding="utf-8", errors="replace")
    last = (output.strip().splitlines() or [""])[-1]
    counts = {what: int(count) for count, what in _COUNT.findall(last)}
    version = subprocess.run([folder / "bin/python", "-V"], capture_output=True, text=True, check=True).stdout
    return Row(
        name, version.strip().removeprefix("Python "), counts, (time.monotonic() - began) / 60, failures_in(output)
    )


def failures_in(output: str) -> list[str]:
    """Return the names of failed tests and of files with errors in pytest's summary."""
    return re.findall(r"^(?:FAILED|ERROR) (\S+)", output, re.MULTILINE)


def table(rows: Sequence[Row]) -> str:
    """Return the results as text: a line for each environment, and below it what failed."""
    lines = [f"{'versions':<24}{'python':<12}{'passed':>8}{'failed':>8}{'skipped':>8}{'minutes':>9}"]
    for row in rows:
        counts = "".join(f"{row.counts.get(what, 0):>8}" for what in ("passed", "failed", "skipped"))
        lines.append(f"{row.name:<24}{row.python:<12}{counts}{row.minutes:>9.1f}")
        lines += [f"  {failure}" for failure in row.failures]
    return "\n".join(lines)


def main() -> int:
    """Run the tests in each environment; return 1 if any failed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--python", default=sys.executable, help="the interpreter of the environments")
    parser.add_argument("--only", help="the name of one environment, such as lowest or torch-2.12.1")
    parser.add_argument("tests", nargs="*", default=TESTS, help=f"tests to run (default: {' '.join(TESTS)})")
    given = parser.parse_args()
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    project, builds = declared["project"], declared["build-system"]["requires"]  # a test builds the wheel
    sets = {"lowest": lowest(project)}
    sets |= {f"torch-{one}": [f"torch=={one}"] for one in minors(on_the_index("torch"), TORCH.oldest, TORCH.newest)}
    if given.only is not None and given.only not in sets:
        parser.error(f"--only={given.only}: there is no such environment; choose from {', '.join(sets)}")
    rows = [
        run(name, [*pins, *builds], given.python, given.tests)
        for name, pins in sets.items()
        if given.only in (None, name)
    ]
    print(table(rows))
    return int(any(row.failures or not row.counts for row in rows))


if __name__ == "__main__":
    sys.exit(main())
