"""Registering kernels: what can go wrong is told with what to do about it. Triton is not needed for that."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from perflab.base.errors import KernelError
from perflab.compiled.compiler import KernelExample
from perflab.compiled.compiler.example import load_examples
from perflab.compiled.run.kernels import choices_of


class Kernel:
    """As much of what ``@triton.jit`` makes as registering looks at."""

    def __init__(self, fn: Any) -> None:
        self.fn = fn


@Kernel
def add(x_ptr: Any, length: Any, block: Any = 16) -> None: ...


def example(name: str = "add", **changes: Any) -> KernelExample:
    return KernelExample(**{"name": name, "kernel": add, "arguments": {"x_ptr": 0, "length": 4}, **changes})


@pytest.mark.parametrize(
    ("changes", "problem", "remedy"),
    [
        ({"name": "a b"}, "a kernel example is named 'a b'", "name it with letters, digits"),
        (
            {"arguments": {"x_ptr": 0, "size": 4}},
            "kernel example 'add' gives 'size', which add does not take",
            "its parameters are x_ptr, length, block; what is not among them may belong into options",
        ),
        (
            {"arguments": {"x_ptr": 0}},
            "kernel example 'add' does not give 'length', which add takes",
            "add an example of it to arguments",
        ),
        ({"num_warps": 3}, "kernel example 'add' has num_warps=3", "give a power of two"),
        ({"kernel": Kernel(add)}, "kernel example 'add' is decorated once more", "give what @triton.jit made"),
        ({"kernel": len}, "kernel example 'add' has builtin_function_or_method for a kernel", "give what @triton.jit"),
    ],
)
def test_an_example_that_no_launch_could_be_is_refused(changes: dict[str, Any], problem: str, remedy: str) -> None:
    with pytest.raises(KernelError) as caught:
        example(**changes)
    assert caught.value.problem == problem
    assert caught.value.remedy.startswith(remedy)


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Write the module ``registered``."""
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "registered", raising=False)
    head = "from tests.harness.test_compiled_registration import example\n"
    return lambda text: (tmp_path / "registered.py").write_text(head + text, encoding="utf-8") and None


@pytest.mark.parametrize(
    "text", ["EXAMPLES = [example()]", "EXAMPLES = (example(),)", "def EXAMPLES(): return [example()]"]
)
def test_a_list_a_tuple_or_a_function_registers(module: Callable[[str], None], text: str) -> None:
    module(text)
    assert [one.name for one in load_examples("registered:EXAMPLES", 90)] == ["add"]


def test_a_function_may_ask_for_the_architecture(module: Callable[[str], None]) -> None:
    module("def EXAMPLES(arch): return [example(f'add-{arch}')]")
    assert [one.name for one in load_examples("registered:EXAMPLES", 100)] == ["add-100"]


@pytest.mark.parametrize(
    ("registration", "text", "problem", "remedy"),
    [
        ("registered", "", "'registered' does not say where kernels are registered", "write package.module:ATTRIBUTE"),
        ("nowhere:X", "", "'nowhere:X' cannot be imported: No module named 'nowhere'", "run from the folder"),
        ("registered:X", "import nowhere", "importing registered failed: ModuleNotFoundError", "fix it: "),
        ("registered:X", "x = (", "importing registered failed: SyntaxError: '(' was never closed", "fix it: "),
        ("registered:EXAMPLE", "EXAMPLES = []", "registered has no EXAMPLE", "did you mean EXAMPLES? "),
        ("registered:X", "X = example()", "registered:X is 'KernelExample'", "make it a list or tuple"),
        ("registered:X", "X = [example(), 1]", "item 1 of registered:X is 'int'", "make it a list or tuple"),
        (
            "registered:X",
            "X = [example(), example('b'), example()]",
            "registered:X has several kernels named 'add'",
            "give each kernel its own name",
        ),
        ("registered:X", "def X(): return 1 / 0", "registered:X() failed: ZeroDivisionError", "fix it: "),
        ("registered:X", "X = [example(num_warps=0)]", "kernel example 'add' has num_warps=0", "give a power"),
    ],
)
def test_what_is_no_registration_is_told_with_its_remedy(
    module: Callable[[str], None], registration: str, text: str, problem: str, remedy: str
) -> None:
    module(text)
    with pytest.raises(KernelError) as caught:
        load_examples(registration, 90)
    assert caught.value.problem.startswith(problem)
    assert caught.value.remedy.startswith(remedy)


def test_every_kernel_is_compiled_for_every_architecture_that_it_is_registered_for() -> None:
    found = choices_of({"m:X": {80: ["a"], 90: ["a", "b"]}})
    assert [str(choice) for choice in found] == ["a-sm80", "a-sm90", "b-sm90"]


def test_several_kernels_of_a_name_and_none_at_all_are_refused() -> None:
    with pytest.raises(KernelError, match="'a' is registered in several places\n  -> give each kernel its own name"):
        choices_of({"m:X": {90: ["a"]}, "m:Y": {90: ["a"]}})
    with pytest.raises(KernelError, match="m:X registers no kernel"):
        choices_of({"m:X": {80: [], 90: []}})
