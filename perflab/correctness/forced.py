"""Runs an autotuned Triton kernel in one configuration, so that each one that the tuner may choose can be proven.

    @pytest.mark.parametrize("configuration", configurations(matmul_kernel), ids=str)
    @pytest.mark.parametrize("case", MATMUL.cases(), ids=str)
    def test_every_configuration_is_right(case, configuration, device):
        with forced(matmul_kernel, configuration, outputs=["c_ptr"]):
            MATMUL.check(matmul, case, device)

While it tunes, an autotuner runs all configurations into the same outputs, and runs one of them afterwards: elements
that one configuration leaves unwritten, another has written. In the interpreter nothing is timed, and a tuner chooses
the first configuration. Here one configuration runs alone, into outputs that hold NaN.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from torch import Tensor

from perflab.base.errors import KernelError
from perflab.correctness.poison import fill
from perflab.internals.configurations import Configuration, configurations, name_of, tuner_of, unpruned
from perflab.internals.of_triton import parameters_of, tuner_held_to

__tracebackhide__ = True  # pytest shows the user's frames of an error, not ours


class PrunedError(NotImplementedError):
    """A launch for whose arguments the tuner's early_config_prune leaves the forced configuration out."""


@contextmanager
def forced(kernel: Any, configuration: Configuration, outputs: Sequence[str]) -> Iterator[None]:
    """Run each launch of the kernel within the block in this configuration, without tuning.

    Args:
        kernel: the kernel that ``@triton.autotune`` made, or ``@triton.heuristics`` above it.
        configuration: one of ``configurations(kernel)``.
        outputs: parameters whose tensors (or tensor descriptors) a launch overwrites whole: NaN, True or the largest
            integer is written to them before each launch. Leave out tensors that the kernel adds to, and tensors of
            which each of several launches writes a part.

    Raises:
        KernelError: the kernel is not autotuned, or has no such configuration or parameter.
        PrunedError: ``early_config_prune`` leaves the configuration out for a launch's arguments, so the tuner cannot
            choose the configuration for them. A test skips such a case.
        AssertionError: an assertion failed in the block, with the kernel and the configuration added; or the kernel was
            never launched.
    """
    tuner = tuner_of(kernel)
    name, every = f"{name_of(kernel)} in configuration {configuration}", configurations(kernel)
    if configuration not in every:
        raise KernelError(f"there is no {name}", f"give one of configurations({name_of(kernel)})")
    unknown = [one for one in outputs if one not in parameters_of(tuner)]
    if unknown:
        raise KernelError(
            f"{name_of(kernel)} has no parameter {unknown[0]!r} to poison",
            f"its parameters are {', '.join(parameters_of(tuner))}",
        )
    launches = 0

    def before(arguments: dict[str, Any]) -> None:
        nonlocal launches
        if configuration not in unpruned(tuner, every, arguments):
            raise PrunedError(f"{name} is pruned for these arguments: its autotuner cannot choose it")
        for output in outputs:
            given = arguments.get(output)
            given = getattr(given, "base", given)  # of a tensor descriptor
            if isinstance(given, Tensor):
                fill(given)
        launches += 1

    try:
        with tuner_held_to(tuner, configuration.config, before):
            yield
    except AssertionError as error:
        # The same error raised on: pytest then shows the test's own line, and none of contextlib's.
        error.args = (f"{name}:\n{error}",)
        raise
    if not launches:
        raise AssertionError(f"{name} was not launched, so nothing is proven: launch it within forced(...)")
