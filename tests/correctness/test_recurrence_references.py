"""The definition, and each family's layer, against its authors' reference or the paper's equations, one by one.

fla-core is the package of the authors of gated linear attention; its references in plain PyTorch are loaded as files,
since the package itself wants a GPU. Layers of which none runs are written down from the papers here, token by token.
"""

import importlib.util
import math
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from perflab.lab.models.config import ModelConfig
from perflab.lab.recurrence import linear_recurrence
from perflab.lab.recurrence.gla import GATE_TEMPERATURE, GatedLinearAttention
from perflab.lab.recurrence.mamba2 import STATE_WIDTH, Mamba2
from perflab.lab.recurrence.retnet import RetNet, log_decays
from perflab.lab.recurrence.rwkv6 import NORM_EPS, RWKV6

pytestmark = pytest.mark.correctness

B, H, T, K, V = 2, 3, 21, 8, 5
CONFIG = ModelConfig(d_model=16, d_ff=32, num_layers=2, num_heads=2)


def reference(path: str) -> ModuleType:
    """A file of fla-core, without its package."""
    spec = importlib.util.find_spec("fla")
    assert spec is not None, "fla-core is in the extra `test`"
    assert spec.submodule_search_locations
    file = Path(spec.submodule_search_locations[0]) / path
    loaded = importlib.util.spec_from_file_location(f"reference_{file.stem}_{file.parent.name}", file)
    assert loaded is not None
    assert loaded.loader is not None
    module = importlib.util.module_from_spec(loaded)
    loaded.loader.exec_module(module)
    return module


def drawn(*shapes: tuple[int, ...]) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(shape, generator=generator) for shape in shapes]


def token_first(*tensors: Tensor) -> list[Tensor]:
    """(B, H, T, ...) as (B, T, H, ...)."""
    return [x.transpose(1, 2) for x in tensors]


def same(one: Tensor, other: Tensor) -> None:
    """Equal to float32's rounding of sums as short as these: the references compute in float32."""
    torch.testing.assert_close(one.float(), other.float(), rtol=2e-5, atol=2e-5)


def test_gated_linear_attention_is_its_authors() -> None:
    q, k, v, gate, state = drawn((B, H, T, K), (B, H, T, K), (B, H, T, V), (B, H, T, K), (B, H, K, V))
    log_decay = F.logsigmoid(gate)
    naive = reference("ops/gla/naive.py").naive_recurrent_gla
    out, last = naive(*token_first(q, k, v, log_decay), initial_state=state, output_final_state=True)
    mine = linear_recurrence(q * K**-0.5, k, v, log_decay, state=state, form="definition")
    same(mine[0], out.transpose(1, 2))
    same(mine[1], last)


def test_a_decay_a_head_is_its_authors() -> None:
    q, k, v, gate, state = drawn((B, H, T, K), (B, H, T, K), (B, H, T, V), (B, H, T), (B, H, K, V))
    log_decay = F.logsigmoid(gate)
    naive = reference("ops/simple_gla/naive.py").naive_recurrent_simple_gla
    out, last = naive(*token_first(q, k, v, log_decay), initial_state=state, output_final_state=True)
    mine = linear_recurrence(q * K**-0.5, k, v, log_decay, state=state, form="definition")
    same(mine[0], out.transpose(1, 2))
    same(mine[1], last)


def test_retention_is_the_papers_parallel_form() -> None:
    q, k, v = drawn((B, H, T, K), (B, H, T, K), (B, H, T, K))
    wanted = reference("ops/retention/naive.py").naive_retention(q, k, v)
    log_decay = log_decays(H, q.device)[:, None].expand(B, H, T)
    same(linear_recurrence(q * K**-0.5, k, v, log_decay, form="definition")[0], wanted)


def test_rwkv6_is_its_authors() -> None:
    q, k, v, w, bonus, state = drawn((B, H, T, K), (B, H, T, K), (B, H, T, V), (B, H, T, K), (H, K), (B, H, K, V))
    log_decay = -torch.exp(w)
    naive = reference("ops/rwkv6/recurrent_naive.py").naive_recurrent_rwkv6
    out, last = naive(q, k, v, log_decay, bonus, scale=1.0, initial_state=state, output_final_state=True)
    mine = linear_recurrence(q, k, v, log_decay, bonus=bonus, state=state, form="definition")
    same(mine[0], out)
    same(mine[1], last)


def test_three_tokens_by_hand() -> None:
    """K = V = 1, decays 1/2, 1/4: S = 1, 1/2 + 2 = 5/2, 5/8 + 3 = 29/8; a bonus of 10 reads 10, 1 + 20, 5/2 + 30."""
    q = k = torch.ones(1, 1, 3, 1)
    v = torch.tensor([1.0, 2.0, 3.0]).view(1, 1, 3, 1)
    log_decay = torch.tensor([0.5, 0.5, 0.25]).log().view(1, 1, 3, 1)
    out, last = linear_recurrence(q, k, v, log_decay, form="definition")
    assert out.flatten().tolist() == [1.0, 2.5, 3.625]
    assert last.item() == 3.625
    out, last = linear_recurrence(q, k, v, log_decay, bonus=torch.full((1, 1), 10.0), form="definition")
    assert out.flatten().tolist() == [10.0, 21.0, 32.5]
    assert last.item() == 3.625
    starts = torch.tensor([[False, True, False]])
    out, _ = linear_recurrence(q, k, v, log_decay, starts=starts, form="definition")
    assert out.flatten().tolist() == [1.0, 2.0, 3.5]


def test_mamba2_is_transformers_mixer_with_the_same_weights() -> None:
    from transformers import Mamba2Config  # here: it takes seconds
    from transformers.models.mamba2.modeling_mamba2 import Mamba2Mixer

    torch.manual_seed(0)
    mixer = Mamba2(CONFIG)
    config = Mamba2Config(
        hidden_size=CONFIG.d_model, num_heads=2, head_dim=16, state_size=STATE_WIDTH, expand=2, conv_kernel=4,
        n_groups=1, chunk_size=8, num_hidden_layers=1, layer_norm_epsilon=CONFIG.norm_eps, use_conv_bias=True,
    )  # fmt: skip
    theirs = Mamba2Mixer(config, layer_idx=0).eval()
    with torch.no_grad():
        for parameter in (mixer.convolution_bias, mixer.skip, mixer.norm.gain):
            parameter.normal_()
        theirs.in_proj.weight.copy_(mixer.into.weight)
        theirs.conv1d.weight.copy_(mixer.convolution[:, None])
        theirs.conv1d.bias.copy_(mixer.convolution_bias)
        theirs.dt_bias.copy_(mixer.step_bias)
        theirs.A_log.copy_(mixer.log_rate)
        theirs.D.copy_(mixer.skip)
        theirs.norm.weight.copy_(mixer.norm.gain)
        theirs.out_proj.weight.copy_(mixer.out.weight)
        x = torch.randn(B, T, CONFIG.d_model)
        same(mixer(x), theirs(x))


def test_retnet_is_the_papers_equations() -> None:
    """Sun et al. (2023), equation 5: (Q K^T * D) V, with Q and K as complex numbers turned by e^(i n theta)."""
    torch.manual_seed(0)
    mixer, x = RetNet(CONFIG).double(), torch.randn(1, T, 16, dtype=torch.float64)
    n, width = torch.arange(T, dtype=torch.float64), 8
    heads = []
    for head in range(2):
        q, k = (layer(x)[0, :, head * width : (head + 1) * width] for layer in (mixer.q, mixer.k))
        v = mixer.v(x)[0, :, head * 2 * width : (head + 1) * 2 * width]
        theta = 10_000.0 ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)
        turn = torch.polar(torch.ones(T, width // 2, dtype=torch.float64), n[:, None] * theta)
        q, k = torch.complex(q[:, 0::2], q[:, 1::2]) * turn, torch.complex(k[:, 0::2], k[:, 1::2]) * turn
        gamma = 1 - 2.0 ** (-5 - head)
        decay = torch.where(n[:, None] >= n, gamma ** (n[:, None] - n), 0.0)
        heads.append(F.layer_norm(((q @ k.conj().mT).real / math.sqrt(width) * decay) @ v, (2 * width,), eps=1e-5))
    wanted = mixer.out(F.silu(mixer.gate(x)) * torch.cat(heads, dim=-1))
    torch.testing.assert_close(mixer(x), wanted)


def test_gated_linear_attention_is_the_papers_layer() -> None:
    """Yang et al. (2024), section 4.4."""
    torch.manual_seed(0)
    mixer, x = GatedLinearAttention(CONFIG).double(), torch.randn(1, T, 16, dtype=torch.float64)
    with torch.no_grad():
        mixer.decay.bias.normal_()
    alpha = torch.sigmoid(mixer.decay.up(mixer.decay.down(x)) + mixer.decay.bias) ** (1 / GATE_TEMPERATURE)
    heads = []
    for head in range(2):
        key, value = slice(4 * head, 4 * head + 4), slice(8 * head, 8 * head + 8)
        state, outs = torch.zeros(4, 8, dtype=torch.float64), []
        for t in range(T):
            state = alpha[0, t, key, None] * state + torch.outer(mixer.k(x)[0, t, key], mixer.v(x)[0, t, value])
            outs.append(mixer.q(x)[0, t, key] @ state / math.sqrt(4))
        heads.append(F.layer_norm(torch.stack(outs), (8,), eps=1e-5))
    wanted = mixer.out(F.silu(mixer.gate(x)) * torch.cat(heads, dim=-1))
    torch.testing.assert_close(mixer(x), wanted)


def test_rwkv6_is_the_papers_equations() -> None:
    """Peng et al. (2024), section 4.2, token by token."""
    torch.manual_seed(0)
    mixer, x = RWKV6(CONFIG).double(), torch.randn(T, 16, dtype=torch.float64)
    mix = mixer.mix
    with torch.no_grad():
        for parameter in (mix.base, mix.shares, mix.up, mixer.norm.gain, mixer.norm.bias):
            parameter.normal_()
    before, states, wanted = torch.zeros(16, dtype=torch.float64), torch.zeros(2, 8, 8, dtype=torch.float64), []
    for now in x:
        mixed = {}
        for n, name in enumerate("wkvrg"):
            down = mix.down.weight[n * 32 : (n + 1) * 32]
            lora = mix.shares[n] + torch.tanh(down @ (now + (before - now) * mix.base)) @ mix.up[n]
            mixed[name] = now + (before - now) * lora
        r, k, v = mixer.r(mixed["r"]), mixer.k(mixed["k"]), mixer.v(mixed["v"])
        w = mixer.decay + mixer.decay_up.weight @ torch.tanh(mixer.decay_down.weight @ mixed["w"])
        heads = []
        for head in range(2):
            own = slice(8 * head, 8 * head + 8)
            written = torch.outer(k[own], v[own])
            read = r[own] @ (states[head] + mixer.bonus[head][:, None] * written)
            states[head] = torch.exp(-torch.exp(w[own]))[:, None] * states[head].clone() + written
            heads.append((read - read.mean()) / torch.sqrt(read.var(correction=0) + NORM_EPS))
        normed = torch.cat(heads) * mixer.norm.gain + mixer.norm.bias
        wanted.append(mixer.out(F.silu(mixer.gate(mixed["g"])) * normed))
        before = now
    torch.testing.assert_close(mixer(x[None])[0], torch.stack(wanted))


def test_the_references_come_without_their_package() -> None:
    reference("ops/gla/naive.py")
    assert not any(name == "fla" or name.startswith("fla.") for name in sys.modules)
