"""Errors with remedies."""

from __future__ import annotations


class NocudaError(Exception):
    """This machine, or its PyTorch, cannot run CUDA's host side without a GPU.

    Args:
        problem: what is in the way, in one sentence.
        remedy: what to do, in the imperative.
    """

    def __init__(self, problem: str, remedy: str) -> None:
        super().__init__(f"{problem}\n  -> {remedy}")
        self.problem = problem
        self.remedy = remedy
