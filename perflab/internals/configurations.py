"""The configurations that Triton's autotuner may choose for a kernel, as data; and what heuristics add to each.

Compiling ahead of time (``KernelExample``) and proving in the interpreter (``perflab.correctness.forced``) use the same
configurations. Importing this module loads no Triton.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from perflab.base.errors import KernelError
from perflab.internals.of_triton import below, configs_of, has_heuristics, heuristics_of, is_autotuner, pruning_of

_LAUNCH = ("num_warps", "num_stages", "num_ctas", "maxnreg", "ir_override")
"""Options of a ``triton.Config`` that apply to a launch, besides the kernel's parameters."""


@dataclass(frozen=True)
class Configuration:
    """A configuration that a kernel's autotuner may choose.

    Attributes:
        name: unique within the kernel, and equal in every process: ``BLOCK_M64-BLOCK_K32-w4-s3`` for its constants, 4
            warps and 3 stages; ``c2`` follows for clusters of 2 blocks, ``r128`` for at most 128 registers.
        config: the ``triton.Config``.
    """

    name: str
    config: Any

    def __str__(self) -> str:
        return self.name

    @property
    def given(self) -> dict[str, Any]:
        """The arguments of a launch with this configuration: constants, warps, stages, and options set explicitly."""
        launch = {name: getattr(self.config, name, None) for name in _LAUNCH}
        if launch["num_ctas"] == 1:
            del launch["num_ctas"]
        return {**self.config.kwargs, **{name: value for name, value in launch.items() if value is not None}}


def configurations(kernel: Any, arguments: Mapping[str, Any] | None = None) -> tuple[Configuration, ...]:
    """Return every configuration that the kernel's autotuner may choose, each once, in the order of the decorator.

    Args:
        kernel: the object that ``@triton.autotune`` made, or ``@triton.heuristics`` above it.
        arguments: an example of a launch's arguments by name. If given, ``early_config_prune`` is called, with all of
            them both as its ``named_args`` and as its keywords. If it raises, for example because it needs a GPU, all
            configurations stay. A ``perf_model`` with its ``top_k`` is not called: its guess depends on the machine.

    Raises:
        KernelError: the kernel is not autotuned, or all of its configurations are pruned.
    """
    tuner = tuner_of(kernel)
    found: list[Configuration] = []
    for config in configs_of(tuner):
        if all(config != other.config for other in found):
            name = _name(config)
            alike = sum(other.name == name or other.name.startswith(f"{name}-again") for other in found)
            found.append(Configuration(f"{name}-again{alike}" if alike else name, config))  # another pre_hook, say
    return tuple(found) if arguments is None else unpruned(tuner, tuple(found), arguments)


def unpruned(tuner: Any, found: tuple[Configuration, ...], arguments: Mapping[str, Any]) -> tuple[Configuration, ...]:
    """Return the items of ``found`` that the tuner's ``early_config_prune`` leaves; all if it is absent or raises.

    Raises:
        KernelError: ``early_config_prune`` leaves none.
    """
    prune = pruning_of(tuner)
    if prune is None:
        return found
    try:
        kept = list(prune([one.config for one in found], dict(arguments), **arguments))
    except Exception:  # the user's function may need a GPU: extra configurations are no harm
        return found
    if not kept:
        raise KernelError(
            f"early_config_prune of {name_of(tuner)} leaves no configuration for these arguments",
            "give arguments that the kernel is launched with, or keep one configuration",
        )
    return tuple(one for one in found if one.config in kept)


def settled(kernel: Any, arguments: Mapping[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """Return the arguments and options that launches with ``arguments`` may pass to the function below the decorators.

    Each item is (name of the configuration, arguments); the name is empty without an autotuner.

    Raises:
        KernelError: a heuristic failed, or all configurations are pruned.
    """
    if is_autotuner(kernel):
        return [
            ("-".join(filter(None, (one.name, inner))), given)
            for one in configurations(kernel, arguments)
            for inner, given in settled(below(kernel), {**arguments, **one.given})
        ]
    if not has_heuristics(kernel):
        return [("", dict(arguments))]
    given = dict(arguments)
    for name, rule in heuristics_of(kernel).items():
        try:
            given[name] = rule(given)
        except Exception as error:
            raise KernelError(
                f"the heuristic of {name_of(kernel)} for {name!r} failed: {type(error).__name__}: {error}",
                "give the example all arguments that it reads",
            ) from error
    return settled(below(kernel), given)


def is_decorated(kernel: Any) -> bool:
    """Whether ``@triton.autotune`` or ``@triton.heuristics`` wraps the object that ``@triton.jit`` made."""
    plain = inspect.isfunction(getattr(kernel, "fn", None)) or not hasattr(kernel, "fn")
    return not plain and (is_autotuner(kernel) or has_heuristics(kernel))


def _layers(kernel: Any) -> Iterator[Any]:
    """Yield what the decorators made, from the kernel inwards: its autotuners and heuristics."""
    while is_decorated(kernel):
        yield kernel
        kernel = below(kernel)


def undecorated(kernel: Any) -> Any:
    """Return the object that ``@triton.jit`` made, below its autotuner and heuristics."""
    while is_decorated(kernel):
        kernel = below(kernel)
    return kernel


def decided(kernel: Any) -> set[str]:
    """Return the parameters that the kernel's autotuner and heuristics set, so that a launch must not."""
    found: set[str] = set()
    for layer in _layers(kernel):
        if is_autotuner(layer):
            found.update(name for config in configs_of(layer) for name in config.kwargs)
        else:
            found.update(heuristics_of(layer))
    return found


def tuner_of(kernel: Any) -> Any:
    """Return the layer of a kernel that ``@triton.autotune`` made.

    Raises:
        KernelError: the kernel has none.
    """
    for layer in filter(is_autotuner, _layers(kernel)):
        return layer
    raise KernelError(
        f"{name_of(kernel)} is not autotuned", "give what @triton.autotune made, or leave its configurations out"
    )


def name_of(kernel: Any) -> str:
    """Return the name of the function that ``@triton.jit`` decorated."""
    function = getattr(undecorated(kernel), "fn", None)
    return str(getattr(function, "__name__", "the kernel"))


def _name(config: Any) -> str:
    parts = [f"{name}{_word(value)}" for name, value in config.kwargs.items()]
    parts += [f"w{config.num_warps}", f"s{config.num_stages}"]
    parts += [f"c{config.num_ctas}"] if config.num_ctas != 1 else []
    parts += [f"r{config.maxnreg}"] if config.maxnreg is not None else []
    return "-".join(parts)


def _word(value: object) -> str:
    """Return a value as a part of a case's name."""
    return "".join(letter if letter.isalnum() or letter in "._" else "_" for letter in str(value))
