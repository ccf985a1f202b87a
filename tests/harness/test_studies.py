"""A study's table: a row a case, columns by name, changes against a base, whatever the width; and what it came to."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs
from syrupy.assertion import SnapshotAssertion

from perflab.base.data import changed
from perflab.base.identity import Mode
from perflab.measured.report.columns import named
from perflab.measured.report.section import beyond_the_rate
from perflab.measured.report.side_by_side import side_by_side, side_by_side_lines
from perflab.measured.report.studies import Study, rows_with_bases, studies, study_data, study_lines
from perflab.report.summary import markdown, summary
from perflab.results.documents import merge, read_document, write_document
from perflab.results.measured import MeasuredCase
from perflab.results.measurement import OutOfMemory, Quote
from perflab.results.records import Judgement, Verdict
from perflab.results.result import Document, Result
from perflab.tables.view import STANDARD, View
from tests.harness.command import Command
from tests.harness.make import MS, cuda_environment, document, environment, in_turns, record, replicate, result

STUDY = "switches"


def case(switch: str, ms: float = 10, precision: str = "fp32", **changes: Any) -> Result:
    """``step[small-SWITCH-PRECISION]`` of a study; what is no field of a result is one of its record."""
    node = f"tests/perf/test_x.py::test_step[small-{switch}-{precision}]"
    parameters = {"model": "small", "switch": switch, "precision": precision}
    own = {name: changes.pop(name) for name in ("study", "columns", "versus") if name in changes}
    taken = changes.pop("summary", None) or replicate(ms * MS, peak_bytes=changes.pop("peak_bytes", None))
    found = record(taken, case=node, parameters=parameters, **changes)
    return result(node, outcome=found, **{"study": STUDY, **own})


def skipped(switch: str, reason: str) -> Result:
    judgement = Judgement(verdict=Verdict.SKIPPED, reasons=[reason])
    node = f"tests/perf/test_x.py::test_step[small-{switch}-fp32]"
    return Result(case=node, judgement=judgement, study=STUDY)


def out_of_memory(switch: str) -> Result:
    node = f"tests/perf/test_x.py::test_step[small-{switch}-fp32]"
    found = MeasuredCase(case=node, environment=environment(), out_of_memory=OutOfMemory(asked_bytes=2**34))
    return Result(case=node, outcome=found, judgement=Judgement(verdict=Verdict.OOM), study=STUDY)


def lines(*results: Result, width: int = 80) -> list[str]:
    return [line.text for line in study_lines(studies(results), width)]


def only(*results: Result) -> Study:
    (study,) = studies(results)
    return study


# --- columns -----------------------------------------------------------------------------------------------------


def test_named_columns_stand_in_their_order_and_what_no_case_has_is_left_out() -> None:
    summary_ = replicate(
        30 * MS,
        first_ns=90 * MS,
        phases_ns={"forward": 10 * MS, "backward": 20 * MS},
        counts={"graph_breaks": 2, "operators": 112},
    )
    wanted = "MFU, backward, backward_flops/s, std, mean, first, graph_breaks, loss, quoted, optimizer, peak"
    work = {"flops": 6e9, "backward_flops": 4e9}
    one = case("eager", summary=summary_, columns=wanted.split(", "), work=work, matmul_flops_per_second=4e11)
    (table,) = only(one).tables
    shown = {column.title: cell.text for column, cell in zip(table.columns, table.rows[0].cells, strict=True)}
    assert list(shown.items()) == [
        ("MFU", "50%"),
        ("backward", "20.0 ms"),
        ("backward FLOP/s", "200 G"),
        ("std", "300 µs"),
        ("mean", "30.0 ms"),
        ("first", "90.0 ms"),
        ("graph breaks", "2"),
    ]


@pytest.mark.parametrize(
    ("name", "value", "title", "text"),
    [
        ("gap_ns", 1.5e6, "gap", "1.50 ms"),
        ("gap_ns", -1.5e6, "gap", "-1.50 ms"),
        ("setup_s", 0.25, "setup", "250 ms"),
        ("saved_bytes", 2**21, "saved", "2.00 MiB"),
        ("saved_bytes", 1536.4, "saved", "1.50 KiB"),
        ("hidden_share", 0.054, "hidden", "5.4%"),
        ("error_ratio", 1.4213, "error", "×1.42"),
        ("error_ratio", 0.00421, "error", "×0.0042"),
        ("rows_per_s", 51_200.0, "rows/s", "51.2 k"),
        ("flops_per_s", 2.5e12, "FLOP/s", "2.50 T"),
        ("loss", 3.14159265, "loss", "3.142"),
        ("loss", "nan", "loss", "nan"),
        ("skipped_steps", 12345, "skipped steps", "12345"),
        ("output_dtype", "torch.bfloat16", "output dtype", "torch.bfloat16"),
        ("output_bytes", "inf", "output", "inf"),
        ("fits", True, "fits", "yes"),
        ("fits", False, "fits", "no"),
        ("loss", None, "loss", "–"),
        ("note", "two\nlines", "note", "two lines"),
    ],
)
def test_a_fact_is_written_in_the_unit_that_its_name_ends_with(name: str, value: Any, title: str, text: str) -> None:
    column = named(name)
    assert (column.title, column.text(value)) == (title, text)
    (table,) = only(case("eager", facts={name: value}, columns=[name])).tables
    assert [cell.text for cell in table.rows[0].cells] == [text], "one that was noted as None has its column too"


def test_facts_that_would_be_called_like_another_column_keep_their_unit() -> None:
    facts = {"peak_bytes": 5, "loss": 1.0, "loss_ratio": 1.1}
    (table,) = only(case("eager", peak_bytes=2**20, facts=facts)).tables
    assert [column.title for column in table.columns] == ["median", "peak", "peak_bytes", "loss", "loss_ratio"]


def test_every_standard_column_can_be_asked_of_a_case_that_has_nothing() -> None:
    (table,) = only(case("eager", columns=sorted(STANDARD))).tables
    summarized = ["mean", "median", "min", "ops", "rounds", "spread", "std"]
    assert [column.name for column in table.columns] == summarized


# --- rows --------------------------------------------------------------------------------------------------------


def test_utilisation_is_of_the_best_rate_that_the_run_has_read_on_that_machine_in_that_precision() -> None:
    def at(name: str, rate: float, precision: str | None = "bfloat16", **changes: Any) -> Result:
        work = {"work": {"flops": 1e9}, "columns": ["MFU"]}  # in 10 ms: 1e11 a second
        return case(name, matmul_flops_per_second=rate, matmul_precision=precision, **work, **changes)

    run = [at("a", 1.25e11), at("b", 2e11), at("c", 1.25e11, "float32"), at("d", 1.25e11, None)]
    here, _ = studies([*run, at("e", 8e11, environment=cuda_environment())])[0].tables
    assert [row.cells[0].text for row in here.rows] == ["50%", "50%", "80%", "80%"]


def test_more_work_than_the_device_can_do_is_no_share_of_its_rate_and_the_summary_says_why() -> None:
    work = {"work": {"flops": 1e9, "forward_flops": 1e8}, "columns": ["MFU", "median"]}  # in 10 ms: 1e11 a second
    run = [
        case("a", matmul_flops_per_second=4.48e10, matmul_precision="float32", **work),
        case("b", matmul_flops_per_second=2e11, matmul_precision="bfloat16", **work),
    ]
    (table,) = studies(run)[0].tables
    assert [row.cells[0].text for row in table.rows] == ["can't tell", "50%"]
    why = "MFU: can't tell for step[small-a-fp32]: more FLOP/s than plain matrix products reach here (44.8 GFLOP/s)."
    assert why in " ".join(" ".join(line.text for line in summary(document(*run))).split())
    assert why.split(":")[1] in markdown(document(*run)).replace("\\", "")
    sharing = [changed(one, side_by_side="switch") for one in run]
    assert " can't tell" in "".join(line.text for line in side_by_side_lines(side_by_side(sharing)))
    assert not beyond_the_rate(run[1:])


def test_labels_leave_out_what_all_cases_share() -> None:
    assert [line.split("  ")[0] for line in lines(case("eager"), case("eager", precision="bf16"))[1:]] == [
        "step[small-eager-…]",
        "fp32",
        "bf16",
    ]
    other = result("t.py::test_other", study=STUDY)
    assert [line.split("  ")[0] for line in lines(case("eager"), other)[1:]] == [
        "case",
        "step[small-eager-fp32]",
        "other",
    ]
    assert lines(other)[2].startswith("other ")
    uneven = [case("eager"), case("max-autotune")]
    assert [row.label for row in only(*uneven).tables[0].rows] == ["small-eager-fp32", "small-max-autotune-fp32"]


def test_a_mode_stands_behind_the_label_or_in_the_head_where_all_share_it() -> None:
    def labels(*results: Result) -> list[str]:
        (table,) = only(*results).tables
        return [table.head, *(row.label for row in table.rows)]

    cold = structs.replace(case("cold"), mode=Mode(cache="cold"))
    assert labels(case("warm"), cold) == ["step[small-…-fp32]", "warm", "cold {cold}"]
    other = structs.replace(case("other"), mode=Mode(cache="cold"))
    assert labels(other, cold) == ["step[small-…-fp32] {cold}", "other", "cold"]


# --- against a base ----------------------------------------------------------------------------------------------


def test_times_rates_and_peaks_stand_against_the_case_with_the_bases_level_and_the_same_otherwise(
    snapshot: SnapshotAssertion,
) -> None:
    common: dict[str, Any] = {"versus": "switch=eager", "columns": ["median", "std", "tokens/s", "peak", "loss"]}
    common["work"] = {"tokens": 512}
    eager, compiled = in_turns(
        case("eager", 20, peak_bytes=50 * 2**20, facts={"loss": 3.5}, **common),
        case("compiled", 15, peak_bytes=31 * 2**20, facts={"loss": 3.0}, **common),
    )
    assert lines(compiled, eager, case("compiled", 15, "bf16", peak_bytes=50 * 2**20, **common), width=110) == snapshot
    assert [(row.case[-14:], base.case[-11:]) for row, base in rows_with_bases([compiled, eager])] == [
        ("compiled-fp32]", "eager-fp32]")
    ]


@pytest.mark.parametrize(
    ("peak", "shown"), [(100, "0%"), (104, "+4.0%"), (62, "-38%"), (250, "+150%"), (420, "×4.20"), (1, "-99%")]
)
def test_a_change_of_memory_is_told_in_percent_and_from_three_times_on_as_a_multiple(peak: int, shown: str) -> None:
    change = named("peak").change(peak, 100)
    assert change[1] == shown


# --- widths ------------------------------------------------------------------------------------------------------


words = st.text(st.characters(codec="ascii", exclude_categories=("Cc", "Zs")), min_size=1, max_size=60)


@given(
    st.lists(st.tuples(words, st.text(max_size=120)), min_size=1, max_size=6, unique_by=lambda pair: pair[0]),
    st.lists(st.from_regex(r"[a-z_]{1,40}", fullmatch=True), max_size=6, unique=True),
    st.sampled_from([10, 80, 101]),
)
def test_no_line_is_wider_than_the_terminal_whatever_cases_and_facts_are_called(
    named_cases: list[tuple[str, str]], facts: list[str], width: int
) -> None:
    results = [
        case(name, facts=dict.fromkeys(facts, text), versus=f"switch={named_cases[0][0]}") for name, text in named_cases
    ]
    shown = lines(*results, skipped("flash", "a reason " * 20), width=width)
    assert max(map(len, shown)) <= max(width, 80)
    assert not any("\n" in line for line in shown)


# --- in a run ----------------------------------------------------------------------------------------------------


def run(*results: Result, minute: int = 0, **changes: Any) -> Document:
    made = document(*results, **changes)
    return document(*results, created=made.created + timedelta(minutes=minute), **changes)


def test_a_runs_summary_holds_the_table_and_below_it_its_findings_wrapped(snapshot: SnapshotAssertion) -> None:
    findings = {STUDY: ["use compiled where " + "steps are many and " * 5 + "warm-up is paid once", "  kept  apart"]}
    shown = [line.text for line in summary(run(case("eager"), case("compiled"), findings=findings))]
    at = shown.index("study: switches")
    assert shown[at - 1].startswith("step[small-compiled-fp32]"), "below the table of verdicts, which has them too"
    assert shown[at + 4] == snapshot
    assert shown[at + 5].startswith("  ")
    assert shown[at + 6] == "  kept  apart"
    assert max(map(len, shown)) <= 80


def test_markdown_has_the_table_whole_and_the_findings_as_a_list(snapshot: SnapshotAssertion) -> None:
    tricky = case("eager", peak_bytes=2**20, facts={"dtype": "a|b *c*"}, versus="switch=compiled")
    results = [*in_turns(case("compiled", 5), tricky)[::-1], out_of_memory("fused")]
    shown = markdown(run(*results, findings={STUDY: ["use | it"]}))
    at = shown.index("#### study: switches · against switch=compiled")
    assert shown[at:].splitlines()[2:15] == snapshot


def test_the_report_command_gives_tables_as_json_with_units_and_the_machine(tmp_path: Path, command: Command) -> None:
    file = tmp_path / "a.json"
    base = case("eager", 20, facts={"loss": "nan"}, quotes=[Quote(source="H100", ns=MS)])
    rows = in_turns(base, case("compiled", 10, versus="switch=eager"))
    made = run(*rows, skipped("flash", "no"), findings={STUDY: ["so"]})
    write_document(made, file)
    assert read_document(file) == made
    (only,) = command.json("report", file)["runs"]
    (study,) = only["tables"]["studies"]
    assert (study["study"], study["versus"], study["findings"]) == (STUDY, ["switch=eager"], ["so"])
    (table,) = study["tables"]
    assert table["environment"]["device_name"] == "AMD EPYC (family 25, model 17)"
    assert table["columns"] == [
        {"name": "median", "unit": "ns"},
        {"name": "loss", "unit": None},
        {"name": "quoted: H100", "unit": "ns"},
    ]
    eager, compiled, flash = table["rows"]
    assert eager["values"] == {"median": 20 * MS, "loss": "nan", "quoted: H100": MS}
    assert "versus" not in eager
    assert compiled["versus"] == {"median": 0.5}
    assert compiled["versus_intervals"] == {"median": pytest.approx([0.495, 0.505])}
    assert flash == {"case": flash["case"], "label": "flash", "said": "skipped: no"}


def test_a_run_without_a_study_shows_none() -> None:
    plain = run(result())
    assert "study" not in "\n".join(line.text for line in summary(plain)) + markdown(plain)
    assert study_data(studies(plain.results)) == []


# --- merged ------------------------------------------------------------------------------------------------------


def test_findings_stand_where_one_part_has_all_results_of_the_study_that_count() -> None:
    whole = run(case("eager"), case("compiled"), findings={STUDY: ["of both"]})
    assert merge([whole, run(result("t.py::test_other"), minute=1)]).findings == {STUDY: ["of both"]}
    again = run(case("eager"), case("compiled"), minute=2, findings={STUDY: ["anew"]})
    assert merge([again, whole]).findings == {STUDY: ["anew"]}


def test_findings_of_parts_and_of_what_was_run_again_are_left_out_and_that_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: Command, snapshot: SnapshotAssertion
) -> None:
    one = run(case("eager"), findings={STUDY: ["of one"]})
    other = run(case("compiled"), minute=1, findings={STUDY: ["of the other"]})
    both = run(case("eager"), case("compiled"), findings={STUDY: ["of both"]})
    assert merge([both, other]).findings == {}, "one of its results is no longer what it was"
    monkeypatch.chdir(tmp_path)
    write_document(one, Path("one.json"))
    write_document(other, Path("other.json"))
    assert command("merge", "one.json", "other.json") == snapshot


# --- whole tables ------------------------------------------------------------------------------------------------

_STEP = replicate(20 * MS, peak_bytes=2**20, phases_ns={"forward": 5 * MS, "backward": 15 * MS})
_WORK = {"tokens": 512}
_OF_A_PHASE = {"backward_tokens": 256}  # shown where it is asked for
_QUOTES = [Quote(source="H100, compiled", ns=MS), Quote(source="A100", ns=2 * MS)]
_LONG = "needs 33.0 s of 12.0 s left, and says so in more words than would fit into one line of a terminal"
_EIGHT = {f"fact_number_{n}": n for n in range(8)}
_AGAINST: dict[str, Any] = {"versus": "switch=eager", "columns": ["median", "max", "peak"]}
_EXACT: dict[str, Any] = {"versus": "switch=eager", "columns": ["peak"]}

TABLES: dict[str, list[Result]] = {
    "without named columns": [
        case("eager", summary=_STEP, work=_WORK | _OF_A_PHASE, quotes=_QUOTES[:1], facts={"loss": 3.21987}),
        case("compiled", 10, peak_bytes=2**19, work=_WORK, facts={"setup_s": 31.4, "loss": 3.2}),
    ],
    "several sources": [case("eager", quotes=_QUOTES), case("compiled", quotes=_QUOTES[1:])],
    "cases without numbers": [case("eager", facts={"loss": 1.0}), out_of_memory("fused"), skipped("flash", _LONG)],
    "nothing was measured": [skipped("eager", "needs 50.8 GiB"), skipped("flash", "needs 40.1 GiB")],
    "two machines, and what was measured on neither": [
        case("compiled", 30),
        case("eager", 1, environment=cuda_environment()),
        skipped("flash", "not here"),
    ],
    "a base without numbers": [case("compiled", versus="switch=eager"), skipped("eager", "not here")],
    "a base of another machine": [
        case("compiled", 30, versus="switch=eager"),
        case("eager", 1, environment=cuda_environment(), versus="switch=eager"),
    ],
    "no turns": [
        case("compiled", 15, peak_bytes=31 * 2**20, **_AGAINST),
        case("eager", 20, peak_bytes=50 * 2**20, **_AGAINST),
    ],
    "no turns, and exact columns alone": [
        case("compiled", 15, peak_bytes=31 * 2**20, **_EXACT),
        case("eager", 20, peak_bytes=50 * 2**20, **_EXACT),
    ],
    "more columns than fit": [case("eager", facts=_EIGHT), case("compiled", facts=_EIGHT), skipped("flash", "no")],
}


@pytest.mark.parametrize("name", TABLES)
def test_a_whole_table_reads_well(name: str, snapshot: SnapshotAssertion) -> None:
    assert lines(*TABLES[name]) == snapshot


def test_exact_columns_need_no_turns_and_a_wide_terminal_no_second_table() -> None:
    assert not list(rows_with_bases(TABLES["no turns, and exact columns alone"]))
    assert len(lines(*TABLES["more columns than fit"][:2], width=150)) == 4


def test_a_study_of_which_nothing_was_measured_is_in_no_summary_but_the_whole_one() -> None:
    nothing = document(*TABLES["nothing was measured"])
    assert STUDY not in markdown(nothing), "what was skipped has its line below the tables"
    assert STUDY in markdown(nothing, view=View(every=True))
