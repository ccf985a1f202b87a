"""``perflab kernels``: compiles and judges registered kernels without running tests."""

from __future__ import annotations

import math
import os
import shlex
import sys
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import as_completed
from datetime import UTC, datetime
from pathlib import Path

import perflab
from perflab.base.data import changed
from perflab.base.errors import KernelError
from perflab.base.git import current_commit
from perflab.base.gpu_names import Arch
from perflab.compiled.compiler.pool import PATIENCE_S, CompilerPool
from perflab.compiled.judge import is_broken, judge_compiled
from perflab.compiled.report import explain_kernel
from perflab.compiled.run.kernels import (
    HOW_TO_REGISTER,
    can_be_saved,
    choices_of,
    result_of,
    save_kernels,
)
from perflab.compiled.settings import Compiling
from perflab.compiled.store import KernelStore
from perflab.internals.lookup import TRITON, version_warnings
from perflab.processes.child import Child, Start, interrupted_by_signals
from perflab.results.compiled import CompiledCase, CompiledKernel, KernelBaseline, case_of
from perflab.results.documents import FAILED, PASSED, SCHEMA, read_document
from perflab.results.records import Verdict
from perflab.results.result import Document, Result
from perflab.running.case.locks import machine_turn
from perflab.running.config.reading import read_project
from perflab.settings.settings import Settings
from perflab.store.json_files import check_writable
from perflab.units import format_names

Stale = dict[tuple[str, str], list[str]]
"""Stored cases that are no longer registered, by registration and Triton's version."""


def compile_kernels(
    registrations: Sequence[str],
    archs: Sequence[Arch] | None,
    *,
    update: bool,
    reason: str | None,
    command: Sequence[str],
    say: Callable[[str], None],
    against: str | None = None,
) -> tuple[Document, list[str]]:
    """Compile and judge registered kernels; with ``update``, save them. Return the run's document, and notes on it.

    Args:
        registrations: places such as ``package.module:attribute``; if empty, those of the project's ini file.
        archs: architectures; None: those of the ini file.
        update: whether to save the kernels that can run as the new baselines.
        reason: the reason for saving, which is stored with the baselines.
        command: the user's command, from which the command that accepts the results is made.
        say: called with messages about the progress.
        against: the Python of another environment; its compiler's results are compared with, and no baselines.

    Raises:
        PerflabError: nothing is registered, a registration cannot be used, or baselines cannot be read or written.
    """
    project = read_project()
    sys.path[:] = list(dict.fromkeys([os.getcwd(), str(project.root), *project.import_path]))
    settings, own = project.settings, project.settings.part(Compiling)
    registered = list(dict.fromkeys(registrations or own.kernels))
    if not registered:
        raise KernelError("no kernels are registered here", f"{HOW_TO_REGISTER}; or perflab kernels REGISTRATION")
    store = KernelStore(settings.baselines)
    for registration in registered:
        store.check(registration)
    if update:
        check_writable(settings.baselines)
    with machine_turn(say), CompilerPool(patience_s=settings.timeout_s) as pool:  # never compile during a measurement
        pool.start()
        names = {registration: pool.names(registration, archs or own.archs) for registration in registered}
        futures = {pool.submit(one.registration, one.name, one.arch): one for one in choices_of(names)}
        for done, _ in enumerate(as_completed(futures), start=1):
            say(f"compiled {done} of {len(futures)}")
        found = [(choice, future.result()) for future, choice in futures.items()]  # raises if a registration changed
    notes: list[str] = []
    results = [result_of(f"{one.registration}::{case_of(one.name, one.arch)}", kernel, store) for one, kernel in found]
    if against is not None:
        # No compiler may be silent for longer than a process may hang, and each kernel may be compiled by itself.
        silent_s = PATIENCE_S if settings.timeout_s is None else settings.timeout_s
        before = compiled_by(against, registered, archs or own.archs, (1 + len(results)) * silent_s)
        results = [_judged_against(result, before.get(result.case)) for result in results]
        others = sorted({f"triton {one.triton}" for one in before.values()})
        notes = [f"compared with {', '.join(others) or 'nothing'} of {against}"]
    accept = shlex.join([*command, "--update"])
    results = [_with_failure(result, settings, accept, update=update) for result in results]
    tritons = {kernel.triton for _, kernel in found}
    stale = {(key, triton): store.stale(key, triton, names[key]) for key in registered for triton in tritons}
    if update:
        commit = current_commit(project.root, settings.baselines)
        results, notes = _saved(results, stale, store, commit, reason)
    elif any(stale.values()) and against is None:
        gone = [case for cases in stale.values() for case in cases]
        notes = [f"stored but no longer registered: {format_names(gone)} (removed by --update)"]
    failed = any(result.failure for result in results)
    document = Document(
        schema=SCHEMA,
        perflab=perflab.__version__,
        created=datetime.now(UTC),
        exitstatus=FAILED if failed else PASSED,
        baselines=os.path.relpath(settings.baselines),
        threshold=settings.threshold,
        results=results,
        collected=[result.case for result in results],
    )
    return document, [*version_warnings(TRITON), *notes]


def compiled_by(
    python: str, registrations: Sequence[str], archs: Sequence[Arch], limit_s: float
) -> dict[str, CompiledKernel]:
    """Compile registered kernels in another environment, by the Python there, and return them by case.

    Raises:
        KernelError: nothing was compiled there, or not within ``limit_s`` seconds.
    """
    # The packages of this environment must not come before the other's own.
    own = [path for path in sys.path if path and "site-packages" not in path and not path.startswith(sys.base_prefix)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(own)}
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "kernels.json")
        command = [python, "-m", "perflab", "kernels", *registrations, f"--arch={','.join(map(str, archs))}"]
        start = Start(python, [*command, f"--json={file}"], environment, Path.cwd())
        try:
            with interrupted_by_signals(), Child(start) as child:
                status = child.wait(None if math.isinf(limit_s) else limit_s)
                said = child.output().decode("utf-8", "replace").strip()
        except OSError as error:
            raise KernelError(f"{python} cannot be run: {error}", "name the python of the other environment") from error
        if status is None:
            raise KernelError(
                f"{python} was ended after {limit_s:g} s: {said[-500:]}",
                f"see where it hangs: {shlex.join(command)}; or give it longer: perf_timeout",
            )
        if not file.exists():
            raise KernelError(f"{python} compiled nothing: {said[-500:]}", "install triton and perflab's needs there")
        document = read_document(file)
    return {one.case: one.outcome.now for one in document.results if isinstance(one.outcome, CompiledCase)}


def _judged_against(result: Result, before: CompiledKernel | None) -> Result:
    """Return the result compared with the same kernel by another compiler."""
    assert isinstance(result.outcome, CompiledCase)
    now, baseline = result.outcome.now, None
    if before is not None and before.resources is not None:
        baseline = KernelBaseline(triton=before.triton, recorded="", resources=before.resources)
    outcome = CompiledCase(now=now, before=baseline.resources if baseline is not None else None)
    return changed(result, judgement=judge_compiled(now, baseline, any_compiler=True), outcome=outcome)


def _with_failure(result: Result, settings: Settings, accept: str, *, update: bool) -> Result:
    assert isinstance(result.outcome, CompiledCase)
    broken = is_broken(result.outcome.now)
    if not broken and (update or result.judgement.verdict is not Verdict.REGRESSED):
        return result
    return changed(result, failure=explain_kernel(result, None if broken else accept))


def _saved(
    results: list[Result], stale: Stale, store: KernelStore, commit: str | None, reason: str | None
) -> tuple[list[Result], list[str]]:
    chosen = list(filter(can_be_saved, results))
    paths = save_kernels(store, chosen, commit=commit, reason=reason, stale=stale)
    notes = []
    if chosen:
        files = ", ".join(map(os.path.relpath, paths))
        notes.append(f"saved {len(chosen)} compiled kernel{'s' * (len(chosen) != 1)} to {files}")
    gone = [case for cases in stale.values() for case in cases]
    if gone:
        notes.append(f"removed, no longer registered: {', '.join(gone)}")
    saved = {result.case for result in chosen}
    return [changed(one, saved=True) if one.case in saved else one for one in results], notes
