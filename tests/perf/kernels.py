"""The lab's Triton kernels in the configurations that they are shipped in, for `perflab kernels` and its cases.

A launch is data (`perflab.lab.launch.Launch`): here it is made of tensors on `meta`, and compiled instead of run.
"""

from __future__ import annotations

from perflab import ARCHITECTURES, KernelExample
from perflab.lab.attention.examples import launches as attention_launches
from perflab.lab.experts.examples import launches as expert_launches
from perflab.lab.kernels.examples import launches as fused_launches
from perflab.lab.launch import Launch
from perflab.lab.recurrence.examples import launches as recurrence_launches


def examples(arch: int | str) -> list[KernelExample]:
    """All that are shipped, as they would be launched on a GPU of that architecture."""
    limit = ARCHITECTURES[arch].shared_limit_bytes
    attention = attention_launches(limit, arch if isinstance(arch, int) else 0)
    launches = attention | fused_launches(limit) | expert_launches(limit) | recurrence_launches(limit)
    return [example_of(name, launch) for name, launch in launches.items()]


def example_of(name: str, launch: Launch) -> KernelExample:
    """A launch as an example of it."""
    return KernelExample(
        name=name,
        kernel=launch.kernel,
        arguments=launch.arguments,
        num_warps=launch.num_warps,
        num_stages=launch.num_stages,
        options={"enable_fp_fusion": True},  # as Launch has it
    )
