"""Files that are there whole or not at all, and open to whom any file of that process is."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from perflab.lab.files import written_whole

pytestmark = pytest.mark.correctness


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "numbers.bytes"


@pytest.fixture(params=[0o022, 0o002, 0o077], ids=oct)
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


@pytest.mark.skipif(os.name == "nt", reason="permissions of POSIX")
def test_the_file_has_the_permissions_that_open_would_give_it(path: Path, umask: int) -> None:
    ordinary = path.with_name("ordinary")
    ordinary.write_bytes(b"1")
    with written_whole(path) as file:
        file.write(b"1")
    assert path.stat().st_mode == ordinary.stat().st_mode
    assert path.stat().st_mode & 0o777 == 0o666 & ~umask


def test_until_the_block_ends_there_is_what_was_there(path: Path) -> None:
    path.write_bytes(b"before")
    with written_whole(path) as file:
        file.write(b"after")
        file.flush()
        assert path.read_bytes() == b"before"
    assert path.read_bytes() == b"after"
    assert list(path.parent.iterdir()) == [path]


def test_a_block_that_raises_leaves_what_was_there_and_nothing_else(path: Path) -> None:
    path.write_bytes(b"before")

    def write_half() -> None:
        with written_whole(path) as file:
            file.write(b"half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_half()
    assert path.read_bytes() == b"before"
    assert list(path.parent.iterdir()) == [path]


def test_of_two_that_write_at_once_the_last_to_end_stays(path: Path) -> None:
    with written_whole(path) as one:
        one.write(b"longer, and first")
        with written_whole(path) as other:
            other.write(b"second")
        assert path.read_bytes() == b"second"
    assert path.read_bytes() == b"longer, and first"
    assert list(path.parent.iterdir()) == [path]


def test_a_folder_that_is_not_there_is_an_error(path: Path) -> None:
    with pytest.raises(FileNotFoundError), written_whole(path / "deeper"):
        pytest.fail("there is no file to write to")
