"""Data-parallel training: each process trains on its own shard of the batch, and all agree on the gradient.

W processes, n_r tokens in process r, g_r the gradient of its mean loss over them:

    gradient = sum over r of n_r g_r / sum over r of n_r      of the mean loss over all tokens

Each process scales its loss by n_r W / sum n, and every exchange below but `tensor` makes the mean over the processes
of what is in `parameter.grad`. With equal numbers of tokens the scale is 1, whatever forgets it.

exchange.py    what all exchanges have in common: equal weights at the start, the scale, parameters that nobody used
naive.py       one all-reduce a parameter, after the backward pass
flat.py        one all-reduce of all gradients, copied into one buffer
bucketed.py    all-reduces of buckets while the backward pass still runs; of single parameters with a size of 0
ddp.py         PyTorch's DistributedDataParallel, which does the same in C++
zero3.py       parameters, gradients and optimizer state in shards: a block's are gathered while it is at work
fsdp2.py       PyTorch's fully_shard, which does the same; and keeps what it has gathered (ZeRO stage 2)
tensor.py      the feed-forward's units shared out, of one batch that all have: activations are exchanged instead
sharding.py    optimizer state in one process only: each updates its share of the parameters, and sends them to all

A step takes them from its configuration: `TrainingConfig(exchange="bucketed", bucket_mb=25, shard_optimizer=True)`.
"""

from perflab.lab.parallel.exchange import EXCHANGES, Exchange, make_exchange
from perflab.lab.parallel.sharding import ShardedUpdate

__all__ = ["EXCHANGES", "Exchange", "ShardedUpdate", "make_exchange"]
