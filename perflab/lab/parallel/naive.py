"""One all-reduce a parameter, one after the other, after the backward pass.

The plainest exchange, and the slowest: as many messages as parameters, each with the latency of the network, and
nothing computes meanwhile.
"""

from torch import distributed

from perflab.lab.parallel.exchange import Exchange, gradient_of, joined, write_back


class NaiveExchange(Exchange):
    """Sums each gradient over the processes, and divides it by their number."""

    def average(self) -> None:
        """Replace each gradient by its mean over the processes."""
        for parameter in self.parameters:
            gradient = [gradient_of(parameter)]
            buffer = joined(gradient)
            distributed.all_reduce(buffer)
            buffer /= self.world_size
            write_back(buffer, gradient)
