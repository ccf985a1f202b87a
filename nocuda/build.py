"""Builds the library from its C files and what PyTorch's libraries ask for; keeps it in the user's cache."""

from __future__ import annotations

import hashlib
import os
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from nocuda.errors import NocudaError
from nocuda.installed import Torch, headers, tool, torch_here
from nocuda.symbols import defined_in, sonames, stubs, wanted_by

_SOURCES = Path(__file__).parent / "src"
_TORCHS = "c10_cuda torch_cuda torch_cuda_linalg torch_python torch_cpu torch_nvshmem caffe2_nvrtc torch_global_deps"


@dataclass(frozen=True)
class Built:
    """A folder with ``libnocuda.so`` and a library of each name that stands for it."""

    folder: Path
    torch: Torch

    @property
    def library(self) -> Path:
        """The library itself."""
        return self.folder / "libnocuda.so"

    @property
    def stand_ins(self) -> list[Path]:
        """``libcudart.so.13`` and the like."""
        return sorted(self.folder.glob("*.so.*"))


def build(*, extensions: Sequence[str | os.PathLike[str]] = (), anew: bool = False) -> Built:
    """Build the library for the PyTorch that is installed, or take it from the cache.

    Args:
        extensions: CUDA extensions of the user's own (``.so``), whose functions of NVIDIA's it shall have too.
        anew: do not look into the cache.

    Raises:
        NocudaError: no CUDA build of PyTorch, no triton, no C compiler, an extension that is not there, a file that
            does not compile.
    """
    torch, include = torch_here(), headers()
    libraries = [path for name in _TORCHS.split() if (path := torch.folder / "lib" / f"lib{name}.so").is_file()]
    for one in extensions:
        if not Path(one).is_file():
            raise NocudaError(f"there is no extension {os.fspath(one)}", "name the shared library that was built")
        libraries.append(Path(one).resolve())
    folder = cache() / _key(torch, include, libraries)
    if anew or not (folder / "libnocuda.so").is_file():
        _build_into(folder, include, libraries)
    return Built(folder, torch)


def cache() -> Path:
    """Where what was built is kept."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "nocuda"


def _key(torch: Torch, include: Path, libraries: Sequence[Path]) -> str:
    """The same for the same C files and the same libraries, by their names, sizes and times."""
    digest = hashlib.sha256()
    for path in sorted(_SOURCES.iterdir()):
        digest.update(path.read_bytes())
    for module in ("build.py", "symbols.py"):
        digest.update((Path(__file__).parent / module).read_bytes())
    for path in (*libraries, include / "cuda.h"):
        state = path.stat()
        digest.update(f"{path} {state.st_size} {state.st_mtime_ns}\n".encode())
    return f"{torch.version}-{digest.hexdigest()[:16]}"


def _build_into(folder: Path, include: Path, libraries: Sequence[Path]) -> None:
    """Built beside it and renamed, so that nobody sees half of it and a process that has it mapped keeps it."""
    compiler = tool("cc", "gcc", "clang")
    folder.parent.mkdir(parents=True, exist_ok=True)
    made = Path(tempfile.mkdtemp(prefix=".building-", dir=folder.parent))
    try:
        usual = ["-O2", "-g", "-fPIC", "-std=gnu11", "-Wall", "-Wno-unused-parameter", f"-I{_SOURCES}", f"-I{include}"]

        def compiled(source: Path) -> Path:
            _compile(compiler, *usual, "-c", str(source), "-o", str(made / f"{source.stem}.o"))
            return made / f"{source.stem}.o"

        with ThreadPoolExecutor() as pool:
            objects = list(pool.map(compiled, sorted(_SOURCES.glob("*.c"))))
        generated = made / "stubs.c"
        generated.write_text(stubs(wanted_by(libraries) - defined_in(objects)))
        objects.append(compiled(generated))
        library = made / "libnocuda.so"
        linked = [str(one) for one in objects]
        _compile(compiler, "-shared", "-o", str(library), "-Wl,-soname,libnocuda.so", *linked, "-ldl", "-lpthread")
        for name in sorted(sonames(libraries)):
            link = ["-Wl,--no-as-needed", f"-L{made}", "-lnocuda", "-Wl,-rpath,$ORIGIN", "-Wl,--disable-new-dtags"]
            if name.startswith("libcudart."):  # what nvcc links asks for its version, and the loader warns without it
                (made / "version").write_text(f"{name} {{ }};\n")
                link.append(f"-Wl,--version-script={made / 'version'}")
            _compile(compiler, "-shared", "-o", str(made / name), f"-Wl,-soname,{name}", *link)
        (made / "libcuda.so").symlink_to("libcuda.so.1")  # what triton's launchers are linked with
        for leftover in (*objects, generated, made / "version"):
            leftover.unlink(missing_ok=True)
        if folder.exists():
            folder.rename(made.with_name(f"{made.name}-old"))
        made.rename(folder)
        shutil.rmtree(made.with_name(f"{made.name}-old"), ignore_errors=True)
    finally:
        shutil.rmtree(made, ignore_errors=True)


def _compile(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise NocudaError(
            f"the library cannot be built ({shlex.join(command[:1])}):\n{done.stderr.strip()}",
            "report it with the versions of torch, triton and the compiler",
        )
