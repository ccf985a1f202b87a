"""The program of a candidate's process: lays tensors over shared memory, calls the candidate, says where outputs are.

Nothing here is trusted by the judge, since the candidate runs in the same process and can replace any of it. The judge
stops the process outside of calls, times it from outside, and reads outputs from its memory while it is stopped.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import itertools
import mmap
import operator
import os
import pickle
import secrets
import subprocess
import sys
import time
import traceback
import types
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing.reduction import recv_handle
from pathlib import Path
from typing import Any

import torch

from perflab.base.data import changed
from perflab.base.errors import with_causes
from perflab.base.gpu_names import kernel_name
from perflab.correctness.poison import PoisonedMemory, fill
from perflab.internals.of_torch.compiler import is_error_of_compiler
from perflab.internals.of_torch.machine import activity_of, event_name, is_of_host, kineto_results
from perflab.measure.machine.devices import as_out_of_memory, keep_freed_memory, synchronize
from perflab.processes.channel import hear, say, show_stacks_when_asked, to_parent
from perflab.profiles.recording import WORK, recording
from perflab.untrusted.confine import confine, narrow
from perflab.untrusted.kernel import threads
from perflab.untrusted.memory import form_of
from perflab.untrusted.messages import (
    PLAINLY,
    QUESTIONS,
    Answers,
    Finished,
    Lay,
    Load,
    Looked,
    Manner,
    Questions,
    Raised,
    Ready,
    Role,
    Step,
    TensorAt,
)

_TEXT = 2000
"""The length in characters that a message of a candidate's error may have."""


@dataclass
class _Served:
    """The candidate, and what is laid out for it."""

    device: torch.device
    call: Callable[..., Any]
    shared: mmap.mmap
    laid: list[list[torch.Tensor]] = field(default_factory=list)
    """The tensors that were laid over the shared memory last: a set for each call."""
    arguments: list[list[torch.Tensor]] = field(default_factory=list)
    """The arguments of the calls, on the device; on a CPU they are the laid tensors."""
    objects: dict[tuple[object, ...], torch.Tensor] = field(default_factory=dict)
    """Arguments of earlier calls by call, place and form: later calls get some of them again, over other memory."""
    places: list[list[torch.Tensor]] = field(default_factory=list)
    """The places of the arguments in the shared memory."""
    how: Manner = PLAINLY
    recorded: Any = None
    """The profiler that records the calls; None if none does."""
    recording: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)
    outputs: list[list[Any]] = field(default_factory=list)
    earlier: list[list[list[Any]]] = field(default_factory=list)
    """Outputs of the call that the judge reads again later; empty if it said that they may be freed."""
    kept: list[list[Any]] = field(default_factory=list)
    """Outputs of the latest pass, where the judge reads them; of a device, copies on the host."""


def main() -> None:
    """Answer questions until the judge closes the connection."""
    show_stacks_when_asked(2)
    keep_freed_memory()
    load = hear(QUESTIONS)
    assert isinstance(load, Load)
    try:
        served, ready = _loaded(load)
    except BaseException as error:
        return say(_raised(error))
    say(ready)
    while True:
        try:
            question = hear(QUESTIONS)
        except (EOFError, OSError):
            return
        try:
            say(_answered(served, question))
        except BaseException as error:
            say(_raised(error))


def _answered(served: _Served, question: Questions) -> Answers:
    if isinstance(question, Lay):
        return _laid(served, question)
    assert not isinstance(question, Load)
    if question.step is Step.GO:
        return _gone(served)
    if question.step is Step.BACK:
        _copy(served.arguments, served.places)
        return Ready()
    return Ready(missing=narrow()) if question.step is Step.NARROW else _looked(served)


def _mapped(size: int) -> mmap.mmap:
    """Map the shared memory whose descriptor comes next; its pages are there at once."""
    handle = recv_handle(to_parent())
    try:
        return mmap.mmap(handle, size, flags=mmap.MAP_SHARED | getattr(mmap, "MAP_POPULATE", 0))
    finally:
        os.close(handle)


def _loaded(load: Load) -> tuple[_Served, Ready]:
    shared = _mapped(load.shared_bytes)
    with open(recv_handle(to_parent()), "rb") as told:
        given = told.read()
    device = torch.device(load.device)
    if device.type == "cuda":
        torch.cuda.init()  # type: ignore[no-untyped-call]  # before its files are out of reach
    rights, own = load.rights, Path(load.folder)
    at = 0 if load.role is Role.CANDIDATE else len(sys.path)  # a stranger's files are no modules of a rival's
    sys.path[at:at] = [entry for entry in rights.path if entry not in sys.path]
    missing = []
    if load.role is Role.CANDIDATE:
        missing = confine([*map(Path, rights.read), own], [*map(Path, rights.listed)], [own])
    return _Served(device, _callable(load, given, device), shared), Ready(missing=missing)


def _callable(load: Load, given: bytes, device: torch.device) -> Callable[..., Any]:
    """Return the callable of an entry.

    Raises:
        Exception: whatever its module raises, or the lack of such a name.
    """
    entry = load.entry
    if not entry.name:
        return pickle.loads(given)  # type: ignore[no-any-return]  # the judge has written it
    where, _, name = entry.name.partition(":")
    if entry.source:
        module = types.ModuleType(where)
        sys.modules[where] = module
        file = Path(load.folder, f"{where}.py")  # where inspect, and with it Triton, finds the source
        file.write_text(entry.source)
        module.__file__ = str(file)
        exec(compile(entry.source, str(file), "exec"), module.__dict__)
    else:
        module = importlib.import_module(where)
    found = operator.attrgetter(name)(module)
    if entry.builds:
        told = torch.load(io.BytesIO(given), weights_only=False)  # the judge has written it
        model = built(found, told)
        if isinstance(model, torch.nn.Module):
            model = torch.compile(model.to(device)) if entry.compiles else model.to(device)
        return torch.no_grad()(with_numbers(model, told["numbers"]))
    return found  # type: ignore[no-any-return]


def built(kind: Callable[..., Any], told: Mapping[str, Any]) -> Any:
    """Make the object of a class of modules as the judge has made its own: the same seed, and the same weights."""
    torch.manual_seed(told["seed"])
    model = kind(*told["arguments"])
    if isinstance(model, torch.nn.Module):
        theirs, ours = told["weights"], model.state_dict()
        tensors = {name: one for name, one in ours.items() if isinstance(one, torch.Tensor)}  # a model may keep others
        if theirs.keys() == ours.keys() and all(theirs[name].shape == one.shape for name, one in tensors.items()):
            model.load_state_dict(theirs)
    return model


def with_numbers(call: Callable[..., Any], numbers: Mapping[int, float]) -> Callable[..., Any]:
    """Return a function of the tensors alone of a call that has numbers as well, at these places."""

    def called(*tensors: torch.Tensor) -> Any:
        arguments: list[Any] = list(tensors)
        for place in sorted(numbers):
            arguments.insert(place, numbers[place])
        return call(*arguments)

    return called


def _laid(served: _Served, question: Lay) -> Ready:
    if question.shared_bytes:
        served.shared = _mapped(question.shared_bytes)
    how = served.how = question.how
    served.recording.close()
    served.recorded = None
    if not how.backward:
        served.laid, served.arguments, served.places = [], [], []
        for at in list(served.objects):
            if _references(served.objects, at) > _ALONE:
                del served.objects[at]  # the candidate keeps it, as CUDA graphs keep their static inputs
    if how.drops and not how.backward:
        served.kept, served.earlier = [], []
        for one in served.objects.values():
            one.data = one.new_empty(0)  # so that their memory is free
        _poison(served)
    else:
        served.earlier = served.earlier or [served.kept]
    served.laid = [[_tensor(one, served.shared) for one in tensors] for tensors in question.sets]
    if not how.backward:
        served.places = served.laid
        served.arguments = [
            [_in_its_object(served, (number, place), _on(served.device, one)) for place, one in enumerate(tensors)]
            for number, tensors in enumerate(served.laid)
        ]
    if how.records:
        synchronize(served.device)  # what was done to lay tensors is no work of the calls
        served.recorded = served.recording.enter_context(recording(served.device.type, memory=True))
    return Ready()


def _in_its_object(served: _Served, at: tuple[int, int], tensor: torch.Tensor) -> torch.Tensor:
    """Return at random the tensor, or the object that an earlier call had for such an argument, with its memory.

    A result that a candidate keeps by an argument's identity, or on the object itself, is thus asked for with other
    values. The earlier object's version differs, as after any change in place; that of a new one does not. One that
    needs a gradient is always new: an earlier one may have hooks.
    """
    if served.how.gradients and tensor.is_floating_point():
        return tensor.requires_grad_()
    earlier = served.objects.setdefault((*at, tensor.dtype, tensor.shape, tensor.stride()), tensor)
    if earlier is tensor or earlier.requires_grad or secrets.randbelow(2):
        return tensor
    earlier.data = tensor
    torch.autograd.graph.increment_version(earlier)
    return earlier


def _references(objects: Mapping[Any, torch.Tensor], at: object) -> int:
    """Return the number of references to a tensor in a dict, as Python counts them here."""
    return sys.getrefcount(objects[at])


_ALONE = _references({0: torch.empty(0)}, 0)
"""The number of references to a tensor in a dict that nobody else holds."""


def _copy(sources: Sequence[Sequence[torch.Tensor]], targets: Sequence[Sequence[torch.Tensor]]) -> None:
    """Copy the whole memory behind each tensor."""
    for source, target in zip(itertools.chain(*sources), itertools.chain(*targets), strict=True):
        target.untyped_storage().copy_(source.untyped_storage(), False)


def _on(device: torch.device, tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor on the device, of the same layout, that will get the values; on a CPU the tensor itself."""
    if device.type == "cpu":
        return tensor
    storage = torch.empty(tensor.untyped_storage().nbytes(), dtype=torch.uint8, device=device).untyped_storage()
    made = torch.empty(0, dtype=tensor.dtype, device=device)
    return made.set_(storage, tensor.storage_offset(), tensor.shape, tensor.stride())


def _poison(served: _Served) -> None:
    """Overwrite the memory that outputs have had, mostly with NaN, and free it, so that a later output lands on it."""
    like = [torch.empty_like(one) for each in served.outputs for one in each if type(one) is torch.Tensor]
    served.outputs = []
    for one in like:
        fill(one)


def _tensor(told: TensorAt, shared: mmap.mmap) -> torch.Tensor:
    """Return the tensor over the shared memory, with a storage of its own bytes alone."""
    made = torch.empty(0, dtype=getattr(torch, told.dtype))
    if told.size:
        storage = torch.frombuffer(shared, dtype=torch.uint8, count=told.size, offset=told.at).untyped_storage()
        return made.set_(storage, told.offset, told.shape, told.stride)
    return made.reshape(told.shape)


def _gone(served: _Served) -> Finished:
    began_ns = time.perf_counter_ns()
    if served.device.type != "cpu" and not served.how.backward:
        _copy(served.laid, served.arguments)
    with PoisonedMemory() if served.how.poisons else contextlib.nullcontext():
        made = outputs = _made(served)
    if served.device.type != "cpu":
        torch.accelerator.synchronize()
        outputs = [[_host(one) for one in each] for each in outputs]
    served.kept = outputs
    own_ns = time.perf_counter_ns() - began_ns
    taken = [_extent(one) for one in itertools.chain(*served.arguments)]
    return Finished(
        own_ns=own_ns,
        outputs=[
            [_at(one, _lies_in(taken, before)) for one, before in zip(each, of_device, strict=True)]
            for each, of_device in zip(outputs, made, strict=True)
        ],
    )


def _extent(tensor: torch.Tensor) -> range:
    """Return the addresses of a tensor's storage."""
    storage = tensor.untyped_storage()
    return range(storage.data_ptr(), storage.data_ptr() + storage.nbytes())


def _lies_in(extents: Sequence[range], value: Any) -> bool:
    """Whether the memory of a plain tensor begins in one of these."""
    is_plain = type(value) is torch.Tensor and value.layout is torch.strided
    return is_plain and any(value.untyped_storage().data_ptr() in extent for extent in extents)


def _made(served: _Served) -> list[list[Any]]:
    """Make the calls that were laid out, forward or backward, and return the outputs of each."""
    if served.how.backward:
        return [_gradients(served, number) for number in range(len(served.laid))]
    served.outputs = [_listed(served.call(*arguments)) for arguments in served.arguments]
    return served.outputs


def _listed(returned: Any) -> list[Any]:
    """Return outputs as a list, and each with its values in its memory: a conjugate may be no more than a mark."""
    outputs = list(returned) if isinstance(returned, list | tuple) else [returned]
    return [one.resolve_conj().resolve_neg() if type(one) is torch.Tensor else one for one in outputs]


def _host(value: Any) -> Any:
    """Return a copy on the host, where the judge can read it; what is no plain tensor stays as it is, to be refused."""
    if type(value) is not torch.Tensor:
        return value
    return value.detach().cpu().requires_grad_(value.requires_grad)  # whether it can be differentiated is told too


def _gradients(served: _Served, number: int) -> list[torch.Tensor | None]:
    leaves = [one for one in served.arguments[number] if one.requires_grad]
    upstream = [
        _on(served.device, one).copy_(one) if served.device.type != "cpu" else one for one in served.laid[number]
    ]
    outputs = [served.outputs[number][one] for one in served.how.backward]
    return list(torch.autograd.grad(outputs, leaves, upstream, allow_unused=True))


def _at(value: Any, in_arguments: bool) -> TensorAt | None:
    """Return where a tensor lies in this process's memory, and its form; what is no plain tensor has no address."""
    if value is None:
        return None
    if type(value) is not torch.Tensor or value.layout is not torch.strided or value.device.type == "meta":
        kind = type(value).__name__
        kind += f" ({value.layout}, {value.device})" if isinstance(value, torch.Tensor) else ""
        return TensorAt(at=0, size=0, dtype="", shape=[], stride=[], offset=0, kind=kind)
    return form_of(value, value.untyped_storage().data_ptr(), in_arguments=in_arguments)


def noted_operators(call: Callable[[], object]) -> dict[str, int]:
    """Return how often a call makes each operator reach PyTorch's dispatcher, by the operator's name."""
    from perflab.internals.of_torch import TorchDispatchMode

    found: dict[str, int] = {}

    class Noting(TorchDispatchMode):  # type: ignore[no-untyped-call]
        """Counts operators by name."""

        def __torch_dispatch__(
            self, func: Any, _types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
        ) -> Any:
            name = str(getattr(func, "name", lambda: func)())
            found[name] = found.get(name, 0) + 1
            return func(*args, **(kwargs or {}))

    with Noting():  # type: ignore[no-untyped-call]
        call()
    return found


def _looked(served: _Served) -> Looked:
    served.recording.close()
    seen = Looked() if served.recorded is None else looked_at(served.recorded, served.device.type)
    served.recorded = None
    operators = noted_operators(lambda: [served.call(*one) for one in served.arguments])
    precision = torch.get_float32_matmul_precision()
    return changed(seen, operators=operators, threads=len(threads(os.getpid())), precision=precision)


def looked_at(recorded: Any, device: str) -> Looked:
    """Return what a profile saw: of a device its kernels, streams and the time of its work, and graphs and memory.

    Args:
        recorded: the profiler that ``recording`` yielded, with memory.
        device: the kind of device whose blocks of memory are counted.
    """
    events = kineto_results(recorded).events()
    work = [one for one in events if activity_of(one) in WORK]
    kernels = [one for one in work if activity_of(one) == "kernel"]
    blocks = [one for one in events if event_name(one) == "[memory]" and one.nbytes() > 0]
    begun_ns = min((one.start_ns() for one in work), default=0)
    return Looked(
        kernels=Counter(kernel_name(event_name(one)) for one in kernels),
        streams=len({one.device_resource_id() for one in kernels}),
        # CUDA's runtime calls its driver, under the same number.
        graphs=len({one.correlation_id() for one in events if "GraphLaunch" in event_name(one)}),
        allocations=sum(is_of_host(one) == (device == "cpu") for one in blocks),
        device_ns=max(one.end_ns() for one in work) - begun_ns if work else None,
    )


def _raised(error: BaseException) -> Raised:
    kind, shown = type(error), "".join(traceback.format_exception(error))
    return Raised(
        kind=kind.__name__,
        module=kind.__module__,
        text=str(error).strip()[:_TEXT],
        traceback=shown[-_TEXT:],
        out_of_memory=as_out_of_memory(error) is not None,
        of_compiler=any(_is_of_compiler(one) for one in with_causes(error)),
    )


def _is_of_compiler(error: BaseException) -> bool:
    """Whether a compiler, or a program such as one, has failed."""
    is_of_triton = type(error).__module__.startswith("triton.compiler")
    return isinstance(error, subprocess.CalledProcessError) or is_of_triton or is_error_of_compiler(error)


if __name__ == "__main__":
    main()
