"""DESIGN.md's "Layout", held against every file: who may import whom, and who may load torch when.

A new room takes one line in ``ROOMS``; a room that is not in it fails.
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
    """What a room may import: rooms of ours beside itself, and packages of others beside the standard library."""

    below: str = ""
    packages: str = ""
    torch: When = When.NEVER


TIERS = ("measured", "compared", "predicted", "compiled")
_BARE = (
    "child lifeline data mode records errors amounts units environment files event_lines reading reachable git"
    " kernel_names locks user_lines measure.records profiles.records"
)
_GROUND = f"{_BARE} documents journals results tiers"
_PRIVATE = "internals torch_internals triton_internals"
_RECORDS = " ".join(f"{tier}.records" for tier in TIERS)
_PLUGIN = "plugin plugin.options plugin.noting plugin.stash plugin.config plugin.case plugin.session"
_MEASURED = "measured.records measured.judge measured.store measured.report measured.run"
_COMPARED = (
    "compared.records compared.judge compared.sides compared.interleave compared.callables compared.rounds"
    " compared.comparison compared.run"
)
_PYTEST = "pytest _pytest pluggy msgspec filelock xdist pytest_benchmark syrupy"


_STATISTICS_FILES = ("change_points", "noise", "steps", "thresholds")
_STATISTICS = " ".join(f"history.{file}" for file in _STATISTICS_FILES)


def tier_rooms(tier: str, own: str, others: str = "") -> dict[str, Room]:
    """The rooms that each tier has. ``own``: what else it is made of; ``others``: rooms of other tiers it needs."""
    mine = " ".join(f"{tier}.{room}" for room in ("records", "settings", "judge", "store", "report", *own.split()))
    return {
        f"{tier}.records": Room(
            below="data records measure.records profiles.records measured.records", packages="msgspec"
        ),
        f"{tier}.settings": Room(below=f"{_GROUND} measure plugin.config {mine}"),
        f"{tier}.judge": Room(below=f"{_GROUND} {mine} {others}", packages="msgspec"),
        f"{tier}.store": Room(below=f"{_GROUND} store {mine} {others}", packages="msgspec"),
        f"{tier}.report": Room(below=f"{_GROUND} report profiles measure.statistics {mine} {others}"),
        f"{tier}.run": Room(
            below=f"perflab {_GROUND} {_PRIVATE} measure profiles store report snapshots {mine} {others} {_PLUGIN}",
            packages=_PYTEST,
            torch=When.CALLED,
        ),
        f"{tier}.tier": Room(
            below=f"{_GROUND} store report {mine} {tier}.run {tier}.command {others} {_PLUGIN}", packages="pytest"
        ),
        tier: Room(),
    }


ROOMS = {
    # The ground floor.
    "data": Room(packages="msgspec"),
    "mode": Room(below="data"),
    "records": Room(below="data"),
    "tiers": Room(
        below=f"{_RECORDS} records report results store plugin.config plugin.case plugin.session",
        packages="pytest typing_extensions",
    ),
    "results": Room(below="data mode records measure.records tiers", packages="msgspec"),
    "reachable": Room(torch=When.CALLED),
    "child": Room(below="files lifeline"),
    "lifeline": Room(),
    "errors": Room(),
    "amounts": Room(below="errors"),
    "git": Room(below="errors"),
    "units": Room(),
    # What is not public of PyTorch and Triton: one place each.
    "internals": Room(below="errors"),
    "torch_internals": Room(below="internals", torch=When.CALLED),
    "triton_internals": Room(below="internals", torch=When.CALLED),
    "configurations": Room(below="errors triton_internals"),
    "environment": Room(below="records errors units torch_internals", packages="msgspec", torch=When.CALLED),
    "files": Room(),
    "locks": Room(below="files", packages="filelock"),
    "event_lines": Room(),
    "kernel_names": Room(),
    "user_lines": Room(),
    "reading": Room(below="errors", packages="msgspec"),
    "documents": Room(below="data records results errors files reading measure.records", packages="msgspec"),
    "journals": Room(below="perflab data documents errors files reading results"),
    # What tiers share: the engine of those that run, stored files, tables.
    "measure.records": Room(below="data records profiles.records", packages="msgspec"),
    "measure.statistics": Room(),
    "measure": Room(
        below=f"{_BARE} {_PRIVATE} measure.statistics profiles", packages="pynvml msgspec", torch=When.CALLED
    ),
    "profiles.records": Room(below="data", packages="msgspec"),
    "profiles": Room(below=f"{_BARE} {_PRIVATE} measure report", packages="msgspec", torch=When.CALLED),
    "profiles.nsys": Room(below=f"{_GROUND} measure report profiles", torch=When.CALLED),
    "store": Room(below=_GROUND, packages="msgspec"),
    "report": Room(below=f"{_GROUND} page"),
    "page": Room(below=f"perflab {_BARE} report", packages="jinja2 markupsafe"),
    "snapshots": Room(below="errors units files event_lines report tiers page", packages="markupsafe"),
    "correctness": Room(below=f"{_GROUND} {_PRIVATE} configurations", packages="syrupy", torch=When.IMPORTED),
    # The tiers. A measured case may turn into a prediction, and be settled by turns with its baseline's commit.
    **tier_rooms("measured", "run", f"{_COMPARED} predicted.settings predicted.run"),
    **tier_rooms("compared", "sides interleave callables rounds comparison", _MEASURED),
    **tier_rooms("predicted", "cuda trace layers memory gpus prediction dry_run", "measured.records measured.store"),
    **tier_rooms("compiled", "compiler"),
    "compared.sides": Room(
        below=f"{_GROUND} measured.records compared.records", packages="msgspec filelock", torch=When.CALLED
    ),
    "compared.interleave": Room(below="measured.judge"),
    "compared.callables": Room(
        below=f"{_GROUND} measure measured.judge compared.judge compared.interleave", torch=When.CALLED
    ),
    "compared.rounds": Room(below=f"{_GROUND} compared.sides compared.interleave {_MEASURED}"),
    "compared.comparison": Room(below=f"{_GROUND} compared.sides compared.interleave compared.rounds compared.judge"),
    "predicted.cuda": Room(below=f"{_GROUND} {_PRIVATE}", torch=When.IMPORTED),
    "predicted.trace": Room(below=f"{_GROUND} {_PRIVATE} predicted.cuda predicted.layers", torch=When.IMPORTED),
    "predicted.layers": Room(below=f"{_GROUND} {_PRIVATE} predicted.trace", torch=When.IMPORTED),
    "predicted.memory": Room(below=f"{_GROUND} predicted.records predicted.trace", torch=When.IMPORTED),
    "predicted.gpus": Room(below=f"{_GROUND} predicted.trace", torch=When.IMPORTED),
    "predicted.dry_run": Room(
        below=f"{_GROUND} {_PRIVATE} predicted.records predicted.trace predicted.gpus predicted.prediction {_PLUGIN}",
        packages="pytest _pytest msgspec nocuda",
        torch=When.IMPORTED,
    ),
    "predicted.prediction": Room(
        below=f"{_GROUND} predicted.records predicted.cuda predicted.trace predicted.layers predicted.memory"
        " predicted.gpus",
        torch=When.IMPORTED,
    ),
    "compiled.command": Room(below=f"{_GROUND} report compiled.compiler compiled.run"),
    "compiled.compiler": Room(
        below=f"{_GROUND} {_PRIVATE} configurations compiled.records", packages="msgspec", torch=When.CALLED
    ),
    # pytest's side. What every run loads stands beside its folders.
    "plugin": Room(
        below=f"errors attention tiers {_PLUGIN} plugin.fixtures plugin.hooks predicted.dry_run", packages=_PYTEST
    ),
    "plugin.options": Room(packages="pytest"),
    "plugin.hooks": Room(below="results", packages="pytest"),
    "plugin.noting": Room(below=_PLUGIN, packages="pytest"),
    "plugin.stash": Room(below=f"measure {_PLUGIN}", packages="pytest", torch=When.CALLED),
    "plugin.fixtures": Room(
        below="measure plugin.case compiled.records compiled.run", packages="pytest", torch=When.CALLED
    ),
    "plugin.config": Room(
        below=f"{_GROUND} measure report {_PLUGIN} plugin.fixtures", packages=_PYTEST, torch=When.CALLED
    ),
    "plugin.case": Room(
        below=f"{_GROUND} {_PRIVATE} measure report {_PLUGIN} compared.callables", packages=_PYTEST, torch=When.CALLED
    ),
    "plugin.session": Room(
        below=f"perflab {_GROUND} {_PRIVATE} measure store report {_PLUGIN}", packages=_PYTEST, torch=When.CALLED
    ),
    "history": Room(
        below=f"perflab {_GROUND} measure.records store report page plugin.session compared.sides {_STATISTICS}",
        packages="msgspec markupsafe",
    ),
    **{f"history.{file}": Room(below=f"history {_STATISTICS}", packages="numpy") for file in _STATISTICS_FILES},
    # The top.
    "doctor": Room(below=f"{_GROUND} measure {_PLUGIN} {_MEASURED} {_COMPARED}", packages="msgspec"),
    "cli": Room(below=f"{_GROUND} attention doctor history snapshots store report profiles.nsys", packages="msgspec"),
    "__main__": Room(below="cli"),
    # The package itself, its public face, and what it shows of how things are measured.
    "perflab": Room(
        below=f"{_GROUND} {_RECORDS} measure correctness compared.callables"
        " compiled.compiler plugin.case plugin.config plugin.session"
        " plugin.stash"
    ),
    "instruments": Room(below="measure measure.statistics"),
    "serving": Room(below="errors measure.statistics"),
    # The lab stands beside the house; the attention suite holds kernels, the lab's among them, to their definition.
    "lab": Room(torch=When.IMPORTED),
    "attention": Room(
        below="errors lifeline units correctness lab measure plugin.stash", packages="pytest", torch=When.IMPORTED
    ),
}


NAMES_TIERS = {
    "tiers": "their records, for the union of outcomes",
    "perflab": "the public face: names of every tier's",
    "plugin": "an option that begins the process anew is read before anything is loaded",
    "plugin.fixtures": "every run declares all fixtures, and loads no tier for it",
    "plugin.case": "perf.compare, which takes two callables and no second version",
    "doctor": "it tries the gate of measured and compared cases",
    "history": "a bisection runs commits in the worktrees of a comparison",
}
"""Common rooms that import a tier by its name, and why; others ask ``tiers``."""
TIERS_AS_TEXT = {
    "plugin/fixtures.py": "of which tier a fixture makes a test a case",
    "documents.py": "keys of schema 1",
    "history/results_files.py": "which of a case's two readings of a run stands",
}
"""Common files that hold a tier's name as a text."""


@dataclass(frozen=True)
class Import:
    """One imported module, and how early it is loaded."""

    module: str
    line: int
    when: When


def room_of(module: str) -> str:
    """``perflab.measure.clock`` -> ``measure``, ``perflab.measured.judge.anchor`` -> ``measured.judge``.

    The package's own ``__init__`` is ``perflab``.
    """
    parts = module.split(".")
    narrow = ".".join(parts[1:3])
    if len(parts) > 2 and (parts[1] in (*TIERS, "plugin") or narrow in ROOMS):
        return narrow
    return parts[1] if len(parts) > 1 else parts[0]


def module_of(file: str) -> str:
    """``measure/clock.py`` -> ``perflab.measure.clock``."""
    return ".".join(["perflab", *Path(file).with_suffix("").parts]).removesuffix(".__init__")


def imports_in(source: str, module: str, is_package: bool) -> Iterator[Import]:
    """Every import of a source text, those by ``importlib.import_module("...")`` included."""

    def visit(node: ast.AST, when: When) -> Iterator[Import]:
        if isinstance(node, ast.Import):
            yield from (Import(alias.name, node.lineno, when) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            home = module.split(".") if is_package else module.split(".")[:-1]
            base = home[: len(home) - node.level + 1] if node.level else []
            origin = ".".join([*base, *([node.module] if node.module else [])])
            # `from perflab import units` and `from perflab.compiled import judge` mean the room.
            whole = origin == "perflab" or origin.removeprefix("perflab.") in (*TIERS, "plugin")
            for alias in node.names:
                yield Import(f"{origin}.{alias.name}" if whole else origin, node.lineno, when)
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


def offences(source: str, module: str, is_package: bool = False) -> list[str]:
    """What a file does that its room may not."""
    if module.split(".")[0] == "nocuda":
        ours = {"nocuda", *sys.stdlib_module_names}
        foreign = [one for one in imports_in(source, module, is_package) if one.module.split(".")[0] not in ours]
        return [f"{module}, line {one.line}: imports {one.module}, which nocuda may not" for one in foreign]
    name = room_of(module)
    if name not in ROOMS:
        return [f"{module}: {name!r} is a room that ROOMS does not know; add a line for it"]
    room, found = ROOMS[name], []
    for imported in imports_in(source, module, is_package):
        package = imported.module.split(".")[0]
        where = f"{module}, line {imported.line}: imports {imported.module}"
        if package == "perflab":
            target = room_of(imported.module)
            if target in ROOMS and target not in {name, *room.below.split()}:
                found.append(f"{where}, which {name} may not")
            elif target not in ROOMS and imported.module not in ("perflab.__version__", "perflab.cuda_timer"):
                found.append(f"{where}, which is no room that ROOMS knows")
        elif package in ("torch", "triton"):
            if imported.when > room.torch:
                found.append(f"{where}; in {name} torch may be loaded: {room.torch.name.lower()}")
        elif package == "nocuda":
            if imported.when > When.CALLED:
                found.append(f"{where}; nocuda is imported where it is called, inside of functions")
        elif package not in sys.stdlib_module_names and package not in room.packages.split():
            found.append(f"{where}, which {name} may not depend on")
    return found


@pytest.mark.parametrize("file", FILES)
def test_a_file_imports_only_what_its_room_may(file: str) -> None:
    source = (HOUSE / file).read_text(encoding="utf-8")
    assert offences(source, module_of(file), is_package=file.endswith("__init__.py")) == []


def test_common_rooms_import_no_tier_by_its_name() -> None:
    common = {name: room.below.split() for name, room in ROOMS.items() if name.split(".")[0] not in TIERS}
    assert {name for name, below in common.items() if any(one.split(".")[0] in TIERS for one in below)} == {
        *NAMES_TIERS
    }


@pytest.mark.parametrize("file", [file for file in FILES if file.split("/")[0] not in (*TIERS, "lab", "attention")])
def test_common_files_hold_no_tiers_name(file: str) -> None:
    tree = ast.parse((HOUSE / file).read_text(encoding="utf-8"))
    found = {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)} & {*TIERS}
    assert bool(found) is (file in TIERS_AS_TEXT)


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


@pytest.mark.parametrize("file", FILES_BESIDE)
def test_nocuda_imports_nothing_of_ours_and_nothing_that_is_installed(file: str) -> None:
    source = (BESIDE / file).read_text(encoding="utf-8")
    module = ".".join(["nocuda", *Path(file).with_suffix("").parts]).removesuffix(".__init__")
    assert offences(source, module, is_package=file.endswith("__init__.py")) == []


@pytest.mark.parametrize("path", [HOUSE / file for file in FILES] + [BESIDE / file for file in FILES_BESIDE], ids=str)
def test_a_module_begins_with_a_docstring(path: Path) -> None:
    assert ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("perflab.records", "from perflab import units"),
        ("perflab.units", "from perflab.records import Verdict"),
        ("perflab.measured.judge.judge", "def f():\n    import torch"),
        ("perflab.measured.report.table", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import torch"),
        ("perflab.report.lines", "from perflab.measure.statistics import median_interval"),
        ("perflab.predicted.judge.judge", "from perflab.compiled import judge"),
        ("perflab.measured.judge.judge", "from ..measure import clock"),
        ("perflab.measure.clock", "import torch"),
        ("perflab.measure.clock", "try:\n    import torch.cuda\nexcept ImportError:\n    pass"),
        ("perflab.measure.clock", "def f():\n    from perflab.plugin import options"),
        ("perflab.measure.clock", "def f():\n    import pytest"),
        ("perflab.measure.clock", "import perflab"),
        ("perflab.plugin.case.perf", "import triton"),
        ("perflab.plugin.case.perf", "class A:\n    from torch import Tensor"),
        ("perflab.plugin.case.perf", "if TYPE_CHECKING:\n    pass\nelse:\n    import torch"),
        ("perflab.plugin.case.perf", "def f():\n    from perflab.lab.models import build_model"),
        ("perflab.plugin.case.perf", "import importlib\nimportlib.import_module('perflab.lab.models')"),
        ("perflab.lab.models.build", "from perflab.errors import PerflabError"),
        ("perflab.lab.models.build", "import numpy"),
        ("perflab.lab.models.build", "import pytest"),
        ("perflab.measure.clock", "import nocuda"),
        ("perflab.measure.clock", "try:\n    from nocuda import is_active\nexcept ImportError:\n    pass"),
        ("nocuda.build", "def f():\n    from perflab import units"),
        ("nocuda.build", "def f():\n    import torch"),
        ("nocuda.build", "import msgspec"),
        ("perflab.attic.old", "import os"),
        ("perflab.plugin.case.perf", "from perflab.attic import old"),
    ],
)
def test_the_rules_would_catch(module: str, source: str) -> None:
    assert len(offences(source, module)) == 1


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("perflab.compared.rounds", "from perflab.measured.judge.robust import compare"),
        ("perflab.measure.clock", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import torch"),
        ("perflab.measure.clock", "def f():\n    import torch"),
        ("perflab.measure.clock", "def f():\n    import nocuda"),
        ("nocuda.build", "import subprocess\nfrom nocuda.errors import NocudaError\nfrom . import errors"),
        ("perflab.measure.clock", "from . import sampling"),
        ("perflab.lab.models.build", "import torch\nimport triton.language as tl\nfrom perflab.lab import attention"),
        ("perflab.plugin.session.results", "import perflab\nimport pytest\nfrom perflab.store import stale"),
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
    "plugin/case/untimed.py": ("_excinfo",),
    "predicted/run/fake_cases.py": ("_excinfo",),
    "predicted/run/fixtures_anew.py": ("_fixtureinfo", "_request"),
    "plugin/session/benchmark.py": ("_benchmarksession",),
    "plugin/case/adopting.py": ("_fixtureinfo", "_request", "_fixture_defs", "_arg2fixturedefs"),
    "plugin/case/coroutines.py": ("_get_running_loop", "_set_running_loop", "_enter_task", "_leave_task"),
}
"""Where attributes of pytest's own, of pytest-benchmark's or of asyncio's are asked for by name."""
BY_ITSELF = {"compared/sides/forking.py": ("_C", "_cuda_isInBadFork")}
"""What a program that imports nothing of perflab has to ask of PyTorch itself."""
INTERNALS = ("torch_internals", "triton_internals", "lab")
_BY_NAME = ("getattr", "hasattr", "setattr", "delattr", "attrgetter")


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
        elif isinstance(node, ast.Tuple) and [isinstance(one, ast.Constant) for one in node.elts[:2]] == [False, True]:
            names.append(str(node.elts[1].value))  # (owner, "name", value), for attributes_replaced
    return [name for name in names if re.search(r"(^|\.)_(?!_)", name)]


def triton_below_the_top(source: str) -> list[str]:
    """Imports of more than ``triton`` itself: what is documented stands there, and in ``triton.language``."""
    modules = [one.module for one in imports_in(source, "perflab.x", is_package=False)]
    return [one for one in modules if one.startswith("triton.") and one != "triton.language"]


@pytest.mark.parametrize("file", [file for file in FILES if file.split("/")[0].removesuffix(".py") not in INTERNALS])
def test_what_is_private_of_torch_and_triton_stands_in_one_place(file: str) -> None:
    source = (HOUSE / file).read_text(encoding="utf-8")
    assert set(private_names(source)) - {*OF_PYTEST.get(file, ()), *BY_ITSELF.get(file, ())} == set()
    assert triton_below_the_top(source) == []


@pytest.mark.parametrize(
    "source",
    [
        "from torch._ops import OpOverload",
        "from torch.library import _scoped_library",
        "import torch._dynamo.utils",
        "def f():\n    import torch\n    return torch._C.something()",
        "def f(storage):\n    return storage._cdata",
        "def f(owner):\n    return getattr(owner, '_cast', None)",
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
