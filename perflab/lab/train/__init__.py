"""Training a language model: a batch, its loss, and one step in three phases.

tokens.py  random token batches from a seed
loss.py    next-token cross-entropy
step.py    forward, backward and optimizer, each callable apart
"""

from perflab.lab.train.loss import cross_entropy_loss
from perflab.lab.train.step import TrainingStep
from perflab.lab.train.tokens import random_tokens

__all__ = ["TrainingStep", "cross_entropy_loss", "random_tokens"]
