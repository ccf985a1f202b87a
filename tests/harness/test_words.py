"""Words of pytest's command: what is left out of it, whichever way it was written."""

from __future__ import annotations

import pytest

from perflab.running.config.command_line import without


@pytest.mark.parametrize(
    ("words", "left"),
    [
        ("-m perf -xvs t.py", "-m perf t.py"),
        ("-xm perf -k one", "-m perf"),
        ("-mperf -kone -qkone", "-mperf"),
        ("--junitxml out.xml --junitxml=out.xml t.py", "t.py"),
        ("--exitfirst -xlp no:doctest", "-lp no:doctest"),
        ("-x -- -x --exitfirst", "-- -x --exitfirst"),
        ("t.py --junitxml", "t.py"),
        ("- -x", "-"),
    ],
)
def test_options_and_flags_are_left_out_with_their_values_and_all_else_stays(words: str, left: str) -> None:
    assert without(words.split(), ("-k", "--junitxml"), ("-x", "-v", "-s", "-q", "--exitfirst")) == left.split()
