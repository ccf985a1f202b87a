"""Candidates in KernelBench's form: files with ``ModelNew``, held to ``Model`` of the same problem.

A problem has ``Model``, ``get_inputs`` and ``get_init_inputs``, which are trusted; a candidate has ``ModelNew``. Both
may be in one file; then the judge runs only what the problem's names need, and the candidate's process gets the rest.
The form is that of Ouyang et al. 2025, "KernelBench: Can LLMs Write Efficient GPU Kernels?".
"""

from __future__ import annotations

import ast
import builtins
import copy
import io
import random
import secrets
import types
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from perflab.base.errors import UsageError
from perflab.untrusted.judge import Case, Source, judge
from perflab.untrusted.messages import Entry
from perflab.untrusted.records import Finding, Judged, Reason
from perflab.untrusted.stranger import Holding

_OF_PROBLEM = ("Model", "get_inputs", "get_init_inputs")
_CANDIDATE = "ModelNew"


def judge_folder(
    folder: Path,
    against: Path | None,
    holding: Holding,
    *,
    multiple: float | None,
    budget_s: float,
    threshold: float,
    wide: bool,
    say: Callable[[str], None],
) -> Iterator[Judged]:
    """Judge every candidate of a folder, in the order of their names; one that breaks stops none.

    Args:
        folder: files with ``ModelNew``.
        against: a folder with the problems under the same names; None: each file has its own.
        holding: how candidates are held.
        multiple, budget_s, threshold, wide: as in ``Case``.
        say: told of files that are no problem.

    Raises:
        UsageError: there is no candidate in the folder.
    """
    files = sorted(path for path in folder.glob("*.py") if _CANDIDATE in path.read_text(errors="replace"))
    if not files:
        raise UsageError(f"{folder}: no file defines {_CANDIDATE}", "name a folder of files in KernelBench's form")
    for file in files:
        text = file.read_text(errors="replace")
        try:
            problem = text if against is None else (against / file.name).read_text(errors="replace")
            case, source = _case(file.stem, text, problem)
            case = replace(case, multiple=multiple, budget_s=budget_s / 2, threshold=threshold, wide=wide)
        except SyntaxError as error:
            yield Judged(name=file.stem, finding=Finding.WRONG, reason=Reason.UNBUILT, text=str(error))
            continue
        except (OSError, UsageError) as error:
            say(f"{file}: {error}")
            yield Judged(name=file.stem, finding=Finding.UNKNOWN, reason=Reason.UNDEFINED, text=str(error))
            continue
        try:
            yield judge(source, case, holding)
        except UsageError as error:
            yield Judged(name=file.stem, finding=Finding.UNKNOWN, reason=Reason.UNDEFINED, text=str(error))


def _case(name: str, text: str, problem: str) -> tuple[Case, Source]:
    """Return what a candidate is held to, and where it comes from.

    Raises:
        SyntaxError: a file is no Python.
        UsageError: the problem is not in KernelBench's form, or raises.
    """
    names = _run(name, sliced(problem, _OF_PROBLEM))
    seed = secrets.randbits(31)
    try:
        arguments = list(names["get_init_inputs"]())
        torch.manual_seed(seed)
        model = names["Model"](*arguments)
        example = _drawn(names["get_inputs"], 0)
    except Exception as error:
        raise UsageError(f"its problem raised {type(error).__name__}: {error}", "correct the problem's file") from error
    if not example:
        raise UsageError("get_inputs() returns no tensor", "correct the problem's file")
    exact = copy.deepcopy(model).double()
    given = {"seed": seed, "arguments": arguments, "weights": model.state_dict()}
    packed = io.BytesIO()
    torch.save(given, packed)
    rival = sliced(problem, _OF_PROBLEM[:1])
    own = sliced(text, [_CANDIDATE], without=_OF_PROBLEM)
    module = f"candidate_{secrets.token_hex(4)}"
    case = Case(
        definition=_without_gradients(exact),
        plain=_without_gradients(model),
        draws=[lambda seed: _drawn(names["get_inputs"], seed)],
        rivals=[
            Source("eager", Entry(name="problem:Model", source=rival, builds=True), packed.getvalue()),
            Source(
                "torch.compile",
                Entry(name="problem:Model", source=rival, builds=True, compiles=True),
                packed.getvalue(),
            ),
        ],
    )
    return case, Source(name, Entry(name=f"{module}:{_CANDIDATE}", source=own, builds=True), packed.getvalue())


def _without_gradients(model: Any) -> Callable[..., Any]:
    def call(*inputs: Tensor) -> Any:
        with torch.no_grad():
            return model(*inputs)

    return call


def _drawn(get_inputs: Callable[[], Any], seed: int) -> Mapping[str, Tensor]:
    """Return the tensors of ``get_inputs`` for a seed, by their numbers.

    Raises:
        UsageError: an input is no tensor.
    """
    torch.manual_seed(seed)
    random.seed(seed)
    inputs = list(get_inputs())
    for number, one in enumerate(inputs):
        if not isinstance(one, Tensor):
            raise UsageError(
                f"input {number} of get_inputs() is a {type(one).__name__}",
                "give it by get_init_inputs, or as a tensor",
            )
    return {f"input{number}": one for number, one in enumerate(inputs)}


def _run(name: str, text: str) -> dict[str, Any]:
    """Run a problem's text and return its names.

    Raises:
        UsageError: it raises, or lacks a name.
    """
    module = types.ModuleType(f"problem_{name}")
    try:
        exec(compile(text, f"{name}.py", "exec"), module.__dict__)
    except Exception as error:
        raise UsageError(f"its problem raised {type(error).__name__}: {error}", "correct the problem's file") from error
    missing = [one for one in _OF_PROBLEM if one not in module.__dict__]
    if missing:
        raise UsageError(f"its problem lacks {', '.join(missing)}", "name a folder with the problems: --against DIR")
    return module.__dict__


def sliced(text: str, roots: tuple[str, ...] | list[str], without: tuple[str, ...] = ()) -> str:
    """Return the statements of a module that these names need, in their order; with ``without``, all but those.

    Args:
        text: the module.
        roots: names at the top level that are wanted, with what they use.
        without: names at the top level that are left out, also where the roots use them; other statements stay then,
            since a candidate's module may do anything when it is imported.

    Raises:
        SyntaxError: the text is no Python.
    """
    body = ast.parse(text).body
    defined = [_defined(one) for one in body]
    wanted, pending = set[str](), list(roots)
    while pending:
        name = pending.pop()
        if name in wanted:
            continue
        wanted.add(name)
        for one, names in zip(body, defined, strict=True):
            if name in names:
                pending += [used for used in _used(one) if not hasattr(builtins, used)]
    if without:
        kept = [one for one, names in zip(body, defined, strict=True) if not names & set(without)]
    else:
        kept = [one for one, names in zip(body, defined, strict=True) if names & wanted]
    return ast.unparse(ast.Module(kept, []))


def _defined(statement: ast.stmt) -> set[str]:
    """Return the names that a statement at the top level defines."""
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return {statement.name}
    if isinstance(statement, ast.Import | ast.ImportFrom):
        return {(one.asname or one.name).partition(".")[0] for one in statement.names}
    return {one.id for one in ast.walk(statement) if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store)}


def _used(statement: ast.stmt) -> set[str]:
    return {one.id for one in ast.walk(statement) if isinstance(one, ast.Name)}
