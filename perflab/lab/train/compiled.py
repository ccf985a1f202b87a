"""A model under torch.compile: all of it, or each block's attention; its state_dict keys stay as they are.

Dynamo keeps what it compiled with a function's code, up to `recompile_limit` (8) versions, and past that runs the code
uncompiled without a word. A process that trains many models would come there, since they all are one `forward`. So
every step compiles a copy of its own of a one-line function that calls the module it is given. The blocks of a model
share one copy, and what was compiled for the first serves them all.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from perflab.lab.attention.compiling import require_compiler

CUDA_GRAPH_MODES = ("reduce-overhead", "max-autotune")
"""Modes in which a GPU replays CUDA graphs: what a call returns is overwritten by the next."""


def compiled_model(model: nn.Module, compile: str, device: torch.device) -> Callable[[Tensor], Tensor]:
    """Tokens (B, T) -> logits (B, T, V) by `model`, compiled as one of `config.COMPILE` says.

    Nothing is compiled yet: that is done by the first call, and by the first backward pass through it. A whole model
    is left as it is, and compiled only where the result of this function is called. Attention modules are compiled in
    place, as `nn.Module.compile` does it, and stay so.

    Raises:
        ValueError: "attention" for a model without `blocks` that have a module `attention`.
        RuntimeError: on a CPU without a C++ compiler.
    """
    if compile == "eager":
        return model
    require_compiler(device, name=f"compile={compile!r}", instead="compile='eager'")
    if compile != "attention":
        return partial(_compiled_apart(_call, mode=compile), model)
    run = _compiled_apart(_call_inside)
    for attention in _attention_modules(model):
        # What nn.Module.compile sets; state_dict, copies and pickles leave it out.
        attention._compiled_call_impl = partial(run, attention)
    return model


def replays_cuda_graphs(compile: str, device: torch.device) -> bool:
    """Whether tensors that a pass leaves behind, gradients too, lie in memory that the next one writes to."""
    return compile in CUDA_GRAPH_MODES and device.type == "cuda"


def _attention_modules(model: nn.Module) -> list[nn.Module]:
    blocks = getattr(model, "blocks", None)
    found = [getattr(block, "attention", None) for block in blocks] if isinstance(blocks, nn.ModuleList) else []
    modules = [module for module in found if isinstance(module, nn.Module)]
    if not modules or len(modules) != len(found):
        raise ValueError(
            f"compile='attention' wants a model whose `blocks`, an nn.ModuleList, each have a module `attention`, and "
            f"{type(model).__name__} has none; give compile='default' for the whole model"
        )
    return modules


def _call(module: nn.Module, *inputs: Any) -> Any:
    return module(*inputs)


def _call_inside(module: nn.Module, *inputs: Any, **settings: Any) -> Any:
    # `module(...)` would come back here.
    return module._call_impl(*inputs, **settings)  # type: ignore[no-untyped-call]


def _compiled_apart(function: types.FunctionType | Callable[..., Any], mode: str | None = None) -> Callable[..., Any]:
    """A copy of a plain function, without closure or defaults, that shares no compiled code with any other."""
    assert isinstance(function, types.FunctionType)
    copy = types.FunctionType(function.__code__.replace(), function.__globals__, function.__name__)
    compiled: Callable[..., Any] = torch.compile(copy, mode=mode)
    return compiled
