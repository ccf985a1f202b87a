"""Fused Triton kernels that a transformer is made of, each with its gradient, as operators that PyTorch knows.

Shapes: x, gate, up (..., D); weight (D,); logits (N, V); targets (N,) int64.

    weighted_sum(x, weight)          y = sum_d w_d x_d                           the worked example: read it first
    rms_norm(x, weight, eps)         y = x / sqrt(mean_d x_d² + eps) * w
    swiglu(gate, up)                 y = gate / (1 + exp(-gate)) * up
    cross_entropy(logits, targets)   l = log sum_v exp(x_v) - x_target

    from perflab.lab.kernels import rms_norm
    y = rms_norm(x, weight, eps=1e-6)

What is asked for runs, or raises: there is no fallback. The definitions in float64, and the same mathematics in
plain PyTorch, are in `perflab.lab.kernels.reference`, which needs no Triton. Triton is imported when one of these
functions is first taken from here, and not before; ImportError says what to do where there is none.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from perflab.lab.kernels.triton_cross_entropy import cross_entropy
    from perflab.lab.kernels.triton_rms_norm import rms_norm
    from perflab.lab.kernels.triton_swiglu import swiglu
    from perflab.lab.kernels.triton_weighted_sum import weighted_sum

__all__ = ["cross_entropy", "rms_norm", "swiglu", "weighted_sum"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        function = getattr(import_module(f"{__name__}.triton_{name}"), name)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != "triton":
            raise
        raise ImportError(
            f"the fused kernel {name!r} needs Triton, which is not installed: install the package 'triton' (Linux), "
            f"or call plain_{name} of perflab.lab.kernels.reference, the same mathematics in PyTorch"
        ) from error
    globals()[name] = function  # torch.compile reads a module's attributes, and calls no __getattr__ for them
    return function
