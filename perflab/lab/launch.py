"""One launch of a Triton kernel as data, and where kernels can run at all.

What is launched on a GPU and what is compiled ahead of time without one come from the same function that makes the
`Launch`: with tensors on a GPU it is called, with tensors on `meta` its kernel and arguments go to the compiler.

This module imports Triton. On CPU tensors kernels run only in Triton's interpreter, which Triton chooses when it
is imported: set TRITON_INTERPRET=1 before that.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.runtime.jit import JITFunction

# One block's limit (CUDA C++ Programming Guide, "Compute Capabilities"): what a multiprocessor has, less 1 KiB
# that the system keeps: 228 KiB on an H100, H200 or B200, 164 on an A100.
SHARED_BYTES = {80: 163 * 1024, 90: 227 * 1024, 100: 227 * 1024}
"""The largest shared memory of one program in bytes, by compute capability (90: Hopper)."""


@dataclass(frozen=True, slots=True)
class Launch:
    """A kernel with all that one call of it is given.

    kernel      what `triton.jit` made
    grid        programs along each axis
    arguments   by parameter name, compile-time constants included
    device      whose tensors these are
    """

    kernel: Any
    grid: tuple[int, ...]
    arguments: Mapping[str, Any]
    device: torch.device
    num_warps: int = 4
    num_stages: int = 3

    def __call__(self) -> None:
        """Run it, on the tensors' own device: Triton launches on the current one."""
        with current(self.device):
            self.kernel[self.grid](
                **self.arguments,
                num_warps=self.num_warps,
                num_stages=self.num_stages,
                enable_fp_fusion=True,  # the default up to Triton 3.9, which warns that 3.10 changes it
            )

    def prepared(self, tensors: Sequence[Tensor]) -> Callable[[Sequence[Tensor]], None]:
        """Compile, and return a function that launches on other tensors in place of these, which it does not keep.

        The others have the same dtypes, shapes, strides and alignment to 16 bytes: Triton's search for the compiled
        kernel, most of what a launch costs on the host, is not made again. Each of `tensors` is another object.
        """
        options = {"num_warps": self.num_warps, "num_stages": self.num_stages, "enable_fp_fusion": True}
        if is_interpreted():
            run = partial(self.kernel[self.grid], **options)
        else:
            with current(self.device):  # Triton compiles for it, and loads the code there
                run = self.kernel.warmup(**self.arguments, grid=self.grid, **options)[(*self.grid, 1, 1)[:3]]
        values = [self.arguments[name] for name in self.kernel.arg_names]
        given = {id(tensor): i for i, tensor in enumerate(tensors)}
        places = [(place, given[id(x)]) for place, x in enumerate(values) if isinstance(x, Tensor)]
        for place, _ in places:
            values[place] = None
        device = self.device

        def launch(tensors: Sequence[Tensor]) -> None:
            arguments = values.copy()
            for place, i in places:
                arguments[place] = tensors[i]
            with current(device):
                run(*arguments)

        return launch


# Launches by what they depend on: to build one and find its compiled kernel takes as long as ten bare launches.
_prepared: dict[tuple[Any, ...], Callable[[Sequence[Tensor]], None]] = {}
_MOST_PREPARED = 4096


def run_prepared(make_launch: Callable[..., Launch], *arguments: Any) -> None:
    """Run `make_launch(*arguments)()`, which is prepared once for all tensors of the same layouts.

    `make_launch` gives the kernel the tensors themselves, no views of them; they are on one device. Arguments that are
    no tensors have a hash, and those that are equal make equal launches.
    """
    tensors = [x for x in arguments if isinstance(x, Tensor)]
    layouts = [
        (x.dtype, x.shape, x.stride(), x.data_ptr() % 16 == 0) if isinstance(x, Tensor) else x for x in arguments
    ]
    call = (make_launch, tensors[0].device, *layouts)
    launch = _prepared.get(call)
    if launch is None:
        own = [x.detach() if isinstance(x, Tensor) else x for x in arguments]  # apart, where one was given twice
        launch = make_launch(*own).prepared([x for x in own if isinstance(x, Tensor)])
        if len(_prepared) >= _MOST_PREPARED:
            _prepared.clear()
        if not is_interpreted():  # which compiles nothing: to keep a launch would save next to nothing
            _prepared[call] = launch
    launch(tensors)


def current(device: torch.device) -> AbstractContextManager[object]:
    """Make a GPU the current one; what is no GPU needs nothing."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


def is_interpreted() -> bool:
    """Whether kernels run in Triton's interpreter."""
    return not isinstance(_probe_kernel, JITFunction)


def emulates_bf16(dtype: torch.dtype) -> bool:
    """Whether kernels must do bfloat16 by hand: in Triton's interpreter. See `perflab.lab.attention.triton_pieces`."""
    return dtype == torch.bfloat16 and is_interpreted()


@cache  # asked for at every launch
def shared_memory_bytes(device: torch.device) -> int:
    """The most shared memory that one program can have there; where there is no GPU, an H100's."""
    if device.type != "cuda":
        return SHARED_BYTES[90]
    properties = triton.runtime.driver.active.utils.get_device_properties(device.index or 0)
    return int(properties["max_shared_mem"])


def architecture_of(device: torch.device) -> int:
    """The compute capability of NVIDIA's GPU (90: Hopper); 0 for another maker's; where there is none, an H100's."""
    if device.type != "cuda":
        return 90
    if torch.version.hip is not None:
        return 0
    major, minor = torch.cuda.get_device_capability(device)
    return 10 * major + minor


def require_runnable(device: torch.device, *, name: str, instead: str) -> None:
    """RuntimeError where neither the device nor Triton's interpreter can run a kernel.

    `name` is what was asked for ("attention impl 'triton'"), `instead` what does the same without Triton.
    """
    if is_interpreted():
        # Triton's own library was decorated when Triton was imported: with the variable set only
        # between that import and ours, half of the code would be compiled and half interpreted.
        if isinstance(tl.softmax, JITFunction):
            raise RuntimeError(
                "TRITON_INTERPRET was set after Triton had been imported, so its interpreter cannot run; "
                "set TRITON_INTERPRET=1 in the environment before the process starts"
            )
    elif device.type != "cuda":
        raise RuntimeError(
            f"{name} wants CUDA tensors, got tensors on {device}: move them to a GPU, set "
            f"TRITON_INTERPRET=1 before Triton is imported (slow, for checking), or choose {instead}"
        )


@triton.jit  # type: ignore[untyped-decorator]
def _probe_kernel() -> None:
    """Never launched: what `triton.jit` made of it says whether kernels are compiled or interpreted."""
