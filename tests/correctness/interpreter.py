"""Triton's interpreter without one of its costs, for tests.

While a kernel runs, the interpreter has replaced the language's builtins; at each call of another jitted function it
looks through all of the language again (triton 3.9, `InterpretedFunction.__call__`) and finds nothing left to replace:
half of the time of a small kernel. Here it looks only where something is left.
"""

from __future__ import annotations

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
