"""A recording of a CPU has an event a line, so that one of any length is read without all of it in memory."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path

import pytest

from perflab.base import event_lines
from perflab.base.errors import SnapshotError
from perflab.base.event_lines import as_lines
from perflab.snapshots import reading, recorded
from perflab.snapshots.analysis import levels
from tests.harness.made_snapshots import read

HEAD = {
    "schema": 3,
    "device": "cpu",
    "places": [{"module": "a", "phase": "forward", "frames": [["/p/model.py", 5, "f"]]}, {"phase": "backward"}],
    "before": [[7, 5, 0]],
    "looks": [[0, [[7, "parameters", "a"]]]],
}


def events_of(seed: int, count: int) -> list[tuple[int, int, int, int]]:
    """Blocks come and go."""
    chance = random.Random(seed)
    found: list[tuple[int, int, int, int]] = []
    live: dict[int, int] = {7: 5}
    for number in range(count):
        if live and chance.random() < 0.45:
            address = chance.choice(list(live))
            found.append((1000 * number, -live.pop(address), address, 1))
        else:
            live[100 + number] = chance.randrange(1, 9000)
            found.append((1000 * number, live[100 + number], 100 + number, 0))
    return found


@pytest.fixture
def is_large(monkeypatch: pytest.MonkeyPatch) -> int:
    """Files of more than so many bytes are read by lines."""
    size = len(json.dumps(HEAD)) + 100
    monkeypatch.setattr(recorded, "MOST_BYTES", size)
    return size


def test_a_large_recording_reads_as_a_small_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_large: int) -> None:
    path = tmp_path / "a.json"
    path.write_bytes(b"".join(as_lines(HEAD, events_of(1, 400))))
    assert path.stat().st_size > is_large
    by_lines = read(path)
    monkeypatch.undo()
    assert by_lines == read(path)
    assert by_lines.moments == 400
    assert by_lines.notes == []
    assert {"parameters"} < {one.category for one in by_lines.blocks}
    # what others made of it has other lines
    path.write_text(json.dumps(json.loads(path.read_bytes()), indent=1))
    assert by_lines == read(path)


def test_a_large_recording_that_is_cut_off_anywhere_says_what_could_be_read(tmp_path: Path, is_large: int) -> None:
    path, events = tmp_path / "cut.json", events_of(2, 25)
    whole = b"".join(as_lines(HEAD, events))
    path.write_bytes(whole)
    level = list(levels(read(path)))
    for size in range(is_large + 1, len(whole) - 3):
        path.write_bytes(whole[:size])
        found = read(path)
        assert list(levels(found)) == level[: found.moments + 1]
        assert found.notes[0].startswith("cut.json is cut off or damaged at character ")
        assert f"{found.moments} events were read before that" in found.notes[0]
        assert not found.is_whole
    assert found.moments == 25


@pytest.mark.parametrize("line", ["[" * 2000, "x", "[1, 2, 3", ""], ids=["deep", "text", "part", "empty"])
def test_a_damaged_line_ends_the_reading(tmp_path: Path, is_large: int, line: str) -> None:
    lines = b"".join(as_lines(HEAD, events_of(3, 60))).decode().splitlines()
    lines[30] = line
    (tmp_path / "a.json").write_text("\n".join(lines))
    found = read(tmp_path / "a.json")
    assert found.moments == 29
    assert f"at character {len(chr(10).join(lines[:30])) + 1:,}:" in found.notes[0]


def test_what_is_too_large_or_has_no_lines_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_large: int
) -> None:
    path = tmp_path / "a.json"
    path.write_text(json.dumps({**HEAD, "events": events_of(4, 100)}))
    with pytest.raises(SnapshotError, match=r"and no recording with an event a line\n  -> record it again"):
        read(path)
    path.write_text('{"a": {"events": [\n' + "[1, 2]," * 200)
    with pytest.raises(SnapshotError, match="and no recording with an event a line"):
        read(path)
    path.write_bytes(b"".join(as_lines(HEAD, events_of(4, 100))))
    monkeypatch.setattr(recorded, "MOST_EVENTS", 99)
    with pytest.raises(SnapshotError, match="it has more than 99 events: record a shorter part"):
        read(path)


READ = """
import resource, sys
from pathlib import Path
from perflab.snapshots import recorded
from perflab.snapshots.analysis import levels
from perflab.snapshots.reading import read_snapshots
recorded.MOST_BYTES = 2**20
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
(found,) = read_snapshots(Path(sys.argv[1]))
print(found.moments, max(levels(found)), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


def test_an_event_takes_less_than_500_bytes_of_memory_in_the_worst_case(tmp_path: Path) -> None:
    """Of four events, one lets go what the one before it made; the others stay."""
    count = 120_000
    start_ns, address = 1_763_890_000_000_000_000, 94_000_000_000_000

    def event(number: int) -> tuple[int, int, int, int]:
        if number % 4 == 1:
            return start_ns + number, -4_000_000, address + number - 1, 0
        return start_ns + number, 4_000_000, address + number, 0

    path = tmp_path / "large.json"
    with path.open("wb") as file:
        file.writelines(as_lines(HEAD, map(event, range(count))))
    done = subprocess.run([sys.executable, "-c", READ, str(path)], capture_output=True, text=True, check=True)
    moments, peak, used_kib = map(int, done.stdout.split())
    assert (moments, peak) == (count, 5 + 4_000_000 * count // 2)
    assert used_kib * 1024 < 500 * count


def test_how_far_it_is_stands_on_standard_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], is_large: int
) -> None:
    monkeypatch.setattr(reading, "_QUIET_S", -1.0)
    monkeypatch.setattr(event_lines, "_A_WHILE", 40)
    path = tmp_path / "a.json"
    path.write_bytes(b"".join(as_lines(HEAD, events_of(5, 200))))
    read(path)
    shown = capsys.readouterr().err.splitlines()
    assert len(shown) == 5
    assert all(line.startswith("a.json: ") and line.endswith(" KiB read") for line in shown)
