"""Ends a process with the one that started it, even if that one was killed: one mechanism for all children of ours.

``with_lifeline`` puts this file in front of a command. Run by its path, it imports nothing of perflab, asks the kernel
to be killed with its parent, and becomes the command. Only Linux does that; elsewhere a command is left as it is.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence

_SET_PARENT_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG of <linux/prctl.h>


def with_lifeline(command: Sequence[str]) -> list[str]:
    """The command, as one that ends with the thread of this process that starts it.

    Raises:
        FileNotFoundError: there is no such program.
    """
    from shutil import which

    if which(command[0]) is None and (os.path.isabs(command[0]) or os.sep not in command[0]):
        raise FileNotFoundError(2, "No such file or directory", command[0])
    if sys.platform != "linux":
        return list(command)
    return [sys.executable, "-IS", __file__, str(os.getpid()), *command]


def end_with_parent(parent: int) -> None:
    """In a new process: have the kernel kill it with its parent, whose number this is; end now if that has ended."""
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


if __name__ == "__main__":
    end_with_parent(int(sys.argv[1]))
    try:
        os.execvp(sys.argv[2], sys.argv[2:])
    except OSError as error:
        sys.exit(f"{sys.argv[2]}: {error.strerror}")
