"""Speaks for a process in which C code keeps the interpreter's lock, so that no Python runs there, and ends it.

A process beside hears from a pipe what to say and to keep, and does so unless it hears more in time. Then it aborts the
other one, whose ``faulthandler`` writes the stacks. It ends with the pipe.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any


class LastWords:
    """The process beside, which speaks on a file descriptor."""

    def __init__(self, stderr: int) -> None:
        self._speaks_for = os.getpid()
        self._process = subprocess.Popen(
            [sys.executable, "-P", __file__, str(os.getpid())],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=stderr,
            bufsize=0,
            start_new_session=True,  # Ctrl-C is not for it
        )

    def leave(self, within_s: float | None, **words: str | None) -> None:
        """Have words said unless more are left within some seconds; None: nothing is said.

        Args:
            within_s: for how long nothing may be heard.
            words: ``text`` to say; ``line`` to add to ``file``, a journal or the results of a fresh process; and
                ``document``, a results file that the journal is to be written as. Each but the text may be None.
        """
        assert self._process.stdin is not None
        if os.getpid() != self._speaks_for:
            return  # a fork, which may be silent
        with contextlib.suppress(OSError):  # somebody has ended it
            self._process.stdin.write(json.dumps({"within_s": within_s, **words}).encode() + b"\n")

    def close(self) -> None:
        """End it; forks of this process may hold the pipe open."""
        self._process.kill()
        self._process.communicate()


def listen() -> None:
    """In the process beside: speak, and end the other one, if nothing more is heard in time."""
    left: dict[str, Any] = {"within_s": None}
    heard = b""
    while True:
        if not select.select([0], [], [], left["within_s"])[0]:
            if _is_stopped(os.getppid()):
                continue  # Ctrl-Z: its time begins anew
            break
        more = os.read(0, 2**16)
        if not more:
            return
        *lines, heard = (heard + more).split(b"\n")
        left = json.loads(lines[-1]) if lines else left
    if os.getppid() != int(sys.argv[1]):  # it is gone, and something that it forked holds the pipe open
        return
    print(left["text"], file=sys.stderr, flush=True)
    if left["file"] is not None:
        with open(left["file"], "ab") as file:
            file.write(left["line"].encode() + b"\n")
        print(f"perf: the results so far are in {left['file']}", file=sys.stderr, flush=True)
    if left["document"] is not None:
        from perflab.documents import write_document
        from perflab.journals import read_journal

        write_document(read_journal(Path(left["file"]))[0], Path(left["document"]))
    os.kill(os.getppid(), signal.SIGABRT)


def _is_stopped(pid: int) -> bool:
    """Whether a process is stopped, by Ctrl-Z or a debugger. Where there is no ``/proc``, none is."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in ("T", "t")
    except OSError:
        return False


if __name__ == "__main__":
    listen()
