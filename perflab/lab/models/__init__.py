"""Transformer language models in five published sizes, or the reader's own, and what a pass costs.

config.py       the dimensions and switches of a model, checked, and the parameters they come to
sizes.py        the named sizes
mixers.py       what mixes tokens and what feeds them forward, by name; how a mixer of the reader's own joins
block.py        what another mixer than attention is made of, found without memory
transformer.py  the model, top to bottom
recompute.py    activation checkpointing: what of a block is kept for backward
checkpoint.py   weights on disk, with the architecture that they are weights of
build.py        from a name, or `package.module:factory`, to a model on a device
cost.py         parameters, floating-point operations and peak memory of a pass, before building anything
memory.py       where that peak comes from: the pass on fake tensors, and the storages alive at each instant
remembered.py   traces on disk, so that each is made once
"""

from perflab.lab.models.build import build_model, is_size, size_config
from perflab.lab.models.checkpoint import load_checkpoint, save_checkpoint
from perflab.lab.models.config import ModelConfig, architecture, parameter_count
from perflab.lab.models.cost import ModelCost, model_cost
from perflab.lab.models.mixers import MIXERS, register_mixer
from perflab.lab.models.recompute import CHECKPOINTING
from perflab.lab.models.sizes import MODEL_SIZES
from perflab.lab.models.transformer import TransformerLM

__all__ = [
    "CHECKPOINTING",
    "MIXERS",
    "MODEL_SIZES",
    "ModelConfig",
    "ModelCost",
    "TransformerLM",
    "architecture",
    "build_model",
    "is_size",
    "load_checkpoint",
    "model_cost",
    "parameter_count",
    "register_mixer",
    "save_checkpoint",
    "size_config",
]
