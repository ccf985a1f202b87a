"""Calls that keep tensors, and who holds them: for test_keepers.py, which imports this module late."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

HISTORY: list[Any] = []
BY_STEP: dict[int, Any] = {}
LAST: dict[str, Any] = {}
MODEL = nn.Sequential(nn.Linear(8, 8), nn.ReLU())
FILLED: list[Any] = []


@dataclass
class Row:
    step: int
    loss: torch.Tensor


class Trainer:
    def __init__(self) -> None:
        self.losses: deque[Any] = deque()
        self.last: Any = None
        self.call()

    def call(self) -> None:
        self.last = torch.ones(64)  # replaces
        self.losses.append(torch.ones(64))  # trainer


class Elsewhere:
    kept: list[Any] = []


TRAINER = Trainer()


def loss_of_a_step() -> torch.Tensor:
    loss = MODEL(torch.ones(4, 8)).sum()
    loss.backward(retain_graph=True)
    return loss


def appends_the_loss() -> None:
    loss = loss_of_a_step()
    HISTORY.append(loss)  # keeps
    torch.ones(4)


def appends_a_row() -> None:
    loss = loss_of_a_step()
    Elsewhere.kept.append(Row(1, loss))  # keeps


def fills_a_dict() -> None:
    BY_STEP[len(BY_STEP)] = {"loss": torch.ones(64)}  # keeps


def replaces_a_value() -> None:
    LAST["seen"] = torch.ones(64)  # keeps
    torch.ones(4)


def hooked() -> Callable[[], None]:
    model, store = nn.Linear(8, 8), dict[str, Any]()

    def hook(_module: nn.Module, _inputs: Any, output: torch.Tensor) -> None:
        store["output"] = output  # keeps

    model.register_forward_hook(hook)

    def call() -> None:
        model(torch.ones(4, 8)).sum()

    return call


def with_a_variable() -> Callable[[], None]:
    last = None

    def call() -> None:
        nonlocal last
        last = torch.ones(64)  # keeps
        assert last is not None

    return call


def registers_an_append() -> None:
    hidden = MODEL(torch.ones(4, 8))
    hidden.register_hook(FILLED.append)  # keeps
    hidden.exp().sum().backward()
