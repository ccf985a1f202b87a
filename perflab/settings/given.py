"""The options of a run as they were given, and how their texts are parsed.

The command line precedes environment variables, the ini file and the default.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import pytest

from perflab.base.errors import SettingError
from perflab.options import OPTIONS, Option
from perflab.units import parse_bytes, parse_seconds

_Value = TypeVar("_Value")


def _raw(config: pytest.Config, option: Option) -> tuple[str, str]:
    """Return an option's value as text, and the source of the value."""
    given = config.getoption(option.dest, default=None)
    if given is not None:
        return (str(given), option.name)
    if option.variable is not None and os.environ.get(option.variable):
        return (os.environ[option.variable], f"environment variable {option.variable}")
    ini = config.getini(option.dest)
    if ini is not None:
        return (str(ini), f"ini key {option.dest}")
    return (option.default, option.name)


class Given:
    """The options of a run: each value as text, with its source."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._raw = {option.dest: _raw(config, option) for option in OPTIONS}

    def text(self, dest: str) -> str:
        """Return an option's value as the text that was given."""
        return self._raw[dest][0]

    def origin(self, dest: str) -> str:
        """Return the option, ini key or environment variable from which a value came."""
        return self._raw[dest][1]

    def value(
        self, dest: str, parse: Callable[[str], _Value], remedy: str = "see `pytest --help`, under perflab"
    ) -> _Value:
        """Return an option's value as parsed by ``parse``.

        Raises:
            SettingError: the value cannot be parsed; the error names the option or ini key that holds it.
        """
        text, origin = self._raw[dest]
        try:
            return parse(text)
        except ValueError as error:
            raise SettingError(f"{origin}: {error}", remedy) from error

    def path(self, dest: str) -> Path:
        """Return an option's value as a path.

        A path from an ini file is relative to the root directory, a path from the command line to the directory in
        which the command was given.
        """
        text, origin = self._raw[dest]
        of_ini = origin.startswith("ini") or not self._config.getoption(dest, None)
        return (self._config.rootpath if of_ini else self._config.invocation_params.dir) / text

    def choice(self, dest: str) -> Any:
        """Return an option's value, which must be one of the option's choices."""
        known = next(option.choices for option in OPTIONS if option.dest == dest)
        return self.value(dest, lambda text: parse_choice(text, known))


def parse_flag(text: str) -> bool:
    """Parse ``true`` or ``false``, or one of their usual synonyms.

    Raises:
        ValueError: the text is neither.
    """
    lowered = text.strip().lower()
    if lowered in ("true", "1", "yes", "on"):
        return True
    if lowered in ("false", "0", "no", "off", ""):
        return False
    raise ValueError(f"{text!r} is neither true nor false")


def parse_timeout(text: str) -> float | None:
    """Parse a time in seconds, ``auto`` (None) or ``off`` (infinite).

    Raises:
        ValueError: the text is not one of these.
    """
    if text.strip() in ("auto", "off"):
        return None if text.strip() == "auto" else float("inf")
    return parse_seconds(text)


def parse_memory_limit(text: str) -> int | None:
    """Parse a size in bytes; return None for an empty text or ``off``.

    Raises:
        ValueError: the text is not a size, empty or ``off``.
    """
    return parse_bytes(text) if text.strip() not in ("", "off") else None


def parse_leak_calls(text: str) -> int:
    """Parse a number of calls: 0, or at least 3, the fewest in which growth from call to call is significant.

    Raises:
        ValueError: the text is not such a number.
    """
    if not text.strip().isdecimal() or int(text) in (1, 2):
        raise ValueError(f"{text!r} is not a number of calls: 0, or 3 and more")
    return int(text)


def parse_world_sizes(text: str) -> tuple[int, ...]:
    """Parse numbers of processes, separated by commas; an empty text gives none.

    Raises:
        ValueError: a part is not a number of processes.
    """
    return _parse_numbers(text, 1, "numbers of processes: 2, or 1,2,4")


def parse_ranks(text: str) -> tuple[int, ...]:
    """Parse ranks, separated by commas; an empty text gives none.

    Raises:
        ValueError: a part is not a rank.
    """
    return _parse_numbers(text, 0, "ranks: 0, or 0,7")


def _parse_numbers(text: str, least: int, what: str) -> tuple[int, ...]:
    parts = [part.strip() for part in text.split(",")] if text.strip() else []
    if not all(part.isdecimal() and int(part) >= least for part in parts):
        raise ValueError(f"{text!r} is no list of {what}")
    return tuple(dict.fromkeys(map(int, parts)))


def parse_choice(text: str, choices: tuple[str, ...]) -> str:
    """Return the text if it is one of the choices.

    Raises:
        ValueError: the text is not one of the choices; the message lists them.
    """
    if text not in choices:
        raise ValueError(f"{text!r} is not one of {', '.join(choices)}")
    return text
