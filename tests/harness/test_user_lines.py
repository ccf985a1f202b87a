"""Which lines count as the user's: his own and those of packages, not PyTorch's, Python's or ours."""

from __future__ import annotations

import contextlib
import copy
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from types import CodeType

import pytest

from perflab.base.user_lines import line_of, stack_of

HERE = "tests/harness/test_user_lines.py"


@pytest.fixture(autouse=True)
def at_the_root(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lines are shown below the folder in which pytest runs."""
    monkeypatch.chdir(Path(__file__).parents[2])


class Copied:
    """Notes who copies it."""

    def __init__(self) -> None:
        self.stack: tuple[str, ...] = ()
        self.line = ""

    def __deepcopy__(self, _memo: object) -> Copied:
        found = Copied()
        frame = sys._getframe(1)
        found.stack, found.line = stack_of(frame), line_of(frame)
        return found


def test_what_python_s_library_asks_for_belongs_to_the_line_that_called_it() -> None:
    found = copy.deepcopy([Copied()])[0]
    line = f"{HERE}:{sys._getframe().f_lineno - 1}"
    assert found.line == line
    assert found.stack[0] == line
    assert not any("copy.py" in one for one in found.stack)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    yield


@_quiet()
def _decorated() -> tuple[str, ...]:
    return stack_of(sys._getframe())


def test_a_decorator_of_python_s_library_is_no_caller() -> None:
    first = _decorated()
    inner = _decorated.__wrapped__.__code__  # type: ignore[attr-defined]
    assert first[:2] == (f"{HERE}:{inner.co_firstlineno + 2}", f"{HERE}:{sys._getframe().f_lineno - 2}")


def test_a_package_beside_python_s_library_counts_as_the_user_s() -> None:
    def asked_in(file: str) -> str:
        code = compile("found = line_of(sys._getframe())", file, "exec")
        assert isinstance(code, CodeType)
        names: dict[str, object] = {"line_of": line_of, "sys": sys}
        exec(code, names)
        return str(names["found"]).removeprefix(f"{sysconfig.get_path('stdlib')}/")

    library = sysconfig.get_path("stdlib")
    assert asked_in(f"{library}/site-packages/llama/net.py") == "site-packages/llama/net.py:1"
    assert asked_in(f"{library}/dist-packages/llama/net.py") == "dist-packages/llama/net.py:1"
    assert asked_in(f"{library}/functools.py").startswith(f"{HERE}:")
