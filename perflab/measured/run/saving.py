"""Saves measured cases: exact quantities and times as baselines, or times in this machine's own history."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import partial

from perflab.base.data import changed
from perflab.base.errors import BaselineError
from perflab.judging.exact import DECIDES, saved_elsewhere
from perflab.judging.judge import judge, unconfirmed
from perflab.judging.kept import (
    Fitness,
    Reading,
    exact_successor,
    fitness,
    is_past_anchor,
    is_past_memory_anchor,
    times_successor,
)
from perflab.measure.calls.nvtx import ranges_asked
from perflab.measured.baselines import Baselines, packed, split
from perflab.measured.run.replicates import REFUSED, Replicates, noisy_note
from perflab.measured.run.verdict import baselines_of
from perflab.results.environment import differing, is_fleeting
from perflab.results.measured import Baseline, Entry, Exact, MeasuredCase
from perflab.results.measurement import OutOfMemory, Record, Replicate
from perflab.results.records import Change, Judgement, Policy, Verdict
from perflab.results.result import Result
from perflab.running.case.verdicts import compared_with
from perflab.running.config.folder import own_folder
from perflab.tables.failing import REASON_TO_FILL_IN
from perflab.tables.lines import short_name
from perflab.tiers.saving import Saving
from perflab.units import format_bytes, format_change, format_count, format_names

_NOT_CONFIRMED = "not measured again, since its times were to be saved"
"""Why a case whose times were refused has no verdict on them."""
_MOST = 8
"""Lines of one list, the largest changes first. The file that was written has all of them."""


def save(saving: Saving) -> None:
    """Save the baselines that were asked for; keep the other times for the next run on this machine.

    Raises:
        BaselineError: a file cannot be read first, or cannot be written.
        KeyboardInterrupt: raised while replicates were measured; the replicates so far are saved.
    """
    baselines = baselines_of(saving.config, saving.settings)
    refused: dict[str, Entry] = {}
    try:
        _save_what_was_asked(saving, baselines, refused)
    finally:
        saving.fails |= bool(refused)
        # under a profiler that opens ranges within calls, times are not those of the case alone
        if saving.settings.against is None and saving.settings.check != "exact" and not ranges_asked():
            _keep_times(saving, baselines, refused)


def _without_times(result: Result, baseline: Baseline) -> Judgement:
    assert result.record is not None
    judgement = judge(result.record, changed(baseline, times=None), result.policy or Policy())
    return compared_with(judgement, result.judgement.moved_from)


def _measured(saving: Saving) -> dict[str, Record]:
    """Return the records of measured cases, except cases that failed by themselves, which are no baseline."""
    results = {case: one for case, one in saving.results.items() if one.judgement.verdict is not Verdict.FAILED}
    return {case: one.outcome for case, one in results.items() if type(one.outcome) is MeasuredCase}


def _save_what_was_asked(saving: Saving, baselines: Baselines, refused: dict[str, Entry]) -> None:
    """Save the chosen cases; add to ``refused`` the times that are too noisy or from a single process."""
    settings = saving.settings
    exacts, times = _cases_to_save(saving, baselines)
    cases = list(dict.fromkeys([*exacts, *times]))
    if not cases:
        return
    saving.chosen += len(cases)
    chosen = [saving.results[case] for case in cases]
    records = {case: record for case, record in _measured(saving).items() if case in cases}
    profile_ns = settings.stored_profile_ns if settings.evidence == "on" else 0.0
    replicates = Replicates(saving.config, chosen, settings.replicates, saving.budget, saving.notes, profile_ns)
    stopped: KeyboardInterrupt | None = None
    if not saving.interrupted:
        try:
            replicates.take()
        except KeyboardInterrupt as error:
            stopped = error
    fit = replicates.fitness()
    entries = {
        case: _entry(record, replicates.kept(case), saving.now, saving.commit, fit.get(case), replicates.profile(case))
        for case, record in records.items()
    }
    accepts = settings.noisy == "accept"
    # A single process is no baseline if several were asked for, unless the run was interrupted.
    has_all = settings.replicates == 1 or saving.interrupted or stopped is not None
    refused |= {
        case: entries[case]
        for case in times
        if case in fit and not accepts and (fit[case].is_blind or (fit[case].is_alone and not has_all))
    }
    times = [case for case in times if case not in refused]
    names = {result.case: result.identity for result in chosen}
    succession = _Succession(chosen, settings.reason)
    others_have = {case: baselines.exact.of(names[case], records[case].environment) for case in exacts}
    judged_by = {
        case: baselines.of(saving.results[case].judgement.moved_from or names[case], records[case].environment)
        for case in refused
    }
    paths = baselines.save(
        {names[case]: entries[case] for case in exacts},
        {names[case]: entries[case] for case in times},
        succession.exact,
        succession.times,
    )
    saved = [case for case in entries if case not in refused]
    saving.mark(saved)
    said = {True: "memory and counts saved, times not", False: "times not saved"}
    for case in refused:
        result = saving.results[case]
        judgement = result.judgement
        if judgement.suspect:
            judgement = unconfirmed(judgement, partial(_without_times, result, judged_by[case]), _NOT_CONFIRMED)
        saving.results[case] = changed(result, judgement=judgement, not_saved=said[case in exacts])
    if paths:
        saving.say(format_count(len(saved), "baseline") if saved else "memory and counts alone", paths)
    groups = {
        "saved from a noisy machine": [case for case in times if case in fit and not fit[case].is_calm],
        "times not saved, too noisy": [case for case in refused if fit[case].marks],
        "times not saved, from a single process": [case for case in refused if not fit[case].marks],
    }
    for what, which in groups.items():
        if which:
            saving.notes.append(noisy_note(what, [*map(short_name, which)], len(cases), replicates.typical(which)))
    saving.notes += [REFUSED] * bool(refused)
    if alone := [short_name(case) for case in times if case in fit and fit[case].is_alone]:
        said_alone = f"saved from a single process: {format_names(alone)}"
        saving.notes += [
            f"{said_alone}: its noise is unknown, so no slowdown counts against it",
            "  -> save three or more: --perf-replicates=3",
        ]
    saving.notes += beside_others(
        {
            short_name(case): (there, here)
            for case, there in others_have.items()
            if there is not None and (here := split(entries[case]).exact) is not None
        }
    )
    saving.notes += succession.notes()
    if saving.interrupted or stopped is not None:
        least = replicates.least
        many = "one replicate each" if least == 1 else f"{least} replicates each"
        saving.notes.append(f"interrupted: these baselines have {many}, so their noise is known less well")
    if stopped is not None:
        raise stopped


def _cases_to_save(saving: Saving, baselines: Baselines) -> tuple[list[str], list[str]]:
    """Return the cases whose exact quantities are to be saved, and the cases whose times are."""
    measured = _measured(saving)
    timed = {case: record for case, record in measured.items() if not record.lacks_cores}
    if saving.settings.update:
        return list(measured), list(timed)
    if not saving.settings.update_new:
        return [], []
    held = {
        case: record
        for case, record in measured.items()
        if saving.results[case].judgement.verdict is not Verdict.REGRESSED
    }
    names = {case: saving.results[case].identity for case in held}
    return (
        [case for case, one in held.items() if not baselines.has_exact(names[case], one.environment)],
        [case for case, one in held.items() if case in timed and not baselines.has_times(names[case], one.environment)],
    )


def _keep_times(saving: Saving, baselines: Baselines, refused: dict[str, Entry]) -> None:
    """Keep times of cases without committed ones, so that the next run on this machine can compare times."""
    runs = {}
    for result in saving.results.values():
        reading = _reading(saving, baselines, result, refused.get(result.case))
        if reading is not None:
            runs[result.identity] = reading
    if not runs:
        return
    runs = {case: replace(one, entry=changed(one.entry, commit=saving.commit)) for case, one in runs.items()}
    try:
        own_folder(saving.config.rootpath)
        steps = baselines.keep(runs)
    except (BaselineError, OSError) as error:
        saving.notes.append(f"times were not kept for the next run here: {error}")
        return
    notes = saving.notes
    begun = sum(step.is_begun for step in steps.values())
    if begun:
        notes.append(f"kept the times of {format_count(begun, 'case')} for the next run here (save: --perf-update-new)")
        if is_fleeting() and saving.settings.machine is None:
            notes.append("  this is a container, or has no identifier: name it with --perf-machine=NAME")
    anew = {case: step.begun_anew for case, step in steps.items() if step.begun_anew is not None}
    if anew:
        said = f"this machine's history of {format_count(len(anew), 'case')} was restarted: {_named(anew)}"
        notes.append("\n".join(textwrap.wrap(said, 80, subsequent_indent="  ", break_on_hyphens=False)))
    left_out = {case: step.left_out for case, step in steps.items() if step.left_out is not None}
    if left_out:
        notes.append(
            f"not added to this machine's history, though the code is the same: {_named(left_out)}\n"
            "  -> if these times are the usual ones, delete .perflab/times: the next run starts a new history"
        )


def _reading(saving: Saving, baselines: Baselines, result: Result, refused: Entry | None) -> Reading | None:
    """Return the reading of a case for the machine's own history; None if there is none to keep."""
    record, verdict = result.record, result.judgement.verdict
    if record is None or record.summary is None or result.saved or record.lacks_cores:
        return None
    if baselines.has_times(result.identity, record.environment):
        return None
    policy, replicates = result.policy or Policy(), record.fresh or [record.summary]
    found = fitness(replicates, record.environment, policy)
    profile = record.measurement.profile if record.measurement is not None else None
    kept = packed(profile) if profile is not None else None
    entry = refused or _entry(record, replicates, saving.now, None, found, kept)
    return Reading(entry, policy, is_worse=verdict is Verdict.REGRESSED)


def _entry(
    record: Record,
    replicates: list[Replicate],
    now: str,
    commit: str | None,
    found: Fitness | None,
    profile: str | None,
) -> Entry:
    ran_out = record.out_of_memory  # a baseline keeps only the bytes asked for
    return Entry(
        environment=record.environment,
        recorded=now,
        replicates=replicates,
        parameters=record.parameters,
        out_of_memory=OutOfMemory(asked_bytes=ran_out.asked_bytes) if ran_out is not None else None,
        commit=commit,
        profile=profile,
        noisy=found.marks if found is not None else [],
    )


class _Succession:
    """Decides for each case what replaces a stored baseline: the new numbers with their anchors and history."""

    def __init__(self, results: Iterable[Result], reason: str | None) -> None:
        self._policies = {result.identity: result.policy or Policy() for result in results}
        self._reason = reason
        self._past: dict[str, str] = {}

    def times(self, case: str, old: Entry | None, new: Entry) -> Entry:
        """Return the times to store: ``new`` with the anchor and history that follow from ``old``."""
        policy = self._policies[case]
        entry = times_successor(old, new, policy, self._reason)
        if entry.anchor is not None and is_past_anchor(entry, policy):
            self._past[case] = entry.anchor.recorded
        return entry

    def exact(self, case: str, old: Exact | None, new: Exact) -> Exact:
        """Return the exact quantities to store: ``new`` with the anchor and history that follow from ``old``."""
        policy = self._policies[case]
        exact = exact_successor(old, new, policy, self._reason)
        if exact.memory_anchor is not None and is_past_memory_anchor(exact, policy):
            self._past.setdefault(case, exact.memory_anchor.recorded)
        return exact

    def notes(self) -> list[str]:
        """Return lines on saved cases that the next run reports again because no reason was given."""
        if not self._past:
            return []
        names = ", ".join(f"{short_name(case)} (anchor of {date[:10]})" for case, date in self._past.items())
        return [
            f"saved, but still worse than the anchor: {names}",
            f"  the next run will report them again; to accept them: --perf-update {REASON_TO_FILL_IN}",
        ]


def _named(said: Mapping[str, str]) -> str:
    return format_names([f"{short_name(case)} ({text})" for case, text in said.items()], most=3)


def beside_others(saved: Mapping[str, tuple[Exact, Exact]]) -> list[str]:
    """Return lines on quantities that differ: a headline for each pair of environments, then a line a case.

    Args:
        saved: a case's name -> the quantities stored for the closest other environment, and those saved here.
    """
    lists: dict[str, list[tuple[float, str]]] = {}
    for name, (there, here) in saved.items():
        fields = differing(there.environment, here.environment)
        changes = _changes(there, here)
        if not changes or not fields or fields.keys() & set(DECIDES):  # nothing is comparable across programs
            continue
        said = ", ".join(_said(quantity, change) for quantity, change in changes.items())
        farthest = max(max(change.ratio, 1.0 / max(change.ratio, 1e-9)) for change in changes.values())
        head = saved_elsewhere(fields, there.environment, here.environment)
        lists.setdefault(head, []).append((farthest, f"  {name}: {said}"))
    lines = []
    for head, cases in lists.items():
        lines.append(f"memory and counts saved for this environment differ from those {head}:")
        cases.sort(key=lambda case: -case[0])
        lines += [line for _, line in cases[:_MOST]]
        lines += [f"  and {format_count(len(cases) - _MOST, 'more case')}"] if len(cases) > _MOST else []
    return lines


def _changes(there: Exact, here: Exact) -> dict[str, Change]:
    pairs = {name: (value, here.counts[name]) for name, value in there.counts.items() if name in here.counts}
    if there.peak_bytes and here.peak_bytes:
        pairs = {"memory": (max(there.peak_bytes), max(here.peak_bytes)), **pairs}
    return {name: Change.exact(old, new) for name, (old, new) in pairs.items() if old != new}


def _said(quantity: str, change: Change) -> str:
    old, new = int(change.before), int(change.now)
    values = (format_bytes(old), format_bytes(new)) if quantity == "memory" else (str(old), str(new))
    return f"{quantity.replace('_', ' ')} {values[0]} there, {values[1]} here ({format_change(change.ratio)})"
