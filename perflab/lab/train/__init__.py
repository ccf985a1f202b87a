"""Training a language model: a batch, its loss, and one step in three phases.

tokens.py     random token batches from a seed
loss.py       next-token cross-entropy
config.py     the switches of a step, frozen and checked
precision.py  fp32, tf32, fp16, bf16, pure-bf16: dtypes of weights and products
schedule.py   learning rate: warm-up, then half a cosine
compiled.py   the model, or its attention, under torch.compile
skipping.py   steps that are not taken, since something was not finite
step.py       forward, backward and optimizer, each callable apart
"""

from perflab.lab.train.config import TrainingConfig
from perflab.lab.train.loss import cross_entropy_loss
from perflab.lab.train.precision import PRECISIONS, Precision
from perflab.lab.train.schedule import learning_rate_at
from perflab.lab.train.step import TrainingStep
from perflab.lab.train.tokens import random_tokens

__all__ = [
    "PRECISIONS",
    "Precision",
    "TrainingConfig",
    "TrainingStep",
    "cross_entropy_loss",
    "learning_rate_at",
    "random_tokens",
]
