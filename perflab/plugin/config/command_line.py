"""Splits pytest's command line into options and files."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

import pytest

_SHORT_WITH_VALUE = frozenset("kmpcoWrn")
"""Letters of pytest's options, and of pytest-xdist's, that take a value: what follows is no further letter."""


def without_positionals(config: pytest.Config, words: Sequence[str]) -> list[str]:
    """The command's words without the paths and node ids among them."""
    kept = list(words)
    for positional in reversed(config.option.file_or_dir):  # from the end: an option's value may read the same
        if positional in kept:
            del kept[len(kept) - 1 - kept[::-1].index(positional)]
    return kept


def without(words: Sequence[str], options: Collection[str] = (), flags: Collection[str] = ()) -> list[str]:
    """The words without some ``options``, with their values, and ``flags``, letters among others (``-xvs``) too."""
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
    """One word of short options, without some of them."""
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
    """Pass over an option's value where that is a word of its own."""
    if not given_with_it:
        next(rest, None)
