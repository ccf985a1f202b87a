"""Cases that were measured beside others are marked in every table, whatever their verdict."""

from __future__ import annotations

import re

import pytest

from perflab.report.summary import markdown, summary
from perflab.results.measured import Entry
from perflab.results.records import Judgement, Policy, Verdict
from perflab.results.result import Result
from tests.harness.make import document, entry, judge, quiet, record, replicate, result

BESIDE = "other processes used 1.6 cores meanwhile"
VERDICTS = (Verdict.OK, Verdict.IMPROVED, Verdict.NEW, Verdict.INCONCLUSIVE, Verdict.REGRESSED, Verdict.UNCHECKED)


def one(name: str, verdict: Verdict = Verdict.OK, busy: bool = True, **changes: object) -> Result:
    case = f"t.py::test_attend[{name}]"
    judgement = Judgement(verdict=verdict, beside=[BESIDE] if busy else [])
    return result(case, outcome=record(case=case, parameters={"impl": name}), judgement=judgement, **changes)


@pytest.mark.parametrize("saved", [None, entry(), entry(quiet(100e6, neighbours_cores=1.6))])
def test_the_judge_tells_it_whatever_it_is_compared_with(saved: Entry | None) -> None:
    assert judge(record(replicate(neighbours_cores=1.6)), saved, Policy()).beside == [BESIDE]
    assert judge(record(replicate(neighbours_cores=0.0)), saved, Policy()).beside == []


def lines(*results: Result) -> list[str]:
    return [line.text for line in summary(document(*results))]


@pytest.mark.parametrize("verdict", VERDICTS)
def test_a_disturbed_row_names_what_disturbed_it(verdict: Verdict) -> None:
    run = [one("flash", verdict), one("naive", verdict, busy=False)]
    assert lines(*run).count(f"  disturbed: {BESIDE}") == 1
    assert markdown(document(*run)).count(f"<br>disturbed: {BESIDE}") == 1


def test_side_by_side_and_studies_mark_it_at_its_name() -> None:
    run = [
        one("flash", side_by_side="impl", study="attention"),
        one("naive", busy=False, side_by_side="impl", study="attention"),
    ]
    text = lines(*run)
    assert sum(line.startswith("  flash * ") for line in text) == 1
    assert sum(line.startswith("flash * ") for line in text) == 1
    assert not any("naive *" in line for line in text)
    assert text.count("* disturbed while it was measured") == 1
    assert not any("* disturbed" in line for line in lines(*run[1:]))
    assert len(re.findall(r"flash .?\*", markdown(document(*run)))) == 4  # two tables, and bars
    assert "disturbed while it was measured" in markdown(document(*run))


def test_what_was_accepted_is_counted_as_that_and_stands_among_what_is_well() -> None:
    run = [one("a", Verdict.OK, busy=False), one("b", Verdict.REGRESSED, busy=False, saved=True)]
    assert lines(*run)[-1].startswith("1 ok · 1 accepted")
    text = markdown(document(*run))
    assert "perflab: 1 ok · 1 accepted" in text
    assert text.index("attend[a]") < text.index("attend[b]")
