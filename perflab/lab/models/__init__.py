"""Transformer language models in five published sizes, or the reader's own, and what a pass costs.

config.py       the dimensions of a model, checked, and the parameters they come to
sizes.py        the named sizes
transformer.py  the model, top to bottom
build.py        from a name, or `package.module:factory`, to a model on a device
cost.py         parameters, floating-point operations and peak memory of a pass, before building anything
memory.py       where that peak comes from: the tensors alive at each instant that can hold it
"""

from perflab.lab.models.build import build_model, size_config
from perflab.lab.models.config import ModelConfig, parameter_count
from perflab.lab.models.cost import ModelCost, model_cost
from perflab.lab.models.sizes import MODEL_SIZES
from perflab.lab.models.transformer import TransformerLM

__all__ = [
    "MODEL_SIZES",
    "ModelConfig",
    "ModelCost",
    "TransformerLM",
    "build_model",
    "model_cost",
    "parameter_count",
    "size_config",
]
