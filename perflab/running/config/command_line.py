"""Splits pytest's command line into options and files."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

import pytest

_SHORT_WITH_VALUE = frozenset("kmpcoWrn")
"""Letters of short options of pytest and pytest-xdist that take a value: the following characters are the value."""


def without_positionals(config: pytest.Config, words: Sequence[str]) -> list[str]:
    """Return the command's words without paths and node ids."""
    kept = list(words)
    for positional in reversed(config.option.file_or_dir):  # from the end: an option's value may be the same word
        if positional in kept:
            del kept[len(kept) - 1 - kept[::-1].index(positional)]
    return kept


def without(words: Sequence[str], options: Collection[str] = (), flags: Collection[str] = ()) -> list[str]:
    """Return the words without these ``options`` and their values, and without these ``flags``.

    Flags are removed also from words that combine several letters, such as ``-xvs``.
    """
    kept: list[str] = []
    rest = iter(words)
    for word in rest:
        if word == "--":
            return [*kept, word, *rest]
        if word.startswith("--"):
            name, equals, _ = word.partition("=")
            if name in options:
                _skip_value(rest, equals)
            elif name not in flags:
                kept.append(word)
        elif word.startswith("-") and len(word) > 1:
            kept += _letters(word[1:], rest, options, flags)
        else:
            kept.append(word)
    return kept


def _letters(letters: str, rest: Iterator[str], options: Collection[str], flags: Collection[str]) -> list[str]:
    """Return a word of combined short options without the given options and flags; empty if no letter is left."""
    kept = "-"
    for place, letter in enumerate(letters):
        if letter in _SHORT_WITH_VALUE:
            value = letters[place + 1 :]
            if f"-{letter}" in options:
                _skip_value(rest, value)
            else:
                kept += letter + value
            break
        if f"-{letter}" not in flags:
            kept += letter
    return [kept] if len(kept) > 1 else []


def _skip_value(rest: Iterator[str], given_with_it: str) -> None:
    """Skip an option's value if the value is a separate word."""
    if not given_with_it:
        next(rest, None)
