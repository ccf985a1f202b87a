"""Reports for, and ends, a process in which C code holds the interpreter's lock, so that Python cannot run in it.

A helper process reads from a pipe a text to print and a result to keep. If no further message arrives in time, the
helper prints and keeps them, and then aborts the watched process, whose ``faulthandler`` writes the stacks. The helper
ends when the pipe is closed. It is started beside every measurement, so what it needs to act alone is imported then.
"""

from __future__ import annotations

import os
import select
import sys


class LastWords:
    """The helper process.

    Args:
        stderr: the file descriptor to which the helper prints.
        channel: the socket to the process that started the watched one for a job, and gets its result; else None.
    """

    def __init__(self, stderr: int, channel: int | None = None) -> None:
        import subprocess

        self._speaks_for = os.getpid()
        kept = [] if channel is None else [channel]
        self._process = subprocess.Popen(
            [sys.executable, "-IS", __file__, str(os.getpid()), *map(str, kept)],
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
        import contextlib
        import json

        assert self._process.stdin is not None
        if os.getpid() != self._speaks_for:
            return  # this is a fork of the watched process, which is not watched itself
        limit = "" if within_s is None else f"{within_s:.3f}"
        with contextlib.suppress(OSError):  # the helper process was ended from outside
            self._process.stdin.write(f"{limit} {json.dumps(words)}\n".encode())

    def close(self) -> None:
        """Kill the helper process; closing the pipe may not end it, since forks of this process may keep it open."""
        self._process.kill()
        self._process.communicate()


def listen() -> None:
    """Run the helper process: if no message arrives in time, print, keep the result and abort the watched process."""
    within_s, said, heard = None, b"", b""
    while True:
        if not select.select([0], [], [], within_s)[0]:
            if _is_stopped(os.getppid()):
                continue  # the watched process is stopped by Ctrl-Z: its time limit restarts
            break
        more = os.read(0, 2**16)
        if not more:
            return
        *lines, heard = (heard + more).split(b"\n")
        for line in lines[-1:]:
            limit, _, words = line.partition(b" ")
            is_whole = words.startswith(b"{") and words.endswith(b"}")
            if is_whole and (not limit or limit.replace(b".", b"", 1).isdigit()):
                within_s, said = float(limit) if limit else None, words  # else a case wrote into others' descriptors
    if os.getppid() != int(sys.argv[1]):  # the watched process is gone, and a fork of it holds the pipe open
        return

    import contextlib
    import json
    import signal
    import site
    from multiprocessing.connection import Connection
    from pathlib import Path

    left = json.loads(said)
    print(left["text"], file=sys.stderr, flush=True)
    if len(sys.argv) > 2:
        with contextlib.suppress(OSError):
            Connection(int(sys.argv[2])).send_bytes(left["line"].encode())
    if left["file"] is not None:
        with open(left["file"], "ab") as file:
            file.write(left["line"].encode() + b"\n")
        print(f"perf: the results so far are in {left['file']}", file=sys.stderr, flush=True)
    if left["document"] is not None:
        site.main()
        sys.path[:0] = os.environ["PYTHONPATH"].split(os.pathsep)
        from perflab.results.documents import read_journal, write_document

        write_document(read_journal(Path(left["file"]))[0], Path(left["document"]))
    os.kill(os.getppid(), signal.SIGABRT)


def _is_stopped(pid: int) -> bool:
    """Whether a process is stopped, by Ctrl-Z or a debugger; false on systems without ``/proc``."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] in ("T", "t")
    except OSError:
        return False


if __name__ == "__main__":
    listen()
