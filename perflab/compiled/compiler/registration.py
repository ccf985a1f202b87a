"""Imports the kernel examples that are registered under ``package.module:attribute``."""

from __future__ import annotations

import difflib
import importlib
import inspect
import traceback
from types import ModuleType
from typing import Any

from perflab.base.errors import KernelError
from perflab.base.gpu_names import Arch
from perflab.compiled.compiler.example import KernelExample

_WANTED = "a list or tuple of perflab.compiled.compiler.KernelExample, or a function that returns one"


def load_examples(registration: str, arch: Arch) -> list[KernelExample]:
    """Return the registered examples for an architecture, in order; an autotuned kernel gives one a configuration.

    Args:
        registration: ``package.module:attribute``. The attribute is a list or a tuple, or a function that returns one.
            The function takes no arguments, or the architecture (90, "gfx942") if configurations depend on it.
        arch: the architecture.

    Raises:
        KernelError: the module cannot be imported, the attribute does not exist, or it is of another type.
    """
    module_name, colon, attribute = registration.partition(":")
    if not colon or not module_name or not attribute.isidentifier():
        raise KernelError(
            f"{registration!r} does not say where kernels are registered",
            "write package.module:ATTRIBUTE, such as mypackage.kernels:EXAMPLES",
        )
    module = _import(module_name, registration)
    if not hasattr(module, attribute):
        close = difflib.get_close_matches(attribute, vars(module), n=1)
        hint = f"did you mean {close[0]}? " if close else ""
        raise KernelError(f"{module_name} has no {attribute}", f"{hint}name {_WANTED} in {module.__file__}")
    return _checked(_called(getattr(module, attribute), registration, arch), registration)


def _import(name: str, registration: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            raise KernelError(
                f"{registration!r} cannot be imported: {error}",
                "run from the folder that holds it, install it, or name its folder in PYTHONPATH",
            ) from error
        raise _broken(f"importing {name} failed", error) from error
    except KernelError:
        raise  # an invalid example raises its own error
    except Exception as error:
        raise _broken(f"importing {name} failed", error) from error


def _called(registered: Any, registration: str, arch: Arch) -> Any:
    if isinstance(registered, list | tuple) or not inspect.isroutine(registered):
        return registered
    takes_arch = bool(inspect.signature(registered).parameters)
    try:
        return registered(arch) if takes_arch else registered()
    except KernelError:
        raise
    except Exception as error:
        raise _broken(f"{registration}({arch if takes_arch else ''}) failed", error) from error


def _checked(registered: Any, registration: str) -> list[KernelExample]:
    if not isinstance(registered, list | tuple):
        raise KernelError(f"{registration} is {type(registered).__name__!r}", f"make it {_WANTED}")
    for position, example in enumerate(registered):
        if not isinstance(example, KernelExample):
            raise KernelError(f"item {position} of {registration} is {type(example).__name__!r}", f"make it {_WANTED}")
    examples = [one for example in registered for one in example.configured()]
    names = [example.name for example in examples]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        names_twice = ", ".join(map(repr, twice))
        raise KernelError(f"{registration} has several kernels named {names_twice}", "give each kernel its own name")
    return examples


def _broken(what: str, error: Exception) -> KernelError:
    """Return the error for user code that raised: the exception, and the line that raised it."""
    frames = traceback.extract_tb(error.__traceback__)
    place = f"{frames[-1].filename}, line {frames[-1].lineno}" if frames else "?"
    if isinstance(error, SyntaxError):
        place = f"{error.filename}, line {error.lineno}"
    return KernelError(f"{what}: {type(error).__name__}: {error}", f"fix it: {place}")
