"""PyTorch's and Triton's private parts: what is not there is an error that names it, and the versions are declared."""

from __future__ import annotations

import functools
import gc
import importlib
import re
import sys
import tomllib
import types
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch

from perflab.base.errors import InternalsError
from perflab.devices.kinds import current_environment
from perflab.internals import lookup as internals
from perflab.internals import of_torch as torch_internals
from perflab.internals.lookup import TORCH, TRITON, version_warnings
from perflab.internals.of_torch import compiler, dispatch, machine, patched, tracing
from perflab.internals.of_torch.patched import attributes_replaced, shape_rules_replaced
from perflab.measure.calls.workload import Workload
from perflab.measure.counts.counter import CallCounter, compiler_state
from perflab.measure.stopping import Plan
from perflab.measurement.measurement import measure
from perflab.measurement.passes import weigh
from perflab.measurement.turns import Turns
from perflab.predicted.cuda import kernels
from perflab.predicted.cuda.as_cuda import as_cuda, cuda_training
from perflab.predicted.cuda.attention import Asked, backend
from perflab.predicted.cuda.composites import cuda_composites
from perflab.predicted.cuda.devices import cuda_means_cpu
from perflab.predicted.cuda.fake import fake_tensors
from perflab.results.measurement import Measurement

if TYPE_CHECKING:
    from perflab.compiled.compiler.example import KernelExample

ROOT = Path(__file__).parents[2]
CPU = torch.device("cpu")
FAKE = importlib.import_module("torch._subclasses.fake_tensor")
MODES = importlib.import_module("torch.utils._python_dispatch")


def grad_fn() -> Any:
    return (torch.ones(2, requires_grad=True) * 2).grad_fn


def enter(manager: AbstractContextManager[Any]) -> None:
    with manager:
        pass


def add() -> Any:
    return torch.ops.aten.add.Tensor


# What asks for a name, the name, and where it stands. One of each kind; names that one decorator lists are one kind.
GONE: list[tuple[str, str, Callable[[], object]]] = [
    ("torch._C", "_current_graph_task_id", tracing.is_in_backward),
    ("torch._C", "_current_autograd_node", tracing.current_node),
    ("torch.autograd", "_get_sequence_nr", tracing.last_sequence_number),
    ("torch.optim.optimizer", "_foreach_supported_types", lambda: enter(cuda_training())),
    ("torch.utils._foreach_utils", "_get_foreach_kernels_supported_devices", lambda: enter(cuda_training())),
    ("torch.amp.GradScaler", "_maybe_opt_step", lambda: enter(cuda_training())),
    ("torch._C", "_dispatch_has_kernel_for_dispatch_key", lambda: dispatch.is_composite(add())),
    ("torch.library.Library", "_destroy", lambda: enter(dispatch.kernels_registered([]))),
    ("torch._C", "_dispatch_get_registrations_for_dispatch_key", lambda: dispatch.registered_for("AutocastCUDA")),
    ("torch._C", "_ExcludeDispatchKeyGuard", dispatch.below_cpu_autocast),
    ("torch._C", "_dispatch_key_parse", lambda: dispatch.redispatch_to_device(add(), "cpu", (), {})),
    ("torch._C", "DisableTorchFunction", dispatch.without_torch_function),
    ("torch.overrides", "_pop_mode", lambda: enter(cuda_means_cpu((8, 0)))),
    ("torch", "_GLOBAL_DEVICE_CONTEXT", lambda: enter(cuda_means_cpu((8, 0)))),
    ("torch.autograd", "_engine_run_backward", lambda: enter(cuda_means_cpu((8, 0)))),
    ("torch.cuda.nvtx", "_nvtx", lambda: enter(cuda_means_cpu((8, 0)))),
    ("torch.cuda", "synchronize", lambda: enter(cuda_means_cpu((8, 0)))),
    ("torch._subclasses.fake_tensor.FakeTensor", "device", lambda: enter(cuda_means_cpu((8, 0)))),
    ("torch._C", "_get_function_stack_at", lambda: dispatch.is_function_mode_on(object)),
    ("torch.utils._python_dispatch", "_is_in_torch_dispatch_mode", dispatch.say_which_modes_are_on),
    ("torch._C", "_get_sdp_priority_order", lambda: backend(asked(), (8, 0))),
    ("torch._subclasses.fake_impls", "op_implementations_dict", lambda: enter(cuda_composites((8, 0)))),
    ("torch._subclasses.fake_tensor.FakeTensorMode", "cache_clear", tracing.forget_shapes),
    ("torch._functorch.config", "fake_tensor_allow_unsafe_data_ptr_access", lambda: enter(fake_tensors())),
    ("torch.nn.init", "_no_grad_trunc_normal_", lambda: enter(fake_tensors())),
    ("torch.amp.autocast_mode", "_cast", lambda: enter(as_cuda())),
    ("torch._library.custom_ops", "_cast", lambda: enter(as_cuda())),
    ("torch.cuda.memory", "_record_memory_history", lambda: machine.record_cuda_memory(1, torch.device("cpu"))),
    ("torch.cuda.memory", "_dump_snapshot", lambda: machine.dump_cuda_memory("nowhere")),
    ("torch.cuda.memory", "_set_memory_metadata", lambda: machine.mark_cuda_memory("forward")),
    ("torch.autograd", "DeviceType", machine.device_type_of_host),
    ("torch._C", "_valgrind_toggle", machine.toggle_callgrind),
    ("torch._subclasses.fake_tensor", "FakeTensor", lambda: torch_internals.FakeTensor),
    ("torch._ops", "OpOverload", lambda: torch_internals.OpOverload),
]


PLAIN = [
    *((place, name) for place, name, _ in GONE),
    *(("torch.cpu", f"_is_{name}_supported") for name in ("amx_fp16", "amx_tile", "avx512_bf16")),
    ("torch.autograd", "_profiler_enabled"),
    ("torch._C", "_valgrind_supported_platform"),
]


def weighed() -> Measurement:
    """A plain case that is measured and counted."""
    workload = Workload(torch.add, (torch.ones(64, 64), 1), {})
    counter = CallCounter(CPU, compiler_state())
    current_environment(CPU)
    return measure(workload, CPU, Plan(1e7), lambda _text: None, label="a case", counter=counter).measurement


@pytest.mark.parametrize(("place", "name"), PLAIN, ids=[f"{place}.{name}" for place, name in PLAIN])
def test_a_plain_case_is_measured_whatever_is_gone_and_says_what_it_lost(
    place: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(owner_of(place), name, raising=False)
    found = weighed()
    assert found.samples_ns
    if name not in ("DeviceType", "FakeTensor"):
        assert (found.off, found.memory is None) == ({}, False)
        assert found.counts["operators"] == 1
        return
    assert (found.memory, found.counts) == (None, {})
    assert {*found.off} == {"memory", "counts"}
    said = rf"torch \S+ has no {re.escape(place)}\.{name}\S*, which perflab needs to .*; perflab was checked with 2\.11"
    assert re.match(said, found.off["memory"])


def test_so_it_is_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(FAKE, "FakeTensor")
    with Turns(Workload(torch.add, (torch.ones(64, 64), 1), {}), CPU, Plan(1e7)) as side:
        side.warm_up()
        assert {*side.weigh().off} == {"memory"}


def test_what_takes_other_arguments_is_off_in_a_newer_version_and_an_error_in_a_checked_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(machine, "lookup", lambda _checked: None)
    with pytest.raises(TypeError, match="takes 1 positional argument"):
        weighed()
    newer(monkeypatch, "torch")
    assert re.match(
        r"torch 2\.15\.0 has changed \(.* takes 1 positional argument .*\); perflab was checked with 2\.11 to 2\.13$",
        weighed().off["memory"],
    )
    refused = Workload(torch.add, (torch.ones(2), 1), {"colour": "red"})
    with pytest.raises(TypeError, match="unexpected keyword argument 'colour'"):  # the user's error stays that
        weigh(refused, CPU, None)


def test_a_kernel_is_not_said_to_fail_because_its_compiler_takes_other_arguments(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("triton")
    from perflab.compiled.compiler.compile import compile_example
    from perflab.internals import of_triton as triton_internals

    monkeypatch.setattr(triton_internals, "backend_for", lambda: None)
    newer(monkeypatch, "triton")
    with pytest.raises(
        InternalsError, match=r"triton 3\.15\.0 has changed \(.* positional arguments? but 1 was given\); "
    ):
        compile_example("tests", does_nothing(), 80)


def does_nothing() -> KernelExample:
    """A Triton kernel without arguments."""
    from perflab.compiled.compiler.example import KernelExample

    def nothing() -> None:
        pass

    return KernelExample("nothing", importlib.import_module("triton.runtime.jit").JITFunction(nothing), {})


def newer(monkeypatch: pytest.MonkeyPatch, package: str) -> None:
    """The package says that it is of a version which was not checked."""
    version, other = metadata.version, {"torch": "2.15.0", "triton": "3.15.0"}[package]
    monkeypatch.setattr(metadata, "version", lambda name: other if name == package else version(name))


@pytest.mark.parametrize("counters", [{}, {"counters": {}}], ids=["gone", "there"])
def test_without_counters_of_the_compiler_its_counts_alone_are_off(
    counters: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("torch._dynamo.utils", "torch._dynamo.convert_frame"):
        module = types.ModuleType(name)
        vars(module).update(counters)
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr("perflab.measure.counts.counter.compiled_regions", lambda _events, _span: ["0/0"])
    found = weighed()
    assert {"operators", "allocations"} <= {*found.counts}
    assert {*found.off} == (set() if counters else {"graph_breaks", "recompiles"})
    assert all("torch._dynamo.utils.counters, which perflab needs to count" in why for why in found.off.values())


def asked() -> Asked:
    query = torch.ones(1, 1, 8, 8)
    return Asked(query, query, query, None, 0.0, False, False)


def owner_of(path: str) -> Any:
    """``torch.amp.GradScaler``: the longest part that is a module, and names within it."""
    names = path.split(".")
    for end in range(len(names), 0, -1):
        try:
            found: Any = importlib.import_module(".".join(names[:end]))
        except ModuleNotFoundError:
            continue
        for name in names[end:]:
            found = getattr(found, name)
        return found
    raise AssertionError(path)


@pytest.mark.parametrize(("place", "name", "use"), GONE, ids=[f"{place}.{name}" for place, name, _ in GONE])
def test_a_name_that_is_gone_from_pytorch_is_an_error_that_names_it(
    place: str, name: str, use: Callable[[], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    version = metadata.version("torch")
    monkeypatch.delattr(owner_of(place), name)
    with pytest.raises(InternalsError) as caught:
        use()
    monkeypatch.undo()
    assert re.match(
        rf"torch {re.escape(version)} has no (property )?\S*{name}\S*, which perflab needs to \w+", caught.value.problem
    )
    assert caught.value.problem.endswith("; perflab was checked with 2.11 to 2.13")
    assert caught.value.remedy.startswith(
        "all else runs; for this, install a version that was checked: pip install 'torch"
    )
    enter(as_cuda())  # nothing is left half patched


def test_names_of_objects_at_hand_are_errors_too() -> None:
    nothing: Any = types.SimpleNamespace()
    for use in (
        lambda: tracing.sequence_number(nothing),
        lambda: tracing.storage_key(nothing),
        lambda: tracing.is_view(nothing),
        lambda: tracing.children_of(nothing),
        lambda: dispatch.schema_of(nothing),
        lambda: tracing.forget_real_tensor(nothing, torch.ones(1)),
        lambda: machine.kineto_results(nothing),
        lambda: patched.initial_scale(nothing),
    ):
        with pytest.raises(InternalsError, match=r"has no SimpleNamespace\.\w+, which perflab needs to"):
            use()


def test_a_result_is_not_free_of_nan_because_nobody_could_look(monkeypatch: pytest.MonkeyPatch) -> None:
    from perflab.running.case.refusals import holds_nan

    def is_gone(*_: object) -> object:
        raise internals.missing(TORCH, "Tensor._values", "look into a sparse tensor")

    monkeypatch.setattr(tracing, "parts_of", is_gone)
    with pytest.raises(InternalsError, match=r"has no Tensor\._values, which perflab needs to look into"):
        holds_nan([torch.ones(1).to_sparse()])


def test_where_nobody_can_tell_which_gpus_are_in_use_all_are_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    name = "_cuda_hasPrimaryContext"
    monkeypatch.delattr(torch._C, name, raising=False)
    assert [machine.has_cuda_context(index) for index in range(2)] == [True, True]
    monkeypatch.setattr(torch._C, name, [False, True].__getitem__, raising=False)
    assert [machine.has_cuda_context(index) for index in range(2)] == [False, True]


def test_dynamo_without_counters_is_an_error_and_without_frames_it_counts_no_breaks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    utils, convert = types.ModuleType("torch._dynamo.utils"), types.ModuleType("torch._dynamo.convert_frame")
    for module in (utils, convert):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    with pytest.raises(InternalsError, match=r"has no torch\._dynamo\.utils\.counters, which perflab needs to count"):
        compiler.dynamo_counters()
    vars(utils)["counters"] = {}
    assert compiler.dynamo_counters() == compiler.CompilerState(0, 0, None)


def test_patches_are_put_back_also_where_one_finds_nothing() -> None:
    owner = types.SimpleNamespace(there=1)
    patches = [(owner, "there", 2), (owner, "gone", 3)]
    with (
        pytest.raises(InternalsError, match=r"has no .*\.gone, which perflab needs to predict"),
        attributes_replaced(patches),
    ):
        pass
    assert vars(owner) == {"there": 1}
    table = {"there": 1, "other": 2}
    with shape_rules_replaced(table, {"there": 3, "new": 4}):
        assert table == {"there": 3, "other": 2, "new": 4}
    assert table == {"there": 1, "other": 2}


def test_operators_and_shape_rules_that_are_gone_are_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(kernels._LAUNCHES, "_safe_softmax_v2", 6)
    with pytest.raises(InternalsError, match=r"has no torch\.ops\.aten\._safe_softmax_v2, which"), as_cuda():
        pass
    with pytest.raises(InternalsError, match=r"has no rule for aten\.add\.Tensor in torch\._subclasses\.fake_impls"):
        tracing.shape_rule_replaced_in(add(), "give it other dtypes")


def test_an_operator_that_cuda_casts_by_a_rule_of_its_own_is_refused_where_it_is_called(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from perflab.predicted.cuda import autocast
    from perflab.predicted.cuda.autocast import Called, first_call

    other = {torch.ops.aten.dot.default: Called(torch.ops.aten.mul.Tensor)}
    monkeypatch.setattr(
        autocast, "first_call", lambda operator, *given: other.get(operator) or first_call(operator, *given)
    )
    vector = torch.ones(2)
    with autocast.cuda_autocast():
        torch.dot(vector, vector)
        with (
            torch.autocast("cuda"),
            pytest.raises(InternalsError, match="has no rule that perflab knows for aten::dot under CUDA's autocast"),
        ):
            torch.dot(vector, vector)


# Triton.

TRITON_GONE = [
    ("triton.runtime.jit", "create_function_from_signature"),
    ("triton.runtime.jit.JITFunction", "_pack_args"),
    ("triton.compiler", "make_backend"),
    ("triton.compiler", "ASTSource"),
    ("triton.backends.compiler", "GPUTarget"),
    ("triton.runtime.cache", "get_cache_manager"),
    ("triton.backends", "backends"),
]


@pytest.mark.parametrize(("place", "name"), TRITON_GONE)
def test_a_name_that_is_gone_from_triton_is_an_error_and_no_kernel_that_does_not_compile(
    place: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("triton")
    from perflab.compiled.compiler.compile import _ptxas_version, compile_example

    _ptxas_version.cache_clear()
    example = does_nothing()
    monkeypatch.delattr(owner_of(place), name)
    with pytest.raises(InternalsError) as caught:
        compile_example("tests", example, 80)
    monkeypatch.undo()
    assert re.match(rf"triton \S+ has no {re.escape(place)}\.{name}, which perflab needs to \w+", caught.value.problem)
    assert caught.value.remedy.endswith("pip install 'triton>=3.6,<3.10'")


def test_an_interpreter_without_what_runs_kernels_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    from perflab.internals import of_triton as triton_internals

    name = "triton.runtime.interpreter"
    monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    for use in (
        triton_internals.interpreter_has_run,
        lambda: enter(triton_internals.interpreter_replaced(nullcontext)),
    ):
        with pytest.raises(InternalsError, match=r"has no triton\.runtime\.interpreter\.InterpretedFunction"):
            use()


def test_an_assembler_without_a_name_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("triton")
    from perflab.internals import of_triton as triton_internals

    monkeypatch.delattr(owner_of("triton.backends.nvidia.compiler"), "get_ptxas")
    with pytest.raises(InternalsError, match=r"has no triton\.backends\.nvidia\.compiler\.get_ptxas, which perflab"):
        triton_internals.assembler_path(80)


def test_metadata_without_tensor_memory_is_an_error() -> None:
    from perflab.internals import of_triton as triton_internals

    with pytest.raises(InternalsError, match=r"has no SimpleNamespace\.tmem_size, which perflab needs"):
        triton_internals.tensor_columns(types.SimpleNamespace())
    assert triton_internals.tensor_columns(types.SimpleNamespace(tmem_size=None)) == 0


# Versions.


def test_the_oldest_checked_versions_are_declared_and_pins_are_in_the_range() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    declared = {
        *project["dependencies"],
        *(one.partition(";")[0] for one in project["optional-dependencies"]["triton"]),
    }
    oldest = (f"{one.package}>={'.'.join(map(str, one.oldest))}" for one in (TORCH, TRITON))
    assert {*oldest} <= declared  # and no newest: who upgrades loses what has changed, and nothing else
    pins = dict(
        line.split("==") for line in (ROOT / "constraints.txt").read_text(encoding="utf-8").split() if "==" in line
    )
    assert TORCH.covers(pins["torch"])
    assert TRITON.covers(pins["triton"])


@pytest.mark.parametrize(
    ("version", "is_in"),
    [
        ("2.11.0", True),
        ("2.13.1+cu130", True),
        ("2.13.0a0+git123", True),
        ("2.14.0", False),
        ("2.14.0a0+git123", False),
        ("2.10.1", False),
        ("2.9.0", False),
        ("3.0.0", False),
        ("unknown", False),
    ],
)
def test_a_version_is_in_the_range_or_not(version: str, is_in: bool) -> None:
    assert TORCH.covers(version) == is_in


def test_a_version_that_was_not_checked_is_a_warning_with_the_range(monkeypatch: pytest.MonkeyPatch) -> None:
    assert version_warnings(TORCH, TRITON) == []
    assert version_warnings(replace(TORCH, package="no-such-package")) == []
    monkeypatch.setattr(metadata, "version", {"torch": "2.14.1", "triton": "3.9.0"}.__getitem__)
    assert version_warnings(TORCH, TRITON) == [
        "warning: perflab was checked with torch 2.11 to 2.13, and 2.14.1 is installed: a feature whose internals "
        "changed is off and says so; predictions and counts may differ"
    ]


def test_the_code_around_a_backward_is_the_same_while_the_compiler_has_replaced_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine = torch.autograd.graph._engine_run_backward
    dispatch.backward_code.cache_clear()
    for owner in (torch.autograd, torch.autograd.graph):
        monkeypatch.setattr(owner, "_engine_run_backward", functools.wraps(engine)(lambda *given: engine(*given)))
    assert dispatch.backward_code() is engine.__code__


def test_modules_may_be_imported_by_finalizers_while_optimizers_are_looked_for() -> None:
    left, made = [4000], []

    class Leftover:
        """A data loader's iterator imports when it is finalized: each of these adds a module, and leaves another."""

        def __init__(self) -> None:
            self.itself = self

        def __del__(self) -> None:
            if left[0] > 0:
                left[0] -= 1
                made.append(f"perflab_leftover_{left[0]}")
                sys.modules[made[-1]] = types.ModuleType(made[-1])
                Leftover()

    _used = [(number, number) for number in range(10_000)]  # free tuples are handed out without a collection
    thresholds = gc.get_threshold()
    try:
        gc.set_threshold(1)
        Leftover()
        assert [owner.__name__ for owner, _ in patched.devices_of_foreach()][1:]
        assert made
    finally:
        gc.set_threshold(*thresholds)
        left[0] = 0
        for name in made:
            sys.modules.pop(name, None)
