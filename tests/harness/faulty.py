"""Small models of several shapes, each with faults that make a call hungrier: what the gate has to name.

A fault is a word; ``fault in self.faults`` stands where somebody would have made that change. Shapes: x (B, N, D).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from perflab.predicted.prediction import Work

from .traced import phased

D, HEADS = 64, 4


class Faulty(nn.Module):
    """A module that knows which faults it is to have."""

    faults: frozenset[str] = frozenset()

    def has(self, fault: str) -> bool:
        return fault in self.faults


class Attention(Faulty):
    def __init__(self) -> None:
        super().__init__()
        self.q, self.kv, self.out = nn.Linear(D, D), nn.Linear(D, 2 * D), nn.Linear(D, D)

    def forward(self, x: Tensor, memory: Tensor | None = None) -> Tensor:
        memory = x if memory is None else memory
        q = self.q(x).unflatten(-1, (HEADS, -1)).transpose(1, 2)
        k, v = self.kv(memory).unflatten(-1, (2, HEADS, -1)).permute(2, 0, 3, 1, 4)
        if self.has("copy in cross attention") and memory is not x:
            k = k.contiguous()
        if self.has("unfused attention"):
            weights = torch.softmax(q @ k.mT / 4.0, dim=-1)
            mixed = weights @ v
        else:
            mixed = F.scaled_dot_product_attention(q, k, v)
        out: Tensor = self.out(mixed.transpose(1, 2).flatten(2))
        return out


class Block(Faulty):
    def __init__(self, *, crosses: bool = False) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(D)
        self.attention = Attention()
        self.cross = Attention() if crosses else None
        self.mlp = nn.Sequential(nn.Linear(D, 4 * D), nn.GELU(), nn.Dropout(0.1), nn.Linear(4 * D, D))
        self.number = 0

    def forward(self, x: Tensor, memory: Tensor | None = None) -> Tensor:
        h = self.norm(x.float()).to(x.dtype) if self.has("upcast before the norm") else self.norm(x)
        x = x + self.attention(h)
        if self.cross is not None:
            x = x + self.cross(x, memory)
        y: Tensor = x + self.mlp(x)
        if self.has("kept product"):
            self.last = 1.0 * y
        if self.has("one layer of many") and self.number == 3:
            y = y * 2.0
        return y


class GPT(Faulty):
    """Tied head."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(100, D)
        self.blocks = nn.ModuleList(Block() for _ in range(4))
        self.head = nn.Linear(D, 100, bias=False)
        self.head.weight = self.embedding.weight
        for number, block in enumerate(self.blocks):
            block.number = number

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x) if self.has("no checkpointing") else checkpoint(block, x, use_reentrant=False)
        logits = self.head(x)
        if self.has("upcast logits"):
            logits = logits.float()
        return F.cross_entropy(logits.flatten(0, 1), tokens.flatten()).float()


class EncoderDecoder(Faulty):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.ModuleList(Block() for _ in range(4))
        self.decoder = nn.ModuleList(Block(crosses=True) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        memory = x
        for block in self.encoder:
            memory = block(memory)
        for block in self.decoder:
            x = block(x, memory)
        return x.square().mean()


class Experts(Faulty):
    """Every expert sees every token; the gate weighs them."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(D, 4)
        self.experts = nn.ModuleDict({name: nn.Linear(D, D) for name in ("north", "east", "south", "west")})

    def forward(self, x: Tensor) -> Tensor:
        scores = self.gate(x)
        if self.has("second gate"):
            scores = scores + self.gate(x)
        weights = torch.softmax(scores, dim=-1)
        mixed = torch.zeros_like(x)
        for number, expert in enumerate(self.experts.values()):
            mixed = mixed + weights[..., number, None] * expert(x)
        copies = 3 if self.has("larger workspace") else 2
        workspace = torch.cat([mixed] * copies, dim=-1)
        return workspace[..., :D].square().mean()


class ConvNet(Faulty):
    """Nested Sequentials, of which no two are alike."""

    def __init__(self, faults: frozenset[str]) -> None:
        super().__init__()
        extra = [nn.Softplus()] if "layer put into a Sequential" in faults else []
        self.features = nn.Sequential(
            nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU()),
            *extra,
            nn.Sequential(nn.Conv2d(8, 16, 3, padding=1), nn.ReLU()),
            nn.Sequential(nn.Conv2d(16, 32, 3, padding=1), nn.ReLU()),
        )
        self.classifier = nn.Linear(32, 10)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.classifier(self.features(x).mean((2, 3))).square().mean()
        return out


class UNet(Faulty):
    def __init__(self) -> None:
        super().__init__()
        self.down = nn.ModuleList(nn.Conv2d(8 * 2**i, 16 * 2**i, 3, padding=1, stride=2) for i in range(3))
        self.up = nn.ModuleList(nn.ConvTranspose2d(16 * 2**i, 8 * 2**i, 2, stride=2) for i in reversed(range(3)))

    def forward(self, x: Tensor) -> Tensor:
        skips = []
        for layer in self.down:
            skips.append(x.clone() if self.has("copied skips") else x)
            x = torch.relu(layer(x))
        for layer in self.up:
            x = torch.relu(layer(x) + skips.pop())
        return x.square().mean()


class Recurrent(Faulty):
    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.GRUCell(D, D)
        self.states: list[Tensor] = []

    def forward(self, x: Tensor) -> Tensor:
        state = torch.zeros(x.shape[0], D)
        self.states.clear()
        for step in x.unbind(1):
            state = self.cell(step, state)
            if self.has("states kept"):
                self.states.append(state.detach() + 0.0)
        return state.square().mean()


def build(shape: str, faults: frozenset[str]) -> Work:
    """A training step of a model of that shape, with these faults."""
    tokens = torch.randint(0, 100, (4, 32))
    images = torch.randn(4, 3, 16, 16)
    makers: dict[str, tuple[Callable[[], nn.Module], Tensor]] = {
        "gpt": (lambda: GPT().bfloat16(), tokens),
        "encoder-decoder": (EncoderDecoder, torch.randn(4, 32, D)),
        "experts": (Experts, torch.randn(4, 32, D)),
        "conv net": (lambda: ConvNet(faults), images),
        "u-net": (UNet, torch.randn(4, 8, 16, 16)),
        "recurrent": (Recurrent, torch.randn(4, 16, D)),
    }
    make, given = makers[shape]
    model = make()
    for module in model.modules():
        if isinstance(module, Faulty):
            module.faults = faults
        if isinstance(module, nn.Dropout):
            module.train("dropout left on" in faults)
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False if "optimizer one by one" in faults else None)
    losses: list[Any] = []

    def forward() -> Tensor:
        losses[:] = [model(given)]
        loss: Tensor = losses[0]
        return loss

    def backward() -> None:
        losses.pop().backward()

    def update() -> None:
        optimizer.step()
        optimizer.zero_grad(set_to_none="gradients zeroed" not in faults)

    return phased(forward=forward, backward=backward, optimizer=update)
