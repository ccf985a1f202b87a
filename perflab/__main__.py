"""The ``perflab`` command, also as ``python -m perflab``: loads ``perflab.cli``, and ends at Ctrl-C with one line."""

from __future__ import annotations

import sys

INTERRUPTED = 130


def main() -> int:
    """Run the command line; return the exit status: 130 for Ctrl-C, which may come while modules are loaded."""
    try:
        from perflab.cli import main as run

        return run()
    except KeyboardInterrupt:
        print("perflab: interrupted", file=sys.stderr)
        return INTERRUPTED


if __name__ == "__main__":
    sys.exit(main())
