"""Saves compiled kernels of a test run as baselines."""

from __future__ import annotations

from perflab.compiled.run.kernels import is_to_be_saved, save_kernels
from perflab.compiled.store import KernelStore
from perflab.plugin.session.saving import Saving
from perflab.units import format_count


def save(saving: Saving) -> None:
    """Save the kernels that the run was asked to save.

    Raises:
        BaselineError: a file cannot be read first, or cannot be written.
    """
    settings = saving.settings
    chosen = [
        result
        for result in saving.results.values()
        if is_to_be_saved(result, update=settings.update, update_new=settings.update_new)
    ]
    if not chosen:
        return
    saving.chosen += len(chosen)
    store = KernelStore(settings.baselines)
    paths = save_kernels(store, chosen, commit=saving.commit, reason=settings.reason)
    saving.mark(result.case for result in chosen)
    saving.say(format_count(len(chosen), "compiled kernel"), paths)
