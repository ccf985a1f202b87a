"""Candidates in KernelBench's form: files with ``ModelNew``, held to ``Model`` of the same problem.

A problem has ``Model``, ``get_inputs`` and ``get_init_inputs``, which are trusted; a candidate has ``ModelNew``. Both
may be in one file; then the judge runs only what the problem's names need, and the candidate's process gets the rest.
The form is that of Ouyang et al. 2025, "KernelBench: Can LLMs Write Efficient GPU Kernels?".
"""

from __future__ import annotations

import ast
import builtins
import io
import os
import random
import secrets
import stat
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from perflab.base.errors import PerflabError, UsageError
from perflab.untrusted.judge import Case, Terms, judge
from perflab.untrusted.messages import Entry
from perflab.untrusted.records import Finding, Judged, Reason
from perflab.untrusted.stranger import Holding, Source
from perflab.untrusted.worker import built, with_numbers

_OF_PROBLEM = ("Model", "get_inputs", "get_init_inputs")
_CANDIDATE = "ModelNew"
_MOST_BYTES = 1 << 20
"""The size of a candidate's file in bytes, at most."""


def judge_folder(
    folder: Path,
    against: Path | None,
    holding: Holding,
    terms: Terms,
    say: Callable[[str], None],
) -> Iterator[Judged]:
    """Judge every candidate of a folder, in the order of their names; one that breaks stops none.

    Args:
        folder: files with ``ModelNew``.
        against: a folder with the problems under the same names; None: each file has its own.
        holding: how candidates are held.
        terms: how they are judged.
        say: told of files that are no problem.

    Raises:
        UsageError: there is no candidate in the folder.
    """
    given = {path: _read(path) for path in sorted(folder.glob("*.py"))}
    given = {path: text for path, text in given.items() if isinstance(text, Judged) or _CANDIDATE in text}
    if not given:
        raise UsageError(f"{folder}: no file defines {_CANDIDATE}", "name a folder of files in KernelBench's form")
    for file, text in given.items():
        if isinstance(text, Judged):
            yield text
            continue
        try:
            problem = text if against is None else (against / file.name).read_text(errors="replace")
            case, source = _case(file.stem, text, problem)
            budget_s = terms.budget_s / len(case.rivals)
            yield judge(source, replace(case, terms=replace(terms, budget_s=budget_s)), holding)
        except SyntaxError as error:
            yield _unbuilt(file, str(error))
        except Exception as error:  # whatever a file makes the judge do: the next one is judged
            if isinstance(error, OSError | UsageError):
                say(f"{file}: {error}")
            told = str(error) if isinstance(error, OSError | PerflabError) else f"{type(error).__name__}: {error}"
            yield Judged(name=file.stem, finding=Finding.UNKNOWN, reason=Reason.UNJUDGED, text=told)


def _unbuilt(file: Path, text: str) -> Judged:
    return Judged(name=file.stem, finding=Finding.WRONG, reason=Reason.UNBUILT, text=text)


def _read(path: Path) -> str | Judged:
    """Return the text of a candidate's file; of a link, a pipe, or a file that is too large the verdict."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as error:
        return _unbuilt(path, "it is a link" if path.is_symlink() else f"it cannot be read: {error.strerror}")
    try:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            return _unbuilt(path, "it is no regular file")
        data = os.read(handle, _MOST_BYTES + 1)
    finally:
        os.close(handle)
    if len(data) > _MOST_BYTES:
        return _unbuilt(path, "it is larger than 1 MiB")
    return data.decode(errors="replace")


def _case(name: str, text: str, problem: str) -> tuple[Case, Source]:
    """Return what a candidate is held to, and where it comes from.

    Raises:
        SyntaxError: a file is no Python.
        UsageError: the problem is not in KernelBench's form, or raises.
    """
    names, code = types.ModuleType(f"problem_{name}").__dict__, sliced(problem, _OF_PROBLEM)
    seed = secrets.randbits(31)
    try:
        exec(compile(code, f"{name}.py", "exec"), names)
        if missing := [one for one in _OF_PROBLEM if one not in names]:
            raise UsageError(
                f"its problem lacks {', '.join(missing)}", "name a folder with the problems: --against DIR"
            )
        arguments = list(names["get_init_inputs"]())
        torch.manual_seed(seed)
        model = names["Model"](*arguments)
        example, numbers = _drawn(names["get_inputs"], 0)
        given = {"seed": seed, "arguments": arguments, "weights": model.state_dict(), "numbers": numbers}
        exact = built(names["Model"], given).double()  # a copy would share what a closure has of the model
    except UsageError:
        raise
    except Exception as error:
        raise UsageError(f"its problem raised {type(error).__name__}: {error}", "correct the problem's file") from error
    if not example:
        raise UsageError("get_inputs() returns no tensor", "correct the problem's file")
    packed = io.BytesIO()
    torch.save(given, packed)
    weights = packed.getvalue()
    rival = sliced(problem, _OF_PROBLEM[:1])
    own = sliced(text, [_CANDIDATE], without=_OF_PROBLEM)
    module = f"candidate_{secrets.token_hex(4)}"
    case = Case(
        definition=torch.no_grad()(with_numbers(exact, numbers)),
        plain=torch.no_grad()(with_numbers(model, numbers)),
        draws=[lambda seed: _drawn(names["get_inputs"], seed)[0]],
        rivals=[
            Source(one, Entry(name="problem:Model", source=rival, builds=True, compiles=one != "eager"), weights)
            for one in ("eager", "torch.compile")
        ],
    )
    return case, Source(name, Entry(name=f"{module}:{_CANDIDATE}", source=own, builds=True), weights)


def _drawn(get_inputs: Callable[[], Any], seed: int) -> tuple[Mapping[str, Tensor], dict[int, float]]:
    """Return the tensors of ``get_inputs`` for a seed, by names of their places, and the numbers by their places.

    Raises:
        UsageError: an input is neither a tensor nor a number.
    """
    torch.manual_seed(seed)
    random.seed(seed)
    inputs = list(get_inputs())
    for number, one in enumerate(inputs):
        if not isinstance(one, Tensor | int | float):
            raise UsageError(
                f"input {number} of get_inputs() is a {type(one).__name__}",
                "give it by get_init_inputs, or as a tensor",
            )
    numbers = {place: one for place, one in enumerate(inputs) if not isinstance(one, Tensor)}
    return {f"input{place}": one for place, one in enumerate(inputs) if place not in numbers}, numbers


def sliced(text: str, roots: Sequence[str], without: Sequence[str] = ()) -> str:
    """Return the statements of a module that these names need, in their order; with ``without``, all but those.

    Args:
        text: the module.
        roots: names at the top level that are wanted, with what they use.
        without: names at the top level that are left out, also where the roots use them; other statements stay then,
            since a candidate's module may do anything when it is imported.

    Raises:
        SyntaxError: the text is no Python, or nested more deeply than Python reads.
    """
    try:
        body = ast.parse(text).body
        others = [one for one in body if _defined(one).isdisjoint(without)]
        return ast.unparse(ast.Module(others if without else _needed(body, roots), []))
    except (RecursionError, MemoryError, ValueError) as error:
        raise SyntaxError(f"{type(error).__name__}: {error}") from None


def _needed(body: Sequence[ast.stmt], roots: Sequence[str]) -> list[ast.stmt]:
    numbers: dict[str, list[int]] = {}
    for number, one in enumerate(body):
        for name in _defined(one):
            numbers.setdefault(name, []).append(number)
    kept, pending = set[int](), list(roots)
    while pending:
        for number in set(numbers.pop(pending.pop(), ())) - kept:  # each name and each statement once
            kept.add(number)
            pending += [used for used in _used(body[number]) if not hasattr(builtins, used)]
    return [body[number] for number in sorted(kept)]


def _defined(statement: ast.stmt) -> set[str]:
    """Return the names that a statement at the top level defines."""
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return {statement.name}
    if isinstance(statement, ast.Import | ast.ImportFrom):
        return {(one.asname or one.name).partition(".")[0] for one in statement.names}
    return {one.id for one in ast.walk(statement) if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store)}


def _used(statement: ast.stmt) -> set[str]:
    return {one.id for one in ast.walk(statement) if isinstance(one, ast.Name)}
