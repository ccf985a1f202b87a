"""What a user reads: a table that fits 80 columns, and a failure that says what a person would ask next."""

from __future__ import annotations

import re
from itertools import takewhile
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from syrupy.assertion import SnapshotAssertion

from perflab.base.data import changed
from perflab.base.identity import DEFAULT, Mode
from perflab.measured.report import section
from perflab.measured.report.failure import explain
from perflab.measured.report.table import table
from perflab.results.compiled import CompiledCase
from perflab.results.measured import MeasuredCase
from perflab.results.measurement import Evidence, OutOfMemory, Record
from perflab.results.peak import PeakChange, PeakExplanation
from perflab.results.profile import Explanation, Part, Profile
from perflab.results.records import Change, Judgement, Policy, Verdict
from perflab.results.result import Result
from perflab.tables.lines import short_name, tally, wrap_facts
from perflab.tables.view import View
from tests.harness.make import (
    CASE,
    MS,
    cuda_environment,
    document,
    entry,
    environment,
    judge,
    kernel,
    measurement,
    predicted_baseline,
    predicted_result,
    prediction,
    quiet,
    record,
    replicate,
    result,
)

ACCEPT = f"pytest -m perf '{CASE}' --perf-update"
LONG = "tests/perf/test_transformer.py::test_forward_and_backward_and_optimizer[2.7B-context1024-batch4-bf16-compiled]"


def lines(*results: Result, width: int = 80) -> list[str]:
    return [line.text for line in table(results, width)]


def judged(now: Record, before_ns: float = 100 * MS, **baseline: int) -> Result:
    """A case as the judge sees it against a baseline of three quiet replicates."""
    return Result(case=now.case, outcome=now, judgement=judge(now, entry(quiet(before_ns, **baseline)), Policy()))


COLD = Mode(cache="cold")


@pytest.mark.parametrize(
    ("profiled_ms", "mode", "said"),
    [
        (80, DEFAULT, []),  # the machine drifts, and a profile is of the faster half of its calls
        (50, DEFAULT, ["in the case's own measurement a call took 100 ms: shares hold better than times"]),
        (99, COLD, []),
        (80, COLD, ["plain calls were profiled; with a cold cache the case takes 100 ms"]),
    ],
)
def test_a_profile_of_calls_that_are_not_those_of_the_case_says_so_where_it_matters(
    profiled_ms: float, mode: Mode, said: list[str]
) -> None:
    ns = float(profiled_ms * MS)
    profile = Profile(device="cpu", calls=6, timer_ns=ns, profiled_ns=ns, rows=[])
    now = step(100 * MS, 60 * MS)
    assert now.measurement is not None
    now = changed(now, measurement=changed(now.measurement, profile=profile))
    case = result(outcome=now, mode=mode)
    shown = [line.text.strip() for line in section.lines(document(case), [case], 100, View())]
    assert [line for line in shown if line.startswith(("in the case's own", "plain calls"))] == said


def step(median_ns: float, backward_ns: float, **changes: object) -> Record:
    """A training step of three phases, measured again three times."""
    phases = {"forward": 30 * MS, "backward": backward_ns, "optimizer": 10 * MS}
    again = quiet(median_ns, peak_bytes=2**30, phases_ns=phases)
    taken = measurement(evidence=Evidence(span_ns=1, load_average=0.3))
    return record(again[1], fresh=again, measurement=taken, **changes)


def slower_step() -> Result:
    now = step(130 * MS, 90 * MS)
    before = quiet(
        100 * MS, peak_bytes=2**30, phases_ns={"forward": 30 * MS, "backward": 60 * MS, "optimizer": 10 * MS}
    )
    return Result(case=CASE, outcome=now, judgement=judge(now, entry(before), Policy()))


def test_what_is_unexplained_and_why_is_not_cut_off_however_long_the_names_are(snapshot: SnapshotAssertion) -> None:
    long = "aten::_scaled_dot_product_flash_attention_for_cpu_backward"
    given = {"operator": long, "line": "model.py:88", "more": 2}
    parts = [Part(change_ns=1e6, module=f"blocks.*.attention_{at}", others=[long] * 3, **given) for at in range(3)]
    why = "the profiles differ by +3.00 ms, and the gate found +30.0 ms: they do not explain times"
    found = Explanation(base="main", parts=parts, rest_ns=27e6, problem=why)
    grown = PeakChange(category="activations", change_bytes=2**20, more=1, operator=long, module="blocks.*")
    peak = PeakExplanation(base="main", now_bytes=9 * 2**20, parts=[grown] * 9, problem="the profiler saw 1 MiB less")
    for about_peak in (None, peak):
        now = changed(step(130 * MS, 90 * MS), explained=found, explained_peak=about_peak)
        judgement = judge(now, entry(quiet(100 * MS)), Policy())
        text = explain(Result(case=CASE, outcome=now, judgement=judgement), ACCEPT).splitlines()
        first = next(at for at, line in enumerate(text) if line.startswith("cause: "))
        said = list(takewhile(lambda line: line.startswith((" ", "cause: ", "at the peak: ")), text[first:]))
        assert len(said) <= 12
        flat = " ".join(" ".join(said).split())
        assert flat == snapshot


# --- the table ---------------------------------------------------------------------------------------------------


def a_whole_run() -> list[Result]:
    """One of each verdict."""
    prefix = "tests/perf/test_transformer.py::test_"
    out = MeasuredCase(case="x", environment=environment(), out_of_memory=OutOfMemory(asked_bytes=2**34))
    tokens = record(replicate(812.4 * MS, peak_bytes=2**30), work={"tokens": 512, "flops": 1.3e11})
    elsewhere = judge(record(), entry(environment=environment(torch="2.12.0")), Policy())
    return [
        judged(record(replicate(100.4 * MS, peak_bytes=2**30), case=f"{prefix}step[tiny]")),
        slower_step(),
        result(f"{prefix}forward[medium]", Verdict.NEW, outcome=tokens),
        judged(record(replicate(80 * MS), case=f"{prefix}forward[fused]")),
        result(f"{prefix}forward[elsewhere]", judgement=elsewhere),
        judged(record(replicate(130 * MS), fresh=quiet(130 * MS, fastest_ns=99 * MS), case=f"{prefix}noisy")),
        Result(case=f"{prefix}large[16 GiB]", outcome=out, judgement=judge(out, None, Policy())),
        Result(
            case=LONG,
            judgement=Judgement(verdict=Verdict.SKIPPED, reasons=["needs 57.3 GiB of memory (19.8 GiB free)"]),
        ),
        Result(case=f"{prefix}broken", judgement=Judgement(verdict=Verdict.FAILED, reasons=["the test failed"])),
    ]


def test_a_whole_table_reads_well(snapshot: SnapshotAssertion) -> None:
    run = a_whole_run()
    assert "\n".join([*lines(*run), tally(run)]) == snapshot


@pytest.mark.parametrize("verdict", [v for v in Verdict if v not in (Verdict.SKIPPED, Verdict.FAILED)])
def test_every_verdict_that_is_saved_fits_80_columns_beside_a_long_name(verdict: Verdict) -> None:
    (_, line) = lines(result(LONG, verdict, outcome=record(replicate(peak_bytes=2**30)), saved=True))
    changed = verdict in (Verdict.REGRESSED, Verdict.IMPROVED, Verdict.INCONCLUSIVE)
    assert line.endswith("  accepted" if changed else f"  {verdict}, saved")
    assert len(line) <= 80


names = st.text(st.characters(codec="ascii", categories=["L", "N"]), min_size=1, max_size=60)
runs = st.lists(
    st.builds(
        lambda name, verdict, median_ns, noise, ratio, peak: result(
            f"tests/perf/test_{name[:20]}.py::test_{name}[{name}]",
            judgement=Judgement(
                verdict=verdict,
                latency=Change(before=median_ns / ratio, now=median_ns, ratio=ratio),
                reasons=["it is as it is, and this sentence goes on for longer than a line of the table is wide"],
            ),
            outcome=record(replicate(median_ns, noise=noise, peak_bytes=peak)),
        ),
        names,
        st.sampled_from(Verdict),
        st.floats(1.0, 3.6e12),
        st.floats(0.0, 0.9),
        st.floats(0.01, 1e4),
        st.integers(0, 2**42),
    ),
    min_size=1,
    max_size=6,
)


@given(runs, st.sampled_from([80, 100, 132]))
def test_no_line_is_longer_than_the_terminal_is_wide(run: list[Result], width: int) -> None:
    assert max(map(len, lines(*run, width=width))) <= width


@given(runs)
def test_verdicts_stand_below_each_other(run: list[Result]) -> None:
    header, *below = table(run)
    at = header.text.index("verdict")
    carriers = [line for line in below if line.verdict is not None]
    assert len(carriers) == len(run)
    for line, shown in zip(carriers, run, strict=True):
        assert line.text[at:].lower() == str(shown.judgement.verdict)
        assert line.text[at - 2 : at] == "  "


def test_numbers_end_below_the_ends_of_their_headers() -> None:
    header, first, second = lines(
        judged(record(replicate(812.4 * MS, peak_bytes=2**30)), before_ns=812 * MS),
        judged(record(replicate(7.1 * MS, peak_bytes=5), case="t.py::test_x"), before_ns=7 * MS, peak_bytes=5),
    )[:3]
    for title in ("median", "spread", "vs base", "peak"):
        end = header.index(title) + len(title)
        for line in (first, second):
            assert line[end - 1] not in " ·"
            assert line[end] == " "


@pytest.mark.parametrize("noise", [1.0, 1.5, 1e9])
def test_a_spread_beyond_the_median_is_no_figure_and_leaves_a_gap_between_the_columns(noise: float) -> None:
    (_, line) = lines(result(outcome=record(replicate(noise=noise))))
    assert re.search(r"100 ms\s+>±100%\s", line)


def test_a_case_of_one_sample_has_no_spread_and_one_without_a_number_dashes() -> None:
    (_, line) = lines(result(outcome=record(replicate(samples=1, noise=0.0))))
    assert "±" not in line
    failed = Judgement(verdict=Verdict.FAILED, reasons=["the test failed"])
    _header, line, why = lines(Result(case=CASE, judgement=failed))
    assert line.count("–") == 4
    assert line.endswith("FAILED")
    assert why == "  the test failed"


def test_a_skipped_case_gives_its_reason_on_its_line_where_that_fits(snapshot: SnapshotAssertion) -> None:
    for reason in ("needs a GPU", "needs " + "a lot of things " * 5):
        skipped = Judgement(verdict=Verdict.SKIPPED, reasons=[reason])
        _header, line, *more = lines(Result(case=CASE, judgement=skipped))
        if len(reason) < 20:
            assert line == snapshot
            assert not more
        else:
            assert line.endswith("skipped")
            assert " ".join(text.strip() for text in more) == reason.strip()


def test_a_long_name_is_cut_in_the_middle_or_shown_whole() -> None:
    (_, line) = lines(result(LONG))
    name = line.split("  ")[0]
    assert name.startswith("forward_")
    assert name.endswith("batch4-bf16-compiled]"[-15:])
    assert "…" in name
    (_, line) = lines(result(LONG), width=200)
    assert line.startswith(short_name(LONG) + " ")


def shown_names(*cases: str) -> list[str]:
    return [line.split("  ")[0].strip() for line in lines(*(result(case) for case in cases), width=200)[1:]]


def test_equal_names_of_two_modules_get_their_module() -> None:
    assert shown_names("tests/test_a.py::test_x", "tests/test_b.py::test_x", "tests/test_b.py::test_y") == [
        "test_a:x",
        "test_b:x",
        "y",
    ]


@pytest.mark.parametrize(
    "pair",
    [
        ("tests/test_a.py::TestSmall::test_x", "tests/test_a.py::TestLarge::test_x"),
        ("tests/cpu/test_a.py::test_x", "tests/gpu/test_a.py::test_x"),
    ],
)
def test_two_cases_never_have_one_name(pair: tuple[str, str]) -> None:
    first, second = shown_names(*pair)
    assert first != second


@pytest.mark.parametrize(
    ("case", "name"),
    [
        ("tests/perf/test_x.py::test_step[small]", "step[small]"),
        ("tests/perf/test_x.py::TestY::test_step", "step"),
        ("test_x.py::test_step[org/model-7b]", "step[org/model-7b]"),
        ("test_x.py::test_step[a::b]", "step[a::b]"),
        ("[old] v2/test_x.py::test_step[a]", "step[a]"),
    ],
)
def test_a_short_name_is_the_tests_own_with_all_of_its_parameters(case: str, name: str) -> None:
    assert short_name(case) == name


def test_a_tally_counts_each_verdict_once_and_names_none_that_did_not_occur(snapshot: SnapshotAssertion) -> None:
    run = [result(verdict=v) for v in (Verdict.NEW, Verdict.OK, Verdict.REGRESSED, Verdict.OK)]
    assert tally(run) == "2 ok · 1 regressed · 1 new"
    assert tally([*run, result(verdict=Verdict.SKIPPED, outcome=None)]) == snapshot
    assert tally([]) == ""


SKIPPED, FAILED = (result(verdict=verdict, outcome=None) for verdict in (Verdict.SKIPPED, Verdict.FAILED))
PREDICTED = predicted_result(prediction(), predicted_baseline())
COMPILED = result(outcome=CompiledCase(now=kernel()))


@pytest.mark.parametrize(
    ("run", "said"),
    [
        ([PREDICTED] * 24, "24 predicted ok · 0 measured"),
        ([PREDICTED, SKIPPED, FAILED], "1 predicted ok · 0 measured · 1 skipped · 1 failed"),
        (
            [COMPILED, PREDICTED, result(), result(verdict=Verdict.REGRESSED), predicted_result(prediction()), SKIPPED],
            "1 measured ok · 1 measured regressed · 1 predicted ok · 1 predicted new · 1 compiled ok · 1 skipped",
        ),
        ([COMPILED, result()], "1 measured ok · 1 compiled ok"),
        ([COMPILED, PREDICTED], "1 predicted ok · 1 compiled ok · 0 measured"),
        ([COMPILED, SKIPPED], "1 ok · 1 skipped"),
        ([SKIPPED, FAILED], "1 skipped · 1 failed"),
    ],
)
def test_a_tally_names_the_way_wherever_not_all_was_measured(run: list[Result], said: str) -> None:
    assert tally(run) == said


@given(st.lists(st.text("abc", min_size=1, max_size=20)), st.integers(20, 60))
def test_facts_are_joined_into_lines_that_fit_and_lose_nothing(facts: list[str], width: int) -> None:
    wrapped = wrap_facts(facts, width)
    assert " · ".join(wrapped).split(" · ") == facts if facts else wrapped == []
    assert all(len(line) <= width for line in wrapped)


# --- the failure -------------------------------------------------------------------------------------------------


def test_a_ratio_that_no_code_has_prints_no_long_number() -> None:
    far = Change(before=1.0, now=1e15, ratio=1e15, low=1e14, high=1e16, limit=1e9)
    judgement = Judgement(verdict=Verdict.REGRESSED, latency=far, worse=["latency"])
    shown = Result(case=CASE, outcome=record(), judgement=judgement)
    text = "\n".join([explain(shown, None), *lines(shown)])
    assert "x1.00e+15" in text
    assert max(map(len, re.findall(r"[\d,]+", text))) <= 5
    assert max(map(len, text.splitlines()[1:])) <= 80


def failure(now: Record, before_bytes: int, threshold: float = 0.0) -> Result:
    baseline = entry(quiet(100 * MS, peak_bytes=before_bytes), environment=now.environment)
    policy = Policy(memory_threshold=threshold)
    return Result(case=CASE, outcome=now, judgement=judge(now, baseline, policy), policy=policy)


def looked_at_again(median_ns: float = 130 * MS, set_aside: int = 0, **how: Any) -> Result:
    """A case that had 1 MiB, measured again by three processes that something may have disturbed."""
    fresh = quiet(median_ns, **how)
    seen = record(fresh[0], fresh=fresh, set_aside=[replicate(neighbours_cores=0.9)] * set_aside)
    return judged(seen, peak_bytes=2**20)


def hungrier(peak_bytes: int, median_ns: float = 100 * MS, **changes: object) -> Record:
    again = quiet(median_ns, peak_bytes=peak_bytes)
    return record(again[0], fresh=again, **changes)


def moved(ratio: float, *phases: str, worse: str = "latency") -> Result:
    """A slower step of which these phases moved."""
    shown = slower_step()
    changes = {name: Change(before=MS, now=ratio * MS, ratio=ratio) for name in phases}
    judgement = Judgement(verdict=Verdict.REGRESSED, latency=shown.judgement.latency, worse=[worse], phases=changes)
    return Result(case=CASE, outcome=shown.record, judgement=judgement)


def unsure(low: float | None = None, high: float | None = None) -> Result:
    """A case that strict checking fails, the time of which has an interval from ``low`` to ``high``."""
    vague = Change(before=1e6, now=2e6, ratio=2.0, low=low, high=high, limit=1.05)
    return Result(case=CASE, judgement=Judgement(verdict=Verdict.INCONCLUSIVE, latency=vague))


CALM, BUSY = {"neighbours_cores": 0.03, "steal_share": 0.0}, {"neighbours_cores": 0.9}
OUT = MeasuredCase(case=CASE, environment=environment(), out_of_memory=OutOfMemory(asked_bytes=20 * 2**30))
FAILURES: dict[str, Result] = {
    "a slower step": slower_step(),
    "what got better is not marked": failure(hungrier(3 * 2**20, 27 * MS), 2 * 2**20),
    "nothing disturbed it": looked_at_again(**CALM),
    "disturbed processes set aside": looked_at_again(set_aside=2, **CALM),
    "a disturbance as the reason": looked_at_again(**BUSY),
    "a disturbance beside the evidence": looked_at_again(100 * MS, peak_bytes=2**21, **BUSY),
    "exact, while its time cannot be told": looked_at_again(peak_bytes=2**21, **BUSY),
    "more memory": failure(hungrier(3 * 2**20), 2 * 2**20),
    "slower, with more memory": failure(hungrier(2**21, 130 * MS), 2**20),
    "growth within the allocator's rounding": failure(
        hungrier(2**20 + 256, 130 * MS, environment=cuda_environment()), 2**20
    ),
    "memory where there was none": failure(hungrier(4), 0),
    "a memory threshold as the limit": failure(hungrier(2**21), 2**20, threshold=0.10),
    "out of memory": judged(OUT),
    **{
        f"strict checking of {verdict}": result(judgement=Judgement(verdict=verdict, reasons=["for this reason"]))
        for verdict in (Verdict.NEW, Verdict.INCOMPARABLE, Verdict.INCONCLUSIVE)
    },
    "two phases moved": moved(1.9, "forward", "backward"),
    "all phases stand still": moved(1.01, "forward", "backward"),
    "a single phase is no place within it": moved(1.9, "backward"),
    "times of phases that nobody judged": moved(1.9, "forward", "backward", worse="counts"),
    "an interval from far below to far above": unsure(0.18, 9.75),
    "an interval without an end": unsure(0.5, float("inf")),
    "no interval": unsure(),
}


@pytest.mark.parametrize("name", FAILURES)
def test_a_whole_failure_reads_well(name: str, snapshot: SnapshotAssertion) -> None:
    text = explain(FAILURES[name], ACCEPT)
    assert text == snapshot
    assert max(len(line) for line in text.splitlines()[1:-1]) <= 80  # between headline and command
