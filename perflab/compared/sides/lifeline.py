"""Ends a side's process with its session, even if the session was killed."""

from __future__ import annotations

import os
import select

from perflab.child import end_with_parent


def end_with_session(socket: int) -> None:
    """Have the kernel end this process with the one that started it.

    Only Linux does that. Elsewhere, and if the session ended before it was asked, the process ends when it next reads
    or writes the socket, which a dead session has closed.

    Args:
        socket: number of the socket that leads to the session.
    """
    end_with_parent()
    watch = select.poll()
    watch.register(socket, 0)  # nothing but a hang-up, which is always told
    if watch.poll(0):
        os._exit(1)  # nobody is left to hear more
