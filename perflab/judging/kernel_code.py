"""Compares the machine code of the Triton kernels that base and head launched. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from perflab.results.measurement import KernelCode, LaunchedKernel

Launched = tuple[Sequence[LaunchedKernel], Mapping[str, int]]
"""The Triton kernels that a call launched in one process, and the counts of that call."""


def compare_code(base: Sequence[Launched], head: Sequence[Launched]) -> KernelCode | None:
    """Return which kernels have the same machine code on both sides; None if a side launched none, as far as is known.

    Code that only some processes of a side launch, as when an autotuner decides by times, is not the same.
    """
    if not all(kernels for kernels, _ in (*base, *head)) or not (base and head):
        return None
    before, now = _digests(base), _digests(head)
    both = sorted(before.keys() & now.keys())
    same = [name for name in both if before[name] == now[name] and len(now[name]) == 1]
    return KernelCode(
        same=same,
        changed=[name for name in both if name not in same],
        gone=sorted(before.keys() - now.keys()),
        new=sorted(now.keys() - before.keys()),
        is_all=all(
            counts.get("kernel_launches") == sum(one.launches for one in kernels) for kernels, counts in (*base, *head)
        ),
    )


def _digests(side: Sequence[Launched]) -> dict[str, set[frozenset[str]]]:
    """Return by kernel the digests that a process launched, one set for each different choice of processes."""
    names = {one.name for kernels, _ in side for one in kernels}
    return {
        name: {frozenset(one.digest for one in kernels if one.name == name) for kernels, _ in side} for name in names
    }
