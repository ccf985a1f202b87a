"""A run of many cases ends within a screen or two: what needs a look first, no number twice, everything with -v."""

from __future__ import annotations

from msgspec import structs
from syrupy.assertion import SnapshotAssertion

from perflab.base.data import Parameters
from perflab.report.summary import LONG, summary
from perflab.results.measurement import Quote
from perflab.results.records import Change, Judgement, Verdict
from perflab.results.result import Result
from perflab.tables.lines import short_name
from perflab.tables.view import DEFAULT_VIEW, View
from tests.harness.make import MS, document, predicted_result, record, replicate

LEVELS, SHAPES = ("naive", "flash", "tiled", "flex", "math", "fused", "mine"), ("256-64", "1024-64", "256-128")


def case(impl: str, shape: str, verdict: Verdict = Verdict.OK) -> Result:
    parameters: Parameters = {"impl": impl, "shape": shape}
    name = f"tests/perf/test_x.py::test_attention[{impl}-{shape}]"
    phases = {"forward": 10 * MS, "backward": 20 * MS}
    work = {"flops": 1e9, "forward_flops": 3e8, "backward_flops": 7e8}
    now = record(replicate(30 * MS, phases_ns=phases), case=name, parameters=parameters, work=work)
    judgement = Judgement(verdict=verdict, latency=Change(before=29 * MS, now=30 * MS, ratio=30 / 29))
    return Result(case=name, outcome=now, judgement=judgement, side_by_side="impl")


def alone(number: int, verdict: Verdict = Verdict.OK) -> Result:
    name = f"tests/perf/test_y.py::test_alone[{number}]"
    return Result(case=name, outcome=record(replicate(), case=name), judgement=Judgement(verdict=verdict))


def judged(one: Result, verdict: Verdict, reason: str) -> Result:
    return structs.replace(one, judgement=Judgement(verdict=verdict, reasons=[reason]))


def shown(*results: Result, view: View = DEFAULT_VIEW) -> list[str]:
    return [line.text for line in summary(document(*results), view=view)]


def grid() -> list[Result]:
    return [case(impl, shape) for shape in SHAPES for impl in LEVELS]


def test_a_short_run_shows_every_case_in_the_table_and_every_phase_with_its_rate() -> None:
    run = [*grid()[:7], *(alone(number) for number in range(4))]
    lines = shown(*run)
    assert sum(line.endswith("  ok") for line in lines) == 11
    assert sum(line.startswith("attention[") and line.endswith("[256-64]") for line in lines) == 1
    assert sum("30.0 GFLOP/s" in line for line in lines) == 2 * 7, "forward, in both tables"
    up_to_there = [*run, *(alone(number) for number in range(4, 4 + LONG - len(lines)))]
    assert len(shown(*up_to_there)) == LONG
    assert len(shown(*up_to_there, alone(LONG))) < LONG, "one line more, and it is brief"


def test_in_a_long_run_a_case_stands_in_one_table_unless_there_is_something_to_say_of_it(
    snapshot: SnapshotAssertion,
) -> None:
    slower = case("mine", "1024-64", Verdict.REGRESSED)
    run = [slower if one.case == slower.case else one for one in grid()] + [alone(number) for number in range(9)]
    lines = shown(*run)
    head = next(number for number, line in enumerate(lines) if line.startswith("case "))
    last = next(number for number, line in enumerate(lines) if line.startswith("20 more in the tables below"))
    listed = [line.split()[0] for line in lines[head + 1 : last] if not line.startswith(" ")]
    assert listed == ["attention[mine-1024-64]", *(f"alone[{number}]" for number in range(9))]
    assert lines[last + 1 : last + 3] == snapshot
    assert [line for line in lines if line.startswith("attention[") and "ms" not in line] == ["attention[256-128]"]
    assert not any("forward 10.0 ms" in line for line in lines), "phases are left out"
    assert len(lines) <= 40


def test_in_a_long_run_a_reason_that_several_undecided_cases_have_is_said_once_and_that_of_one_alone_with_v() -> None:
    over = "the run's 2 min were over before it could be measured again"
    undecided = [judged(alone(number), Verdict.INCONCLUSIVE, over) for number in range(3)]
    run = [*undecided, judged(alone(3), Verdict.INCONCLUSIVE, "beside a compiler"), *(alone(n) for n in range(4, 90))]
    lines = shown(*run)
    assert [line for line in lines if over in line] == [f"3 inconclusive: {over}"]
    assert not any("beside a compiler" in line for line in lines)
    assert any("beside a compiler" in line for line in shown(*run, view=View(every=True)))
    assert sum(over in line for line in shown(*undecided)) == 3, "in a short run each case says it"


def test_in_a_long_run_what_others_measured_and_what_fills_a_prediction_are_shown_on_request(
    snapshot: SnapshotAssertion,
) -> None:
    quotes = [Quote(source="H100, elsewhere", ns=2 * MS)]
    studied = [
        Result(case=one.case, outcome=structs.replace(one.record, quotes=quotes), judgement=one.judgement, study="ends")
        for one in (alone(number) for number in range(30))
        if one.record is not None
    ]
    run = [*studied, predicted_result()]
    brief, every = shown(*run), shown(*run, view=View(every=True))
    hint = next(at for at, line in enumerate(brief) if line.startswith("with -v"))
    assert brief[hint : hint + 2] == snapshot
    assert "quoted: H100, elsewhere" in every
    assert not any("quoted" in line for line in brief)
    assert any(line.startswith("  peak: ") for line in every)
    assert not any(line.startswith("  peak: ") for line in brief)
    assert "by module" in " ".join(every), "all that is known of the run's only prediction"
    assert "by module" not in " ".join(brief)


def test_a_long_run_is_as_short_with_columns_and_an_order_of_the_reader_s_own() -> None:
    run = [*grid(), *(alone(number) for number in range(9))]
    lines = shown(*run, view=View(columns=("min", "rounds"), sort="-fullname"))
    head = next(number for number, line in enumerate(lines) if line.startswith("case "))
    assert lines[head].split() == ["case", "min", "rounds", "verdict"]
    last = next(number for number, line in enumerate(lines) if line.startswith("21 more in the tables below"))
    listed = [line.split()[0] for line in lines[head + 1 : last]]
    assert listed == [f"alone[{number}]" for number in reversed(range(9))]


def test_everything_is_shown_where_it_is_asked_for_and_of_predictions_alone() -> None:
    run = [*grid(), *(alone(number) for number in range(9))]
    assert sum(line.endswith("  ok") for line in shown(*run, view=View(every=True))) == 30
    assert "attention[256-128]" in shown(*run, view=View(every=True))
    run = [predicted_result(case=f"t.py::test_step[{number}]") for number in range(60)]
    assert shown(*run) == shown(*run, view=View(every=True))
    assert len(shown(*run)) > LONG
    assert "by module" in " ".join(shown(predicted_result()))


def test_of_many_that_nobody_can_tell_a_long_run_lists_those_that_look_slowest(snapshot: SnapshotAssertion) -> None:
    def undecided(one: Result, ratio: float) -> Result:
        change = Change(before=MS, now=ratio * MS, ratio=ratio)
        return structs.replace(one, judgement=Judgement(verdict=Verdict.INCONCLUSIVE, latency=change))

    run = [undecided(one, 1.0 + number / 100) for number, one in enumerate(grid())]
    slower = undecided(case("other", "512-64", Verdict.REGRESSED), 1.001)
    run.append(structs.replace(slower, judgement=structs.replace(slower.judgement, verdict=Verdict.REGRESSED)))
    lines = shown(*run)
    listed = [line.split()[0] for line in lines if line.endswith("inconclusive")]
    assert listed == [short_name(one.case) for one in grid()[-8:]]
    assert any(line.endswith("REGRESSED") for line in lines), "what is worse is always listed"
    assert [line for line in lines if "more inconclusive" in line] == snapshot
    assert lines[-1].startswith("1 regressed · 21 inconclusive")
