"""Of a snapshot of several GPUs none vanishes, and two snapshots are compared by a device that both have."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.harness.command import Command
from tests.harness.made_snapshots import MIB, MODEL, Recording, content, written


def steady() -> Recording:
    """Ten blocks of 1 MiB."""
    made = Recording()
    for number in range(10):
        made.alloc(number * 8 * MIB, MIB, MODEL)
    return made


def large(small_ones: int = 0) -> Recording:
    """One of 900 MiB, and so many of 512 B."""
    made = Recording().alloc(0, 900 * MIB, MODEL)
    for number in range(small_ones):
        made.alloc((1000 + number * 8) * MIB, 512, MODEL)
    return made


def full() -> Recording:
    return large().add("oom", 0, 80 * MIB, MODEL, device_free=MIB)


def test_the_device_that_ran_out_is_shown_and_a_note_names_the_others(tmp_path: Path, command: Command) -> None:
    path = written(tmp_path / "a.pickle", content(steady(), full(), large()))
    report = command.json("memory", path)
    assert (report["device"], report["peak_bytes"]) == ("cuda:1", 900 * MIB)
    others = "the file also has cuda:0 with a peak of 10.0 MiB; cuda:2 with a peak of 900 MiB (--device)"
    assert f"only cuda:1 is shown; {others}" in report["notes"]
    other = command.json("memory", path, "--device=0")
    assert (other["device"], other["peak_bytes"]) == ("cuda:0", 10 * MIB)
    assert any("cuda:1 with a peak of 900 MiB, out of memory; cuda:2" in note for note in other["notes"])
    alone = command.json("memory", written(tmp_path / "b.pickle", content(steady())))
    assert not [note for note in alone["notes"] if "--device" in note]


@pytest.mark.parametrize(
    ("before", "after", "given", "compared"),
    [
        ([steady(), large()], [steady(), large(24)], (), ("cuda:1", "cuda:1")),
        ([steady(), full()], [steady(), large(12)], (), ("cuda:1", "cuda:1")),
        ([steady(), full()], [steady()], (), ("cuda:0", "cuda:0")),
        ([steady(), large()], [steady(), large(12)], ("--device=0",), ("cuda:0", "cuda:0")),
        ([steady(), large()], [steady(), large(12)], ("--device=1,0",), ("cuda:1", "cuda:0")),
        ([steady()], [Recording(), large()], ("--device=0,1",), ("cuda:0", "cuda:1")),
    ],
    ids=["most events in both", "out of memory", "in both", "named", "each named", "none in both"],
)
def test_a_comparison_is_of_one_device(
    tmp_path: Path,
    command: Command,
    before: list[Recording],
    after: list[Recording],
    given: tuple[str, ...],
    compared: tuple[str, str],
) -> None:
    first, second = written(tmp_path / "a.pickle", content(*before)), written(tmp_path / "b.pickle", content(*after))
    report = command.json("memory", first, second, *given)
    assert [report[key].rsplit(" ", 1)[1] for key in ("before", "after")] == [f"{one})" for one in compared]
    assert (f"{first}: only {compared[0]} is shown" in " ".join(report["notes"])) == (len(before) > 1)


def test_files_that_have_no_device_in_common_are_not_compared_unless_both_are_named(
    tmp_path: Path, command: Command
) -> None:
    first = written(tmp_path / "a.pickle", content(Recording(), steady(), large()))
    second = written(tmp_path / "b.pickle", content(steady()))
    error = command("memory", first, second, status=2)
    assert f"no device is in both: {first} has cuda:1, cuda:2 and {second} has cuda:0" in error
    assert "-> name one of each: --device=1,0" in error
    assert command.json("memory", first, second, "--device=1,0")["change_bytes"] == 0
