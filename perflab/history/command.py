"""The command ``perflab history``: its arguments, the source and format that they name, the part that they choose."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path

from perflab.base.data import changed, to_readable_json
from perflab.base.errors import UsageError
from perflab.base.files import write_whole
from perflab.base.git import commit_named, working_tree
from perflab.history.baseline_log import read_log
from perflab.history.contents import ALARM, BetweenRow, Contents, EventRow, RunRow
from perflab.history.git_objects import clean, commits_between
from perflab.history.results_files import read_branch, read_folder
from perflab.history.series import BY_PRODUCTS, History
from perflab.history.text import as_csv, as_text, short
from perflab.report.summary import page_width
from perflab.tables.escaping import one_line
from perflab.units import format_count

_RECENT = 10
_JOURNALS = Path(".perflab/runs")
_BASELINES = Path("baselines")


def history_command(parser: argparse.ArgumentParser) -> Callable[[argparse.Namespace], int]:
    """Show how each case's numbers went over many runs, when they changed, and which commits lie there.

    Reads a folder of results files, a folder on a branch, or with --git the log of the baselines. Without any of them
    it reads the journals of the last runs here. An event is one change of level, whatever cases share it. Exits with
    0; with --fail, with 1 if there is a recent alarm, or a results file is damaged.
    """
    parser.add_argument(
        "folder",
        nargs="?",
        metavar="DIR",
        help="folder of results files, searched recursively (default: .perflab/runs); with --branch, a folder there; "
        "with --git, the baselines",
    )
    parser.add_argument("--git", action="store_true", help="read every accepted baseline from git's log")
    parser.add_argument("--branch", metavar="NAME", help="read the folder on this branch, without a checkout")
    parser.add_argument("--case", metavar="SUBSTRING", help="show only cases whose name contains this")
    parser.add_argument("--quantity", metavar="NAME", help="show only this quantity, such as latency or peak")
    parser.add_argument("--since", metavar="DATE", help="leave out what is older, such as 2026-11-01")
    parser.add_argument(
        "--between", nargs=2, metavar="RUN", help="list the commits between two runs: each by its commit, date or file"
    )
    parser.add_argument("--format", choices=("text", "json", "csv", "html"), default="text", help="(default: text)")
    parser.add_argument("--output", type=Path, metavar="FILE", help="write to this file, and not to the terminal")
    parser.add_argument("--fail", action="store_true", help="exit with 1 if an alarm for the worse is recent")
    parser.add_argument(
        "--recent",
        type=int,
        metavar="N",
        help=f"with --fail: how many of the last runs are recent (default: {_RECENT})",
    )

    parser.add_argument("--bisect", metavar="CASE", help="find the commit that changed this case, by bisection")
    parser.add_argument("--good", metavar="COMMIT", help="with --bisect: has the old level (default: the event's)")
    parser.add_argument("--bad", metavar="COMMIT", help="with --bisect: has the new level (default: the event's)")
    parser.add_argument("--build", metavar="COMMAND", help="with --bisect: run this in each commit's worktree first")
    parser.add_argument("--pytest", metavar="OPTIONS", help="with --bisect: more options for pytest")

    def run(given: argparse.Namespace) -> int:
        _refuse_unused(given)
        if given.bisect is not None:
            return _bisect(given)
        recent = _RECENT if given.recent is None else given.recent
        if recent < 1:
            raise UsageError(f"--recent={recent}", "give how many runs are recent, 1 or more")
        from perflab.history.telling import contents_of

        history = _history(given)
        if not history.runs:
            raise UsageError(f"--since={given.since}: no run is as new as that", "name an earlier date")
        if not history.series:
            runs = format_count(len(history.runs), "run")
            raise UsageError(f"{history.source}: {runs} without a number of any case", "measure: pytest -m perf")
        contents = contents_of(history, Path())
        if given.between is not None:
            contents = with_between(contents, tuple(given.between), Path())
        shown = chosen(contents, given.case, given.quantity)
        if not shown.series:
            asked = [f"--case={given.case}"] * (given.case is not None)
            asked += [f"--quantity={given.quantity}"] * (given.quantity is not None)
            raise UsageError(f"{' '.join(asked)}: no series has that name", f"there are: {_known(history)}")
        if given.format == "html":
            from perflab.history.page import as_page  # jinja2 is loaded for pages alone

            text = as_page(shown)
        else:
            forms = {"text": lambda: as_text(shown, page_width()), "csv": lambda: as_csv(shown)}
            text = forms.get(given.format, lambda: to_readable_json(shown))()
        if given.output is None:
            sys.stdout.write(text)
        else:
            write_whole(given.output, text.encode("utf-8", "backslashreplace"))
        alarm = newest_alarm(shown, recent) if given.fail else None
        if alarm is not None:
            print(f"perflab history: event {alarm.number} is an alarm within {recent} runs", file=sys.stderr)
        unread = history.unread if given.fail else []
        if unread:
            many = f"{format_count(len(unread), 'results file')} could not be read"
            print(f"perflab history: {many}: {unread[0]}\n  -> restore or remove it", file=sys.stderr)
        return 0 if alarm is None and not unread else 1

    return run


def _history(given: argparse.Namespace) -> History:
    history = read_history(given.folder, given.branch, given.git, given.quantity)
    try:
        since = datetime.fromisoformat(given.since) if given.since is not None else None
    except ValueError:
        problem = f"--since={given.since} is not a date"
        raise UsageError(problem, "write it like 2026-11-01 or 2026-11-01T06:00") from None
    history.finish(since.replace(tzinfo=UTC) if since is not None and since.tzinfo is None else since)
    return history


def _bisect(given: argparse.Namespace) -> int:
    from perflab.history.bisect.run import ask

    lines, is_found = ask(
        given.bisect,
        lambda: _history(given),
        (given.good, given.bad),
        given.quantity,
        build=_words("--build", given.build),
        options=_words("--pytest", given.pytest),
        told=lambda text: print(one_line(text), file=sys.stderr, flush=True),
    )
    print("\n".join(map(one_line, lines)))
    return 0 if is_found else 1


def _refuse_unused(given: argparse.Namespace) -> None:
    """Raise UsageError for options that would have no effect."""
    of_bisection = {"--good": given.good, "--bad": given.bad, "--build": given.build, "--pytest": given.pytest}
    if given.between is not None and given.format not in ("text", "json"):
        raise UsageError(f"--between with --format={given.format}", "give --format=text, or json")
    if given.git and given.fail:
        raise UsageError("--fail with --git", "leave it out: accepted levels raise no alarm")
    if given.recent is not None and not given.fail and given.bisect is None:
        raise UsageError(f"--recent={given.recent} without --fail", "add --fail, or leave it out")
    if given.bisect is not None and given.good is not None and given.bad is not None:
        source = {"--git": given.git or None, "--branch": given.branch, "--since": given.since, given.folder: True}
        named = next((name for name, value in source.items() if name is not None and value is not None), None)
        if named is not None:
            raise UsageError(
                f"{named} with --good and --bad", "leave it out: both ends are named, and no history is read"
            )
    shown = {"--between": given.between, "--case": given.case, "--output": given.output, "--fail": given.fail or None}
    shown["--recent"] = given.recent
    shown["--format"] = given.format if given.format != "text" else None
    for name, value in (of_bisection if given.bisect is None else shown).items():
        if value is None:
            continue
        said = name if value is True else f"{name}={value}"
        if given.bisect is None:
            raise UsageError(f"{said} without --bisect", "add --bisect=CASE, or leave it out")
        raise UsageError(
            f"{said} with --bisect", "leave it out: a bisection answers in text, with status 0 if it found"
        )


def _words(option: str, text: str | None) -> list[str]:
    try:
        return shlex.split(text or "")
    except ValueError as error:
        problem = str(error)[0].lower() + str(error)[1:]
        raise UsageError(f"{option}={text}: {problem}", "write it as for a shell, with each quote closed") from None


def read_history(folder: str | None, branch: str | None, git: bool, quantity: str | None) -> History:
    """Read the history that the arguments name. A by-product is only read if it is the quantity asked for.

    Raises:
        UsageError: the arguments name no history, or more than one.
        RivalError: git failed, or does not have the branch.
    """
    if git and branch is not None:
        raise UsageError("--git and --branch", "give one: --git reads baselines, --branch reads results files")
    skipped = [one for one in BY_PRODUCTS if one != quantity]
    if git:
        return read_log(Path(folder) if folder is not None else _BASELINES)
    if branch is not None:
        return read_branch(working_tree(Path()), branch, folder or "", skipped)
    if folder is None and not _JOURNALS.is_dir():
        raise UsageError(
            "neither a folder nor --git nor --branch is given, and there are no journals in .perflab/runs",
            "name a folder of results files (--perf-json), or --git for accepted baselines",
        )
    return read_folder(Path(folder) if folder is not None else _JOURNALS, skipped)


def _known(history: History) -> str:
    from perflab.tables.lines import short_name
    from perflab.units import format_names

    cases = format_names(list(dict.fromkeys(short_name(one.case) for one in history.series)))
    quantities = format_names(list(dict.fromkeys(one.quantity for one in history.series)), 12)
    return f"{cases}; {quantities}"


_SHORTEST = 4
"""The fewest digits that may name a commit."""
_MOST = 10_000


def chosen(contents: Contents, case: str | None, quantity: str | None) -> Contents:
    """Return the part of a history about cases whose name contains ``case``, and about one quantity.

    None stands for all cases, or for all quantities. A renamed case is kept under both of its names. The choice does
    not change which events are alarms.
    """
    kept = [
        at
        for at, one in enumerate(contents.series)
        if (case is None or case in one.case + one.variant) and (quantity is None or quantity == one.quantity)
    ]
    renamed = [{pair.before, pair.after} for one in contents.breaks for pair in one.members]
    kept = sorted({*kept, *(at for pair in renamed if not pair.isdisjoint(kept) for at in pair)})
    new = {old: at for at, old in enumerate(kept)}
    events = []
    for event in contents.events:
        members = [changed(one, series=new[one.series]) for one in event.members if one.series in new]
        if members:
            events.append(changed(event, members=members))
    breaks = []
    for one in contents.breaks:
        pairs = [pair for pair in one.members if pair.after in new]
        moved = [changed(pair, before=new[pair.before], after=new[pair.after]) for pair in pairs]
        if moved:
            breaks.append(changed(one, members=moved))
    return changed(contents, series=[contents.series[at] for at in kept], events=events, breaks=breaks)


def newest_alarm(contents: Contents, recent: int) -> EventRow | None:
    """Return the newest alarm for the worse whose new level began within the last ``recent`` runs and stayed; or None.

    An alarm whose cases are all gone does not count, since nothing could ever restore their level. An alarm is over if
    its old levels came back: those of all exact quantities, and of at least half of the times, since noise may hide the
    return of some. Only alarms restore a level; possible changes and changes of the machine do not.
    """
    alarms = [one for one in contents.events if one.kind == ALARM]
    numbers = {one.number for one in alarms}
    stayed = []
    for event in alarms:
        rows = [contents.series[one.series] for one in event.members]
        back = [one.undone_by in numbers for one in event.members]
        exact = [is_back for row, is_back in zip(rows, back, strict=True) if row.exact]
        is_over = all(exact) and 2 * (sum(back) - sum(exact)) >= len(back) - len(exact)
        is_recent = event.first_new >= len(contents.runs) - recent
        if event.worse and is_recent and not is_over and not all(row.gone for row in rows):
            stayed.append(event)
    return max(stayed, key=lambda one: one.first_new, default=None)


def with_between(contents: Contents, named: tuple[str, str], repository: Path) -> Contents:
    """Return the contents with the commits after the older of two runs up to the newer one.

    The runs may be named in either order.

    Raises:
        UsageError: a name fits no run, or several commits; a run names no commit; the repository lacks the commits.
    """
    older, newer = sorted(_run(contents.runs, name, repository) for name in named)
    ends = []
    for at in (older, newer):
        commit = contents.runs[at].commit
        if commit is None:
            raise UsageError(f"--between: {contents.runs[at].file} names no commit", "choose a run that names one")
        ends.append(clean(commit))
    found = commits_between(repository, ends[0], ends[1], _MOST)
    if found is None:
        raise UsageError(
            f"--between: this repository does not have {short(ends[0])} and {short(ends[1])}",
            "go to the project's repository, or fetch them",
        )
    return changed(contents, between=BetweenRow(older=older, newer=newer, commits=found[1]))


def _run(runs: Sequence[RunRow], name: str, repository: Path) -> int:
    """Return the index of the run with a name; the last run if the day or the commit has several.

    A name is a run's file, the beginning of its commit or of its date, or a revision of git that is its commit.
    """
    by_file = [at for at, run in enumerate(runs) if name in (run.file, Path(run.file).name)]
    by_commit = [at for at, run in enumerate(runs) if len(name) >= _SHORTEST and (run.commit or "").startswith(name)]
    by_date = [at for at, run in enumerate(runs) if len(name) >= len("2026-11-01") and run.created.startswith(name)]
    if len({clean(runs[at].commit or "") for at in by_commit}) > 1:
        raise UsageError(f"--between={name}: several commits begin so", "give more of its digits")
    found = by_file or by_commit or by_date
    if not found and (commit := commit_named(repository, name)) is not None:  # a tag, or HEAD~3
        found = [at for at, run in enumerate(runs) if run.commit is not None and clean(run.commit) == commit]
    if not found:
        last = runs[-1]
        like = ", ".join([*([short(last.commit)] if last.commit else []), last.created[:10], Path(last.file).name])
        raise UsageError(f"--between={name}: no run has that name", f"name its commit, date or file, such as {like}")
    return found[-1]
