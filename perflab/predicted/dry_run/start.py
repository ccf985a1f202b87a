"""Starts dry runs: a process in which ``nocuda`` stands in for NVIDIA's libraries."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping

import pytest

from perflab.errors import DeviceError, SettingError, UsageError
from perflab.plugin.config.early_errors import refusing
from perflab.predicted.gpus.names import Gpu, parse_gpu

VARIABLE = "PERFLAB_DRY_RUN"
"""Environment variable: the GPU, in a process that is a dry run."""
OPTION = "--perf-dry-run"
HERE = "on"
"""The option's value where no GPU is named: that of ``--perf-gpu``."""


def environment_of(gpu: Gpu, devices: int = 1, base: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment of a dry run on so many of a GPU.

    Raises:
        DeviceError: there is a real GPU, no CUDA build of PyTorch, no compiler, or another thing that it needs.
    """
    import nocuda

    described = nocuda.Gpu(
        name=gpu.device_name,
        total_bytes=gpu.memory_bytes,
        context_bytes=gpu.context_bytes,
        capability=gpu.architecture,
        multiprocessors=gpu.sms,
        l2_bytes=gpu.l2_bytes,
        devices=devices,
    )
    try:
        found = nocuda.environment(described, base=base)
    except nocuda.NocudaError as error:
        raise DeviceError(f"no dry run: {error.problem}", error.remedy) from error
    # Asked of NVML, the number of devices opens no CUDA: cases can run in forks of the process that collected them.
    return found | {VARIABLE: gpu.name, "PYTORCH_NVML_BASED_CUDA_CHECK": "1"}


def is_dry_run() -> bool:
    """Whether this process is one."""
    return bool(os.environ.get(VARIABLE))


def enter(config: pytest.Config) -> None:
    """Begin pytest anew as a dry run, if ``--perf-dry-run`` asks for one and this process is none.

    Raises:
        pytest.UsageError: an unknown GPU, pytest that a program called, or a machine that cannot do it.
    """
    given = config.known_args_namespace.perf_dry_run
    given = config.getini("perf_dry_run") if given is None else given
    if is_dry_run() or hasattr(config, "workerinput"):
        return
    arguments = [str(one) for one in config.invocation_params.args]
    with refusing(config):
        replaced = [f"{OPTION}={HERE}" if one == OPTION else one for one in arguments]
        command = sys.orig_argv[: len(sys.orig_argv) - len(arguments)]
        if sys.orig_argv[len(command) :] != arguments:
            raise UsageError(
                f"{OPTION} begins the process anew, and a program has called pytest in this one",
                "start that program with `perflab dry-run -- COMMAND`",
            )
        # A value apart is what pytest took for one: a path. Those that belong to the option are written with "=".
        gpu = HERE if OPTION in arguments else str(given)
        environment = environment_of(gpu_named(gpu, config.known_args_namespace.perf_gpu))
        sys.stdout.flush()
        sys.stderr.flush()
        os.execve(sys.executable, [*command, *replaced], environment)


def gpu_named(text: str, otherwise: str | None) -> Gpu:
    """The GPU that the option names, else the one that ``--perf-gpu`` does, else an H100.

    Raises:
        SettingError: there is no data sheet of it.
    """
    try:
        return parse_gpu((otherwise or "h100") if text == HERE else text)
    except ValueError as error:
        raise SettingError(f"{OPTION}: {error}", f"name one of them: {OPTION}=h100") from error
