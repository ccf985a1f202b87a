"""The program of a compiler process: reads one request a line from its input, and writes one answer a line to its
output.

The program runs in a process without TRITON_INTERPRET, since Triton chooses its interpreter at import::

    python -m perflab.compiled.compiler.worker FILE

The standard error of the process goes to FILE: messages that the compiler's native parts write there are part of the
answer.
"""

from __future__ import annotations

import os
import sys
from functools import cache
from pathlib import Path

import msgspec

from perflab.compiled.compiler.example import KernelExample
from perflab.compiled.compiler.resources import useful_lines
from perflab.compiled.records import CompiledKernel
from perflab.data import Data
from perflab.errors import PerflabError


class Request(Data, frozen=True):
    """A request to compile an example, or, without a ``name``, to list the names of the registered examples."""

    registration: str
    arch: int
    name: str | None = None


class Answer(Data, frozen=True):
    """The answer to a request: the compiled kernel, the names of examples, or a problem with its remedy."""

    compiled: CompiledKernel | None = None
    names: list[str] | None = None
    problem: str | None = None
    remedy: str | None = None


@cache
def _examples(registration: str, arch: int) -> dict[str, KernelExample]:
    from perflab.compiled.compiler.registration import load_examples

    return {example.name: example for example in load_examples(registration, arch)}


def answer(request: Request, log: Path) -> Answer:
    """Carry out a request, and return the answer. ``log`` is the file of this process's standard error."""
    said_before = log.stat().st_size
    try:
        examples = _examples(request.registration, request.arch)
        if request.name is None:
            return Answer(names=list(examples))
        if request.name not in examples:
            return Answer(
                problem=f"{request.registration} has no {request.name!r} for sm_{request.arch} where it is compiled",
                remedy="register the same kernels in every process, with and without TRITON_INTERPRET",
            )
        from perflab.compiled.compiler.compile import compile_example

        compiled = compile_example(request.registration, examples[request.name], request.arch, examples.values())
    except PerflabError as error:
        return Answer(problem=error.problem, remedy=error.remedy)
    if compiled.problem is not None:
        sys.stderr.flush()
        diagnosed = useful_lines(log.read_bytes()[said_before:].decode("utf-8", "replace"), most=4)
        if "error:" in diagnosed:  # MLIR's passes write details to standard error that their exception lacks
            compiled = msgspec.structs.replace(compiled, problem=f"{compiled.problem}\n{diagnosed}")
    return Answer(compiled=compiled)


def main(log: Path) -> None:
    """Answer requests until the input ends."""
    answers = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)  # other output of this process must not mix with the answers
    for line in sys.stdin.buffer:
        answers.write(msgspec.json.encode(answer(msgspec.json.decode(line, type=Request), log)) + b"\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
