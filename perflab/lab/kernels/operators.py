"""Registration of kernels as operators of PyTorch: `torch.ops.perflab.<name>`.

An operator is a name, a schema, and what PyTorch may ask about it:

    run       what computes it, on any device
    fake      what its results look like, without computing: for torch.compile, FakeTensorMode and meta tensors
    gradient  how it is differentiated
    autocast  in which dtype it runs under torch.autocast

The low-level `torch.library.define` and `impl`, because they cost half of what `torch.library.custom_op` does: 14 µs
a call beside 27 (docs/log.md), for kernels that may take less than either. And the schema stands where it can be read.
"""

from collections.abc import Callable
from typing import Any, NoReturn

import torch

NAMESPACE = "perflab"
_AUTOCAST_DEVICES = ("cuda", "cpu")


def define(
    name: str,
    schema: str,
    *,
    run: Callable[..., Any],
    fake: Callable[..., Any],
    save: Callable[..., None] | None = None,
    gradient: Callable[..., Any] | None = None,
    autocast: torch.dtype | None = None,
) -> Any:
    """Define perflab::name, and return what calls it.

    schema    such as "(Tensor x, Tensor weight) -> Tensor"
    run       run(*arguments): the results, freshly allocated; none may be an argument or a view of one
    fake      fake(*arguments): empty tensors of the results' shapes, dtypes and strides
    save      save(ctx, inputs, output): keeps what the gradient needs
    gradient  gradient(ctx, *upstream): the gradients of the arguments, by other operators of ours.
              Without it the operator cannot be differentiated, and says so
    autocast  under torch.autocast, floating inputs other than float64 are cast to it before; on CUDA and CPU alike.
              None: they are taken as they come
    """
    qualified = f"{NAMESPACE}::{name}"
    torch.library.define(qualified, schema)
    # The key that all devices share: what a device cannot run is refused by the kernel's launch, in words.
    torch.library.impl(qualified, "CompositeExplicitAutograd", run)
    torch.library.register_fake(qualified, fake)
    if gradient is not None:
        torch.library.register_autograd(qualified, gradient, setup_context=save)
    else:
        # Without this, PyTorch would take the result for a constant: a second derivative would come out wrong.
        torch.library.register_autograd(qualified, _refusal(name))
    if autocast is not None:
        for device in _AUTOCAST_DEVICES:
            torch.library.register_autocast(qualified, device, autocast)
    return getattr(getattr(torch.ops, NAMESPACE), name).default


def _refusal(name: str) -> Callable[..., NoReturn]:
    def refuse(ctx: Any, *upstream: Any) -> NoReturn:
        first = name.removesuffix("_backward")
        if first == name:
            raise RuntimeError(f"perflab::{name} has no derivative; call it under torch.no_grad()")
        raise RuntimeError(
            f"perflab::{name} has no derivative of its own, so {first} has no second one; "
            f"call plain_{first} of perflab.lab.kernels.reference, or drop create_graph"
        )

    return refuse
