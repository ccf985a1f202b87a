"""One all-reduce of all gradients: copied into one buffer, summed, divided, and copied back.

One message instead of many, so that the latency of the network counts once. It costs two copies and a buffer as large
as the gradients, and nothing computes while it is under way.
"""

from itertools import groupby

from torch import distributed

from perflab.lab.parallel.exchange import Exchange, gradient_of, joined, write_back


class FlatExchange(Exchange):
    """Sums all gradients of one dtype at once, in the order of the parameters."""

    def average(self) -> None:
        """Replace each gradient by its mean over the processes."""
        gradients = sorted((gradient_of(one) for one in self.parameters), key=lambda one: str(one.dtype))
        for _, alike in groupby(gradients, key=lambda one: one.dtype):
            members = list(alike)
            buffer = joined(members)
            distributed.all_reduce(buffer)
            buffer /= self.world_size
            write_back(buffer, members)
