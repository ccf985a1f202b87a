"""Operators as the dispatcher knows them: their schemas, kernels that are registered for a while, and modes."""

from __future__ import annotations

import importlib
import inspect
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import cache
from types import CodeType
from typing import TYPE_CHECKING, Any, cast

from perflab.internals.lookup import TORCH, attribute, lookup, needs

if TYPE_CHECKING:
    from torch._ops import OpOverload

_GROUP = "tell the group of a collective"

# --- operators ----------------------------------------------------------------------------------------------------


def aten(name: str, to: str) -> Any:
    """Return an operator by its name in ``torch.ops.aten``, with or without overload: ``_softmax.default``.

    Operators with an underscore are no functions of ``torch``; the public functions choose among these operators by
    the device, which is the choice that a prediction has to make itself.

    Raises:
        InternalsError: there is no such operator.
    """
    return lookup(TORCH, f"torch:ops.aten.{name}", to)


def operator_or_none(namespace: str, packet: str, overload: str) -> Any:
    """Return an operator that only some versions or builds have; None if it does not exist.

    ``torch.ops`` is public; asking it whether it has an operator is not.
    """
    import torch

    return getattr(getattr(getattr(torch.ops, namespace), packet, None), overload, None)


def schema_of(operator: OpOverload) -> Any:
    """Return an operator's ``FunctionSchema``: name, arguments with defaults, and the arguments that it writes to.

    ``torch.library`` infers schemas of new operators; nothing public returns the schema of an existing operator.
    """
    return attribute(TORCH, operator, "_schema", "know what an operator takes and writes")


def opens_or_closes_range(function: object) -> bool:
    """Whether a torch function is one that ``record_function`` calls; these functions have no public name."""
    return getattr(function, "__module__", "") == "torch._ops.profiler"


def is_composite(operator: OpOverload) -> bool:
    """Whether an operator is composed of other operators on every device. Nothing public tells such an operator."""
    to = "tell operators that are made of others"
    has_kernel = lookup(TORCH, "torch:_C._dispatch_has_kernel_for_dispatch_key", to)
    return bool(has_kernel(operator._name, "CompositeImplicitAutograd"))


# --- kernels ------------------------------------------------------------------------------------------------------


@needs(TORCH, "torch.library:Library._destroy", to="take kernels back after a prediction")
@contextmanager
def kernels_registered(
    kernels: Iterable[tuple[str, Callable[..., Any], str]], *, with_keyset: bool = False
) -> Iterator[None]:
    """Register kernels with the dispatcher for the length of the block.

    ``kernels`` are tuples of name (``softmax.int``, ``vision::nms``), kernel and dispatch key. ``with_keyset``: each
    kernel gets the call's dispatch keys before its arguments.
    ``torch.library.Library`` is public, and so is its ``impl``; destroying a library is not. A registration that is not
    destroyed stays until the library is collected, at a moment of its own.
    """
    import torch.library

    libraries: dict[str, Any] = {}
    library: Any = torch.library.Library
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # "Overriding a previously registered kernel": intended, within the block
            for name, kernel, key in kernels:
                namespace = name.partition("::")[0] if "::" in name else "aten"
                if namespace not in libraries:
                    libraries[namespace] = library(namespace, "IMPL")
                # PyTorch 2.13 allows overriding by default.
                libraries[namespace].impl(name, kernel, key, with_keyset=with_keyset, allow_override=True)
        yield
    finally:
        for one in libraries.values():
            one._destroy()


@needs(TORCH, "torch:_C._dispatch_get_all_op_names", "torch:_C.DispatchKey.BackendSelect", to="count collectives")
def seeing_operators(
    namespace: str,
    see: Callable[[str, tuple[Any, ...]], None],
    answer: Callable[[OpOverload, tuple[Any, ...]], Any] | None = None,
) -> AbstractContextManager[None]:
    """Return a context in which ``see`` gets the name and arguments of each call of a namespace's operators.

    Kernels for the key that is just above all backends see also the calls of C++ and of other operators' kernels, which
    no mode sees, in every thread. ``answer`` returns the operators' results in place of a backend; None: they run.
    """
    import torch

    def watching(name: str) -> Callable[..., Any]:
        packet, _, overload = name.partition(".")
        operator = operator_or_none(namespace, packet, overload or "default")

        def kernel(keys: Any, *arguments: Any, **keywords: Any) -> Any:
            see(packet, arguments)
            if answer is not None:
                return answer(operator, arguments)
            return operator.redispatch(keys.remove(torch._C.DispatchKey.BackendSelect), *arguments, **keywords)

        return kernel

    known = [full for full in torch._C._dispatch_get_all_op_names() if full.startswith(f"{namespace}::")]
    kernels = [(full, watching(full.partition("::")[2]), "BackendSelect") for full in known]
    return kernels_registered(kernels, with_keyset=True)


def group_ranks(arguments: Sequence[Any]) -> list[int]:
    """Return the ranks of the process group among an operator's arguments; empty if no group is among them."""
    import torch
    from torch import distributed

    unbox = lookup(TORCH, "torch.distributed.distributed_c10d:ProcessGroup.unbox", _GROUP)
    for one in arguments:
        if isinstance(one, torch.ScriptObject):
            with suppress(RuntimeError):  # another class, as of the reduction
                return distributed.get_process_group_ranks(unbox(one))
    return []


def ranks_of_group(name: str) -> list[int]:
    """Return the ranks of the process group that functional collectives give by its name."""
    from torch import distributed

    resolve = lookup(TORCH, "torch.distributed.distributed_c10d:_resolve_process_group", _GROUP)
    return distributed.get_process_group_ranks(resolve(name))


def answer_alone(operator: OpOverload, arguments: tuple[Any, ...]) -> Any:
    """Return what a collective of ``c10d`` returns at once, without any communication: its tensors, as they are.

    PyTorch's fake backend does the same, but copies what it gathers, and DDP finds no result in its work.
    """
    import torch
    from torch.distributed import Work

    future: torch.futures.Future[Any] = torch.futures.Future()
    first = arguments[0] if isinstance(arguments[0], list) else [arguments[0]]
    future.set_result(first)
    make_work = lookup(TORCH, "torch:_C._distributed_c10d._create_work_from_future", "predict a rank of many")
    done = cast("Any", Work).boxed(make_work(future))
    return (arguments[0], done) if len(schema_of(operator).returns) == 2 else done


def registered_for(key: str) -> set[str]:
    """Return the operators that have a kernel of their own for a dispatch key; those of ``aten`` without the namespace.

    A CPU build has CUDA's kernels of autocast too, all but usable. The documentation lists autocast's operators by the
    names of functions, which are not the overloads.
    """
    to = "know which operators CUDA's autocast casts"
    names = lookup(TORCH, "torch:_C._dispatch_get_registrations_for_dispatch_key", to)(key)
    return {name.removeprefix("aten::") for name in names}


def below_cpu_autocast() -> AbstractContextManager[None]:
    """Return a context in which the dispatcher bypasses the CPU's autocast.

    ``torch.autocast(enabled=False)`` is public, but switches autocast off for everything below too: a kernel's own
    casts are made above that, and autocast's cache is emptied.
    """
    import torch

    exclude = attribute(TORCH, torch._C, "_ExcludeDispatchKeyGuard", "run an operator below autocast")
    guard: AbstractContextManager[None] = exclude(torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCPU))
    return guard


def redispatch_as_cuda_autocast(operator: OpOverload, arguments: Sequence[Any], keywords: Mapping[str, Any]) -> Any:
    """Run the kernel that an operator has for CUDA's autocast. Nothing public sends a call to a dispatch key."""
    import torch

    return operator.redispatch(torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCUDA), *arguments, **keywords)


@needs(
    TORCH,
    "torch:_C._dispatch_key_parse",
    "torch:_C._dispatch_key_for_device",
    to="run a custom operator's own kernel",
)
def redispatch_to_device(
    operator: OpOverload, device: str, arguments: Sequence[Any], keywords: Mapping[str, Any]
) -> Any:
    """Run an operator's kernel for a type of device, below modes and autograd.

    The only public way to a kernel is the dispatcher's, which would call the same mode again without end.
    """
    import torch

    key = torch._C._dispatch_key_parse(torch._C._dispatch_key_for_device(device))
    return operator.redispatch(torch._C.DispatchKeySet(key), *arguments, **keywords)


# --- modes --------------------------------------------------------------------------------------------------------


def without_torch_function() -> AbstractContextManager[object]:
    """Return a context in which no ``__torch_function__`` is called.

    ``torch.overrides`` offers the context to authors of subclasses, under this private name only.
    """
    to = "see operators without asking a user's tensors"
    off: AbstractContextManager[object] = lookup(TORCH, "torch:_C.DisableTorchFunction", to)()
    return off


def without_dispatch_modes() -> AbstractContextManager[object]:
    """Return a context without dispatch modes, in which tensors are real again.

    Leaving a mode is public, but possible only for the code that entered the mode.
    """
    off: AbstractContextManager[object] = lookup(
        TORCH, "torch:_C._DisableTorchDispatch", "compute values of constants"
    )()
    return off


def dispatch_modes_off() -> AbstractContextManager[object]:
    """Return a context in which the active dispatch modes are off, and new ones may begin."""
    to = "leave out of a prediction what PyTorch asks fake tensors of its own"
    off: AbstractContextManager[object] = lookup(TORCH, "torch.utils._python_dispatch:_disable_current_modes", to)()
    return off


@needs(
    TORCH,
    "torch.overrides:_pop_mode",
    "torch.overrides:_push_mode",
    "torch.overrides:_len_torch_function_stack",
    "torch:_GLOBAL_DEVICE_CONTEXT",
    to="redirect cuda below a test's own modes",
)
@contextmanager
def function_mode_beneath(mode: Any) -> Iterator[None]:
    """Activate a ``TorchFunctionMode`` for the length of the block, below the modes that are active already.

    A test may leave its own modes before the block ends, or long after. Leaving a mode removes the topmost one,
    whichever that is (``with torch.device(...)`` too). Only the default device's mode is below all others, and has to
    stay there. ``with mode:``, which is public, puts the mode on top.
    """
    import torch

    modes = _taken_off()
    default = getattr(torch._GLOBAL_DEVICE_CONTEXT, "device_context", None)  # None until a default device was set
    _put_on([*(one for one in modes if one is default), mode, *(one for one in modes if one is not default)])
    try:
        yield
    finally:
        _put_on(one for one in _taken_off() if one is not mode)


def _taken_off() -> list[Any]:
    """Deactivate all torch function modes and return them, the lowest first."""
    import torch.overrides

    overrides: Any = torch.overrides
    return [overrides._pop_mode() for _ in range(overrides._len_torch_function_stack())][::-1]


def _put_on(modes: Iterable[Any]) -> None:
    import torch.overrides

    overrides: Any = torch.overrides
    for mode in modes:
        overrides._push_mode(mode)


@needs(
    TORCH,
    "torch:_C._len_torch_function_stack",
    "torch:_C._is_torch_function_mode_enabled",
    "torch:_C._get_function_stack_at",
    to="answer for CUDA only where cuda is redirected",
)
def is_function_mode_on(kind: type) -> bool:
    """Whether a torch function mode of class ``kind`` handles calls now. Only entering and leaving one are public."""
    import torch

    on: bool = torch._C._is_torch_function_mode_enabled()
    count: int = torch._C._len_torch_function_stack()
    return on and any(isinstance(torch._C._get_function_stack_at(at), kind) for at in range(count))


@cache
@needs(TORCH, "torch.autograd.graph:_engine_run_backward", to="know the lines of Python that run in a backward")
def backward_code() -> CodeType:
    """Return the code of the frame around each backward. Each public way to begin a backward has a frame of its own.

    A prediction replaces ``torch.autograd``'s name of that function, and PyTorch wraps the function itself while it
    traces for a compiler. The code is always that of PyTorch's own function.
    """
    import torch.autograd.graph

    graph: Any = torch.autograd.graph
    code: CodeType = inspect.unwrap(graph._engine_run_backward).__code__
    return code


_MODES = "torch.utils._python_dispatch"


@needs(
    TORCH,
    f"{_MODES}:_get_current_dispatch_mode_stack",
    f"{_MODES}:_is_in_torch_dispatch_mode",
    f"{_MODES}:_is_in_non_infra_torch_dispatch_mode",
    f"{_MODES}:_is_in_any_mode_without_ignore_compile_internals",
    f"{_MODES}:set_is_in_mode_without_ignore_compile_internals",
    f"{_MODES}:TorchDispatchMode.ignore_compile_internals",
    to="tell the compiler which modes are on",
)
def say_which_modes_are_on() -> None:
    """Set PyTorch's flags by the dispatch modes that are active.

    On leaving, each mode restores the flags that it found on entering. If an older mode is left within a newer one, the
    newer mode, left last, restores the older mode's flags: from then on Dynamo would assume an active mode, and compile
    everything anew. Nothing public knows of the flags.
    """
    modes: Any = importlib.import_module(_MODES)
    on = modes._get_current_dispatch_mode_stack()
    modes._is_in_torch_dispatch_mode = bool(on)
    modes._is_in_non_infra_torch_dispatch_mode = any(not one.is_infra_mode() for one in on)
    compiled = any(not one.ignore_compile_internals() for one in on)
    modes._is_in_any_mode_without_ignore_compile_internals = compiled
    modes.set_is_in_mode_without_ignore_compile_internals(compiled)


# --- attention ----------------------------------------------------------------------------------------------------


def attention_priority() -> list[int]:
    """Return the order of preference among ``SDPBackend``'s numbers.

    ``sdpa_kernel(..., set_priority=True)`` sets the order; it is public, but does not report what it has set.
    """
    return list(lookup(TORCH, "torch:_C._get_sdp_priority_order", "know which attention CUDA would choose")())
