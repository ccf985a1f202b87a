"""What a block is for, where its file does not say: deduced from who gave it, who took it, and when. Pure."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from perflab.snapshots.analysis import CATEGORIES
from perflab.snapshots.model import UNKNOWN, Block, Stack, Stage
from perflab.snapshots.stacks import Thread, root_of

MOST_FOREIGN = 12
"""Names of a file's own that are told apart."""
OTHERS = "others"
"""What bears one of the later names."""
_OPTIMIZER = re.compile(r"(?:^|/)torch/optim/\w+\.py$")
_STATE_MAKERS = ("_init_group", "init_state", "_init_state")
_MODULES = re.compile(r"(?:^|/)torch/nn/(?:modules/\w+|parameter)\.py$")
_PARAMETER_MAKERS = ("_apply", "convert", "to_empty", "<lambda>", "__init__", "reset_parameters", "__new__")
_SEED = "_make_grads"
"""Makes the gradient that a backward begins with, which is let go when it has returned."""
_BACKWARD = ("_engine_run_backward", "run_backward")
_ENGINE = "torch::autograd::Engine"
_NODE = re.compile(r"(?:^|/)torch/autograd/function\.py$")
"""Its ``apply`` begins the stack of a custom function's backward in a thread of autograd's; a forward's is called."""
_WORKSPACE = ("getCurrentCUDABlasHandle", "getCUDABlasLtWorkspace", "cublasCreate", "getCUDABlasLtHandle")


@dataclass(frozen=True)
class Facts:
    """What a stack tells of a block that it gave or took."""

    is_known: bool
    """There is one."""
    is_placed: bool
    """Whether it was within a backward is known, by the stack or by a mark."""
    is_workspace: bool
    is_optimizer: bool
    is_state: bool
    is_backward: bool
    is_seed: bool
    root: Thread | None
    """Where its thread begins."""
    makes_parameters: bool


def facts_of(stack: Stack) -> Facts:
    """What is to be seen in a stack, Python's frames or C++'s."""
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
    """What a block is for, as far as it follows from who gave it and who took it.

    What a forward made and a backward let go was kept for it: ``activations``. What a backward made and left is
    ``gradients``. What was made and let go on the same side is ``temporaries``. The rest is not known.
    """
    if given.is_workspace:
        return "workspace"
    if given.is_state:
        return "optimizer state"
    if given.is_seed:
        return "temporaries"
    if given.is_optimizer and not given.is_backward:  # a closure's backward is one of its own
        # What a step leaves is kept for later ones: SGD's momentum, and all of an optimizer that is the user's own.
        is_kept = not is_freed or (taken.is_known and not taken.is_optimizer and not taken.is_backward)
        return "optimizer state" if is_kept else "temporaries"
    if given.is_backward:
        if is_freed and taken.is_backward:
            return "temporaries"
        if is_freed and not taken.is_placed:
            return UNKNOWN
        # Of a marked backward without a stack, what is never let go may also be what a library keeps for itself.
        return "gradients" if given.is_known or is_freed else UNKNOWN
    if not given.is_known:
        return UNKNOWN
    if taken.is_backward:
        return "activations"
    if is_freed:
        return "temporaries" if taken.is_placed else UNKNOWN
    return "parameters" if given.makes_parameters else UNKNOWN


def deduced(blocks: Sequence[Block], stages: Sequence[Stage]) -> Iterator[Block]:
    """Blocks with the category that follows from stacks, and from marked backwards.

    CUDA's backwards run in threads of autograd's, where no stack is, or one that begins where none begins outside of
    backwards: in a custom function, a hook, a checkpoint that computes again. Blocks that have a category keep it.
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
    """Whether a mark is of a backward alone."""
    return "backward" in mark.lower() and "forward" not in mark.lower()


def without_stacks_of_frees(blocks: Sequence[Block]) -> list[Block] | None:
    """Blocks without who let them go, where the recorder did not keep that; None where it did, or had nothing to keep.

    With ``context="alloc"`` PyTorch writes with each free the stack of the block's own allocation, so that of a block
    which was there before is known.
    """
    both = [block for block in blocks if block.stack and block.freed_by]
    if not both or any(block.stack != block.freed_by for block in both):
        return None
    return [block._replace(stack=block.stack or block.freed_by, freed_by=()) for block in blocks]


def as_told(blocks: Sequence[Block]) -> list[Block]:
    """Blocks with the categories of their file; a file may have as many as it has blocks, and few can be shown."""
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
