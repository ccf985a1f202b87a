"""Triton's interpreter without some of its costs, for tests.

While a kernel runs, the interpreter has replaced the language's builtins; at each call of another jitted function it
looks through all of the language again (triton 3.9, `InterpretedFunction.__call__`) and finds nothing left to replace:
half of the time of a small kernel. Here it looks only where something is left. And each tensor of a kernel makes its
type anew, with its name, sizes and numpy's type: a quarter of the time of a large one. Here what was made of the same
scalar and shape is taken again. And each sum of integers is computed a second time, in 64 bits, for an assertion
that it fits, which is dropped where nobody debugs: another quarter. Here it is not computed for nothing. And operands
are brought to one shape and type step by step, those of the same shape and type too; here these are taken as they
are. And float32 is made of bfloat16, and bfloat16 of float32, field by field; here by a shift. And matrices are
multiplied by numpy's threads, which wait for each other spinning: half of the processor time of a kernel with dots.
Here PyTorch multiplies, in as many threads as it was given. What a kernel computes is not touched, but for the order
of a dot's sums.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

import numpy as np
import pytest
import torch


def quicken(monkeypatch: pytest.MonkeyPatch) -> None:
    """Undone with the monkeypatch. Of a Triton that is made otherwise nothing is changed."""
    import triton.language as tl
    from triton.runtime import interpreter

    look = getattr(interpreter, "_patch_lang", None)
    scope = getattr(interpreter, "_LangPatchScope", None)
    if look is None or scope is None or not tl.core.is_builtin(tl.dot):
        return
    if not isinstance(tl.block_type(tl.int32, [1]).shape, tl.core.tuple):
        return

    def look_if_needed(function: Any) -> Any:
        # What a function calls the language: `tl`, or `core` in Triton's own. Each is replaced by itself.
        named = [value for value in function.__globals__.values() if value is tl or value is tl.core]
        needed = any(tl.core.is_builtin(language.dot) for language in named)
        return look(function) if needed else scope()

    monkeypatch.setattr(interpreter, "_patch_lang", look_if_needed)
    remember_types(monkeypatch, tl.core, interpreter)
    assert_nothing_unheard(monkeypatch, interpreter)
    call_directly(monkeypatch, tl.core, interpreter)
    meet_at_once(monkeypatch, tl.core, interpreter)
    shift_bfloat16(monkeypatch, interpreter)
    multiply_with_pytorch(monkeypatch, interpreter)


def remember_types(monkeypatch: pytest.MonkeyPatch, core: Any, interpreter: Any) -> None:
    """Of scalars, whose names say all about them, and of pointers to these; other types are made each time."""
    scalar, block, numpys = core.dtype, core.block_type, interpreter._get_np_dtype
    make_block, make_tensor = block.__init__, core.tensor.__init__
    known_numpys: dict[str, Any] = {}
    known_blocks: dict[Hashable, dict[str, Any]] = {}
    known_tensors: dict[Hashable, dict[str, Any]] = {}

    def all_about(element: Any) -> Hashable:
        if element.__class__ is scalar:
            return element.name  # type: ignore[no-any-return]
        if element.__class__ is core.pointer_type and element.element_ty.__class__ is scalar:
            return element.name, element.address_space, element.const
        return None

    def numpy_type(of: Any) -> Any:
        if type(of) is not scalar:
            return numpys(of)
        if of.name not in known_numpys:
            known_numpys[of.name] = numpys(of)
        return known_numpys[of.name]

    def new_block(self: Any, element_ty: Any, shape: Any) -> None:
        name = all_about(element_ty)
        if name is None or type(shape) not in (list, core.tuple):
            make_block(self, element_ty, shape)
            return
        sizes = [size if size.__class__ is int else getattr(size, "value", size) for size in shape]
        again(self, known_blocks, (name, *sizes), make_block, element_ty, shape)

    def new_tensor(self: Any, handle: Any, type: Any) -> None:
        is_block = type.__class__ is block
        name = all_about(type.element_ty if is_block else type)
        if name is None:
            make_tensor(self, handle, type)
            return
        again(self, known_tensors, (name, *type.shape.values) if is_block else name, make_tensor, handle, type)
        self.handle, self.type = handle, type

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


def call_directly(monkeypatch: pytest.MonkeyPatch, core: Any, interpreter: Any) -> None:
    """Call what stands behind a builtin, which only sees that it was given the semantics; here it always is."""
    replace, semantic = interpreter._patch_attr, interpreter.interpreter_semantic
    checked = core.builtin(lambda: None).__code__

    def replace_directly(obj: Any, name: str, member: Any, builder: Any, scope: Any) -> None:
        if getattr(member, "__code__", None) is not checked:
            replace(obj, name, member, builder, scope)
            return
        function = member.__wrapped__

        def new_member(*given: Any, **named: Any) -> Any:
            named["_semantic"] = semantic
            return function(*given, **named)

        scope.set_attr(obj, name, new_member)

    monkeypatch.setattr(interpreter, "_patch_attr", replace_directly)


def meet_at_once(monkeypatch: pytest.MonkeyPatch, core: Any, interpreter: Any) -> None:
    """Give two operands one shape by their sizes as numbers; of equal ones nothing is made. The rest goes Triton's way.

    Operands of one scalar type need no other, except in divisions of short floats, and offsets fit any pointer.
    """
    from triton.language.semantic import TritonSemantic

    handle, tensor, block, scalar, pointer = (
        interpreter.TensorHandle, core.tensor, core.block_type, core.dtype, core.pointer_type
    )  # fmt: skip
    broadcast, check = TritonSemantic.broadcast_impl_value, TritonSemantic.binary_op_type_checking_impl
    expand_dims, numpy_type = TritonSemantic.expand_dims, interpreter._get_np_dtype

    def spread(one: Any, shape: list[int]) -> Any:
        data = np.broadcast_to(one.handle.data, shape)
        return tensor(handle(data, one.handle.dtype.scalar), block(one.dtype, shape))

    def splat(one: Any, shape: list[int]) -> Any:
        data = np.empty(shape, numpy_type(one.handle.dtype))
        data[...] = one.handle.data
        return tensor(handle(data, one.handle.dtype.scalar), block(one.dtype, shape))

    def meet(self: Any, lhs: Any, rhs: Any) -> tuple[Any, Any]:
        left, right = lhs.type, rhs.type
        if left.__class__ is block and right.__class__ is block:
            mine, other = left.shape.values, right.shape.values
            if mine == other:
                return lhs, rhs
            if len(mine) == len(other) and all(a == b or a == 1 or b == 1 for a, b in zip(mine, other, strict=True)):
                shape = [b if a == 1 else a for a, b in zip(mine, other, strict=True)]
                return lhs if mine == shape else spread(lhs, shape), rhs if other == shape else spread(rhs, shape)
        elif left.__class__ is block and right.__class__ is scalar:
            return lhs, splat(rhs, left.shape.values)
        elif right.__class__ is block and left.__class__ is scalar:
            return splat(lhs, right.shape.values), rhs
        return broadcast(self, lhs, rhs)  # type: ignore[no-any-return]

    def check_types(self: Any, lhs: Any, rhs: Any, *rest: Any, **named: Any) -> tuple[Any, Any]:
        if lhs.__class__ is tensor and rhs.__class__ is tensor and not named and len(rest) < 3:
            left, right = lhs.dtype, rhs.dtype
            if right.__class__ is scalar:
                of_one_type = left.__class__ is scalar and left.name == right.name
                if of_one_type or (left.__class__ is pointer and rest[:1] == (True,) and right.is_int()):
                    return meet(self, lhs, rhs)
        return check(self, lhs, rhs, *rest, **named)  # type: ignore[no-any-return]

    def expand(self: Any, one: Any, axis: int) -> Any:
        if one.type.__class__ is not block or axis < 0:
            return expand_dims(self, one, axis)
        shape = [*one.type.shape.values]
        if axis > len(shape):
            return expand_dims(self, one, axis)
        shape.insert(axis, 1)
        return tensor(handle(one.handle.data.reshape(shape), one.handle.dtype.scalar), block(one.dtype, shape))

    monkeypatch.setattr(TritonSemantic, "broadcast_impl_value", meet)
    monkeypatch.setattr(TritonSemantic, "binary_op_type_checking_impl", check_types)
    monkeypatch.setattr(TritonSemantic, "expand_dims", expand)


def shift_bfloat16(monkeypatch: pytest.MonkeyPatch, interpreter: Any) -> None:
    """Cast between bfloat16 and float32 by a shift; subnormal numbers go Triton's way."""
    convert = interpreter._convert_float

    def shift(given: Any, from_dtype: Any, to_dtype: Any, rounding_mode: Any) -> Any:
        names = (from_dtype.name, to_dtype.name)
        if rounding_mode is not None or names not in (("bf16", "fp32"), ("fp32", "bf16")):
            return convert(given, from_dtype, to_dtype, rounding_mode)
        number, most = (np.uint16, 0x7FFF) if names[0] == "bf16" else (np.uint32, 0x7FFFFFFF)
        bits = np.ascontiguousarray(given).view(number)
        largest_subnormal = 0x7F if names[0] == "bf16" else 0x7FFFFF
        if np.any((bits & number(most)) - number(1) < number(largest_subnormal)):  # zero wraps around
            return convert(given, from_dtype, to_dtype, rounding_mode)
        shifted = bits.astype(np.uint32) << 16 if names[0] == "bf16" else (bits >> 16).astype(np.uint16)
        return shifted.reshape(given.shape)

    monkeypatch.setattr(interpreter, "_convert_float", shift)


def multiply_with_pytorch(monkeypatch: pytest.MonkeyPatch, interpreter: Any) -> None:
    """Let PyTorch multiply where a dot adds up in float32; other dots go Triton's way."""
    builder, handle = interpreter.InterpreterBuilder, interpreter.TensorHandle
    dot = builder.create_dot

    def multiply(self: Any, a: Any, b: Any, d: Any, *precision: Any) -> Any:
        kinds = {a.data.dtype.type, b.data.dtype.type}
        if d.data.dtype != np.float32 or not kinds <= {np.float16, np.float32}:
            return dot(self, a, b, d, *precision)
        left, right = (torch.from_numpy(np.require(one.data, np.float32, "W")) for one in (a, b))
        with torch.autocast("cpu", enabled=False):  # which may be on around the launch
            return handle((left @ right).numpy() + d.data, d.dtype.scalar)

    monkeypatch.setattr(builder, "create_dot", multiply)


def again(one: Any, known: dict[Any, dict[str, Any]], key: Hashable, make: Callable[..., None], *given: Any) -> None:
    """Give an object what the first of its kind was made with."""
    if key not in known:
        make(one, *given)
        known[key] = {name: value for name, value in vars(one).items() if name != "handle"}
    else:
        vars(one).update(known[key])
