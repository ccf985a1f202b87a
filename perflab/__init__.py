"""perflab tells whether PyTorch and Triton code became slower, hungrier or wrong.

Importing this package is cheap: neither torch nor triton is loaded until something measures, and each of the names
below loads its module when it is first used. These names are public, and so are the modules ``perflab.correctness``,
``perflab.attention``, ``perflab.lab``, ``perflab.serving``, ``perflab.units`` and ``perflab.instruments``. Everything
else may change.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from perflab.base.errors import PerflabError
    from perflab.compiled.compiler.architectures import ARCHITECTURES
    from perflab.compiled.compiler.example import KernelExample
    from perflab.correctness import Budget, verify
    from perflab.measurement.callables import Comparison, compare
    from perflab.results.compiled import KernelResources
    from perflab.results.documents import read_document
    from perflab.results.measurement import Measurement, OutOfMemory, Record, Replicate
    from perflab.results.predicted import Prediction
    from perflab.results.profile import Profile, ProfileRow
    from perflab.results.records import Judgement, Verdict
    from perflab.results.result import Document, Result
    from perflab.running.case.perf import Perf
    from perflab.running.config.folder import own_folder
    from perflab.running.config.reading import settings_of
    from perflab.settings.settings import Settings

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

_NAMES = {
    "perflab.base.errors": "PerflabError",
    "perflab.compiled.compiler.architectures": "ARCHITECTURES",
    "perflab.compiled.compiler.example": "KernelExample",
    "perflab.correctness": "Budget verify",
    "perflab.measurement.callables": "Comparison compare",
    "perflab.results.compiled": "KernelResources",
    "perflab.results.documents": "read_document",
    "perflab.results.measurement": "Measurement OutOfMemory Record Replicate",
    "perflab.results.predicted": "Prediction",
    "perflab.results.profile": "Profile ProfileRow",
    "perflab.results.records": "Judgement Verdict",
    "perflab.results.result": "Document Result",
    "perflab.running.case.perf": "Perf",
    "perflab.running.config.folder": "own_folder",
    "perflab.running.config.reading": "settings_of",
    "perflab.settings.settings": "Settings",
}
_HOMES = {name: home for home, names in _NAMES.items() for name in names.split()}
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

    from perflab.measure.clocks.clock import wait_for_devices

    wait_for_devices()
    return time.perf_counter()
