"""perflab tells whether PyTorch and Triton code became slower, hungrier or wrong.

Importing this package is cheap: neither torch nor triton is loaded until something measures, and each of the names
below loads its module when it is first used. These names are public, and so are the modules ``perflab.correctness``,
``perflab.attention``, ``perflab.lab``, ``perflab.serving``, ``perflab.units`` and ``perflab.instruments``. Everything
else may change.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from perflab.compared.callables import Comparison, compare
    from perflab.compiled.compiler.architectures import ARCHITECTURES
    from perflab.compiled.compiler.example import KernelExample
    from perflab.compiled.records import KernelResources
    from perflab.correctness import Budget, verify
    from perflab.documents import read_document
    from perflab.errors import PerflabError
    from perflab.measure.records import Measurement, OutOfMemory, Record, Replicate
    from perflab.plugin.case.perf import Perf
    from perflab.plugin.config.settings import Settings
    from perflab.plugin.session.folder import own_folder
    from perflab.plugin.stash import settings_of
    from perflab.predicted.records import Prediction
    from perflab.profiles.records import Profile, ProfileRow
    from perflab.records import Judgement, Verdict
    from perflab.results import Document, Result

__version__ = "0.1.0"

__all__ = [
    "ARCHITECTURES",
    "Budget",
    "Comparison",
    "Document",
    "Judgement",
    "KernelExample",
    "KernelResources",
    "Measurement",
    "OutOfMemory",
    "Perf",
    "PerflabError",
    "Prediction",
    "Profile",
    "ProfileRow",
    "Record",
    "Replicate",
    "Result",
    "Settings",
    "Verdict",
    "__version__",
    "compare",
    "cuda_timer",
    "own_folder",
    "read_document",
    "settings_of",
    "verify",
]

_HOMES = {
    "ARCHITECTURES": "perflab.compiled.compiler.architectures",
    "Budget": "perflab.correctness",
    "Comparison": "perflab.compared.callables",
    "Document": "perflab.results",
    "Judgement": "perflab.records",
    "KernelExample": "perflab.compiled.compiler.example",
    "KernelResources": "perflab.compiled.records",
    "Measurement": "perflab.measure.records",
    "OutOfMemory": "perflab.measure.records",
    "Perf": "perflab.plugin.case.perf",
    "PerflabError": "perflab.errors",
    "Prediction": "perflab.predicted.records",
    "Profile": "perflab.profiles.records",
    "ProfileRow": "perflab.profiles.records",
    "Record": "perflab.measure.records",
    "Replicate": "perflab.measure.records",
    "Result": "perflab.results",
    "Settings": "perflab.plugin.config.settings",
    "Verdict": "perflab.records",
    "compare": "perflab.compared.callables",
    "own_folder": "perflab.plugin.session.folder",
    "read_document": "perflab.documents",
    "settings_of": "perflab.plugin.stash",
    "verify": "perflab.correctness",
}
"""Public name -> the module that defines it, which is imported when the name is first used (PEP 562)."""


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    found: object = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def cuda_timer() -> float:
    """Return seconds on a monotonic clock, read once every CUDA device in use has finished its queued work.

    The function is made for ``pytest --benchmark-timer=perflab.cuda_timer``: pytest-benchmark reads its timer before
    and after the timed calls, so both readings must wait for the GPU. Without CUDA it returns ``time.perf_counter()``.
    """
    import time

    from perflab.measure.clock import wait_for_devices

    wait_for_devices()
    return time.perf_counter()
