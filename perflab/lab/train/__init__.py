"""Training a language model: a batch, its loss, one step in three phases, and a run of many on real text.

tokens.py     random token batches from a seed
text.py       real text: the standard library's sources as memory-mapped bytes
loader.py     batches of it, each a function of its number, copied ahead on CUDA
loss.py       next-token cross-entropy
config.py     the switches of a step, as one frozen configuration
precision.py  what weights are kept in, what products work in
schedule.py   the learning rate of every step
skipping.py   steps that must not count: found without the host waiting for the device
compiled.py   what torch.compile is given of a model
step.py       forward, backward and optimizer, each callable apart
run.py        many steps, and the loss on text that was held out
"""

from perflab.lab.train.config import TrainingConfig
from perflab.lab.train.loader import TextLoader
from perflab.lab.train.loss import cross_entropy_loss
from perflab.lab.train.precision import PRECISIONS, Precision
from perflab.lab.train.run import TrainingRun, evaluate, train
from perflab.lab.train.schedule import learning_rate_at
from perflab.lab.train.step import TrainingStep
from perflab.lab.train.text import TextDataset, standard_library_text, unigram_entropy
from perflab.lab.train.tokens import random_tokens

__all__ = [
    "PRECISIONS",
    "Precision",
    "TextDataset",
    "TextLoader",
    "TrainingConfig",
    "TrainingRun",
    "TrainingStep",
    "cross_entropy_loss",
    "evaluate",
    "learning_rate_at",
    "random_tokens",
    "standard_library_text",
    "train",
    "unigram_entropy",
]
