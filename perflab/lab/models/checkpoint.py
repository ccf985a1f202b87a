"""A model's weights on disk, with the architecture that they are weights of.

    save_checkpoint("model.pt", model, step=300, optimizer=step.adamw.state_dict())
    extra = load_checkpoint("model.pt", model)          # {"step": 300, "optimizer": {...}}

The file is torch.save's, of plain data only: a format and its version, `architecture(config)`, the weights by name, and
whatever else was given. What is loaded runs no code (`weights_only`).

A checkpoint is of one architecture. How it is computed and trained (attention variant, fused kernels, precision,
optimizer, torch.compile, activation checkpointing) is no part of it, and never in the way of loading it.
"""

from __future__ import annotations

import os
import zipfile
from collections import OrderedDict
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from perflab.lab.files import written_whole
from perflab.lab.models.config import WITHOUT_A_TENSOR, ModelConfig, architecture

FORMAT, VERSION = "perflab checkpoint", 1
_PLAIN = (
    type(None),
    bool,
    int,
    float,
    complex,
    str,
    bytes,
    Tensor,
    nn.Parameter,
    torch.dtype,
    torch.device,
    torch.Size,
)
_ABSENT = object()


def save_checkpoint(
    path: str | os.PathLike[str], model: nn.Module, *, weights: Mapping[str, Tensor] | None = None, **extra: Any
) -> None:
    """Write a `TransformerLM`, compiled or not, to `path`, whole or not at all: what was there stays till then.

    weights: the state by name of a model whose own parameters are parts of them, as in sharded training: `weights` of
    `TrainingStep.state`.

    extra: numbers, strings, tensors, and lists and dicts of such, by name; the `state_dict()` of a module or optimizer.

    Raises:
        TypeError: the model is no `TransformerLM`, or something in `extra` is no plain data.
        OSError: the folder is not there, or cannot be written.
    """
    config = _config_of(model)
    for place, value in _leaves(extra, "extra"):
        raise TypeError(
            f"{place} is of type {type(value).__name__}, which loading would refuse; wanted numbers, strings, tensors, "
            f"and lists and dicts of such: save its state_dict()"
        )
    document = {
        "format": FORMAT,
        "version": VERSION,
        "architecture": architecture(config),
        "weights": _plainly_named(model.state_dict() if weights is None else weights),
        "extra": extra,
    }
    with written_whole(path) as file:
        torch.save(document, file)


def load_checkpoint(path: str | os.PathLike[str], model: nn.Module, *, accept: Collection[str] = ()) -> dict[str, Any]:
    """Put the weights at `path` into a `TransformerLM`, compiled or not, and return what else was saved with them.

    Weights are copied to where the model's are, and cast to their dtype, rounded if that is narrower: it is the model
    that decides what it computes in. Nothing is changed unless all of it fits.

    Args:
        path: what `save_checkpoint` wrote.
        model: of the checkpoint's architecture; its own weights are overwritten.
        accept: switches that may differ all the same, out of those that change the function but no tensor,
            `WITHOUT_A_TENSOR`: to train on with dropout, say, or to see what a window does to it.

    Raises:
        ValueError: the architectures differ; the file is damaged, or none of ours; the model is on "meta"; `accept`
            names something that cannot be.
        TypeError: the model is no `TransformerLM`.
        OSError: the file is not there, or cannot be read.
    """
    config = _config_of(model)
    impossible = [name for name in accept if name not in WITHOUT_A_TENSOR]
    if impossible or isinstance(accept, str):
        raise ValueError(
            f"accept={accept!r}: wanted a tuple of switches that change no tensor, out of {', '.join(WITHOUT_A_TENSOR)}"
        )
    own = _plainly_named(model.state_dict())
    if any(tensor.is_meta for tensor in own.values()):
        raise ValueError(
            f"the model is on meta and holds no weights that {path} could go to; call model.to_empty first"
        )
    document = _read(Path(path))
    _require_architecture(path, document["architecture"], architecture(config), accept)
    saved: dict[str, Tensor] = document["weights"]
    odd = sorted(saved.keys() ^ own.keys()) or [name for name in own if saved[name].shape != own[name].shape]
    if odd:
        raise _damaged(path, f"its weights are not those of its own architecture: see {', '.join(odd[:3])}")
    with torch.no_grad():
        for name, tensor in own.items():
            tensor.copy_(saved[name])
    extra: dict[str, Any] = document["extra"]
    return extra


def _config_of(model: nn.Module) -> ModelConfig:
    config = getattr(model, "config", None)  # of a compiled model it is the original's
    if not isinstance(config, ModelConfig):
        raise TypeError(f"{type(model).__name__} has no ModelConfig; wanted a TransformerLM")
    return config


def _plainly_named(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return a state by name, torch.compile's wrappers left out of the names."""
    return {name.replace("_orig_mod.", ""): tensor for name, tensor in state.items()}


def _leaves(value: Any, place: str) -> Iterator[tuple[str, Any]]:
    """Yield each value that is no plain data, with the value's place."""
    # Exact types: a subclass (a NumPy float is one of float) is written as itself.
    if type(value) in (list, tuple):
        for position, item in enumerate(value):
            yield from _leaves(item, f"{place}[{position}]")
    elif type(value) in (dict, OrderedDict):
        for key, item in value.items():
            yield from _leaves(key, f"a key of {place}")
            yield from _leaves(item, f"{place}[{key!r}]")
        if type(value) is OrderedDict:  # a module's state_dict() has its versions in an attribute, written with it
            for name, attribute in vars(value).items():
                yield from _leaves(attribute, f"{place}.{name}")
    elif type(value) not in _PLAIN:
        yield place, value


def _read(path: Path) -> dict[str, Any]:
    with path.open("rb") as file:
        try:
            with zipfile.ZipFile(file) as archive:  # torch.load looks at no checksum
                spoilt = archive.testzip()
            if spoilt is not None:
                raise zipfile.BadZipFile(f"the checksum of {spoilt} does not match")
            file.seek(0)
            document = torch.load(file, map_location="cpu", weights_only=True)
        except Exception as error:  # torch.load has a dozen ways to say that a file is none of its own
            reason = str(error).partition("\n")[0].partition(". ")[0]
            raise _damaged(path, f"{type(error).__name__}: {reason}") from error
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise _damaged(path, f"it does not say {FORMAT!r}")
    if document.get("version") != VERSION:
        version = document.get("version")
        raise _damaged(path, f"its version is {version!r}, but this code reads {VERSION}")
    for part in ("architecture", "weights", "extra"):
        if not isinstance(document.get(part), dict):
            raise _damaged(path, f"it has no {part}")
    saved = document["architecture"]
    saved.setdefault("mixer", "attention")  # as all were that do not state it
    if "rope_theta" in saved:
        saved.setdefault("rope_scaling.kind", "none")
    if not all(isinstance(tensor, Tensor) for tensor in document["weights"].values()):
        raise _damaged(path, "some of its weights are not tensors")
    return document


def _damaged(path: str | os.PathLike[str], reason: str) -> ValueError:
    return ValueError(
        f"{os.fspath(path)} cannot be loaded: {reason}. Wanted a file that save_checkpoint wrote; "
        f"save it again, or take another"
    )


def _require_architecture(
    path: str | os.PathLike[str], saved: Mapping[str, Any], wanted: Mapping[str, Any], accept: Collection[str]
) -> None:
    names = [name for name in {**saved, **wanted} if saved.get(name, _ABSENT) != wanted.get(name, _ABSENT)]
    if any(saved.get(kind) != wanted.get(kind) for kind in ("mixer", "positions", "feed_forward", "rope_scaling.kind")):
        # Each kind has settings that the other has not: that follows, and is no news.
        names = [name for name in names if name in saved and name in wanted]
    differ = [name for name in names if name not in accept]
    if not differ:
        return
    lines = [f"  {name}: saved {_spelled(saved, name)}, wanted {_spelled(wanted, name)}" for name in differ]
    as_saved = ", ".join(f"{name}={saved[name]!r}" for name in names if name in saved)
    remedy = f"build the model with {as_saved}" if as_saved else "take another checkpoint"
    acceptable = tuple(name for name in names if name in WITHOUT_A_TENSOR)
    if set(differ) <= set(acceptable):
        remedy += f"; or, since no tensor depends on it, load it all the same with accept={acceptable!r}"
    raise ValueError("\n".join([f"{os.fspath(path)} is a checkpoint of another architecture:", *lines, remedy]))


def _spelled(switches: Mapping[str, Any], name: str) -> str:
    return repr(switches[name]) if name in switches else "nothing of it"
