"""Selects, judges and saves registered kernels, with pytest and without."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from perflab.base.errors import KernelError
from perflab.base.gpu_names import Arch, name_of_arch
from perflab.compiled.judge import is_broken, judge_compiled
from perflab.compiled.store import KernelStore
from perflab.results.compiled import CompiledCase, CompiledKernel, KernelBaseline, case_of
from perflab.results.records import Verdict
from perflab.results.result import Result
from perflab.tiers.saving import Saving
from perflab.units import format_count

HOW_TO_REGISTER = (
    "name what holds the examples, as package.module:ATTRIBUTE: perf_kernels in pytest's ini file, or --perf-kernels"
)


@dataclass(frozen=True)
class Choice:
    """One registered kernel for one architecture."""

    registration: str
    name: str
    arch: Arch

    def __str__(self) -> str:
        return f"{self.name}-{name_of_arch(self.arch).replace('_', '')}"


def choices_of(names: Mapping[str, Mapping[Arch, Sequence[str]]]) -> list[Choice]:
    """Return each kernel with each of its architectures: kernel by kernel, in the order of registration.

    ``names`` holds the names of kernels by registration and architecture.

    Raises:
        KernelError: a registration has no kernel, or two registrations have a kernel of the same name.
    """
    found: list[Choice] = []
    for registration, by_arch in names.items():
        ordered = dict.fromkeys(name for known in by_arch.values() for name in known)
        if not ordered:
            raise KernelError(f"{registration} registers no kernel", "add a KernelExample to it")
        found += [
            Choice(registration, name, arch) for name in ordered for arch, known in by_arch.items() if name in known
        ]
    twice = [name for (name, _), count in Counter((one.name, one.arch) for one in found).items() if count > 1]
    if twice:
        raise KernelError(f"{twice[0]!r} is registered in several places", "give each kernel its own name")
    return found


def result_of(case: str, kernel: CompiledKernel, store: KernelStore) -> Result:
    """Judge a compiled kernel by its baseline, and return the result.

    Raises:
        BaselineError: a baseline file is damaged or foreign.
    """
    baseline = store.baseline(kernel)
    compiled = CompiledCase(now=kernel, before=baseline.resources if baseline is not None else None)
    return Result(case=case, judgement=judge_compiled(kernel, baseline), outcome=compiled)


def save_kernels(
    store: KernelStore,
    results: Iterable[Result],
    *,
    commit: str | None,
    reason: str | None,
    stale: Mapping[tuple[str, str], Sequence[str]] | None = None,
) -> list[Path]:
    """Save compiled kernels as baselines, and remove stale cases. Return the paths of the files.

    ``stale`` holds the stale cases by registration and Triton's version.

    Raises:
        BaselineError: an existing file cannot be read, or a file cannot be written.
    """
    now = f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}"
    by_file: dict[tuple[str, str], dict[str, KernelBaseline]] = {
        key: {} for key, names in (stale or {}).items() if names
    }
    for result in results:
        assert isinstance(result.outcome, CompiledCase)
        kernel = result.outcome.now
        assert kernel.resources is not None
        by_file.setdefault((kernel.registration, kernel.triton), {})[case_of(kernel.name, kernel.arch)] = (
            KernelBaseline(triton=kernel.triton, recorded=now, resources=kernel.resources, commit=commit, reason=reason)
        )
    return [store.save(*key, baselines, stale=(stale or {}).get(key, ())) for key, baselines in sorted(by_file.items())]


def can_be_saved(result: Result) -> bool:
    """Whether a kernel may become a baseline: it can run, its test did not fail, and no autotuner passes it over."""
    return (
        isinstance(result.outcome, CompiledCase)
        and result.outcome.now.resources is not None
        and not is_broken(result.outcome.now)
        and result.judgement.verdict not in (Verdict.FAILED, Verdict.SKIPPED)
    )


def save(saving: Saving) -> None:
    """Save the kernels that the run's options ask to save.

    Raises:
        BaselineError: an existing file cannot be read, or a file cannot be written.
    """
    chosen = [result for result in saving.results.values() if can_be_saved(result) and saving.asks_for(result)]
    if not chosen:
        return
    saving.chosen += len(chosen)
    store = KernelStore(saving.settings.baselines)
    paths = save_kernels(store, chosen, commit=saving.commit, reason=saving.settings.reason)
    saving.mark(result.case for result in chosen)
    saving.say(format_count(len(chosen), "compiled kernel"), paths)
