"""The words of pytest's command, taken apart."""

from __future__ import annotations

from collections.abc import Sequence

import pytest


def without_positionals(config: pytest.Config, words: Sequence[str]) -> list[str]:
    """The command's words without the paths and node ids among them."""
    kept = list(words)
    for positional in reversed(config.option.file_or_dir):  # from the end: an option's value may read the same
        if positional in kept:
            del kept[len(kept) - 1 - kept[::-1].index(positional)]
    return kept
