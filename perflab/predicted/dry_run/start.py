"""Starts dry runs: a process in which ``nocuda`` stands in for NVIDIA's libraries."""

from __future__ import annotations

import os
import sys

import pytest

from perflab.base.errors import DeviceError, SettingError, UsageError
from perflab.predicted.gpus import Gpu, parse_modelled
from perflab.running.config.kinds import is_worker
from perflab.running.config.run_mode import refusing

VARIABLE = "PERFLAB_DRY_RUN"
"""The environment variable that names the GPU in a process that is a dry run."""
OPTION = "--perf-dry-run"
HERE = "on"
"""The option's value if it names no GPU: the GPU is then that of ``--perf-gpu``."""


def environment_of(gpu: Gpu, devices: int = 1) -> dict[str, str]:
    """Return the environment variables of a dry run with ``devices`` GPUs of one kind.

    Raises:
        DeviceError: the machine has a real GPU, or lacks a CUDA build of PyTorch, a compiler or another requirement.
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
        found = nocuda.environment(described)
    except nocuda.NocudaError as error:
        raise DeviceError(f"no dry run: {error.problem}", error.remedy) from error
    # NVML reports the number of devices without opening CUDA, so cases can run in forks of the collecting process.
    return found | {VARIABLE: gpu.name, "PYTORCH_NVML_BASED_CUDA_CHECK": "1"}


def is_dry_run() -> bool:
    """Whether this process is a dry run."""
    return bool(os.environ.get(VARIABLE))


def enter(config: pytest.Config) -> None:
    """Restart pytest as a dry run, if ``--perf-dry-run`` asks for one and this process is no dry run yet.

    Raises:
        pytest.UsageError: the GPU is unknown, a program has called pytest, or the machine cannot run a dry run.
    """
    given = config.known_args_namespace.perf_dry_run
    given = config.getini("perf_dry_run") if given is None else given
    if is_dry_run() or is_worker(config):
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
        # A value of the option is written with "=". A word after a bare option is a path that pytest took for a value.
        name = HERE if OPTION in arguments else str(given)
        try:
            gpu = parse_modelled((config.known_args_namespace.perf_gpu or "h100") if name == HERE else name)
        except ValueError as error:
            raise SettingError(f"{OPTION}: {error}", f"name one of them: {OPTION}=h100") from error
        environment = environment_of(gpu)
        sys.stdout.flush()
        sys.stderr.flush()
        os.execve(sys.executable, [*command, *replaced], environment)
