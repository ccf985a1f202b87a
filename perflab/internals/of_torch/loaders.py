"""The iterators of ``DataLoader`` with workers: which batches they hold, and which calls draw from them.

The order in which several workers' batches arrive is up to the operating system's scheduler. A batch that arrives out
of turn is kept until it is wanted. The class of these iterators is private; ``DataLoader`` does not tell of them.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from perflab.base.errors import InternalsError
from perflab.internals.of_torch.patched import Private, attributes_replaced

_NEXT = Private("torch.utils.data.dataloader", "_BaseDataLoaderIter.__next__", "see which calls draw batches")


def batches_out_of_turn(value: Any) -> tuple[Any, ...]:
    """Return the container of an iterator's batches that came out of turn; nothing for any other value.

    Nothing is returned either where a version of PyTorch keeps them elsewhere.
    """
    kind = getattr(sys.modules.get("torch.utils.data.dataloader"), "_BaseDataLoaderIter", None)
    is_iterator = kind is not None and issubclass(type(value), kind)
    return (value._task_info,) if is_iterator and hasattr(value, "_task_info") else ()


@contextmanager
def workers_noted() -> Iterator[set[int]]:
    """Collect the numbers of workers of all loaders that yield a batch in the block.

    Nothing is collected where a version of PyTorch has no such iterators.
    """
    workers = set[int]()
    try:
        owner, name = _NEXT.target()
    except InternalsError:
        yield workers
        return
    draw = getattr(owner, name)

    def noted(iterator: Any) -> Any:
        __tracebackhide__ = True
        workers.add(iterator._num_workers)
        return draw(iterator)

    with attributes_replaced([(owner, name, noted)]):
        yield workers
