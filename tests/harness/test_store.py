"""Baselines on disk: read as they were written, reviewed as diffs, and never lost, whatever lies in the way."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from syrupy.assertion import SnapshotAssertion

from perflab.base.data import Parameters, changed
from perflab.base.errors import BaselineError
from perflab.results.environment import slug
from perflab.results.measured import Accepted, Anchor, Entry
from perflab.results.measurement import Memory, OutOfMemory
from perflab.results.records import Environment
from perflab.store.case_files import module_of, path_of
from perflab.store.json_files import LOCK_NAME, check_writable, locked
from perflab.store.times import BaselineStore
from tests.harness.make import CASE, closest, entry, environment, quiet, replicate

OTHER = "tests/perf/test_transformer.py::test_forward[tiny]"
ELSEWHERE = "tests/perf/test_attention.py::test_tiled"
HERE = environment()
Edit = Callable[[str, str], Path]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "baselines"


@pytest.fixture
def file(folder: Path) -> Path:
    """A baseline file of one case, as the store writes it."""
    (path,) = BaselineStore(folder).save({CASE: entry()})
    return path


@pytest.fixture
def edit(file: Path) -> Edit:
    """Change a text in the baseline file, as somebody with an editor would."""

    def change(old: str, new: str) -> Path:
        text = file.read_text(encoding="utf-8")
        assert old in text
        file.write_text(text.replace(old, new, 1), encoding="utf-8")
        return file

    return change


def read(folder: Path, case: str = CASE, machine: Environment = HERE) -> Entry | None:
    return closest(BaselineStore(folder), case, machine)


REMEDY = "restore it (git checkout HEAD), or delete it and run with --perf-update-new"


def refusal(folder: Path) -> str:
    """What a user is told who has the baselines of ``folder``, without the folder's name."""
    with pytest.raises(BaselineError) as caught:
        read(folder)
    return str(caught.value).replace(str(folder), "FOLDER")


# --- what is written can be read ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "saved",
    [
        entry(),
        entry([replicate(1.5)]),
        entry([], out_of_memory=OutOfMemory(asked_bytes=2**34)),
        entry([], out_of_memory=OutOfMemory(asked_bytes=None)),
        entry(parameters={"size": "small", "length": 128, "dropout": 0.1, "causal": True, "window": None}),
        entry(parameters={"naïve": "µ–…", "quote": '"\\\n', "seed": 2**70}),
        entry(
            anchor=Anchor(recorded="2025-01-01", replicates=quiet(1e6), steps=3, commit="abc"),
            accepted=[Accepted(date="2025-01-03", reason="naïve"), Accepted(date="2025-01-04", latency_ratio=1.2)],
            commit="abc+dirty",
        ),
        entry(
            [
                replicate(
                    phases_ns={"forward": 1.0, "backward": 2.0},
                    calibration_ns={"interpreter": 3.0},
                    cores_busy=1.0,
                    memory=Memory(peak_bytes=3, held_bytes=1, growth_bytes=2, allocated_bytes=4, reserved_bytes=5),
                )
            ]
        ),
    ],
)
def test_an_entry_comes_back_as_it_was_saved(folder: Path, saved: Entry) -> None:
    BaselineStore(folder).save({CASE: saved})
    assert read(folder) == saved


@pytest.mark.parametrize("value", [float("inf"), float("nan"), "\udc80"])
def test_a_parameter_that_json_has_no_word_for_does_not_make_the_file_unreadable(
    folder: Path, value: float | str
) -> None:
    odd: Parameters = {"value": value}
    BaselineStore(folder).save({CASE: entry(parameters=odd)})
    found = read(folder)
    assert found is not None
    assert found.replicates == entry().replicates


def test_a_case_lives_in_a_file_named_by_its_environment_and_module(folder: Path, file: Path) -> None:
    assert file == folder / slug(HERE) / "tests.perf.test_transformer.json"


def test_a_case_without_a_baseline_has_none(folder: Path) -> None:
    assert read(folder) is None
    BaselineStore(folder).save({OTHER: entry()})
    assert read(folder) is None


def test_two_classes_and_two_modules_whose_names_differ_by_a_dot_share_no_baseline(folder: Path) -> None:
    first, second = entry(quiet(1e6)), entry(quiet(2e6))
    BaselineStore(folder).save({"t.py::TestA::test_x": first, "t.py::TestB::test_x": second})
    assert read(folder, "t.py::TestA::test_x") == first
    assert read(folder, "t.py::TestB::test_x") == second
    first, second = entry(), entry(quiet(5e6))
    cases = {"v1/2/test_x.py::test_y": first, "v1.2/test_x.py::test_y": second}
    assert len(BaselineStore(folder).save(cases)) == 2
    assert [read(folder, case) for case in cases] == [first, second]
    assert module_of("tests/perf/test_x.py::test_y[a]") == "tests.perf.test_x", "an ordinary name is a plain one"


# --- a file is fit for review ------------------------------------------------------------------------------------


def test_a_file_begins_with_its_schema_and_has_sorted_cases_with_one_replicate_a_line(folder: Path) -> None:
    (path,) = BaselineStore(folder).save({CASE: entry(parameters={"b": 1, "a": 2}), OTHER: entry()})
    text = path.read_text(encoding="utf-8")
    lines = text.splitlines()
    assert lines[1] == '  "schema": 4,'
    assert [line.strip() for line in lines if re.fullmatch(r'    "test_.*": \{', line)] == [
        '"test_forward[tiny]": {',
        '"test_step[small-128-fp32]": {',
    ]
    assert len([line for line in lines if "median_ns" in line]) == 6
    assert all(
        list(json.loads(line.rstrip(","))) == sorted(json.loads(line.rstrip(","))) for line in lines if "_ns" in line
    )
    assert '"parameters": {"a": 2, "b": 1},' in text
    assert text.endswith("}\n")
    assert not any(line != line.rstrip() for line in lines)


def test_when_and_in_which_order_cases_are_saved_leaves_no_trace(tmp_path: Path) -> None:
    cases = {CASE: entry(), OTHER: entry(quiet(2e6))}
    (one,) = BaselineStore(tmp_path / "one").save(cases)
    (two,) = BaselineStore(tmp_path / "two").save(dict(reversed(cases.items())))
    before = two.read_bytes()
    assert one.read_bytes() == before
    BaselineStore(tmp_path / "two").save({CASE: entry()})
    assert two.read_bytes() == before


def test_accepting_one_case_touches_only_its_own_lines(folder: Path) -> None:
    (path,) = BaselineStore(folder).save({CASE: entry(), OTHER: entry()})
    before = path.read_text(encoding="utf-8").splitlines()
    BaselineStore(folder).save({CASE: entry(quiet(5e6))})
    after = path.read_text(encoding="utf-8").splitlines()
    changed = [number for number, pair in enumerate(zip(before, after, strict=True)) if pair[0] != pair[1]]
    assert len(changed) == 3
    assert min(changed) > after.index('    "test_step[small-128-fp32]": {')


def test_anchors_and_accepted_changes_stand_one_a_line(folder: Path) -> None:
    accepted = [Accepted(date="2025-01-03", reason="fused"), Accepted(date="2025-01-04", latency_ratio=1.2)]
    anchor = Anchor(recorded="2025-01-01", replicates=quiet(1e6), steps=3)
    (path,) = BaselineStore(folder).save({CASE: entry(anchor=anchor, accepted=accepted)})
    lines = [line.strip().rstrip(",") for line in path.read_text(encoding="utf-8").splitlines()]
    assert [line for line in lines if '"date"' in line] == [
        '{"date": "2025-01-03", "reason": "fused"}',
        '{"date": "2025-01-04", "latency_ratio": 1.2}',
    ]
    assert '"anchor": {"recorded": "2025-01-01", "steps": 3, "replicates": [' in lines
    assert len([line for line in lines if "median_ns" in line]) == 6


def test_a_file_written_before_there_were_anchors_is_read(folder: Path, file: Path) -> None:
    assert not {"anchor", "accepted", "commit"} & set(json.loads(file.read_text())["cases"])
    found = read(folder)
    assert found is not None
    assert (found.anchor, found.accepted, found.commit) == (None, [], None)


# --- what is there stays -----------------------------------------------------------------------------------------


def test_saving_a_case_keeps_other_cases_and_other_files(folder: Path) -> None:
    BaselineStore(folder).save({CASE: entry(), OTHER: entry(), ELSEWHERE: entry()})
    changed = entry(quiet(5e6))
    written = BaselineStore(folder).save({CASE: changed})
    assert [path.name for path in written] == ["tests.perf.test_transformer.json"]
    assert read(folder) == changed
    assert read(folder, OTHER) == entry()
    assert read(folder, ELSEWHERE) == entry()


def test_saving_keeps_what_somebody_else_saved_meanwhile(folder: Path) -> None:
    early = BaselineStore(folder)
    assert closest(early, CASE, HERE) is None
    BaselineStore(folder).save({OTHER: entry()})
    early.save({CASE: entry()})
    assert read(folder, OTHER) == entry()
    assert closest(early, OTHER, HERE) == entry()


def test_several_that_save_at_the_same_time_lose_nothing_of_each_other(folder: Path) -> None:
    def save_some(saver: int) -> None:
        for number in range(8):
            BaselineStore(folder).save({f"t.py::test_{saver}[{number}]": entry()})

    with ThreadPoolExecutor(max_workers=6) as savers:
        list(savers.map(save_some, range(6)))
    (path,) = folder.glob("*/*.json")
    assert len(BaselineStore(folder).load(path)) == 6 * 8
    assert [found.name for found in folder.iterdir()] == [slug(HERE)], "a lock file was left behind"


def test_the_directory_is_free_again_after_an_error(folder: Path) -> None:
    folder.mkdir()
    with contextlib.suppress(ZeroDivisionError), locked(folder):
        assert (folder / LOCK_NAME).exists()
        raise ZeroDivisionError
    with locked(folder):
        pass
    assert list(folder.iterdir()) == []


def test_what_takes_an_entrys_place_is_decided_by_what_the_file_holds_by_then(folder: Path) -> None:
    early = BaselineStore(folder)
    assert closest(early, CASE, HERE) is None
    BaselineStore(folder).save({CASE: entry(recorded="2025-01-01")})
    seen: list[tuple[str, Entry | None]] = []

    def successor(case: str, old: Entry | None, new: Entry) -> Entry:
        seen.append((case, old))
        return entry(recorded="2025-03-03") if old is not None else new

    early.save({CASE: entry(), OTHER: entry(recorded="2025-02-02")}, successor)
    assert seen == [(CASE, entry(recorded="2025-01-01")), (OTHER, None)]
    assert [found.recorded for case in (CASE, OTHER) if (found := read(folder, case))] == ["2025-03-03", "2025-02-02"]


def test_removing_cases_leaves_the_others_and_a_file_of_none_is_deleted(folder: Path) -> None:
    (path,) = BaselineStore(folder).save({CASE: entry(), OTHER: entry()})
    store = BaselineStore(folder)
    assert store.remove({path: ["test_forward[tiny]", "test_never_there"]}) == {path: ["test_forward[tiny]"]}
    assert read(folder) == entry()
    assert closest(store, OTHER, HERE) is None
    before = path.stat()
    assert store.remove({path: ["test_never_there"]}) == {path: []}
    assert path.stat() == before
    assert store.remove({path: ["test_step[small-128-fp32]"]}) == {path: ["test_step[small-128-fp32]"]}
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("content", ["", "{", "not json", '{"version": 2, "benchmarks": []}'])
def test_a_file_that_cannot_be_read_is_left_as_it_is(folder: Path, file: Path, content: str) -> None:
    file.write_text(content)
    with pytest.raises(BaselineError):
        BaselineStore(folder).save({OTHER: entry()})
    with pytest.raises(BaselineError):
        BaselineStore(folder).remove({file: ["test_step[small-128-fp32]"]})
    assert file.read_text() == content


def test_what_cannot_be_written_leaves_the_old_file_and_no_temporary(
    folder: Path, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = file.read_bytes()

    def fail(*_args: object) -> None:
        raise OSError(28, "No space left on device")

    unspeakable: Parameters = {"value": object()}  # type: ignore[dict-item]
    with pytest.raises((BaselineError, TypeError)):
        BaselineStore(folder).save({CASE: entry(parameters=unspeakable)})
    for name in ("replace", "rename"):
        monkeypatch.setattr(Path, name, fail)
        monkeypatch.setattr("os." + name, fail)
    with pytest.raises(BaselineError, match="No space left on device"):
        BaselineStore(folder).save({CASE: entry(quiet(5e6))})
    assert file.read_bytes() == before
    assert [path.name for path in file.parent.iterdir()] == [file.name]


def test_a_saved_file_can_be_read_by_everybody(file: Path) -> None:
    assert file.stat().st_mode & 0o444 == 0o444


# --- what cannot be understood -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"<<<<<<< HEAD\n{}\n",
        b"\xff\xfe\xfa",
        b"\xef\xbb\xbf{}",
        "{}".encode("utf-16"),
        b'{"schema": NaN}',
        b"[" * 100_000,
        b"[]",
        b"null",
        b"{}",
        b'{"schema": "1"}',
        b'{"machine_info": {}, "benchmarks": [], "version": "5.1.0"}',
        b'{"schema": 1, "environments": {}, "cases": {}, "more": 0}',
    ],
    ids=lambda content: repr(content[:20]),
)
def test_a_file_of_another_kind_is_refused_by_name_with_the_remedy(folder: Path, file: Path, content: bytes) -> None:
    file.write_bytes(content)
    said = refusal(folder)
    assert said.startswith(f"baseline file FOLDER/{file.relative_to(folder)} ")
    assert said.endswith(f"\n  -> {REMEDY}")
    assert ("not UTF-8 at byte 0" in said) == content.startswith(b"\xff")
    assert ("missing required field" in said) == (content in (b"{}",) or b"machine_info" in content)
    assert file.read_bytes() == content


@pytest.mark.parametrize(
    ("old", "new"),
    [
        pytest.param('"recorded": "2025-11-20",', '"recorded": 2025-11-20,', id="damaged JSON"),
        pytest.param('"schema": 4', '"schema": 5, "something": "else"', id="a newer schema, not to be deleted"),
        pytest.param('"schema": 4', '"schema": 3', id="an older schema"),
        pytest.param('"environment": "cpu-', '"environment": "my-', id="an unknown environment"),
        pytest.param('"samples": 30', '"samples": "30"', id="text for a number"),
        pytest.param('"samples": 30', '"sample": 30', id="an unknown field"),
        pytest.param('"noise": 0.002, ', "", id="a field that is missing"),
        pytest.param('"cores": 2', '"cores": null', id="null"),
        pytest.param('"parameters": {}', '"parameters": {"a": []}', id="a parameter of a wrong kind"),
    ],
)
def test_a_file_that_is_wrong_inside_is_refused_with_the_place_and_what_was_wanted(
    folder: Path, edit: Edit, old: str, new: str, snapshot: SnapshotAssertion
) -> None:
    edit(old, new)
    assert refusal(folder) == snapshot


@pytest.mark.parametrize("value", ["0.0", "-5.0", "1e999"])
@pytest.mark.parametrize("field", ["median_ns", "fastest_ns"])
def test_a_time_that_nothing_can_take_is_refused_where_it_stands(
    folder: Path, file: Path, field: str, value: str
) -> None:
    text = file.read_text(encoding="utf-8")
    file.write_text(re.sub(rf'"{field}": [0-9.]+', f'"{field}": {value}', text, count=1), encoding="utf-8")
    assert f"replicates[0].{field}" in refusal(folder)


# --- places that cannot be used ----------------------------------------------------------------------------------


@pytest.mark.parametrize("where", ["in the way", "/proc/perflab-baselines"])
def test_a_directory_that_nobody_can_write_to_is_named_with_the_remedy_before_anything_is_measured(
    tmp_path: Path, where: str
) -> None:
    if where.startswith("/proc") and not Path("/proc/self").exists():
        pytest.skip("needs Linux's /proc, where nobody may make a file")
    (tmp_path / "in the way").write_text("a file")
    store = BaselineStore(tmp_path / where)
    for attempt in (lambda: check_writable(store.directory), lambda: store.save({CASE: entry()})):
        with pytest.raises(BaselineError) as caught:
            attempt()
        assert f"cannot write baselines to {tmp_path / where}" in str(caught.value)
        assert "--perf-baselines=DIR" in str(caught.value)
    assert (tmp_path / "in the way").read_text() == "a file"


def test_a_directory_in_the_place_of_a_file_is_refused_by_name(folder: Path) -> None:
    path = BaselineStore(folder).path_for(CASE, HERE)
    path.mkdir(parents=True)
    assert f"cannot read the baseline file FOLDER/{path.relative_to(folder)}" in refusal(folder)


def test_a_directory_that_can_be_written_to_is_left_empty_by_the_check(folder: Path) -> None:
    check_writable(folder)
    assert list(folder.iterdir()) == []


# --- other environments ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["A comes first", "Z comes last"])
def test_of_several_other_environments_the_closest_is_found(folder: Path, name: str) -> None:
    far = environment(device_name=name, isa="NEON", system="Linux aarch64", cores=64, threads=64)
    near = entry(environment=environment(torch="2.12.0"))
    BaselineStore(folder).save({CASE: entry(environment=far)})
    BaselineStore(folder).save({CASE: near})
    assert read(folder) == near


def test_ones_own_environment_comes_before_all_others(folder: Path) -> None:
    BaselineStore(folder).save({CASE: entry(quiet(5e6), environment=environment(torch="2.12.0"))})
    BaselineStore(folder).save({CASE: entry()})
    assert read(folder) == entry()


def test_environments_of_one_slug_share_a_file_in_which_a_case_has_times_of_each(folder: Path) -> None:
    """Saving those of one Python version, or thread count, keeps those of the others."""
    others = [environment(threads=1), environment(python="3.14")]
    assert {slug(one) for one in others} == {slug(HERE)}
    saved = [entry(), *(entry(quiet(1e6 * number), environment=one) for number, one in enumerate(others, 5))]
    for one in saved:
        (path,) = BaselineStore(folder).save({CASE: one})
        BaselineStore(folder).save({OTHER: one} if one is saved[1] else {})
    assert [read(folder, CASE, one.environment) for one in saved] == saved
    assert read(folder, OTHER) == saved[1]
    text, later = path.read_text(), changed(saved[1], recorded="2026-01-01")
    BaselineStore(folder).save({CASE: later}, lambda _, old, new: old or new)
    assert path.read_text() == text, "a successor is handed the times of the same environment"
    BaselineStore(folder).save({CASE: later})
    assert [read(folder, CASE, one.environment) for one in saved] == [saved[0], later, saved[2]]


# --- which test file a baseline file belongs to ------------------------------------------------------------------


@pytest.mark.parametrize(
    "path",
    [
        "test_x.py",
        "tests/perf/test_x.py",
        "tests/v1.2/test_x.py",
        "tests/v1.2/test.x.py",
        "tests/größe µ/test%2F x.py",
        ".hidden/test_x.py",
        "tests/cases.yaml",
        "../beside/test_x.py",
        "cases/yaml.py",
        "tests/v1/2/test_x.py",
        "tests/v1/2/test/x.py",
        "tests.v1/2/test_x.py",
        "tests/cases.yaml.py",
        "tests/test_x",
    ],
)
def test_each_test_file_has_a_baseline_file_of_its_own_which_names_it(path: str) -> None:
    module = module_of(f"{path}::test_y")
    assert path_of(module) == path
    assert module_of(f"{path_of(module)}::test_y") == module
    assert "/" not in module
