"""What an explanation says of two profiles that are made up: which calls are new, where, and what is not compared."""

from __future__ import annotations

import pytest

from perflab.compared.run import evidence
from perflab.profiles.difference import explain
from perflab.profiles.explanation_text import explanation_texts
from perflab.profiles.records import Profile
from perflab.records import Change, Judgement, Verdict
from tests.harness.test_profiles import profile, row

WORSE = Judgement(verdict=Verdict.REGRESSED, latency=Change(before=10e6, now=13e6, ratio=1.3), worse=["latency"])


def said(base: Profile, head: Profile, change_ns: float | None) -> list[str]:
    """The texts of an explanation; the gate's interval is as wide as two processes differ anyway."""
    return explanation_texts(explain(base, head, "main", change_ns), timed=change_ns is not None)


# --- computed again ----------------------------------------------------------------------------------------------


def test_a_module_that_does_its_own_work_again_and_not_that_of_one_within_it_is_not_all_computed_again() -> None:
    def mlp(times: int) -> Profile:
        own = [row(f"aten::{name}", 1e6 * times, 2 * times, "mlp", shapes="8x8") for name in ("linear", "mm")]
        within = [row(f"aten::{name}", 1e6, 2, "mlp.act", shapes="8x8") for name in ("gelu", "mul")]
        return profile(*own, *within)

    assert said(mlp(1), mlp(2), 2e6)[0] == "+2.00 ms = +2.00 ms 2 more aten::linear, with aten::mm in mlp (model.py:8)"


def test_an_explanation_that_fails_says_so_and_loses_no_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_given: object) -> None:
        raise IndexError("out of range\nand more")

    monkeypatch.setattr(evidence, "explain", broken)
    one = profile(row("aten::mm", 1e6))
    assert evidence.told_apart(one, one, "main", WORSE).problem == (
        "could not look, because comparing both profiles failed, a fault of perflab: IndexError: out of range"
    )
