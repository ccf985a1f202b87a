"""The program of a compiler process, which answers requests until the process that started it ends (``pool.py``).

The program runs in a process without TRITON_INTERPRET, since Triton chooses its interpreter at import. Messages that
the compiler's native parts write to standard error are part of the answer.
"""

from __future__ import annotations

import os
import sys
from functools import cache

import msgspec

from perflab.base.data import Data, changed
from perflab.base.errors import PerflabError
from perflab.base.gpu_names import Arch, name_of_arch
from perflab.compiled.compiler.example import KernelExample
from perflab.compiled.compiler.resources import useful_lines
from perflab.processes.channel import Alive, hear, say, show_stacks_when_asked
from perflab.results.compiled import CompiledKernel


class Request(Data, frozen=True, tag=True):
    """A request to compile an example, or, without a ``name``, to list the names of the registered examples."""

    registration: str
    arch: Arch
    name: str | None = None


class Answer(Data, frozen=True, tag=True):
    """The answer to a request: the compiled kernel, the names of examples, or a problem with its remedy."""

    compiled: CompiledKernel | None = None
    names: list[str] | None = None
    problem: str | None = None
    remedy: str | None = None


REQUESTS = msgspec.json.Decoder(Request)
ANSWERS: msgspec.json.Decoder[Answer | Alive] = msgspec.json.Decoder(Answer | Alive)


@cache
def _examples(registration: str, arch: Arch) -> dict[str, KernelExample]:
    from perflab.compiled.compiler.example import load_examples

    return {example.name: example for example in load_examples(registration, arch)}


def answer(request: Request) -> Answer:
    """Carry out a request, and return the answer."""
    said_before = os.fstat(2).st_size
    try:
        examples = _examples(request.registration, request.arch)
        if request.name is None:
            return Answer(names=list(examples))
        if request.name not in examples:
            arch = name_of_arch(request.arch)
            return Answer(
                problem=f"{request.registration} has no {request.name!r} for {arch} where it is compiled",
                remedy="register the same kernels in every process, with and without TRITON_INTERPRET",
            )
        from perflab.compiled.compiler.compile import compile_example

        compiled = compile_example(request.registration, examples[request.name], request.arch, examples.values())
    except PerflabError as error:
        return Answer(problem=error.problem, remedy=error.remedy)
    if compiled.problem is not None:
        sys.stderr.flush()
        said = os.pread(2, os.fstat(2).st_size - said_before, said_before)  # standard error is a file
        diagnosed = useful_lines(said.decode("utf-8", "replace"), most=4)
        if "error:" in diagnosed:  # MLIR's passes write details to standard error that their exception lacks
            compiled = changed(compiled, problem=f"{compiled.problem}\n{diagnosed}")
    return Answer(compiled=compiled)


def main() -> None:
    """Answer requests until the process that started this one ends."""
    show_stacks_when_asked(2)
    while True:
        try:
            request = hear(REQUESTS)
        except (EOFError, OSError):
            return
        say(answer(request))


if __name__ == "__main__":
    main()
