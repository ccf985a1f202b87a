"""Real text: the standard library's bytes as a dataset, and what is known of them before any model."""

from __future__ import annotations

import math
import multiprocessing
import platform
import sysconfig
from pathlib import Path

import pytest
import torch

from perflab.lab.train import standard_library_text, unigram_entropy
from perflab.lab.train.text import LEFT_OUT, SEPARATOR

pytestmark = pytest.mark.correctness


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    """A small library: ten files of 100 to 1,000 bytes, a licence, and what is to be left out."""
    root = tmp_path / "library"
    root.mkdir()
    for number in range(10):
        (root / f"module{number}.py").write_bytes(f"{number}".encode() * 100 * (number + 1))
    (root / "LICENSE.txt").write_text("anybody may read this\n")
    (root / "_sysconfigdata_linux.py").write_text("left out")
    (root / "notes.txt").write_text("left out")
    (root / "dangling.py").symlink_to(root / "nowhere.py")
    for folder in sorted(LEFT_OUT):
        (root / "package" / folder).mkdir(parents=True)
        (root / "package" / folder / "module.py").write_text("left out")
    return root


def content(folder: Path, **choices: object) -> bytes:
    return standard_library_text(folder, **choices).path.read_bytes()  # type: ignore[arg-type]


def build(folder: Path, sources: Path) -> str:
    return standard_library_text(folder, sources=sources).digest


def test_the_standard_library_is_megabytes_of_python_with_its_licence(tmp_path: Path) -> None:
    text = standard_library_text(tmp_path)
    files = text.path.read_bytes().split(SEPARATOR)
    stdlib = Path(sysconfig.get_path("stdlib"))
    assert text.num_files == len(files) - 1 > 300
    assert len(text.train) + len(text.held_out) == text.path.stat().st_size > 4_000_000
    assert (stdlib / "asyncio" / "tasks.py").read_bytes() in files
    if (stdlib / "LICENSE.txt").is_file():
        assert (stdlib / "LICENSE.txt").read_bytes() in files
    assert platform.python_version() in text.path.name


def test_all_bytes_of_the_sources_are_there_once_and_nothing_else(tmp_path: Path, sources: Path) -> None:
    files = content(tmp_path, sources=sources).removesuffix(SEPARATOR).split(SEPARATOR)
    wanted = [path.read_bytes() for path in (*sources.glob("module*.py"), sources / "LICENSE.txt")]
    assert sorted(files) == sorted(wanted)


def test_the_tensors_are_the_files_bytes_cut_between_two_files(tmp_path: Path, sources: Path) -> None:
    text = standard_library_text(tmp_path, sources=sources, held_out_share=0.3)
    assert text.train.dtype == text.held_out.dtype == torch.uint8
    assert bytes(text.train.tolist()) + bytes(text.held_out.tolist()) == text.path.read_bytes()
    assert text.train[-1] == 0
    assert 0.1 < len(text.held_out) / text.path.stat().st_size < 0.5


def test_what_is_written_to_the_tensors_does_not_reach_the_file(tmp_path: Path, sources: Path) -> None:
    text = standard_library_text(tmp_path, sources=sources)
    before = text.path.read_bytes()
    text.train.zero_()
    assert text.path.read_bytes() == before


def test_a_text_is_built_once_and_again_only_when_its_sources_changed(tmp_path: Path, sources: Path) -> None:
    first = standard_library_text(tmp_path, sources=sources)
    built_ns = first.path.stat().st_mtime_ns
    again = standard_library_text(tmp_path, sources=sources)
    assert (again.path, again.digest, again.path.stat().st_mtime_ns) == (first.path, first.digest, built_ns)
    (sources / "module3.py").write_bytes(b"another length")
    changed = standard_library_text(tmp_path, sources=sources)
    assert changed.path != first.path
    assert changed.digest != first.digest
    assert b"another length" in changed.path.read_bytes()


def test_a_text_that_was_cut_short_is_built_again(tmp_path: Path, sources: Path) -> None:
    first = standard_library_text(tmp_path, sources=sources)
    first.path.write_bytes(b"cut short")
    assert standard_library_text(tmp_path, sources=sources).digest == first.digest


def test_a_text_of_so_many_bytes_is_a_prefix_of_the_whole(tmp_path: Path, sources: Path) -> None:
    whole, part = content(tmp_path, sources=sources), content(tmp_path, sources=sources, max_bytes=3_000)
    assert len(part) == 3_000
    assert whole.startswith(part)
    assert len(list(tmp_path.glob("*.bytes"))) == 2


def test_processes_that_build_at_once_read_the_same_text_and_leave_one_file(tmp_path: Path, sources: Path) -> None:
    folder = tmp_path / "built"
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        digests = pool.starmap(build, [(folder, sources)] * 4)
    assert set(digests) == {build(tmp_path / "alone", sources)}
    assert len(list(folder.iterdir())) == 1


def test_a_library_without_sources_is_refused_with_a_way_out(tmp_path: Path) -> None:
    (tmp_path / "python311.zip").touch()
    with pytest.raises(FileNotFoundError, match=r"no \.py files under .*compiled or zipped; run a Python that carries"):
        standard_library_text(tmp_path / "built", sources=tmp_path)


def test_a_text_of_one_file_is_refused(tmp_path: Path, sources: Path) -> None:
    with pytest.raises(ValueError, match=r"max_bytes=50 leaves 1 of 11 files: .* give a larger max_bytes"):
        standard_library_text(tmp_path, sources=sources, max_bytes=50)


def test_a_share_that_is_none_is_refused(tmp_path: Path, sources: Path) -> None:
    with pytest.raises(ValueError, match=r"held_out_share=1\.0: wanted a share between 0 and 1, such as 0\.1"):
        standard_library_text(tmp_path, sources=sources, held_out_share=1.0)


def test_a_source_that_changes_under_the_reader_is_refused_and_leaves_nothing(
    tmp_path: Path, sources: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = Path.read_bytes
    monkeypatch.setattr(Path, "read_bytes", lambda path: read(path) + b"more")
    with pytest.raises(RuntimeError, match=r"changed while it was read, from \d+ bytes to \d+; run again"):
        standard_library_text(tmp_path / "built", sources=sources)
    assert list((tmp_path / "built").iterdir()) == []


def test_entropy_is_the_logarithm_of_equally_frequent_bytes_and_zero_of_one() -> None:
    assert unigram_entropy(torch.arange(8, dtype=torch.uint8).repeat(5)) == pytest.approx(math.log(8), rel=1e-12)
    assert unigram_entropy(torch.full((9,), 7, dtype=torch.uint8)) == 0.0
    uneven = torch.tensor([0, 0, 0, 255], dtype=torch.uint8)
    assert unigram_entropy(uneven) == pytest.approx(-0.75 * math.log(0.75) - 0.25 * math.log(0.25), rel=1e-12)


def test_entropy_of_what_is_no_text_is_refused() -> None:
    with pytest.raises(ValueError, match=r"text of 0 elements in torch\.uint8: wanted bytes"):
        unigram_entropy(torch.empty(0, dtype=torch.uint8))
    with pytest.raises(ValueError, match=r"text of 4 elements in torch\.int64: wanted bytes \(torch\.uint8\)"):
        unigram_entropy(torch.arange(4))
