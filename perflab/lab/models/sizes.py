"""The named sizes: five in the ladder of GPT-2 and GPT-3 widths, `tiny` for tests, and `70B` to predict.

Dimensions of the five are those of the published measurements that our numbers stand beside. At
`vocab_size=10_000` they have

    tiny         1,411,392        small     128,625,408        medium     423,183,360
    large      969,411,840        xl      1,998,235,200        2.7B     3,406,809,600
    70B     68,616,200,192

trainable parameters. `70B` has the dimensions of Llama 2 70B (Touvron et al. 2023, table 1 and section 2.2) with this
vocabulary. The feed-forward width stays at four times the model's although SwiGLU has three
matrices where GPT's layer has two, hence "2.7B" holds 3.4 thousand million.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from perflab.lab.models.config import ModelConfig

MODEL_SIZES: Mapping[str, ModelConfig] = MappingProxyType(
    {
        "tiny": ModelConfig(d_model=64, d_ff=256, num_layers=2, num_heads=4),
        "small": ModelConfig(d_model=768, d_ff=3072, num_layers=12, num_heads=12),
        "medium": ModelConfig(d_model=1024, d_ff=4096, num_layers=24, num_heads=16),
        "large": ModelConfig(d_model=1280, d_ff=5120, num_layers=36, num_heads=20),
        "xl": ModelConfig(d_model=1600, d_ff=6400, num_layers=48, num_heads=25),
        "2.7B": ModelConfig(d_model=2560, d_ff=10_240, num_layers=32, num_heads=32),
        "70B": ModelConfig(d_model=8192, d_ff=28_672, num_layers=80, num_heads=64, num_kv_heads=8),
    }
)
"""Name to configuration, smallest first; `dataclasses.replace` changes the vocabulary, context and so on."""
