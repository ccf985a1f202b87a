"""The environment of a process with the library, as text. No CUDA build is needed."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import nocuda
from nocuda import Built, Gpu, installed, library
from nocuda.__main__ import main
from nocuda.errors import NocudaError


@pytest.fixture(autouse=True)
def no_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installed, "_DRIVER_FILES", ())
    monkeypatch.setattr(installed, "_find_library", lambda name: None)
    monkeypatch.setattr(sys.modules["nocuda.installed"].platform, "machine", lambda: "x86_64")


@pytest.fixture
def built(tmp_path: Path) -> Built:
    for name in ("libcudart.so.13", "libcuda.so.1", "libcuda.so", "libnocuda.so"):
        (tmp_path / name).touch()
    return Built(tmp_path, installed.Torch(tmp_path, "2.13.0", "13.0"))


def test_a_gpu_is_told_by_its_fields(built: Built) -> None:
    gpu = Gpu(name="NVIDIA L4", total_bytes=24 << 30, context_bytes=1, capability=89, multiprocessors=58, devices=2)
    assert nocuda.environment(gpu, built=built, base={})["NOCUDA_GPU"] == (
        f"name=NVIDIA L4;total_bytes={24 << 30};context_bytes=1;capability=89;multiprocessors=58;"
        f"l2_bytes={50 << 20};devices=2"
    )


def test_the_library_comes_first_and_everything_else_stays(built: Built) -> None:
    base = {"LD_PRELOAD": "/lib/mine.so", "HOME": "/home/me", "TRITON_INTERPRET": "1"}
    found = nocuda.environment(built=built, base=base)
    ours = f"{built.folder}/libcuda.so.1:{built.folder}/libcudart.so.13"
    assert found["LD_PRELOAD"] == f"{ours}:/lib/mine.so"
    assert (found["HOME"], found["TRITON_INTERPRET"]) == ("/home/me", "0")
    assert base["TRITON_INTERPRET"] == "1", "the caller's own is left alone"
    assert nocuda.environment(built=built, base=found)["LD_PRELOAD"] == found["LD_PRELOAD"], "once in a grandchild"


def test_a_process_knows_whether_it_has_the_library(monkeypatch: pytest.MonkeyPatch, built: Built) -> None:
    variables = nocuda.environment(built=built, base={})
    monkeypatch.delenv("NOCUDA_LIBRARY", raising=False)
    assert not nocuda.is_active()
    refused = r"nocuda is not active in this process\n  -> start it with `python -m nocuda run -- COMMAND`"
    with pytest.raises(NocudaError, match=refused):
        library.__wrapped__()
    monkeypatch.setenv("NOCUDA_LIBRARY", variables["NOCUDA_LIBRARY"])
    assert nocuda.is_active()


def test_run_needs_a_command_that_is_there(
    monkeypatch: pytest.MonkeyPatch, built: Built, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.modules["nocuda.launch"], "build", lambda: built)
    with pytest.raises(SystemExit, match="2"):
        main(["run"])
    assert "run needs a command: python -m nocuda run -- python train.py" in capsys.readouterr().err
    assert main(["run", "--gpus=2", "--", "no-such-program"]) == 127
    assert capsys.readouterr().err == "no-such-program: No such file or directory\n"


def test_a_mangled_name_is_read_as_c_plus_plus() -> None:
    from nocuda.library import demangled

    assert demangled("_Z6kernelIfEvPT_i") in ("void kernel<float>(float*, int)", "_Z6kernelIfEvPT_i")
    assert demangled("triton_poi_fused_add_0") == "triton_poi_fused_add_0"
