"""Five small training steps of other kinds than the lab's, as their authors would write them, to write changes into.

``B`` batch, ``N`` sequence, ``V`` nodes, ``E`` edges, ``D`` features.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

HISTORY: list[Tensor] = []


class Residual(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(width)
        self.second = nn.Conv2d(width, width, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.first(x))
        y = F.relu(y, inplace=True)
        y = self.second(y)
        return F.relu(x + y)


class Classifier(nn.Module):
    """Convolutions: ``B, 3, 24, 24`` to ``B, 10``."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 3, stride=2, padding=1)
        self.blocks = nn.Sequential(Residual(16), Residual(16))
        self.head = nn.Linear(16, 10)

    def forward(self, images: Tensor) -> Tensor:
        x = self.stem(images)
        x = self.blocks(x)
        x = x.mean((2, 3))
        return self.head(x)


class Tagger(nn.Module):
    """Recurrent: ``B, N`` words to ``B, 12, N``."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(500, 32)
        self.gru = nn.GRU(32, 48, batch_first=True)
        self.norm = nn.LayerNorm(48)
        self.tags = nn.Linear(48, 12)

    def forward(self, words: Tensor) -> Tensor:
        x = self.words(words)
        hidden, _ = self.gru(x)
        hidden = self.norm(hidden)
        return self.tags(F.gelu(hidden)).transpose(1, 2)


class Messages(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.own = nn.Linear(width, width)
        self.others = nn.Linear(width, width, bias=False)

    def forward(self, nodes: Tensor, edges: Tensor) -> Tensor:
        sent = self.others(nodes)[edges[0]]
        got = torch.zeros_like(nodes).index_add_(0, edges[1], sent)
        out = self.own(nodes) + got
        return F.silu(out)


class Molecules(nn.Module):
    """A graph: kinds of atoms ``V`` and edges ``2, E`` to ``V`` energies."""

    def __init__(self) -> None:
        super().__init__()
        self.atoms = nn.Embedding(20, 32)
        self.layers = nn.ModuleList(Messages(32) for _ in range(3))
        self.energy = nn.Linear(32, 1)

    def forward(self, atoms: Tensor, edges: Tensor) -> Tensor:
        nodes = self.atoms(atoms)
        for layer in self.layers:
            nodes = layer(nodes, edges)
        return self.energy(nodes).squeeze(-1)


class Denoiser(nn.Module):
    """Diffusion: images ``B, 4, 16, 16`` with noise, and how much, ``B``, to the noise in them."""

    def __init__(self) -> None:
        super().__init__()
        self.time = nn.Sequential(nn.Linear(16, 32), nn.SiLU(), nn.Linear(32, 32))
        self.enter = nn.Conv2d(4, 32, 3, padding=1)
        self.norm = nn.GroupNorm(4, 32)
        self.down = nn.Conv2d(32, 32, 3, stride=2, padding=1)
        self.leave = nn.Conv2d(32, 4, 3, padding=1)
        self.register_buffer("rates", torch.arange(8.0))

    def forward(self, noisy: Tensor, times: Tensor) -> Tensor:
        angles = times[:, None] * self.rates
        shift = self.time(torch.cat((angles.sin(), angles.cos()), 1))
        x = self.enter(noisy) + shift[:, :, None, None]
        low = self.down(F.silu(self.norm(x)))
        x = x + F.interpolate(low, scale_factor=2.0)
        return self.leave(x)


class Recommender(nn.Module):
    """Users ``B``, items ``B`` and what was bought before ``B, 10`` to ``B`` scores."""

    def __init__(self) -> None:
        super().__init__()
        self.users = nn.Embedding(1000, 24)
        self.items = nn.Embedding(2000, 24)
        self.tower = nn.Sequential(nn.Linear(72, 64), nn.ReLU(), nn.Linear(64, 1))

    def forward(self, users: Tensor, items: Tensor, bought: Tensor) -> Tensor:
        user, item = self.users(users), self.items(items)
        before = F.embedding_bag(bought, self.items.weight, mode="mean")
        both = torch.cat((user, item, before), 1)
        return self.tower(both).squeeze(1)


def batch(kind: str) -> tuple[Tensor, ...]:
    """A model's inputs, and what it should say."""
    if kind == "convolution":
        return torch.randn(8, 3, 24, 24), torch.randint(10, (8,))
    if kind == "recurrent":
        return torch.randint(500, (8, 20)), torch.randint(12, (8, 20))
    if kind == "graph":
        return torch.randint(20, (200,)), torch.randint(200, (2, 900)), torch.randn(200)
    if kind == "diffusion":
        noise, times = torch.randn(4, 4, 16, 16), torch.rand(4)
        return torch.randn_like(noise) + noise, times, noise
    items = torch.randint(1000, (256,)), torch.randint(2000, (256,)), torch.randint(2000, (256, 10))
    return *items, torch.rand(256).round()


MODELS = {
    "convolution": (Classifier, F.cross_entropy, torch.optim.SGD),
    "recurrent": (Tagger, F.cross_entropy, torch.optim.AdamW),
    "graph": (Molecules, F.mse_loss, torch.optim.Adam),
    "diffusion": (Denoiser, F.mse_loss, torch.optim.AdamW),
    "recommender": (Recommender, F.binary_cross_entropy_with_logits, partial(torch.optim.Adagrad, fused=True)),
}


class Training:
    def __init__(self, kind: str) -> None:
        make, self.loss_of, optimizer = MODELS[kind]
        self.model = make()
        *self.inputs, self.wanted = batch(kind)
        self.optimizer = optimizer(self.model.parameters(), lr=1e-3)

    def forward(self) -> Tensor:
        said = self.model(*self.inputs)
        return self.loss_of(said, self.wanted)

    def backward(self, loss: Tensor) -> None:
        loss.backward()

    def update(self) -> None:
        self.optimizer.step()
        self.optimizer.zero_grad()

    def step(self) -> Tensor:
        loss = self.forward()
        self.backward(loss)
        self.update()
        return loss.detach()
