"""Triton's interpreter without some of its costs, for tests.

While a kernel runs, the interpreter has replaced the language's builtins; at each call of another jitted function it
looks through all of the language again (triton 3.9, `InterpretedFunction.__call__`) and finds nothing left to replace:
half of the time of a small kernel. Here it looks only where something is left. And each tensor of a kernel makes its
type anew, with its name, sizes and numpy's type: a quarter of the time of a large one. Here what was made of the same
scalar and shape is taken again. And each sum of integers is computed a second time, in 64 bits, for an assertion
that it fits, which is dropped where nobody debugs: another quarter. Here it is not computed for nothing. What a kernel
computes is not touched.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

import pytest


def quicken(monkeypatch: pytest.MonkeyPatch) -> None:
    """Undone with the monkeypatch. Of a Triton that is made otherwise nothing is changed."""
    import triton.language as tl
    from triton.runtime import interpreter

    look = getattr(interpreter, "_patch_lang", None)
    scope = getattr(interpreter, "_LangPatchScope", None)
    if look is None or scope is None or not tl.core.is_builtin(tl.dot):
        return

    def look_if_needed(function: Any) -> Any:
        # What a function calls the language: `tl`, or `core` in Triton's own. Each is replaced by itself.
        named = [value for value in function.__globals__.values() if value is tl or value is tl.core]
        needed = any(tl.core.is_builtin(language.dot) for language in named)
        return look(function) if needed else scope()

    monkeypatch.setattr(interpreter, "_patch_lang", look_if_needed)
    remember_types(monkeypatch, tl.core, interpreter)
    assert_nothing_unheard(monkeypatch, interpreter)


def remember_types(monkeypatch: pytest.MonkeyPatch, core: Any, interpreter: Any) -> None:
    """Of scalars that are no pointers, whose names say all about them; what belongs to a pointer is made each time."""
    scalar, block, numpys = core.dtype, core.block_type, interpreter._get_np_dtype
    make_block, make_tensor = block.__init__, core.tensor.__init__
    known_numpys: dict[str, Any] = {}
    known_blocks: dict[Hashable, dict[str, Any]] = {}
    known_tensors: dict[str, dict[str, Any]] = {}

    def numpy_type(of: Any) -> Any:
        if type(of) is not scalar:
            return numpys(of)
        if of.name not in known_numpys:
            known_numpys[of.name] = numpys(of)
        return known_numpys[of.name]

    def new_block(self: Any, element_ty: Any, shape: Any) -> None:
        if type(element_ty) is not scalar or type(shape) not in (list, core.tuple):
            make_block(self, element_ty, shape)
            return
        sizes = (getattr(size, "value", size) for size in shape)  # a constexpr is one of the same value
        again(self, known_blocks, (element_ty.name, *sizes), make_block, element_ty, shape)

    def new_tensor(self: Any, handle: Any, type: Any) -> None:
        if type.__class__ is scalar or (type.__class__ is block and type.element_ty.__class__ is scalar):
            again(self, known_tensors, type.name, make_tensor, handle, type)
            self.handle, self.type = handle, type
        else:
            make_tensor(self, handle, type)

    monkeypatch.setattr(interpreter, "_get_np_dtype", numpy_type)
    monkeypatch.setattr(block, "__init__", new_block)
    monkeypatch.setattr(core.tensor, "__init__", new_tensor)


def assert_nothing_unheard(monkeypatch: pytest.MonkeyPatch, interpreter: Any) -> None:
    """Leave out what is computed for `device_assert` alone, where that returns at once."""
    from triton.language.semantic import TritonSemantic

    check = TritonSemantic.binary_op_sanitize_overflow_impl

    def check_if_heard(self: Any, *operation: Any) -> None:
        if self.builder.options.debug or not isinstance(self.builder, interpreter.InterpreterBuilder):
            check(self, *operation)

    monkeypatch.setattr(TritonSemantic, "binary_op_sanitize_overflow_impl", check_if_heard)


def again(one: Any, known: dict[Any, dict[str, Any]], key: Hashable, make: Callable[..., None], *given: Any) -> None:
    """Give an object what the first of its kind was made with."""
    if key not in known:
        make(one, *given)
        known[key] = {name: value for name, value in vars(one).items() if name != "handle"}
    else:
        vars(one).update(known[key])
