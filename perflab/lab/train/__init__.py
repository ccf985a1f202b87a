"""Training a language model: a batch, its loss, one step in three phases, and a run of many on real text.

tokens.py  random token batches from a seed
text.py    real text: the standard library's sources as memory-mapped bytes
loader.py  batches of it, each a function of its number, copied ahead on CUDA
loss.py    next-token cross-entropy
step.py    forward, backward and optimizer, each callable apart
run.py     many steps, and the loss on text that was held out
"""

from perflab.lab.train.loader import TextLoader
from perflab.lab.train.loss import cross_entropy_loss
from perflab.lab.train.run import TrainingRun, evaluate, train
from perflab.lab.train.step import TrainingStep
from perflab.lab.train.text import TextDataset, standard_library_text, unigram_entropy
from perflab.lab.train.tokens import random_tokens

__all__ = [
    "TextDataset",
    "TextLoader",
    "TrainingRun",
    "TrainingStep",
    "cross_entropy_loss",
    "evaluate",
    "random_tokens",
    "standard_library_text",
    "train",
    "unigram_entropy",
]
