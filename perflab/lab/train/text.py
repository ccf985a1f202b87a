"""Real text without a download: the sources of Python's own standard library, as one file of bytes.

N bytes in a split, V = 256 byte values; a token is a byte.

    entropy of the bytes, in nats:  H = - sum over v of p(v) log p(v)

which is the loss of the best model that looks at no context, and so what a model has to beat to have learned any.

Files stand in the order of a digest of their paths: a shuffle that needs no seed and stays as files come and go,
so that a prefix of any length, and the held-out end, are a fair mix of the library. The tables of `encodings` and
the tests are left out; the licence is in, where the installation carries it as a file.
"""

from __future__ import annotations

import hashlib
import itertools
import os
import platform
import sysconfig
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import torch
from torch import Tensor

from perflab.lab.files import written_whole

VOCAB_SIZE = 256
"""Byte values: ids are 0 to 255."""
SEPARATOR = b"\0"
"""Between files. Python refuses a source that holds it, so no file does."""
LICENCES = ("LICENSE.txt", "LICENSE")
LEFT_OUT = frozenset({"site-packages", "dist-packages", "__pycache__", "test", "tests", "idlelib", "encodings"})
"""Folders at any depth: what others installed, what is no text, and tests, which not every installation carries."""


@dataclass(frozen=True)
class TextDataset:
    """Text as bytes in a memory-mapped file: a part to train on, and a part to hold out."""

    train: Tensor
    """(N,) uint8. The operating system reads a page of it when it is first looked at."""
    held_out: Tensor
    """(N',) uint8: whole files, none of which is in `train`."""
    path: Path
    digest: str
    """SHA-256 of the whole file, in hexadecimal: which text this is."""
    num_files: int


@dataclass(frozen=True)
class _Source:
    path: Path
    name: str  # relative, with forward slashes everywhere
    num_bytes: int


def standard_library_text(
    folder: Path | str,
    *,
    max_bytes: int | None = None,
    held_out_share: float = 0.1,
    sources: Path | str | None = None,
) -> TextDataset:
    """The standard library's sources as one memory-mapped file in `folder`, built there if it is not yet.

    The file's name holds the Python version and a digest of which files, of which sizes, it is made of; so another
    Python, or a library that changed, gets a file of its own. It is written under another name and then renamed:
    processes that build it at once do the same work, and each reads a whole file.

    Args:
        folder: where the file is kept, made if it is not there. It may be deleted whenever nobody uses it.
        max_bytes: only so many bytes, a prefix of the whole (about 9 MB); `None` takes all.
        held_out_share: about this share of the bytes is held out, at the end, cut between two files.
        sources: a folder of `.py` files to use instead of the standard library.

    Raises:
        FileNotFoundError: there are no sources, such as where the standard library is a zip file.
        ValueError: `max_bytes` leaves fewer than two files, or `held_out_share` is not between 0 and 1.
        RuntimeError: a source changed while it was read.
    """
    if not 0 < held_out_share < 1:
        raise ValueError(f"held_out_share={held_out_share}: wanted a share between 0 and 1, such as 0.1")
    root = Path(sysconfig.get_path("stdlib") if sources is None else sources)
    chosen = _within(_find_sources(root), max_bytes)
    path = Path(folder) / f"text-python{platform.python_version()}-{_identity(chosen, max_bytes)}.bytes"
    ends = list(itertools.accumulate(source.num_bytes + len(SEPARATOR) for source in chosen))
    total = ends[-1] if max_bytes is None else min(ends[-1], max_bytes)
    if not path.is_file() or path.stat().st_size != total:
        _write(path, chosen, total)
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    text = torch.from_file(str(path), shared=False, size=total, dtype=torch.uint8)
    cut = min(ends[:-1], key=lambda end: abs(end - (1 - held_out_share) * total))
    return TextDataset(text[:cut], text[cut:], path, digest, len(chosen))


def unigram_entropy(text: Tensor) -> float:
    """Entropy in nats of the bytes of `text`, (N,) uint8: the least loss of a model without context.

    Raises:
        ValueError: the text is empty, or not of bytes.
    """
    if text.dtype != torch.uint8 or text.numel() == 0:
        raise ValueError(
            f"text of {text.numel()} elements in {text.dtype}: wanted bytes (torch.uint8), one or more, such as the "
            "held_out of standard_library_text(folder)"
        )
    share = torch.bincount(text.flatten(), minlength=VOCAB_SIZE).double() / text.numel()
    return float(-torch.special.xlogy(share, share).sum())


def _find_sources(root: Path) -> list[_Source]:
    """Return all sources below `root`, in the order of the digests of the sources' names."""
    names = []
    for parent, folders, files in os.walk(root):
        folders[:] = [name for name in folders if name not in LEFT_OUT]
        relative = Path(parent).relative_to(root)
        names += [(relative / name).as_posix() for name in files if name.endswith(".py")]
    # Written when Python was built: the same release has other ones on another machine.
    names = [name for name in names if not PurePosixPath(name).name.startswith("_sysconfigdata")]
    names = [name for name in names if (root / name).is_file()]  # some systems leave links that lead nowhere
    if not names:
        raise FileNotFoundError(
            f"no .py files under {root}: this Python carries its standard library compiled or zipped; run a Python "
            "that carries its sources, or give a folder of others: standard_library_text(folder, sources=...)"
        )
    names += [name for name in LICENCES if (root / name).is_file()]
    names.sort(key=lambda name: hashlib.sha256(name.encode()).digest())
    return [_Source(root / name, name, (root / name).stat().st_size) for name in names]


def _within(sources: Sequence[_Source], max_bytes: int | None) -> list[_Source]:
    """The sources that the first `max_bytes` bytes are made of, the last of them perhaps in part."""
    chosen: list[_Source] = []
    num_bytes = 0
    for source in sources:
        if max_bytes is not None and num_bytes >= max_bytes:
            break
        chosen.append(source)
        num_bytes += source.num_bytes + len(SEPARATOR)
    if len(chosen) < 2:
        raise ValueError(
            f"max_bytes={max_bytes} leaves {len(chosen)} of {len(sources)} files: wanted two, one to train on and one "
            "to hold out; give a larger max_bytes, or None, or sources of two files or more"
        )
    return chosen


def _identity(sources: Sequence[_Source], max_bytes: int | None) -> str:
    lines = [f"{max_bytes}", *(f"{source.num_bytes} {source.name}" for source in sources)]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]


def _write(path: Path, sources: Sequence[_Source], total: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with written_whole(path) as file:
        for source in sources:
            content = source.path.read_bytes()
            if len(content) != source.num_bytes:
                raise RuntimeError(
                    f"{source.path} changed while it was read, from {source.num_bytes} bytes to {len(content)}; "
                    "run again once nothing is being installed"
                )
            file.write(content + SEPARATOR)
        file.truncate(total)
