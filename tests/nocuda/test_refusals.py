"""Where it refuses, and that each refusal says what to do. No CUDA build is needed, and none is loaded."""

from __future__ import annotations

import platform
import sys
from importlib.machinery import ModuleSpec
from importlib.metadata import version
from pathlib import Path

import pytest

import nocuda
from nocuda import installed, is_active
from nocuda.__main__ import main
from nocuda.errors import NocudaError

building = sys.modules["nocuda.build"]


@pytest.fixture(autouse=True)
def no_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    """These run on a GPU too."""
    monkeypatch.setattr(installed, "_DRIVER_FILES", ())
    monkeypatch.setattr(installed, "_find_library", lambda name: None)


def with_torch(monkeypatch: pytest.MonkeyPatch, folder: Path, version: str, cuda: str | None) -> None:
    (folder / "version.py").write_text(
        f"from typing import Optional\n\n__version__ = '{version}'\ndebug = False\n"
        f"cuda: Optional[str] = {cuda!r}\ngit_version = 'abc'\nhip: Optional[str] = None\n"
    )
    spec = ModuleSpec("torch", None, origin=str(folder / "__init__.py"))
    monkeypatch.setattr(installed, "_find_spec", lambda name: spec)


def refused(problem: str, remedy: str) -> pytest.RaisesExc[NocudaError]:
    def check(error: NocudaError) -> bool:
        assert problem in error.problem
        assert remedy in error.remedy
        assert str(error) == f"{error.problem}\n  -> {error.remedy}"
        return True

    return pytest.raises(NocudaError, check=check)


def test_a_drivers_device_file_is_a_gpu_that_is_to_be_used(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    there = tmp_path / "nvidiactl"
    there.touch()
    monkeypatch.setattr(installed, "_DRIVER_FILES", (str(tmp_path / "nvidia0"), str(there)))
    said = f"a real NVIDIA driver is here ({there}), and nocuda does not replace it"
    with refused(said, "`pytest -m perf` measures on the GPU"):
        nocuda.environment()


def test_a_drivers_library_is_refused_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installed, "_find_library", {"nvidia-ml": "libnvidia-ml.so.1"}.get)
    with refused("(libnvidia-ml.so.1)", "run without it"):
        nocuda.environment()


@pytest.mark.parametrize(("system", "machine"), [("darwin", "arm64"), ("win32", "AMD64"), ("linux", "aarch64")])
def test_another_platform_is_refused(system: str, machine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: machine)
    monkeypatch.setattr(sys, "platform", system)
    with refused(f"this is {system} on {machine}", "--perf-predict"):
        installed.refuse_a_real_driver()


def test_pytorch_without_cuda_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with_torch(monkeypatch, tmp_path, "2.13.0+cpu", None)
    with refused("PyTorch 2.13.0+cpu is a build without CUDA", "pip install --index-url"):
        nocuda.environment()


def test_the_build_that_is_here_is_a_cpus_or_one_that_was_tested() -> None:
    if "+cpu" in version("torch"):
        with refused("is a build without CUDA", "pip install --index-url"):
            installed.torch_here()
    elif is_active():
        assert installed.torch_here().is_tested


def test_an_older_cuda_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with_torch(monkeypatch, tmp_path, "2.11.0+cu128", "12.8")
    with refused("is built with CUDA 12.8; nocuda needs CUDA 13 or newer", "these are tested: torch 2.13"):
        nocuda.environment()


@pytest.mark.parametrize(
    ("number", "cuda", "tested"), [("2.13.0", "13.0", True), ("2.13.1+cu132", "13.2", False), ("3.0.0", "13.0", False)]
)
def test_versions_that_the_tests_have_run_with_are_known(
    number: str, cuda: str, tested: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with_torch(monkeypatch, tmp_path, number, cuda)
    assert installed.torch_here() == installed.Torch(tmp_path, number, cuda)
    assert installed.torch_here().is_tested is tested


def test_pytorch_and_triton_that_are_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installed, "_find_spec", lambda name: None)
    with refused("PyTorch is not installed", "pip install"):
        installed.torch_here()
    with refused("triton, which brings CUDA's headers, is not installed", "pip install triton"):
        installed.headers()


def test_no_compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with refused("cc is not installed", "apt-get install gcc"):
        installed.tool("cc", "gcc", "clang")


def test_an_extension_that_is_not_there(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(building, "torch_here", lambda: installed.Torch(tmp_path, "2.13.0", "13.0"))
    monkeypatch.setattr(building, "headers", lambda: tmp_path)
    with refused(f"there is no extension {tmp_path / 'mine.so'}", "name the shared library"):
        nocuda.build(extensions=[tmp_path / "mine.so"])


def test_c_that_does_not_compile_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Headers of another CUDA may lack something: the compiler's words are told."""
    (tmp_path / "lib").mkdir()
    (tmp_path / "cuda.h").write_text("#error these are no headers\n")
    monkeypatch.setattr(building, "torch_here", lambda: installed.Torch(tmp_path, "2.13.0", "13.0"))
    monkeypatch.setattr(building, "headers", lambda: tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with refused("these are no headers", "report it with the versions"):
        nocuda.build()
    assert list((tmp_path / "cache" / "nocuda").iterdir()) == []


def test_the_command_says_it_in_two_lines(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(installed, "_find_library", {"cuda": "libcuda.so.1"}.get)
    for command in ([], ["build"], ["run", "--", "true"]):
        assert main(command) == 2
        printed = capsys.readouterr()
        assert (printed.out, printed.err.count("\n")) == ("", 2)
        assert "\n  -> run without it" in printed.err
