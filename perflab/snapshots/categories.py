"""Deduces the category of each block from the call stacks and times of its allocation and free. Pure.

The categories are deduced only for files that have none.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from perflab.results.peak import CATEGORIES, UNKNOWN
from perflab.snapshots.analysis import Thread, root_of
from perflab.snapshots.model import Block, Stack, Stage

MOST_FOREIGN = 12
"""The most categories of a file's own that keep their names."""
OTHERS = "others"
"""The category of blocks whose own category comes after the first ``MOST_FOREIGN`` of the file."""
_OPTIMIZER = re.compile(r"(?:^|/)torch/optim/\w+\.py$")
_STATE_MAKERS = ("_init_group", "init_state", "_init_state")
_MODULES = re.compile(r"(?:^|/)torch/nn/(?:modules/\w+|parameter)\.py$")
_PARAMETER_MAKERS = ("_apply", "convert", "to_empty", "<lambda>", "__init__", "reset_parameters", "__new__")
_SEED = "_make_grads"
"""The function that makes the initial gradient of a backward, which is freed when the backward has returned."""
_BACKWARD = ("_engine_run_backward", "run_backward")
_ENGINE = "torch::autograd::Engine"
_NODE = re.compile(r"(?:^|/)torch/autograd/function\.py$")
"""The file whose ``apply`` is the outermost call of a custom function's backward in a thread of autograd's; in a
forward, ``apply`` is called by other Python code."""
_WORKSPACE = ("getCurrentCUDABlasHandle", "getCUDABlasLtWorkspace", "cublasCreate", "getCUDABlasLtHandle")


@dataclass(frozen=True)
class Facts:
    """Facts about the allocation or the free of a block, read from the call stack."""

    is_known: bool
    """Whether a call stack was recorded."""
    is_placed: bool
    """Whether the stack or a mark tells if the call was within a backward."""
    is_workspace: bool
    is_optimizer: bool
    is_state: bool
    is_backward: bool
    is_seed: bool
    root: Thread | None
    """File and function with which the thread begins; None if the stack has no call of Python."""
    makes_parameters: bool


def facts_of(stack: Stack) -> Facts:
    """Return the facts that a call stack of Python or C++ frames shows."""
    optimizer = [frame.function for frame in stack if _OPTIMIZER.search(frame.file)]
    innermost = next((frame for frame in stack if frame.file.endswith(".py")), None)
    root = root_of(stack)
    is_node = root is not None and root[1] == "apply" and _NODE.search(root[0]) is not None
    return Facts(
        is_known=bool(stack),
        is_placed=bool(stack),
        is_workspace=any(maker in frame.function for frame in stack for maker in _WORKSPACE),
        is_optimizer=bool(optimizer),
        is_state=any(name in _STATE_MAKERS for name in optimizer),
        is_backward=is_node or any(frame.function in _BACKWARD or _ENGINE in frame.function for frame in stack),
        is_seed=any(frame.function == _SEED for frame in stack),
        root=root,
        makes_parameters=innermost is not None
        and _MODULES.search(innermost.file) is not None
        and innermost.function in _PARAMETER_MAKERS,
    )


def deduced_category(given: Facts, taken: Facts, *, is_freed: bool) -> str:
    """Deduce the category of a block from the facts about its allocation (``given``) and its free (``taken``).

    A block that a forward made and a backward freed was kept for the backward: ``activations``. A block that a backward
    made and left is ``gradients``. A block that was made and freed on the same side is ``temporaries``. Workspaces,
    optimizer state and parameters are recognised by functions in the stack of the allocation. Other blocks are
    ``unknown``.
    """
    if given.is_workspace:
        return "workspace"
    if given.is_state:
        return "optimizer state"
    if given.is_seed:
        return "temporaries"
    if given.is_optimizer and not given.is_backward:  # a backward in an optimizer's closure counts as a backward
        # A block that a step leaves is kept for later steps: SGD's momentum, and all state of a user's own optimizer.
        is_kept = not is_freed or (taken.is_known and not taken.is_optimizer and not taken.is_backward)
        return "optimizer state" if is_kept else "temporaries"
    if given.is_backward:
        if is_freed and taken.is_backward:
            return "temporaries"
        if is_freed and not taken.is_placed:
            return UNKNOWN
        # Without a stack, a block of a marked backward that is never freed may also be one that a library keeps.
        return "gradients" if given.is_known or is_freed else UNKNOWN
    if not given.is_known:
        return UNKNOWN
    if taken.is_backward:
        return "activations"
    if is_freed:
        return "temporaries" if taken.is_placed else UNKNOWN
    return "parameters" if given.makes_parameters else UNKNOWN


def deduced(blocks: Sequence[Block], stages: Sequence[Stage]) -> Iterator[Block]:
    """Yield the blocks with categories deduced from call stacks and marked backwards.

    On CUDA, a backward runs in autograd's own threads. Allocations there have no stack, or a stack whose outermost call
    begins no stack outside of backwards: a custom function, a hook, or the recomputation of a checkpoint. Blocks that
    have a category keep it.
    """
    backward = [stage for stage in stages if _is_of_backward(stage.name)]
    starts = [stage.start for stage in backward]
    facts: dict[int, Facts] = {}

    def of_stack(stack: Stack) -> Facts:
        found = facts.get(id(stack))
        if found is None:
            found = facts[id(stack)] = facts_of(stack)
        return found

    def is_within(moment: int) -> bool:
        number = bisect_left(starts, moment) - 1
        return number >= 0 and moment <= backward[number].end

    other_threads = {
        of_stack(block.stack).root
        for block in (blocks if backward else ())
        if block.stack and (block.phase or not is_within(block.allocated_at))
    }

    def seen(stack: Stack, moment: int | None) -> Facts:
        found = of_stack(stack)
        if not moment or not backward or found.is_backward or found.is_optimizer:
            return found
        if stack and (found.root in other_threads or not is_within(moment)):
            return found
        return replace(found, is_placed=True, is_backward=is_within(moment))

    for block in blocks:
        if block.category:
            yield block
            continue
        given, taken = seen(block.stack, block.allocated_at), seen(block.freed_by, block.freed_at)
        yield block._replace(category=deduced_category(given, taken, is_freed=block.freed_at is not None))


def _is_of_backward(mark: str) -> bool:
    """Whether a mark's name contains ``backward``, in any case, and does not contain ``forward``."""
    return "backward" in mark.lower() and "forward" not in mark.lower()


def without_stacks_of_frees(blocks: Sequence[Block]) -> list[Block] | None:
    """Return the blocks without the stacks of frees, if the recorder did not keep these stacks.

    None: the recorder kept the stacks of frees, or no block has a stack for both its allocation and its free.

    With ``context="alloc"`` PyTorch writes the stack of the block's own allocation with each free. So the stack of the
    allocation is known even for a block that was alive before the recording.
    """
    both = [block for block in blocks if block.stack and block.freed_by]
    if not both or any(block.stack != block.freed_by for block in both):
        return None
    return [block._replace(stack=block.stack or block.freed_by, freed_by=()) for block in blocks]


def as_told(blocks: Sequence[Block]) -> list[Block]:
    """Return the blocks with the categories of their file, of which few can be shown: later ones become ``OTHERS``.

    A block without a category gets ``unknown``. A file may have as many categories as blocks.
    """
    foreign: set[str] = set()
    told = []
    for block in blocks:
        name = block.category or UNKNOWN
        if name not in CATEGORIES and name not in foreign:
            if len(foreign) < MOST_FOREIGN:
                foreign.add(name)
            else:
                name = OTHERS
        told.append(block if name == block.category else block._replace(category=name))
    return told
