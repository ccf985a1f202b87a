"""Reports for, and ends, a process in which C code holds the interpreter's lock, so that Python cannot run in it.

A helper process reads from a pipe a text to print and a result to keep. If no further message arrives in time, the
helper prints and keeps them, and then aborts the watched process, whose ``faulthandler`` writes the stacks. The helper
ends when the pipe is closed.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any


class LastWords:
    """The helper process.

    Args:
        stderr: the file descriptor to which the helper prints.
        channel: the socket to the process that started the watched one for a job, and gets its result; else None.
    """

    def __init__(self, stderr: int, channel: int | None = None) -> None:
        self._speaks_for = os.getpid()
        kept = [] if channel is None else [channel]
        self._process = subprocess.Popen(
            [sys.executable, "-P", __file__, str(os.getpid()), *map(str, kept)],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=stderr,
            bufsize=0,
            pass_fds=kept,
            start_new_session=True,  # so that Ctrl-C does not reach the helper
        )

    def leave(self, within_s: float | None, **words: str | None) -> None:
        """Send a message that the helper process acts on unless another message follows in time.

        Args:
            within_s: the time in seconds for the next message; None: the helper waits without limit.
            words: ``text`` to print; ``line`` to append to ``file``, a journal, or else to send over the channel; and
                ``document``, a results file that is written from the journal. Each except the text may be None.
        """
        assert self._process.stdin is not None
        if os.getpid() != self._speaks_for:
            return  # this is a fork of the watched process, which is not watched itself
        with contextlib.suppress(OSError):  # the helper process was ended from outside
            self._process.stdin.write(json.dumps({"within_s": within_s, **words}).encode() + b"\n")

    def close(self) -> None:
        """Kill the helper process; closing the pipe may not end it, since forks of this process may keep it open."""
        self._process.kill()
        self._process.communicate()


def listen() -> None:
    """Run the helper process: if no message arrives in time, print, keep the result and abort the watched process."""
    left: dict[str, Any] = {"within_s": None}
    heard = b""
    while True:
        if not select.select([0], [], [], left["within_s"])[0]:
            if _is_stopped(os.getppid()):
                continue  # the watched process is stopped by Ctrl-Z: its time limit restarts
            break
        more = os.read(0, 2**16)
        if not more:
            return
        *lines, heard = (heard + more).split(b"\n")
        with contextlib.suppress(ValueError):  # what a case wrote into descriptors that are not its own
            left = json.loads(lines[-1]) if lines else left
    if os.getppid() != int(sys.argv[1]):  # the watched process is gone, and a fork of it holds the pipe open
        return
    print(left["text"], file=sys.stderr, flush=True)
    if len(sys.argv) > 2:
        with contextlib.suppress(OSError):
            Connection(int(sys.argv[2])).send_bytes(left["line"].encode())
    if left["file"] is not None:
        with open(left["file"], "ab") as file:
            file.write(left["line"].encode() + b"\n")
        print(f"perf: the results so far are in {left['file']}", file=sys.stderr, flush=True)
    if left["document"] is not None:
        from perflab.results.documents import read_journal, write_document

        write_document(read_journal(Path(left["file"]))[0], Path(left["document"]))
    os.kill(os.getppid(), signal.SIGABRT)


def _is_stopped(pid: int) -> bool:
    """Whether a process is stopped, by Ctrl-Z or a debugger; false on systems without ``/proc``."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in ("T", "t")
    except OSError:
        return False


if __name__ == "__main__":
    listen()
