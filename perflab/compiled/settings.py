"""The compiled tier's settings: where kernels are registered, and the architectures to compile them for."""

from __future__ import annotations

from dataclasses import dataclass

from perflab.base.gpu_names import Arch
from perflab.compiled.compiler.architectures import parse_architectures
from perflab.settings.given import Given


@dataclass(frozen=True)
class Compiling:
    """The compiled tier's part of the settings."""

    kernels: tuple[str, ...]
    """The places where kernels are registered: ``package.module:attribute``."""
    archs: tuple[Arch, ...]
    """The architectures for which kernels are compiled."""


def read(given: Given) -> Compiling:
    """Read the options of the compiled tier."""
    return Compiling(
        kernels=tuple(given.text("perf_kernels").replace(",", " ").split()),
        archs=given.value("perf_arch", parse_architectures),
    )
