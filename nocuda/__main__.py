"""``python -m nocuda [build | run [--gpus=N] -- COMMAND]``."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from nocuda.build import build
from nocuda.errors import NocudaError
from nocuda.installed import TESTED, refuse_a_real_driver, torch_here
from nocuda.launch import Gpu, environment


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m nocuda", description="CUDA's host side without a GPU.")
    commands = parser.add_subparsers(dest="command")
    building = commands.add_parser("build", help="build the library for the PyTorch that is installed")
    building.add_argument("--extension", action="append", default=[], help="a CUDA extension of yours (.so)")
    running = commands.add_parser("run", help="run a command with a CUDA driver that computes nothing")
    running.add_argument("--gpus", type=int, default=1, help="how many devices (default 1)")
    running.add_argument("argv", nargs=argparse.REMAINDER, metavar="-- COMMAND")
    asked = parser.parse_args(arguments)
    try:
        if asked.command == "run":
            command = asked.argv[1:] if asked.argv[:1] == ["--"] else asked.argv
            if not command:
                parser.error("run needs a command: python -m nocuda run -- python train.py")
            return _replace(command, environment(Gpu(devices=asked.gpus)))
        refuse_a_real_driver()
        torch = torch_here()
        versions = ", ".join(f"torch {one} with CUDA {' or '.join(cuda)}" for one, cuda in TESTED.items())
        print(f"torch {torch.version} with CUDA {torch.cuda}; tested with {versions}")
        built = build(extensions=asked.extension if asked.command == "build" else (), anew=asked.command == "build")
        print(f"{built.folder}: {', '.join(one.name for one in built.stand_ins)}")
    except NocudaError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


def _replace(command: Sequence[str], variables: dict[str, str]) -> int:
    try:
        os.execvpe(command[0], list(command), variables)
    except OSError as error:
        print(f"{command[0]}: {error.strerror}", file=sys.stderr)
        return 127


if __name__ == "__main__":
    sys.exit(main())
