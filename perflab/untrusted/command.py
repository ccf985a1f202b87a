"""``perflab verify``: a candidate against a trusted function, or a folder of candidates, judged without pytest."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import operator
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from perflab.base.data import to_json, with_texts
from perflab.base.errors import UsageError
from perflab.processes.child import Launch, Start, launch, workplace
from perflab.tables.escaping import lines_of, one_line
from perflab.tiers.interface import Run
from perflab.turns.process import Ancestor, NotForkedError
from perflab.units import format_count, format_interval, format_ns
from perflab.untrusted.messages import Entry, Rights
from perflab.untrusted.records import MOST_TEXT, Judged, Reason

if TYPE_CHECKING:
    from perflab.untrusted.judge import Terms
    from perflab.untrusted.stranger import Holding

_TOLD = 12
_OPERATORS = 6


def verify_command(parser: argparse.ArgumentParser) -> Run:
    """Judge a candidate that nobody vouches for: right, and how fast, with nothing that it says believed.

    The candidate runs in a process that has neither the reference nor the inputs' seeds, confined to its own files. It
    is timed from outside, against the reference, with fresh inputs in each call. Exits with 1 if a candidate is wrong,
    slower or suspicious.
    """
    parser.add_argument("candidate", nargs="?", metavar="MODULE:FUNCTION", help="package.module:function to judge")
    parser.add_argument(
        "--against", metavar="MODULE:FUNCTION|DIR", help="the trusted function, called in float64 and timed"
    )
    parser.add_argument(
        "--inputs",
        action="append",
        default=[],
        metavar="MODULE:FUNCTION",
        help="function(seed) -> {name: tensor}, in the order of the arguments; once for each shape",
    )
    parser.add_argument("--batch", type=Path, metavar="DIR", help="judge each file of DIR in KernelBench's form")
    parser.add_argument(
        "--multiple",
        type=float,
        metavar="X",
        help="error allowed, as a multiple of the reference's own (default: 2 in 16 bit, else 8)",
    )
    parser.add_argument("--budget", type=float, default=10.0, metavar="SECONDS", help="time of the turns (default: 10)")
    parser.add_argument(
        "--limit", type=float, default=120.0, metavar="SECONDS", help="a call that takes longer hangs (default: 120)"
    )
    parser.add_argument(
        "--threshold", type=float, default=0.1, metavar="SHARE", help="slowdown that counts (default: 0.1)"
    )
    parser.add_argument("--in-place", action="store_true", help="the candidate may write to its inputs and return them")
    parser.add_argument("--as-drawn", action="store_true", help="no values beyond those that --inputs draws")
    parser.add_argument("--device", default="auto", metavar="DEVICE", help="where tensors are (default: auto)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write a JSON line for each candidate to this file")

    def run(given: argparse.Namespace) -> int:
        if sys.platform != "linux":
            raise UsageError("perflab verify needs Linux", "run it in a container or in WSL 2")
        if (given.candidate is None) == (given.batch is None):
            raise UsageError("nothing to judge", "name a candidate, package.module:function, or --batch DIR")
        found = []
        with contextlib.ExitStack() as files:
            output = files.enter_context(given.json.open("wb")) if given.json is not None else None
            for whole in _judged_one(given) if given.batch is None else _judged_batch(given):
                judged = with_texts(whole, lambda text: text[:MOST_TEXT])
                found.append(judged)
                if output is not None:
                    output.write(line_of(judged).encode() + b"\n")
                    output.flush()
                if given.batch is not None:
                    print(line_of(judged), flush=True)
                else:
                    print(lines_of("\n".join(told(judged))))
        return 0 if all(one.is_accepted for one in found) else 1

    return run


def line_of(judged: Judged) -> str:
    """Return a judgement as a line of JSON in ASCII, which no terminal obeys and everybody splits alike."""
    plain = json.loads(to_json(judged))
    return json.dumps({name: plain[name] for name in ("name", "finding")} | plain, separators=(",", ":"))


def _listed(tally: Mapping[str, int]) -> str:
    """Return the commonest names, each after its number."""
    return ", ".join(f"{number} {name}" for name, number in Counter(tally).most_common(_OPERATORS))


def told(judged: Judged) -> list[str]:
    """Return a judgement as lines for people, the verdict first."""
    because = f": {judged.reason}" if judged.reason else ""
    lines = [f"{judged.name}: {judged.finding}{because}"]
    most = _TOLD if judged.reason in (Reason.RAISED, Reason.UNBUILT) else 0  # the end of a traceback, or all
    lines += [f"  {line}" for line in judged.text.splitlines()[-most:]]
    lines.append(f"  {judged.checked} of {format_count(judged.calls, 'call')} checked, all with inputs of their own")
    for one in judged.ratios:
        lines.append(
            f"  ×{one.value:.3g} ({format_interval(one.low, one.high)}) the time of {one.rival}: "
            f"{format_ns(one.candidate_ns)} against {format_ns(one.rival_ns)}, {format_count(one.pairs, 'pair')}"
        )
    if judged.threads:  # it has told
        amounts = {"allocation": judged.allocations, "thread": judged.threads}
        amounts |= {"stream": judged.streams, "graph launch": judged.graphs}
        ran = [
            _listed(judged.operators) or "no operator of PyTorch's",
            *([f"kernels: {_listed(judged.kernels)}"] if judged.kernels else []),
            ", ".join(format_count(number, name) for name, number in amounts.items() if number),
            *([f"products in float32: {judged.precision}"] if judged.precision != "highest" else []),
        ]
        lines.append(f"  ran, by its own account: {one_line('; '.join(ran))}")
    if judged.as_rival:
        lines.append(f"  as the reference does: {one_line(', '.join(judged.as_rival))}")
    if judged.kernels and judged.kernels.keys() <= set(judged.as_rival):
        lines.append("  no kernel of its own: the reference runs all of them")
    return [*lines, *(f"  not certain: {one_line(note)}" for note in judged.notes)]


@contextlib.contextmanager
def forking() -> Iterator[Launch]:
    """Yield what starts processes: forks of one process that has PyTorch, or fresh ones where that is not possible."""
    from perflab.untrusted.stranger import variables_for

    command = [sys.executable, "-m", "perflab.untrusted.worker"]
    with contextlib.ExitStack() as stack:
        try:  # the memory of this process is that of all candidates: it gets no variable that they may not see
            variables = {**variables_for(None), "PERFLAB_PRELOADED": "perflab.untrusted.preloaded"}
            ancestor = stack.enter_context(Ancestor([Start("the ancestor", command, variables, Path.cwd())]))
        except NotForkedError:
            yield launch
            return

        def start(one: Start, output: int, inherited: Sequence[int]) -> Any:
            try:
                return ancestor.fork(one, output, inherited)
            except NotForkedError:
                return launch(one, output, inherited)

        yield start


def named(name: str) -> Callable[..., Any]:
    """Import ``package.module:function``, and look in the current directory last: a stranger's files may lie there.

    Raises:
        UsageError: there is no such module or function.
    """
    module, _, function = name.partition(":")
    sys.path[:] = [*(one for one in sys.path if one not in ("", os.getcwd())), os.getcwd()]
    try:
        found = operator.attrgetter(function)(importlib.import_module(module))
    except (ImportError, AttributeError, ValueError) as error:
        raise UsageError(f"{name}: {error}", "name it package.module:function, importable from here") from error
    if not callable(found):
        raise UsageError(f"{name} is a {type(found).__name__}, not a function", "name a function")
    return found  # type: ignore[no-any-return]


def file_of(name: str, path: Sequence[str]) -> Path | None:
    """Return the file of a module on an import path without running it; None if it cannot be found."""
    from importlib.machinery import PathFinder

    spec = None
    for part in name.partition(":")[0].split("."):
        spec = PathFinder.find_spec(part, path)
        if spec is None:
            return None
        path = list(spec.submodule_search_locations or [])
    return Path(spec.origin) if spec is not None and spec.origin and spec.has_location else None


@contextlib.contextmanager
def held(
    device: str, limit_s: float, open_to: Sequence[Path], secret: Sequence[Path], start: Launch | None = None
) -> Iterator[Holding]:
    """Yield how candidates are held: confined to this Python and ``open_to``, without what is ``secret``.

    Args:
        device: where tensors are.
        limit_s: the time in seconds that an answer may take.
        open_to: folders that candidates may read besides those of this Python.
        secret: files and folders that they may not read.
        start: starts their processes; None: forks of an ancestor of their own, which takes seconds to start.
    """
    from perflab.untrusted.confine import python_folders, readable
    from perflab.untrusted.stranger import Holding

    package = Path(__file__).parents[1]
    hidden = [*secret, package.parent / "baselines", package.parent / "tests"]
    installed = [Path(entry) for entry in sys.path if "site-packages" in entry or "dist-packages" in entry]
    folders, listed = readable([*python_folders(), package, *installed, *open_to], hidden)
    with workplace() as folder, forking() if start is None else contextlib.nullcontext(start) as launched:
        yield Holding(
            device=device,
            folder=folder,
            limit_s=limit_s,
            rights=Rights(
                read=[str(one) for one in dict.fromkeys(folders)],
                listed=[str(one) for one in dict.fromkeys(listed)],
                path=[str(one) for one in open_to],
            ),
            start=launched,
        )


def _terms(given: argparse.Namespace) -> Terms:
    from perflab.untrusted.judge import Terms

    return Terms(
        multiple=given.multiple,
        may_change=given.in_place,
        wide=not given.as_drawn,
        budget_s=given.budget,
        threshold=given.threshold,
    )


def _judged_one(given: argparse.Namespace) -> Iterator[Judged]:
    if given.against is None or not given.inputs:
        raise UsageError(
            f"{given.candidate} cannot be judged alone",
            "name what is right, --against package.module:function, and --inputs package.module:function(seed)",
        )
    from perflab.devices.kinds import resolve_device
    from perflab.untrusted.judge import Case, judge
    from perflab.untrusted.stranger import Source

    trusted, draws = named(given.against), [named(one) for one in given.inputs]
    secret = [path for name in (given.against, *given.inputs) if (path := file_of(name, sys.path)) is not None]
    own = file_of(given.candidate, [os.getcwd(), *sys.path])
    if own is not None and own in secret:
        raise UsageError(
            f"{given.candidate} and what it is judged by are in one file, {own}",
            "put the candidate in a file of its own: its process must not have the answers",
        )
    device = str(resolve_device(given.device))
    case = Case(
        definition=trusted,
        plain=trusted,
        draws=draws,
        rivals=[Source(given.against, Entry(name=given.against))],
        terms=_terms(given),
    )
    caches = [path.parent / "__pycache__" for path in secret]
    with held(device, given.limit, [Path.cwd()], [*secret, *caches]) as holding:
        yield judge(Source(given.candidate, Entry(name=given.candidate)), case, holding)


def _judged_batch(given: argparse.Namespace) -> Iterator[Judged]:
    from perflab.devices.kinds import resolve_device
    from perflab.untrusted.kernelbench import judge_folder

    against = Path(given.against) if given.against is not None else None
    device = str(resolve_device(given.device))
    with held(device, given.limit, [], [given.batch, *([against] if against is not None else [])]) as holding:
        yield from judge_folder(
            given.batch, against, holding, _terms(given), say=lambda text: print(one_line(text), file=sys.stderr)
        )
