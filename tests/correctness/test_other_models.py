"""A model that is not the lab's generates through the lab's protocol: caches, schedules and speculation included.

B batch, T sequence, V vocabulary, d model width, H heads, D = d / H head dimension.

    x = E[tokens] + P[positions]                                (B, T, d)
    num_layers times:
        q, k, v = W_qkv LayerNorm(x) + b                        one matrix for all three, unlike the lab's
        x = x + W_o Attention(q, k, v) + b
        x = x + W_down gelu_tanh(W_up LayerNorm(x) + b) + b
    logits = E LayerNorm(x)                                     (B, T, V)

GPT-2 (Radford et al. 2019), with its biases and its approximate GELU.
"""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from perflab.lab.inference.generate import generate
from perflab.lab.inference.paged_cache import PagePool
from perflab.lab.inference.scheduler import Request, Scheduler
from perflab.lab.inference.speculative import generate_speculatively
from perflab.lab.models import ModelConfig
from perflab.lab.models.transformer import Cache
from tests.correctness.inference import PROMPTS, cache_of

pytestmark = pytest.mark.correctness

CONFIG = ModelConfig(vocab_size=61, context_length=80, d_model=32, d_ff=128, num_layers=3, num_heads=4)
NEW = 30


class Layer(nn.Module):
    """Attention and feed-forward."""

    def __init__(self, d: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList(nn.LayerNorm(d) for _ in range(2))
        self.qkv, self.out = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.up, self.down = nn.Linear(d, 4 * d), nn.Linear(4 * d, d)

    def forward(self, x: Tensor, cache: Cache | None, layer: int) -> Tensor:
        """(B, T, d) -> (B, T, d)."""
        q, k, v = self.qkv(self.norms[0](x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)  # (B, H, T, D)
        if cache is None:
            mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            mixed = cache.attend(layer, q, k, v)
        x = x + self.out(mixed.transpose(1, 2).flatten(-2))
        return x + self.down(F.gelu(self.up(self.norms[1](x)), approximate="tanh"))


class GPT2(nn.Module):
    """Tokens (B, T) to logits (B, T, V)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.tokens = nn.Embedding(config.vocab_size, config.d_model)
        self.positions = nn.Embedding(config.context_length, config.d_model)
        self.layers = nn.ModuleList(Layer(config.d_model, config.num_heads) for _ in range(config.num_layers))
        self.norm = nn.LayerNorm(config.d_model)

    def forward(self, tokens: Tensor, cache: Cache | None = None, at: Tensor | None = None) -> Tensor:
        """The protocol `LanguageModel`."""
        positions = torch.arange(tokens.shape[1]) if cache is None else cache.positions
        x = self.tokens(tokens) + self.positions(positions)
        for n, layer in enumerate(self.layers):
            x = layer(x, cache, n)
        x = x if at is None else x[torch.arange(len(x)), at][:, None]
        return F.linear(self.norm(x), self.tokens.weight)


def gpt2(seed: int = 0) -> GPT2:
    """In float64, where decoding and the full forward differ by rounding alone, and never in a greedy token."""
    torch.manual_seed(seed)
    model = GPT2(CONFIG).double().eval()
    for p in (p for p in model.parameters() if p.ndim == 2):  # larger than GPT-2 draws them: attention decides tokens
        nn.init.normal_(p, std=0.7)
    return model


@torch.no_grad()
def greedy(model: GPT2, prompt: list[int]) -> list[int]:
    """New tokens by definition: the full forward of all tokens so far, for each."""
    tokens = list(prompt)
    for _ in range(NEW):
        tokens.append(int(model(torch.tensor([tokens]))[0, -1].argmax()))
    return tokens[len(prompt) :]


@pytest.fixture(scope="module")
def wanted() -> list[list[int]]:
    found = [greedy(gpt2(), prompt) for prompt in PROMPTS]
    assert all(len(set(tokens)) > 3 for tokens in found), "tokens that repeat would hide a wrong position"
    return found


@pytest.mark.parametrize("kind", ["contiguous", "paged"])
@pytest.mark.parametrize("chunk", [None, 5])
def test_it_generates_its_full_forward_s_tokens(kind: str, chunk: int | None, wanted: list[list[int]]) -> None:
    cache = cache_of(kind, CONFIG, len(PROMPTS))
    assert generate(gpt2(), PROMPTS, max_new_tokens=NEW, cache=cache, chunk=chunk) == wanted


def test_the_cache_that_generate_makes_is_of_the_model_s_own_dtype(wanted: list[list[int]]) -> None:
    assert generate(gpt2(), PROMPTS, max_new_tokens=NEW) == wanted


def test_it_is_scheduled_and_speculates(wanted: list[list[int]]) -> None:
    scheduler = Scheduler(gpt2(), PagePool(CONFIG, num_pages=12, page_size=8, dtype=torch.float64), max_batch=2)
    numbers = [scheduler.submit(Request(prompt, NEW)) for prompt in PROMPTS]
    made = scheduler.run()
    assert [made[number] for number in numbers] == wanted
    caches = {name: cache_of("contiguous", CONFIG, len(PROMPTS)) for name in ("cache", "draft_cache")}
    assert generate_speculatively(gpt2(), gpt2(1), PROMPTS, max_new_tokens=NEW, **caches).tokens == wanted


def test_a_model_that_counts_positions_from_0_in_each_call_is_found_out(wanted: list[list[int]]) -> None:
    model = gpt2()
    model.positions.register_forward_pre_hook(lambda module, given: torch.arange(given[0].shape[-1]))
    assert generate(model, PROMPTS, max_new_tokens=NEW) != wanted
