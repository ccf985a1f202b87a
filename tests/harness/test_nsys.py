"""Reads exports of Nsight Systems: what stands in them, in several versions, and what is wrong with them."""

from __future__ import annotations

import os
import random
import re
import shlex
import shutil
import sqlite3
from pathlib import Path

import pytest
from syrupy.assertion import SnapshotAssertion

from perflab.nsys.export import opened
from perflab.nsys.ranges import NONE, Opened, Ranges, case_and_pass, named, shapes_of
from perflab.nsys.reading import Reading, _Paths, chosen_process, lines, read
from perflab.profiles.events import shown_shapes
from perflab.results.profile import GAPS

from .command import Command
from .nsys_exports import BUSY_US, CASE, LAYOUTS, US, Layout, Maker, global_tid, write_run

REAL = Path(__file__).with_name("nsys_2022_4_nvtx.sqlite")
"""Of nsys 2022.4 and PyTorch's CUDA build without a GPU: ranges, and no CUDA."""


def reading_of(path: Path, only: str | None = None) -> Reading:
    with opened(path) as export:
        return read(export, chosen_process(export, None), only, lambda text: None)


def altered(path: Path, *statements: str) -> None:
    """Change the tables of an export."""
    connection = sqlite3.connect(path)
    for statement in statements:
        connection.execute(statement)
    connection.commit()
    connection.close()


def told(command: Command, path: Path, *arguments: object, status: int = 2) -> str:
    """The command's answer without the breaks that a narrow terminal makes, and without the folder's name."""
    return " ".join(command("nsys", path, *arguments, status=status).split()).replace(str(path.parent), "FOLDER")


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.product)
def test_every_version_gives_the_same_tables(tmp_path: Path, layout: Layout) -> None:
    reading = reading_of(write_run(tmp_path / "run.sqlite", layout))
    assert reading.version == f"{layout.product}, schema {layout.schema}"
    (case,) = reading.cases
    assert (case.name, case.calls, case.problem) == (CASE, 8, "")
    calls = next(one for one in reading.ranges if one.path == (f"{CASE}: samples", "call"))
    assert (calls.instances, calls.kernels, calls.busy_ns) == (8, 80, 8 * BUSY_US * US)


def test_the_profile_of_a_case_adds_up_to_its_time_on_the_device(tmp_path: Path) -> None:
    (case,) = reading_of(write_run(tmp_path / "run.sqlite")).cases
    assert case.profile is not None
    assert case.profile.explained_ns == pytest.approx(case.device_ns, rel=0.001)
    by_category: dict[str, float] = {}
    for row in case.profile.rows:
        by_category[row.category] = by_category.get(row.category, 0) + row.time_ns
    assert {name: ns for name, ns in by_category.items() if name not in GAPS} == {
        "products forward": 40 * US,
        "attention": 300 * US,
        "products backward": 80 * US,
        "optimizer": 20 * US,
        "copies": 10 * US,
    }


def test_kernels_of_two_devices_share_no_timeline(tmp_path: Path) -> None:
    maker = Maker(tmp_path / "two.sqlite")
    for at in range(1000, 5000, 1000):
        maker.range("step", at * US, (at + 900) * US)
        maker.range("aten::mm, op_id = 5, sizes = [[8, 8], [8, 8]]", (at + 10) * US, (at + 800) * US)
        for device in (0, 1):
            maker.launch("gemm", (at + 20 + 5 * device) * US, (at + 100) * US, (at + 500) * US, device=device)
    (case,) = reading_of(maker.close(), "step").cases
    assert case.profile is not None
    assert case.profile.devices == 2
    products = {row.device: row.time_ns for row in case.profile.rows if row.operator == "aten::mm"}
    assert products == {0: 400 * US, 1: 400 * US}  # 200 each, if they had one


def test_a_call_and_its_phases_stand_beside_the_timer_s(tmp_path: Path) -> None:
    reading = reading_of(write_run(tmp_path / "run.sqlite"))
    timers = {(CASE, ""): 600_000.0, (CASE, "backward"): 300_000.0}
    text = [line.split() for line in lines(reading, timers, 200)]
    assert [CASE, "8", "950", "µs", "581", "µs", "600", "µs", "-3.2%"] in text
    assert ["backward", "237", "µs", "270", "µs", "300", "µs", "-10.0%"] in text
    assert ["optimizer", "117", "µs", "40.0", "µs"] in text


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.product)
def test_a_launch_of_a_cuda_graph_is_one_row_of_the_device_s_work(
    tmp_path: Path, layout: Layout, snapshot: SnapshotAssertion
) -> None:
    """As ``--cuda-graph-trace=graph`` records it, which is nsys's default."""
    maker = Maker(tmp_path / "graphs.sqlite", layout)
    for begin in range(0, 6000 * US, 1000 * US):
        maker.range("step", begin, begin + 950 * US)
        maker.range("aten::add, seq = 1, op_id = 2, sizes = [[8], [8]]", begin + 5 * US, begin + 20 * US)
        maker.launch("add", begin + 10 * US, begin + 20 * US, begin + 40 * US)
        maker.launch("graph 7", begin + 50 * US, begin + 60 * US, begin + 860 * US)
    maker.launch("graph 7", 5950 * US, 0, 0)  # CUPTI could not tell when it ran
    reading = reading_of(maker.close(), "step")
    assert [(one.kernel, one.instances, one.time_ns) for one in reading.kernels] == [
        ("CUDA graph 7", 6, 4800 * US),
        ("add<float>", 6, 120 * US),
    ]
    (case,) = reading.cases
    assert case.profile is not None
    rows = {row.category: row.time_ns for row in case.profile.rows if row.time_ns}
    assert rows["other"] == 800 * US
    assert sum(time_ns for category, time_ns in rows.items() if category in GAPS) <= 40 * US
    assert reading.notes == snapshot


def test_an_export_of_cuda_graphs_alone_has_cuda_work(tmp_path: Path) -> None:
    maker = Maker(tmp_path / "graphs.sqlite")
    maker.range("step", 0, 100 * US)
    maker.launch("graph 7", 10 * US, 20 * US, 90 * US)
    for table in ("KERNEL", "MEMCPY"):
        maker.connection.execute(f"DROP TABLE CUPTI_ACTIVITY_KIND_{table}")
    reading = reading_of(maker.close())
    assert [(one.path, one.busy_ns) for one in reading.ranges] == [(("step",), 70 * US)]
    assert not any("no table" in note for note in reading.notes)


def test_phases_of_a_call_add_up_to_no_more_than_the_call(tmp_path: Path) -> None:
    """Calls that are fast on the host are slow on the device: the device waits for the host in the others."""
    maker = Maker(tmp_path / "uneven.sqlite")
    for at in range(8):
        begin, host_us, device_us = at * 2000 * US, (300, 600)[at % 2], (900, 500)[at % 2]
        maker.range("step", begin, begin + host_us * US)
        for phase, begins_us in (("forward", 0), ("backward", host_us // 2)):
            called = begin + begins_us * US + US
            maker.range(phase, called, called + (host_us // 2 - 2) * US)
            maker.launch(phase, called + US, begin + begins_us * US + 5 * US, begin + (begins_us + device_us // 2) * US)
    (case,) = reading_of(maker.close(), "step").cases
    for at, whole_ns in enumerate((case.host_ns, case.device_ns)):
        assert 0 < sum(times[at] for times in case.phases.values()) <= whole_ns


def test_kernels_of_the_backward_belong_to_the_forward_s_module_and_line(tmp_path: Path) -> None:
    (case,) = reading_of(write_run(tmp_path / "run.sqlite")).cases
    assert case.profile is not None
    found = {(row.operator, row.phase): row for row in case.profile.rows if row.operator}
    softmax = found["aten::_softmax_backward_data", "backward"]
    assert (softmax.module, softmax.line) == ("blocks.*.attention", "model.py:43")
    product = found["aten::mm", "backward"]
    assert (product.module, product.shapes) == ("blocks.*.attention.q", "768x512, 512x256")
    assert product.flops == 2 * 768 * 512 * 256
    assert found["aten::_foreach_add_", "optimizer"].module == ""


@pytest.mark.parametrize(
    ("callers", "library_s", "path"),
    [
        pytest.param([4321], False, ("step", "backward"), id="one caller"),
        pytest.param([4321], True, ("step", "backward"), id="a library's own range on the thread"),
        pytest.param([4321, 4500], False, (), id="it could work for either"),
    ],
)
def test_kernels_of_the_backward_s_thread_belong_to_ranges_that_were_pushed_on_the_caller_s(
    tmp_path: Path, callers: list[int], library_s: bool, path: tuple[str, ...], snapshot: SnapshotAssertion
) -> None:
    maker = Maker(tmp_path / "pushed.sqlite")
    for thread in callers:
        maker.range("step", 0, 100 * US, thread)
        maker.range("backward", 50 * US, 100 * US, thread)
    if library_s:
        maker.range("ncclAllReduce", 55 * US, 58 * US, 4400, domain=3)
    maker.launch("there", 10 * US, 20 * US, 30 * US)
    maker.launch("back", 60 * US, 70 * US, 90 * US, thread=4400)
    reading = reading_of(maker.close())
    assert [(one.kernel, one.path) for one in reading.kernels] == [("back<float>", path), ("there<float>", ("step",))]
    assert (("ncclAllReduce",) in {one.path for one in reading.ranges}) == library_s
    assert reading.notes == snapshot


def test_ranges_that_cross_are_named_and_count_for_the_later_one(tmp_path: Path, snapshot: SnapshotAssertion) -> None:
    maker = Maker(tmp_path / "crossing.sqlite")
    maker.range("load", 0, 60 * US, started=True)
    maker.range("compute", 40 * US, 100 * US, started=True)
    for at in (10, 50, 80):
        maker.launch(f"at_{at}", at * US, (at + 5) * US, (at + 9) * US)
    reading = reading_of(maker.close())
    assert {one.kernel: one.path for one in reading.kernels} == {
        "at_10<float>": ("load",),
        "at_50<float>": ("compute",),
        "at_80<float>": ("compute",),
    }
    assert reading.notes == snapshot


def test_ranges_of_any_name_are_calls_if_they_are_asked_for(tmp_path: Path, snapshot: SnapshotAssertion) -> None:
    (case,) = reading_of(write_run(tmp_path / "run.sqlite"), "forward").cases
    assert case.calls == 14
    assert case.profile is not None
    assert {row.operator for row in case.profile.rows} == {"", "aten::addmm", "aten::bmm", "aten::_softmax"}
    (case,) = reading_of(write_run(tmp_path / "bare.sqlite", with_operators=0), "forward").cases
    assert (case.calls, case.profile) == (10, None)
    assert case.problem == snapshot


@pytest.mark.parametrize(
    ("text", "name", "sequence", "shapes"),
    [
        (
            "aten::mm, seq = 5, op_id = 6, sizes = [[8, 16], [16, 4]], input_op_ids = [(2,0)]",
            "aten::mm",
            5,
            "8x16, 16x4",
        ),
        ("aten::mm, seq = 5, sizes = [[8, 16], [16, 4]]", "aten::mm", 5, "8x16, 16x4"),
        ("aten::mm, seq = 5", "aten::mm", 5, ""),
        ("aten::ones, op_id = 3, sizes = [[], [], []]", "aten::ones", -1, ""),
        ("a name, seq = many, and more", "a name, seq = many, and more", -1, ""),
        ("ünï 💥\n\x1b[31m", "ünï 💥\n\x1b[31m", -1, ""),
        ("x, sizes = [[1, {", "x", -1, ""),
    ],
)
def test_names_of_pytorch_s_ranges_are_read(text: str, name: str, sequence: int, shapes: str) -> None:
    found = named(text)
    assert (found.name, found.sequence) == (name, sequence)
    assert shown_shapes(shapes_of(found.sizes)) == shapes


def test_a_pass_of_a_case_of_any_name_is_known() -> None:
    assert case_and_pass("test_a[x: samples]: samples") == ("test_a[x: samples]", "samples")
    assert case_and_pass("samples") is None


def test_a_range_of_a_thread_is_open_on_that_thread_alone() -> None:
    ranges = Ranges(
        [
            Opened("a", 0, 10, 1, False),
            Opened("b", 0, 10, 2, False),
            Opened("all", 2, 8, 1, True),
            Opened("c", 8, 9, 1, False),
        ]
    )
    paths = _Paths(ranges)
    innermost = [[ranges.stretch(thread, moment)[0] for moment in (1, 5, 8, 9)] for thread in (1, 2)]
    at = [[paths.named(paths.number(number)) for number in numbers] for numbers in innermost]
    assert at == [[("a",), ("a", "all"), ("a", "c"), ("a",)], [("b",), ("a", "all"), ("b",), ("b",)]]
    assert ranges.stretch(1, 10)[0] == NONE
    assert ranges.stretch(3, 1)[0] == NONE


def test_a_real_export_without_cuda_shows_its_ranges_and_says_what_it_lacks(
    command: Command, snapshot: SnapshotAssertion
) -> None:
    text = command("nsys", REAL)
    assert "attention: scores" in text
    reading = reading_of(REAL)
    assert (reading.version, reading.notes) == snapshot
    assert f"note: {reading.notes[0]}" in " ".join(text.split())


def test_names_of_any_characters_are_shown_on_their_line(tmp_path: Path, command: Command) -> None:
    maker = Maker(tmp_path / "it's a [file] #1?.sqlite")
    maker.range("evil\x1b[31m\nname '\"; DROP TABLE x", 0, 100 * US)
    maker.launch("kernel", 10 * US, 20 * US, 30 * US)
    maker.process(4321, "pro\ncess")
    assert "evil\\x1b[31m name '\"; DROP TABLE x" in command("nsys", maker.close())


def test_two_processes_are_listed_and_one_is_asked_for(
    tmp_path: Path, command: Command, snapshot: SnapshotAssertion
) -> None:
    maker = Maker(tmp_path / "two.sqlite")
    maker.launch("ours", 10 * US, 20 * US, 30 * US)
    maker.process(77, "wor\x1b[31mk\ner")
    maker.launch("theirs", 10 * US, 20 * US, 90 * US, thread=77, process=77)
    path = maker.close()
    assert [told(command, path), told(command, path, "--process=5")] == snapshot
    text = command("nsys", path, "--process=77")
    assert "theirs<float>" in text
    assert "ours<float>" not in text


def test_a_foreign_file_a_cut_one_a_damaged_one_and_a_missing_one_are_refused(
    tmp_path: Path, command: Command, snapshot: SnapshotAssertion
) -> None:
    whole = write_run(tmp_path / "run.sqlite").read_bytes()
    (tmp_path / "cut.sqlite").write_bytes(whole[:-5000])
    altered(tmp_path / "foreign.sqlite", "CREATE TABLE customers (name TEXT)")
    (tmp_path / "text.sqlite").write_text("start,end,name\n" * 100)
    (tmp_path / "folder.sqlite").mkdir()
    (tmp_path / "damaged.sqlite").write_bytes(whole[:4096] + b"\xff" * (len(whole) - 8192) + whole[-4096:])
    names = ("cut", "foreign", "text", "none", "folder", "damaged")
    texts = [told(command, tmp_path / f"{name}.sqlite") for name in names]
    assert [re.sub(r"[\d,]+ of [\d,]+ bytes", "N of M bytes", text) for text in texts] == snapshot


@pytest.mark.parametrize("layout", LAYOUTS[1:], ids=lambda layout: layout.product)
def test_bytes_changed_anywhere_give_a_table_or_an_error_in_two_lines(
    tmp_path: Path, command: Command, layout: Layout
) -> None:
    whole = write_run(tmp_path / "run.sqlite", layout, calls=3, with_operators=2).read_bytes()
    path = tmp_path / "changed.sqlite"
    for seed in range(60):
        chance = random.Random(seed)
        changed = bytearray(whole)
        for _ in range(chance.choice((1, 3, 20, 200))):
            most = chance.choice((8192, len(whole)))  # the schema stands at the beginning
            changed[chance.randrange(most)] = chance.randrange(256)
        path.write_bytes(changed)
        status, text = command.answered("nsys", path)
        assert status == 0 or (status == 2 and text.startswith("perflab nsys: ") and text.count("\n  -> ") == 1), seed
        assert all(line.isprintable() for line in text.split("\n")), seed


@pytest.mark.parametrize("value", ["'soon'", "x'00'", "50000000.5", "NULL"])
def test_values_of_another_kind_are_named_by_table_and_row(
    tmp_path: Path, command: Command, value: str, snapshot: SnapshotAssertion
) -> None:
    path = write_run(tmp_path / "run.sqlite")
    altered(path, "PRAGMA writable_schema = ON", "UPDATE sqlite_master SET sql = replace(sql, 'NOT NULL', '')")
    for table in ("CUPTI_ACTIVITY_KIND_KERNEL", "NVTX_EVENTS"):
        altered(path, f"UPDATE {table} SET end = {value} WHERE rowid = 3")
    assert told(command, path) == snapshot


def test_kernels_and_ranges_without_an_end_that_can_be_are_left_out_and_a_note_says_so(
    tmp_path: Path, snapshot: SnapshotAssertion
) -> None:
    maker = Maker(tmp_path / "endless.sqlite")
    maker.range("step", 0, 100 * US)
    maker.range("endless", 0, 2**63 - 1)
    for end in (5 * US, 30 * US, 2**63 - 1):
        maker.launch("kernel", 10 * US, 20 * US, end)
    reading = reading_of(maker.close())
    assert [(one.path, one.busy_ns) for one in reading.ranges] == [(("step",), 10 * US)]
    assert reading.notes == snapshot


@pytest.mark.parametrize("arguments", ["pytest -m perf", "a.sqlite b.nsys-rep"])
def test_arguments_that_do_not_fit_say_what_to_write(
    command: Command, arguments: str, snapshot: SnapshotAssertion
) -> None:
    assert command("nsys", *arguments.split(), status=2) == snapshot


def test_tables_and_columns_that_are_missing_are_named(
    tmp_path: Path, command: Command, snapshot: SnapshotAssertion
) -> None:
    path = write_run(tmp_path / "run.sqlite")
    altered(path, "DROP TABLE CUPTI_ACTIVITY_KIND_RUNTIME")
    reading = reading_of(path)
    assert (reading.notes, [case.problem for case in reading.cases]) == snapshot
    altered(path, "DROP TABLE NVTX_EVENTS", "CREATE TABLE NVTX_EVENTS (begin INTEGER)")
    assert told(command, path) == snapshot


@pytest.mark.parametrize("layout", LAYOUTS[1:], ids=lambda layout: layout.product)
def test_without_the_table_of_names_kernels_stay_apart_and_a_note_says_so(
    tmp_path: Path, command: Command, layout: Layout, snapshot: SnapshotAssertion
) -> None:
    path = write_run(tmp_path / "run.sqlite", layout)
    altered(path, "DROP TABLE StringIds")
    text = command("nsys", path)
    assert reading_of(path).notes == snapshot
    assert len(set(re.findall(r"^  kernel (\d+) ", text, re.MULTILINE))) == 6
    if layout.registered:
        assert "(no name)" in text
        assert told(command, path, "--range=step") == snapshot
    else:
        assert f"profile of {CASE}" in text


def test_without_nsys_a_run_and_a_report_say_how_to_get_it(
    tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch, snapshot: SnapshotAssertion
) -> None:
    sh = shutil.which("sh")
    monkeypatch.setenv("PATH", str(tmp_path))
    (tmp_path / "report.nsys-rep").write_bytes(b"x")
    assert sh is not None
    monkeypatch.chdir(tmp_path)
    for arguments in (("report.nsys-rep",), ("--", sh, "-c", "true")):
        assert command("nsys", *arguments, status=2) == snapshot


@pytest.mark.parametrize(
    ("version", "problem"),
    [
        ("NVIDIA Nsight Systems version 2020.3.1", "is version 2020.3"),
        ("nsys from the future", "which is no version that perflab knows"),
        ("", "says 'nothing'"),
    ],
)
def test_an_nsys_of_an_unknown_version_is_refused(
    tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch, version: str, problem: str
) -> None:
    program(tmp_path, f'echo "{version}"')
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert problem in command("nsys", "--", "sh", "-c", "true", status=2)


def program(folder: Path, script: str) -> None:
    """An ``nsys`` that does what the script says."""
    path = folder / "nsys"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


NSYS = """
case $1 in
--version) echo "NVIDIA Nsight Systems version 2024.5.1.113" ;;
profile)
    while [ $# -gt 0 ]; do
        case $1 in --output=*) out=${1#--output=} ;; sh) break ;; esac
        echo "$1" >> arguments; shift
    done
    echo > $out.nsys-rep
    "$@" ;;
export)
    for given; do
        case $given in --output=*) cp run.sqlite "${given#--output=}" ;; esac
    done ;;
esac
"""


def stand_in(folder: Path, monkeypatch: pytest.MonkeyPatch, command: str = "sh") -> None:
    """From here on a program called ``nsys``, which runs this command, exports the same run each time."""
    program(folder, NSYS.replace("sh) break", f"{command}) break"))
    write_run(folder / "run.sqlite")
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    monkeypatch.chdir(folder)


def test_a_command_runs_under_nsys_with_its_ranges_and_its_status_is_kept(
    tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_in(tmp_path, monkeypatch)
    text = command("nsys", "--output=report", "--", "sh", "-c", 'test "$PERFLAB_NVTX" = 1 && exit 3', status=3)
    assert f"profile of {CASE}: one call, 581 µs on cuda" in text
    given = (tmp_path / "arguments").read_text().splitlines()
    assert {"--trace=cuda,nvtx", "--sample=none", "--output=report"} <= set(given)


def test_an_export_of_an_earlier_run_is_never_shown_as_this_one_s(
    tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch, snapshot: SnapshotAssertion
) -> None:
    stand_in(tmp_path, monkeypatch)
    run = ("--output=report", "--", "sh", "-c", "true")
    command("nsys", *run)
    later = (tmp_path / "report.sqlite").stat().st_mtime + 1000
    os.utime(tmp_path / "report.sqlite", (later, later))
    program(tmp_path, NSYS.replace("cp run.sqlite", "true"))
    for arguments in (run, ("report.nsys-rep",)):
        assert command("nsys", *arguments, status=2) == snapshot
    program(tmp_path, NSYS.replace("cp run.sqlite", "head -c 5000 run.sqlite >").replace("done ;;", "done; exit 1 ;;"))
    command("nsys", "report.nsys-rep", status=2)
    assert not (tmp_path / "report.sqlite").exists()


def test_one_case_of_a_run_is_read(tmp_path: Path, command: Command, snapshot: SnapshotAssertion) -> None:
    path = write_run(tmp_path / "run.sqlite")
    assert f"profile of {CASE}" in command("nsys", path, "--case=small")
    assert told(command, path, "--case=large") == snapshot


def test_a_case_beyond_what_is_read_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, snapshot: SnapshotAssertion
) -> None:
    monkeypatch.setattr("perflab.nsys.cases.MOST_EVENTS", 3)
    (case,) = reading_of(write_run(tmp_path / "run.sqlite")).cases
    assert case.problem == snapshot


def test_a_program_without_arguments_is_profiled_and_an_export_that_can_be_executed_is_read(
    tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_in(tmp_path, monkeypatch, "./bench")
    bench = tmp_path / "bench"
    bench.write_text("#!/bin/sh\nexit 7\n")
    for path in (bench, write_run(tmp_path / "export")):
        path.chmod(0o755)
    command("nsys", "--output=report", "--", "./bench", status=7)
    assert f"profile of {CASE}" in command("nsys", "./export")


def test_results_are_written_beside_a_report_of_any_name(
    tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_in(tmp_path, monkeypatch, "pytest")
    (tmp_path / "pytest").write_text('#!/bin/sh\necho "$PYTEST_ADDOPTS" > given\n')
    (tmp_path / "pytest").chmod(0o755)
    monkeypatch.delenv("PYTEST_ADDOPTS", raising=False)
    command.answered("nsys", "--output=it's/report", "--", "pytest", "-m", "perf")
    assert shlex.split((tmp_path / "given").read_text()) == [f"--perf-json={tmp_path}/it's/report.json"]


def test_a_call_begins_on_the_device_when_what_others_launched_before_is_done(tmp_path: Path) -> None:
    """The host is ahead: the forward of step 2 is called at 20 us, and the device runs the backward until 95 us."""
    maker = Maker(tmp_path / "ahead.sqlite")
    for at in range(4):
        begin = at * 100 * US
        maker.range("forward", begin + 20 * US, begin + 30 * US)
        maker.range("aten::mm, op_id = 5, sizes = [[8, 8], [8, 8]]", begin + 21 * US, begin + 29 * US)
        maker.launch("product", begin + 22 * US, begin + 95 * US, begin + 105 * US)
        maker.range("backward", begin + 31 * US, begin + 60 * US)
        maker.launch("back", begin + 32 * US, begin + 105 * US, begin + 195 * US)
    (case,) = reading_of(maker.close(), "forward").cases
    assert case.profile is not None
    assert {row.operator or row.category: row.time_ns for row in case.profile.rows if row.time_ns} == {
        "aten::mm": 10 * US
    }
    assert case.profile.timer_ns == 10 * US


def test_ranges_that_are_pushed_and_never_popped_cost_no_more_than_others(
    tmp_path: Path, snapshot: SnapshotAssertion
) -> None:
    maker = Maker(tmp_path / "unclosed.sqlite")
    for at in range(5000):
        begin = 100 * at * US
        maker.range("step", begin, begin + 90 * US)
        maker.range("lost", begin + 10 * US, None)
        maker.range("forward", begin + 20 * US, begin + 80 * US)
        maker.launch("kernel", begin + 30 * US, begin + 40 * US, begin + 50 * US)
    maker.range("end", 5000 * 100 * US, 5001 * 100 * US)
    reading = reading_of(maker.close())
    assert reading.notes == snapshot
    found = {one.path: (one.instances, one.kernels) for one in reading.ranges}
    assert found["lost",] == (5000, 5000)
    assert found["lost", "step"] == (4999, 0)
    assert found["lost", "forward"] == (5000, 5000)
    assert len(found) == 5


def test_a_range_that_is_never_closed_ends_with_the_recording_whatever_comes_last(tmp_path: Path) -> None:
    maker = Maker(tmp_path / "unclosed.sqlite")
    maker.range("step", 10 * US, None)
    maker.launch("kernel", 20 * US, 30 * US, 90 * US)
    maker.launch("never ends", 20 * US, 30 * US, 2**63 - 1)
    (step,) = reading_of(maker.close()).ranges
    assert (step.host_ns, step.kernels, step.busy_ns) == (80 * US, 1, 60 * US)


def test_a_range_within_one_of_its_own_name_counts_with_it_and_its_time_once(tmp_path: Path) -> None:
    maker = Maker(tmp_path / "nested.sqlite")
    for deep in range(3000):
        maker.range("block", deep * US, (10_000 - deep) * US)
    maker.launch("kernel", 4000 * US, 4100 * US, 4200 * US)
    (found,) = reading_of(maker.close()).ranges
    assert (found.path, found.instances, found.host_ns) == (("block",), 3000, 10_000 * US)
    assert (found.kernels, found.busy_ns, found.device_ns) == (1, 100 * US, 100 * US)


def test_a_call_of_range_within_one_of_its_own_name_is_a_part_of_it(tmp_path: Path) -> None:
    maker = Maker(tmp_path / "nested.sqlite")
    for begin in range(0, 6000, 1000):
        maker.range("step", begin * US, (begin + 900) * US)
        maker.range("forward", (begin + 50) * US, (begin + 850) * US)
        maker.range("step", (begin + 100) * US, (begin + 800) * US)
        maker.launch("kernel", (begin + 200) * US, (begin + 210) * US, (begin + 300) * US)
    (case,) = reading_of(maker.close(), "step").cases
    assert (case.calls, case.host_ns) == (6, 900 * US)


@pytest.mark.parametrize("value", ["'soon'", "x'00'", "1e300"])
def test_odd_values_beside_a_range_that_was_never_closed_are_refused_or_left_out(
    tmp_path: Path, command: Command, value: str
) -> None:
    maker = Maker(tmp_path / "odd.sqlite")
    maker.range("step", 0, None)
    maker.range("other", 0, 10 * US, 77 << 24)
    maker.launch("kernel", 10 * US, 20 * US, 30 * US)
    maker.connection.execute(f"UPDATE NVTX_EVENTS SET end = {value} WHERE text = 'other'")
    assert "step" in command("nsys", maker.close(), "--process=4321")


def test_kernels_or_ranges_alone_are_read_and_a_process_is_chosen(tmp_path: Path, command: Command) -> None:
    path = write_run(tmp_path / "run.sqlite")
    altered(path, "DROP TABLE CUPTI_ACTIVITY_KIND_RUNTIME", "DROP TABLE NVTX_EVENTS")
    assert "softmax" in command("nsys", path, "--verbose")
    maker = Maker(tmp_path / "two.sqlite")
    maker.launch("kernel", 10 * US, 20 * US, 30 * US)
    maker.range("load", 0, 10 * US, global_tid(77, 77))
    path = maker.close()
    assert "load" in command("nsys", path, "--process=77")
    assert told(command, path, "--process=5").endswith("it has: 77 (unnamed), 4321 (python)")


def test_a_case_is_asked_for_where_there_is_none(tmp_path: Path, command: Command, snapshot: SnapshotAssertion) -> None:
    maker = Maker(tmp_path / "plain.sqlite")
    maker.launch("kernel", 10 * US, 20 * US, 30 * US)
    path = maker.close()
    assert told(command, path, "--case=x") == snapshot
    assert told(command, path, "--range=x").endswith("it has no ranges: trace nvtx too")


def test_operators_of_a_case_are_read_whole_whatever_the_order_of_the_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    maker = Maker(tmp_path / "shuffled.sqlite")
    rows = []
    for begin in (0, 1000, 2000, 3000):
        maker.range("step", begin * US, (begin + 900) * US)
        for at, name in enumerate(("aten::mm", "aten::add", "aten::mul")):
            start = begin + 100 * at
            rows.append((f"{name}, op_id = 5, sizes = [[8, 8], [8, 8]]", start * US + 1, (start + 90) * US))
            maker.launch(f"kernel_{at}", (start + 10) * US, (start + 20) * US, (start + 110) * US)
    for row in (*rows[:1], *rows[::-1][:-1]):
        maker.range(*row)
    monkeypatch.setattr("perflab.nsys.cases.MOST_EVENTS", 4)
    (case,) = reading_of(maker.close(), "step").cases
    assert case.profile is not None
    assert {row.operator for row in case.profile.rows if row.operator} == {"aten::mm", "aten::add", "aten::mul"}
