"""The parts of a block with another mixer than attention: found by building its mixer without memory.

B batch, T sequence, d model width, L layers.

    parameters, matrices     the mixer's, added up
    state                    bytes that it keeps of one sequence, of `initial_state(1)`
    operations               of the matrix products of one `forward` over (1, T, d) in the chunked form, by PyTorch's
                             counter: products alone, as everywhere (`cost.py`); scans and FFTs are none

So a mixer needs no equation of its own here. Each is found once for a configuration, in milliseconds, and remembered.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.flop_counter import FlopCounterMode

from perflab.lab.models.config import ModelConfig
from perflab.lab.models.mixers import empty_state, kind_of, make_mixer

COUNTED_FORM = "chunked"
"""The form in which a mixer's operations are counted, whatever form runs: token by token would take minutes."""


@lru_cache(maxsize=64)
def mixer_parameter_count(config: ModelConfig) -> int:
    """Trainable parameters of one block's mixer."""
    return sum(parameter.numel() for parameter in _mixer(config).parameters())


@lru_cache(maxsize=64)
def mixer_matrices(config: ModelConfig) -> tuple[tuple[int, int], ...]:
    """Inputs and outputs of each linear layer of one block's mixer."""
    return tuple((m.in_features, m.out_features) for m in _mixer(config).modules() if isinstance(m, nn.Linear))


@lru_cache(maxsize=64)
def state_bytes(config: ModelConfig, dtype: torch.dtype) -> int:
    """Bytes of the states of all layers for one sequence, whatever its length."""
    state = empty_state(config, 1, torch.device("meta"), dtype)
    return sum(config.num_layers * tensor.nbytes for tensor in state)


@lru_cache(maxsize=256)
def mixer_flops(config: ModelConfig, seq_len: int) -> int:
    """Operations of one block's mixer over one sequence of T tokens."""
    kind = kind_of(config)
    form = COUNTED_FORM if COUNTED_FORM in kind.forms else kind.forms[0]
    # Fake tensors of a CPU, and not `meta`, which is a device that autocast does not know: some mixers switch that off.
    with FakeTensorMode(), FlopCounterMode(display=False) as counter, torch.no_grad():
        mixer = make_mixer(replace(config, mixer_form=form))
        mixer(torch.empty(1, seq_len, config.d_model))
    return int(counter.get_total_flops())


def _mixer(config: ModelConfig) -> nn.Module:
    with torch.device("meta"):
        return make_mixer(config)
