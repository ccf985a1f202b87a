"""Files: written whole beside readers, writers and kills; nothing waits for a pipe, and nothing dead stays behind."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from perflab.base import files
from perflab.base.errors import BaselineError
from perflab.base.files import abandoned, read_regular, sweep, try_lock, write_whole
from perflab.results.documents import read_document, write_document
from perflab.running.session.journal import Journal
from perflab.store.json_files import LOCK_NAME, forget_dead_lock
from perflab.store.times import BaselineStore
from tests.attack import SEED, times
from tests.harness.make import CASE, closest, document, entry, environment, quiet, result

OLD_S = time.time() - 2 * 24 * 3600
needs_locks = pytest.mark.skipif(sys.platform == "win32", reason="there are no such locks")
needs_pipes = pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no named pipes")


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def age(path: Path) -> None:
    os.utime(path, (OLD_S, OLD_S))


# --- links, pipes, directories -----------------------------------------------------------------------------------


def test_a_baseline_that_is_a_symbolic_link_stays_one_and_its_target_is_written(tmp_path: Path) -> None:
    folder, elsewhere = tmp_path / "baselines", tmp_path / "elsewhere"
    path = BaselineStore(folder).path_for(CASE, environment())
    elsewhere.mkdir()
    path.parent.mkdir(parents=True)
    target = elsewhere / "real.json"
    path.symlink_to(target)
    BaselineStore(folder).save({CASE: entry()})
    BaselineStore(folder).save({CASE: entry(quiet(5e6))})
    assert path.is_symlink()
    assert not target.is_symlink()
    assert closest(BaselineStore(folder), CASE, environment()) == entry(quiet(5e6))
    assert names(elsewhere) == ["real.json"]
    assert names(path.parent) == [path.name]


def test_a_results_file_that_is_a_symbolic_link_stays_one(tmp_path: Path) -> None:
    (tmp_path / "link.json").symlink_to("perf.json")
    write_document(document(result()), tmp_path / "link.json")
    assert (tmp_path / "link.json").is_symlink()
    assert read_document(tmp_path / "perf.json") == document(result())


def test_a_symbolic_link_to_itself_is_an_error_and_stays(tmp_path: Path) -> None:
    loop = tmp_path / "loop.json"
    loop.symlink_to(loop)
    with pytest.raises(OSError, match="symbolic links"):
        write_whole(loop, b"x")
    assert loop.is_symlink()


@needs_pipes
def test_a_pipe_in_the_place_of_a_baseline_is_named_at_once(tmp_path: Path) -> None:
    store = BaselineStore(tmp_path)
    path = store.path_for(CASE, environment())
    path.parent.mkdir()
    os.mkfifo(path)
    for attempt in (lambda: closest(store, CASE, environment()), lambda: store.save({CASE: entry()})):
        with pytest.raises(BaselineError) as caught:
            attempt()
        assert f"cannot read the baseline file {path}: it is a pipe, not a file\n  -> check it" in str(caught.value)
    assert path.is_fifo()


@needs_pipes
def test_a_pipe_or_a_device_is_not_replaced_by_a_results_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="it is a pipe, not a file"):
        write_document(document(), tmp_path / "pipe")
    with pytest.raises(OSError, match="it is a device, not a file"):
        write_document(document(), Path("/dev/null"))
    assert (tmp_path / "pipe").is_fifo()
    assert Path("/dev/null").is_char_device()
    assert names(tmp_path) == ["pipe"]


def test_a_directory_in_the_place_of_the_lock_file_is_named_with_the_remedy(tmp_path: Path) -> None:
    (tmp_path / LOCK_NAME).mkdir()
    with pytest.raises(BaselineError) as caught:
        BaselineStore(tmp_path).save({CASE: entry()})
    assert f"{tmp_path / LOCK_NAME} is a directory, not a lock file\n  -> remove it" in str(caught.value)


def test_a_file_keeps_its_rights(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_bytes(b"old")
    path.chmod(0o640)
    write_whole(path, b"new")
    assert path.read_bytes() == b"new"
    assert path.stat().st_mode & 0o777 == 0o640


# --- several at once, and killed ---------------------------------------------------------------------------------


def test_runs_that_share_a_results_file_never_read_half_of_it(tmp_path: Path) -> None:
    path = tmp_path / "perf.json"
    runs = [document(*(result(f"t.py::test_{n}") for n in range(20)), command=f"run {k}") for k in range(4)]
    write_document(runs[0], path)
    problems: list[BaseException] = []

    def share(run: int) -> None:
        try:
            for _ in range(times(30, 300)):
                write_document(runs[run], path)
                assert read_document(path) in runs
        except BaseException as error:
            problems.append(error)

    threads = [threading.Thread(target=share, args=(run,)) for run in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert problems == []
    assert names(tmp_path) == ["perf.json"]


@needs_locks
def test_what_a_killed_writer_left_is_taken_away_and_what_is_being_written_is_not(tmp_path: Path) -> None:
    dead, live, young, other = (tmp_path / f".a.json.{digit * 12}.part" for digit in "0123")
    other = tmp_path / ".vimrc.part"
    for path in (dead, live, young, other):
        path.write_text("half")
    for path in (dead, live, other):
        age(path)
    handle = os.open(live, os.O_RDONLY)
    assert try_lock(handle)
    write_whole(tmp_path / "a.json", b"whole")
    assert names(tmp_path) == sorted(["a.json", live.name, young.name, other.name])
    os.close(handle)
    sweep(tmp_path)
    assert names(tmp_path) == sorted(["a.json", young.name, other.name])


@needs_locks
def test_the_lock_file_of_a_killed_run_is_taken_away_and_that_of_a_running_one_is_not(tmp_path: Path) -> None:
    path = tmp_path / LOCK_NAME
    path.touch()
    handle = os.open(path, os.O_RDWR)
    assert try_lock(handle)
    forget_dead_lock(tmp_path)
    assert path.exists()
    os.close(handle)
    forget_dead_lock(tmp_path)
    assert not path.exists()


@needs_locks
@pytest.mark.parametrize("leftover", [LOCK_NAME, f".a.json.{'0' * 12}.part"])
def test_a_dead_lock_that_somebody_takes_at_the_last_moment_stays_his(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, leftover: str
) -> None:
    path = tmp_path / leftover
    path.touch()
    age(path)
    taken: list[bool | None] = []
    unlink = Path.unlink

    def take_and_unlink(self: Path, missing_ok: bool = False) -> None:
        taken.append(try_lock(os.open(self, os.O_RDWR)))
        unlink(self, missing_ok)

    monkeypatch.setattr(Path, "unlink", take_and_unlink)
    forget_dead_lock(tmp_path)
    sweep(tmp_path)
    assert taken == [False], "nobody can lock the file that is about to be removed"
    assert not path.exists()


@needs_locks
def test_a_lock_that_replaced_a_dead_one_before_it_could_be_locked_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / LOCK_NAME
    path.touch()

    def lock_late(handle: int) -> bool | None:
        path.rename(tmp_path / "removed")  # its number is not given to the next file
        path.touch()  # whoever held it let go, and the next one began
        return try_lock(handle)

    monkeypatch.setattr(files, "try_lock", lock_late)
    forget_dead_lock(tmp_path)
    assert path.exists()


SAVING = """
import sys
from pathlib import Path
from perflab.results.documents import write_document
from perflab.store.times import BaselineStore
from tests.harness.make import CASE, document, entry, quiet, result
folder = Path(sys.argv[1])
print("ready", flush=True)
number = 0
while True:
    number += 1
    BaselineStore(folder / "baselines").save({CASE: entry(quiet(1e6 * number)), f"t.py::test_{number % 50}": entry()})
    write_document(document(*(result(f"t.py::test_{n}") for n in range(50))), folder / "perf.json")
"""


@needs_locks
def test_a_writer_that_is_killed_leaves_whole_files_and_nothing_that_stays(tmp_path: Path) -> None:
    how = random.Random(SEED)
    path = BaselineStore(tmp_path / "baselines").path_for(CASE, environment())
    for _ in range(times(3, 20)):
        process = subprocess.Popen([sys.executable, "-c", SAVING, str(tmp_path)], stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        time.sleep(how.uniform(0.05, 0.3))
        process.send_signal(signal.SIGKILL)
        process.communicate()
        if path.exists():
            assert closest(BaselineStore(tmp_path / "baselines"), CASE, environment()) is not None
            json.loads(path.read_bytes())
        if (tmp_path / "perf.json").exists():
            assert len(read_document(tmp_path / "perf.json").results) == 50
    for leftover in tmp_path.rglob(".*.part"):
        age(leftover)
    sweep(tmp_path / "baselines")  # as a session does when it begins
    forget_dead_lock(tmp_path / "baselines")
    BaselineStore(tmp_path / "baselines").save({CASE: entry(quiet(5e6))})
    write_document(document(result()), tmp_path / "perf.json")
    assert [
        name for name in [*names(tmp_path), *names(tmp_path / "baselines"), *names(path.parent)] if name[0] == "."
    ] == []


def test_a_session_takes_away_what_a_killed_one_left_in_the_projects_own_folder(tmp_path: Path) -> None:
    left = [tmp_path / f".perflab/{name}/.x.json.0123456789ab.part" for name in ("profiles", "snapshots", "times/cpu")]
    for path in left:
        path.parent.mkdir(parents=True)
        path.write_text("half")
        age(path)
    journal = Journal(tmp_path, tmp_path / "baselines")
    journal.write(result())
    journal.close()
    assert [path for path in left if path.exists()] == []


def test_who_is_alive_is_not_taken_for_dead(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    path.write_text("x")
    with abandoned(path) as is_free:
        assert not is_free  # it may be locked at any moment
    age(path)
    for one, expected in ((path, True), (tmp_path / "none", False)):
        with abandoned(one) as is_free:
            assert is_free is expected
    assert read_regular(path) == b"x"
