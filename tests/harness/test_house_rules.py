"""When each room of the package may load torch, and which packages it may use, held against every file.

Who may import whom is in ``[tool.importlinter]`` of ``pyproject.toml``, which one test here runs; import-linter can say
neither of these: it takes an import inside of a function, which loads nothing until it is called, as any other.
A new room takes one line in ``ROOMS``, and one in ``pyproject.toml``; a room that is in neither fails.
"""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from pkgutil import resolve_name

import pytest
from importlinter.cli import lint_imports

from tests.studies.mutations import MUTATIONS, Mutation, mutate

HOUSE = Path(__file__).parents[2] / "perflab"
FILES = sorted(path.relative_to(HOUSE).as_posix() for path in HOUSE.rglob("*.py"))
BESIDE = HOUSE.with_name("nocuda")
FILES_BESIDE = sorted(path.relative_to(BESIDE).as_posix() for path in BESIDE.rglob("*.py"))
"""``nocuda`` stands beside the package: it imports nothing of it, and nothing but the standard library."""
HEAVY = ("torch", "triton", "numpy", "rich")
"""What nobody pays for who has only installed the plugin."""


class When(IntEnum):
    """How early a room may load torch or triton."""

    NEVER = 0
    CALLED = 1
    """Inside of functions, and for type checkers."""
    IMPORTED = 2


@dataclass(frozen=True)
class Room:
    """The packages that a room may import beside the standard library, and when it may load torch."""

    packages: str = ""
    torch: When = When.NEVER


TIERS = ("measured", "compared", "predicted", "compiled")
_PYTEST = "pytest _pytest pluggy msgspec"
_CALLED = Room(torch=When.CALLED)
_IMPORTED = Room(torch=When.IMPORTED)

ROOMS = {
    "base": Room(packages="msgspec"),
    "units": Room(),
    "internals": _CALLED,
    "processes": Room(packages="msgspec"),
    "results": Room(packages="msgspec"),
    "results.environment": Room(packages="msgspec", torch=When.CALLED),
    "attribution": _CALLED,
    "judging": Room(packages="msgspec"),
    "store": Room(packages="msgspec"),
    "tables": Room(),
    "correctness": Room(packages="syrupy", torch=When.IMPORTED),
    "devices": Room(packages="pynvml", torch=When.CALLED),
    "ranks": Room(packages="msgspec", torch=When.CALLED),
    "measure": _CALLED,
    "profiles": Room(packages="msgspec", torch=When.CALLED),
    "page": Room(packages="jinja2 markupsafe"),
    "measurement": _CALLED,
    "noting": Room(packages="pytest"),
    "options": Room(packages="pytest"),
    "settings": Room(packages="pytest"),
    "snapshots": Room(packages="markupsafe"),
    "tiers": Room(packages="pytest msgspec typing_extensions"),
    "report": Room(),
    "running": Room(packages=f"{_PYTEST} filelock xdist pytest_benchmark", torch=When.CALLED),
    "nsys": _CALLED,
    "untrusted": Room(packages="msgspec pytest", torch=When.IMPORTED),
    "untrusted.in_pytest": Room(packages="pytest cloudpickle", torch=When.IMPORTED),
    "untrusted.preloaded": _IMPORTED,
    "untrusted.command": Room(),
    "untrusted.confine": Room(),
    "untrusted.messages": Room(packages="msgspec"),
    "untrusted.records": Room(packages="msgspec"),
    "turns": Room(packages="pytest msgspec filelock", torch=When.CALLED),
    "measured": Room(packages=_PYTEST, torch=When.CALLED),
    "measured.report": Room(),
    **{f"measured.{one}": Room(packages="msgspec") for one in ["baselines", "exact"]},
    "compared": Room(packages=_PYTEST, torch=When.CALLED),
    "compiled": Room(packages="msgspec"),
    "compiled.compiler": Room(packages="msgspec", torch=When.CALLED),
    "compiled.run": Room(packages=_PYTEST),
    "compiled.tier": Room(packages="pytest"),
    "predicted": Room(packages="msgspec pytest"),
    **{f"predicted.{one}": Room(torch=When.IMPORTED) for one in ["cuda", "memory", "prediction", "trace"]},
    "predicted.dry_run": Room(packages=f"{_PYTEST} nocuda", torch=When.IMPORTED),
    "predicted.judge": Room(packages="msgspec"),
    "predicted.report": Room(),
    "predicted.run": Room(packages=_PYTEST, torch=When.CALLED),
    "predicted.store": Room(packages="msgspec"),
    "predicted.world": Room(packages="pytest", torch=When.CALLED),
    "predicted.world.on_fakes": _IMPORTED,
    "sweeps": Room(packages="pytest msgspec submitit"),
    "plugin": Room(packages="pytest", torch=When.CALLED),
    "history": Room(packages="msgspec markupsafe"),
    **{f"history.{one}": Room(packages="numpy") for one in ["change_points", "steps"]},
    "cli": Room(packages="msgspec", torch=When.CALLED),
    "__main__": Room(),
    "perflab": Room(),
    "instruments": Room(),
    "serving": Room(),
    # The lab stands beside the house; the attention suite holds kernels, the lab's among them, to their definition.
    "lab": _IMPORTED,
    "attention": Room(packages="pytest", torch=When.IMPORTED),
}
"""The rooms by their folders. A file has the rules of the longest name that leads to it."""


TIERS_AS_TEXT = {
    "options.py": "of which tier a fixture makes a test a case",
}
"""Common files that hold a tier's name as a text."""


@dataclass(frozen=True)
class Import:
    """One imported module, and how early it is loaded."""

    module: str
    line: int
    when: When


def room_of(module: str) -> str | None:
    """``perflab.measure.clocks.clock`` -> ``measure``, ``perflab.predicted.cuda.kernels`` -> ``predicted.cuda``.

    The package's own ``__init__`` is ``perflab``; a module without a room has None.
    """
    parts = module.split(".")[1:] or ["perflab"]
    names = (".".join(parts[:length]) for length in range(len(parts), 0, -1))
    return next((name for name in names if name in ROOMS), None)


def module_of(file: str) -> str:
    """``measure/clocks/clock.py`` -> ``perflab.measure.clocks.clock``."""
    return ".".join(["perflab", *Path(file).with_suffix("").parts]).removesuffix(".__init__")


def imports_in(source: str, module: str) -> Iterator[Import]:
    """Every import of a source text, those by ``importlib.import_module("...")`` included."""

    def visit(node: ast.AST, when: When) -> Iterator[Import]:
        if isinstance(node, ast.Import):
            yield from (Import(alias.name, node.lineno, when) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield Import(module.split(".")[0] if node.level else str(node.module), node.lineno, when)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name | ast.Attribute):
            name = node.func.id if isinstance(node.func, ast.Name) else node.func.attr
            for argument in node.args[:1]:
                if name in ("import_module", "import_plugin", "__import__", "importorskip") and isinstance(
                    argument, ast.Constant
                ):
                    yield Import(str(argument.value), node.lineno, when)
        for field, value in ast.iter_fields(node):
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST):
                    yield from visit(child, min(when, _when_run(node, field)))

    yield from visit(ast.parse(source), When.IMPORTED)


def _when_run(parent: ast.AST, field: str) -> When:
    if isinstance(parent, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) and field == "body":
        return When.CALLED
    if isinstance(parent, ast.If) and field == "body" and ast.unparse(parent.test).endswith("TYPE_CHECKING"):
        return When.CALLED
    return When.IMPORTED


def offences(source: str, module: str) -> list[str]:
    """What a file does that its room may not."""
    if module.split(".")[0] == "nocuda":
        ours = {"nocuda", *sys.stdlib_module_names}
        foreign = [one for one in imports_in(source, module) if one.module.split(".")[0] not in ours]
        return [f"{module}, line {one.line}: imports {one.module}, which nocuda may not" for one in foreign]
    name = room_of(module)
    if name is None:
        return [f"{module} is in no room that ROOMS knows; add a line for it"]
    room, found = ROOMS[name], []
    for imported in imports_in(source, module):
        package = imported.module.split(".")[0]
        where = f"{module}, line {imported.line}: imports {imported.module}"
        if package in ("torch", "triton"):
            if imported.when > room.torch:
                found.append(f"{where}; in {name} torch may be loaded: {room.torch.name.lower()}")
        elif package == "nocuda":
            if imported.when > When.CALLED:
                found.append(f"{where}; nocuda is imported where it is called, inside of functions")
        elif package not in {"perflab", *sys.stdlib_module_names, *room.packages.split()}:
            found.append(f"{where}, which {name} may not depend on")
    return found


def test_every_folder_with_modules_is_a_package_so_that_it_is_installed() -> None:
    folders = {path.parent for room in (HOUSE, BESIDE) for path in room.rglob("*.py")}
    assert [folder for folder in folders if not (folder / "__init__.py").is_file()] == []


def test_imports_point_down() -> None:
    assert lint_imports(config_filename=str(HOUSE.with_name("pyproject.toml")), no_cache=True) == 0


def sources() -> dict[str, str]:
    """The text of each file of the package."""
    return {file: (HOUSE / file).read_text(encoding="utf-8") for file in FILES}


def test_a_file_imports_only_what_its_room_may() -> None:
    assert [one for file, text in sources().items() for one in offences(text, module_of(file))] == []


def test_common_files_hold_no_tiers_name() -> None:
    for file, text in sources().items():
        if not {*TIERS, "lab", "attention"} & {*Path(file).with_suffix("").parts}:
            found = {node.value for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Constant)} & {*TIERS}
            assert bool(found) is (file in TIERS_AS_TEXT), file


@pytest.mark.parametrize("name", TIERS)
def test_what_a_tier_calls_is_its_own_and_there(name: str) -> None:
    """Its methods load what they call when they are called; mypy holds them to the protocol."""
    source = ast.parse((HOUSE / name / "tier.py").read_text(encoding="utf-8"))
    methods = [node for node in ast.walk(source) if isinstance(node, ast.FunctionDef)]
    imports = [node for method in methods for node in ast.walk(method) if isinstance(node, ast.ImportFrom)]
    assert imports
    for one in imports:
        assert str(one.module).startswith(f"perflab.{name}.")
        assert all(callable(resolve_name(f"{one.module}:{asked.name}")) for asked in one.names)


def test_nocuda_imports_nothing_of_ours_and_nothing_that_is_installed() -> None:
    for file in FILES_BESIDE:
        module = ".".join(["nocuda", *Path(file).with_suffix("").parts]).removesuffix(".__init__")
        assert offences((BESIDE / file).read_text(encoding="utf-8"), module) == []


def test_a_module_begins_with_a_docstring() -> None:
    paths = [*(HOUSE / file for file in FILES), *(BESIDE / file for file in FILES_BESIDE)]
    assert [path for path in paths if not ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))] == []


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("perflab.judging.judge", "def f():\n    import torch"),
        ("perflab.measured.report.table", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import torch"),
        ("perflab.measure.clocks.clock", "import torch"),
        ("perflab.measure.clocks.clock", "try:\n    import torch.cuda\nexcept ImportError:\n    pass"),
        ("perflab.measure.clocks.clock", "def f():\n    import pytest"),
        ("perflab.running.case.perf", "import triton"),
        ("perflab.running.case.perf", "import importlib\nimportlib.import_module('torch')"),
        ("perflab.running.case.perf", "class A:\n    from torch import Tensor"),
        ("perflab.running.case.perf", "if TYPE_CHECKING:\n    pass\nelse:\n    import torch"),
        ("perflab.lab.models.build", "import numpy"),
        ("perflab.lab.models.build", "import pytest"),
        ("perflab.measure.clocks.clock", "import nocuda"),
        ("perflab.measure.clocks.clock", "try:\n    from nocuda import is_active\nexcept ImportError:\n    pass"),
        ("nocuda.build", "def f():\n    from perflab import units"),
        ("nocuda.build", "def f():\n    import torch"),
        ("nocuda.build", "import msgspec"),
        ("perflab.attic.old", "import os"),
    ],
)
def test_the_rules_would_catch(module: str, source: str) -> None:
    assert len(offences(source, module)) == 1


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("perflab.measure.clocks.clock", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import torch"),
        ("perflab.measure.clocks.clock", "def f():\n    import torch"),
        ("perflab.measure.clocks.clock", "def f():\n    import nocuda"),
        ("nocuda.build", "import subprocess\nfrom nocuda.errors import NocudaError\nfrom . import errors"),
        ("perflab.lab.models.build", "import torch\nimport triton.language as tl"),
    ],
)
def test_the_rules_allow(module: str, source: str) -> None:
    assert offences(source, module) == []


NOT_TORCH = {
    "_replace": "of named tuples",
    "_asdict": "of named tuples",
    "_exit": "of os",
    "_getframe": "of sys",
    "_current_frames": "of sys",
    "_tw": "pytest's terminal writer",
    "_do_configure": "of pytest's Config",
    "_read": "of our own CpuAllocations, in its own module",
}
"""Attributes with an underscore that are used of others than ``self``: on whose account."""
OF_PYTEST = {
    "measured/run/cases.py": ("_excinfo",),
    "running/case/untimed.py": ("_excinfo",),
    "predicted/run/fake_cases.py": ("_excinfo", "_fixtureinfo", "_request"),
    "running/session/journal.py": ("_benchmarksession",),
    "running/case/adopting.py": ("_fixtureinfo", "_request", "_fixture_defs", "_arg2fixturedefs"),
    "running/case/coroutines.py": ("_get_running_loop", "_set_running_loop", "_enter_task", "_leave_task"),
}
"""Where attributes of pytest's own, of pytest-benchmark's or of asyncio's are asked for by name."""
BY_ITSELF = {
    "turns/forking.py": ("_C", "_cuda_isInBadFork"),
    "lab/attention/gluon_one_pass_kernel.py": (
        "triton.experimental",
        "triton.experimental.gluon",
        "triton.experimental.gluon.language.nvidia.ampere",
    ),
    "lab/attention/triton_tma.py": ("triton.tools.tensor_descriptor",),
    "lab/experts/products.py": ("_grouped_mm",),
    "lab/launch.py": ("triton.runtime.jit",),
    "lab/models/block.py": ("torch._subclasses.fake_tensor.FakeTensorMode",),
    "lab/models/memory.py": (
        "torch._subclasses.fake_tensor.FakeTensorMode",
        "torch.utils._python_dispatch.TorchDispatchMode",
        "torch.utils._pytree.tree_leaves",
        "_to_copy",
    ),
    "lab/models/recompute.py": ("torch._ops.OpOverload", "_schema"),
    "lab/train/compiled.py": ("_compiled_call_impl", "_call_impl"),
    "lab/train/skipping.py": ("torch._subclasses.fake_tensor",),
    "lab/train/step.py": ("_found_inf_per_device",),
}
"""What code that imports nothing of perflab, as the lab's does not, has to ask of PyTorch and Triton itself."""
_BY_NAME = ("getattr", "hasattr", "setattr", "delattr", "attrgetter", "get", "pop")


def private_names(source: str) -> list[str]:
    """Names with a leading underscore that a file has of torch, of triton, or of objects that may be theirs."""
    tree = ast.parse(source)
    docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    names: list[str] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in ("torch", "triton"):
            names += [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names += [one.name for one in node.names if one.name.split(".")[0] in ("torch", "triton")]
        elif isinstance(node, ast.Attribute) and ast.unparse(node.value) not in ("self", "super()"):
            names += [node.attr] * (node.attr not in NOT_TORCH)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
            names += [node.value] * node.value.startswith(("torch.", "triton."))
        elif isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[-1] in _BY_NAME:
            names += [str(one.value) for one in node.args if isinstance(one, ast.Constant)]
        elif isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.In | ast.NotIn):  # "name" in vars(owner)
            names += [str(node.left.value)] if isinstance(node.left, ast.Constant) else []
        elif isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):  # vars(owner)["name"]
            names.append(str(node.slice.value))
        elif isinstance(node, ast.Tuple) and [isinstance(one, ast.Constant) for one in node.elts[:2]] == [False, True]:
            names.append(str(node.elts[1].value))  # (owner, "name", value), for attributes_replaced
    return [name for name in dict.fromkeys(names) if re.search(r"(^|\.)_(?!_)", name)]


def triton_below_the_top(source: str) -> list[str]:
    """Imports of more than ``triton`` itself: what is documented stands there, and in ``triton.language``."""
    modules = [one.module for one in imports_in(source, "perflab.x")]
    return [one for one in modules if one.startswith("triton.") and one != "triton.language"]


def test_what_is_private_of_torch_and_triton_stands_in_one_place() -> None:
    for file, text in sources().items():
        if not file.startswith("internals/"):
            found = {*private_names(text), *triton_below_the_top(text)}
            assert found == {*OF_PYTEST.get(file, ()), *BY_ITSELF.get(file, ())}, file


@pytest.mark.parametrize(
    "source",
    [
        "from torch._ops import OpOverload",
        "from torch.library import _scoped_library",
        "import torch._dynamo.utils",
        "def f():\n    import torch\n    return torch._C.something()",
        "def f(storage):\n    return storage._cdata",
        "def f(owner):\n    return getattr(owner, '_cast', None)",
        "def f(owner):\n    return '_cast' in vars(owner)",
        "def f(owner):\n    return vars(owner).get('_cast')",
        "def f(owner):\n    return owner.__dict__['_cast']",
        "import sys\nutils = sys.modules.get('torch._dynamo.utils')",
        "def f(owner, value):\n    return [(owner, '_cast', value)]",
    ],
)
def test_the_check_for_private_names_would_see(source: str) -> None:
    assert len(private_names(source)) == 1


@pytest.mark.parametrize(
    "source",
    [
        "class A:\n    def f(self):\n        return self._own",
        "class A(B):\n    def f(self):\n        return super()._own()",
        'def f():\n    """As torch._C has it."""',
        "NAMES = ('_safe_softmax', '_foreach_norm')",
        "def f(t):\n    return t.__class__, getattr(t, '__name__'), t._replace(x=1)",
    ],
)
def test_the_check_for_private_names_lets_pass(source: str) -> None:
    assert private_names(source) == []


def test_the_check_for_triton_would_see_what_is_below_its_top() -> None:
    source = "import triton\nimport triton.language as tl\ndef f():\n    from triton.runtime.jit import JITFunction"
    assert triton_below_the_top(source) == ["triton.runtime.jit"]


def loaded_after(statement: str) -> list[str]:
    """Which of ``HEAVY`` a fresh interpreter has loaded after the statement."""
    program = f"import json, sys\n{statement}\nprint(json.dumps([m for m in {HEAVY} if m in sys.modules]))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=True)
    found: list[str] = json.loads(done.stdout)
    return found


def test_loading_the_plugin_loads_nothing_heavy() -> None:
    assert loaded_after("import perflab.plugin") == []


def test_no_module_of_a_room_that_loads_torch_late_loads_anything_heavy_when_imported() -> None:
    modules = [module_of(file) for file in FILES]
    late = [module for module in modules if ROOMS[room_of(module)].torch < When.IMPORTED]
    late = [module for module in late if "numpy" not in ROOMS[room_of(module)].packages.split()]
    assert loaded_after(f"import {', '.join(late)}") == []


def test_the_check_for_heavy_modules_would_see_one() -> None:
    assert loaded_after("import numpy") == ["numpy"]


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.what)
def test_each_line_that_a_study_breaks_stands_where_it_says(mutation: Mutation, tmp_path: Path) -> None:
    copy = tmp_path / "copy.py"
    copy.write_bytes((HOUSE / mutation.file).read_bytes())
    mutate(copy, mutation)
    assert all((HOUSE.parent / one).is_file() for one in mutation.tests.split() if one.startswith("tests/"))


_SPLITS_A_NODE_ID = re.compile(r"""(?:split|partition)\("(?:::|\[|@)"(?:, 1)?\)""")


def test_node_ids_are_taken_apart_in_one_place() -> None:
    """``base/identity.py`` knows the parts of a case's name; the other files split names of kernels and operators."""
    others = {
        "base/identity.py",
        "compiled/store.py",  # kernel[sm_90]
        "internals/of_torch/dispatch.py",
        "measured/report/side_by_side.py",  # short names
        "noting.py",  # every run loads it, and no more than it needs
        "measured/report/studies.py",
        "predicted/cuda/autocast.py",
        "predicted/trace/operators.py",
        "profiles/categories.py",
        "tables/lines.py",  # all parts of a path
    }
    rooms = (path for path in HOUSE.rglob("*.py") if path.relative_to(HOUSE).parts[0] not in ("lab", "attention"))
    found = {str(path.relative_to(HOUSE)) for path in rooms if _SPLITS_A_NODE_ID.search(path.read_text("utf-8"))}
    assert found == others
