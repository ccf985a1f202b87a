"""PyTorch's DistributedDataParallel as an exchange: buckets and hooks as in `bucketed.py`, in C++."""

from torch import nn

from perflab.lab.parallel.exchange import Exchange


class DdpExchange(Exchange):
    """Leaves the exchange to the wrapper, whose backward pass ends with averaged gradients."""

    def __init__(self, model: nn.Module, bucket_mb: float = 25.0) -> None:
        super().__init__(model, bucket_mb)
        # Models with experts, say, do not use every parameter in every step.
        self._wrapper = nn.parallel.DistributedDataParallel(
            model, bucket_cap_mb=max(1e-6, bucket_mb), find_unused_parameters=True
        )
        self.model = self._wrapper

    def begin(self, *, last: bool) -> None:
        """Let the wrapper exchange in the last pass alone, as its `no_sync()` does."""
        self._wrapper.require_backward_grad_sync = last

    def finish(self) -> None:
        """Do nothing: the backward pass has ended with averaged gradients, and None for what no process used."""
