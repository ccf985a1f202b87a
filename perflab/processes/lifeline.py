"""Ends a child process with its parent, even if the parent was killed; all child processes of perflab use it.

``with_lifeline`` puts this file in front of a command. The file is run by its path and imports nothing of perflab. It
asks the kernel to be killed with its parent, and then becomes the command. Only Linux supports that; on other systems a
command is unchanged.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence

_SET_PARENT_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG of <linux/prctl.h>


def with_lifeline(command: Sequence[str]) -> list[str]:
    """Return the command, changed to end with the thread of this process that starts it.

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
    """Make the kernel kill this process with its parent, whose id is ``parent``; exit now if the parent has ended."""
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
