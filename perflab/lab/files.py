"""A file that is there whole or not at all, whoever reads it and whenever its writer ends."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO


@contextmanager
def written_whole(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """A file to write bytes to, which is `path` once the block ends; if that raises, `path` is what it was before.

    It has the permissions of any new file, the process's umask taken off. Processes that write one path at a time each
    write a file of their own, and the last to end stays.

    Raises:
        OSError: the folder is not there, or cannot be written.
    """
    path = Path(path)
    own = path.with_name(f".{path.name}-{secrets.token_hex(8)}")  # in the same folder: a rename is no copy
    with own.open("xb") as file:  # not by `tempfile`, whose files nobody else may read
        try:
            yield file
            file.flush()
            os.fsync(file.fileno())  # renamed before it is on the disk, a crash could leave it full of zeros
            file.close()  # some systems rename no file that is open
            os.replace(own, path)
        except BaseException:
            file.close()
            own.unlink(missing_ok=True)
            raise
