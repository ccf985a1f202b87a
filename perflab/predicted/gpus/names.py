"""Finds a GPU by the name of its data sheet, or by the device name that PyTorch reports. Pure."""

from __future__ import annotations

import re
from difflib import get_close_matches

from perflab.predicted.gpus.data_sheets import GPUS, MODELLED, DataSheet, Gpu

__all__ = ["GPUS", "MODELLED", "DataSheet", "Gpu", "gpu_by_device_name", "parse_gpu", "parse_modelled"]

_BRANDS = ("nvidia", "tesla", "geforce", "amd", "instinct", "apple")


def _plain(text: str) -> str:
    """Return the letters and digits of a name in lower case, without the maker's brands before it."""
    words = [word for word in re.split(r"[^a-z0-9]+", text.lower()) if word]
    while len(words) > 1 and words[0] in _BRANDS:
        del words[0]
    return "".join(words)


def parse_gpu(text: str) -> DataSheet:
    """Find a GPU by name: ``h100``, ``A100 80GB``, ``rtx_4090``, or the device name, ``NVIDIA H100 80GB HBM3``.

    Raises:
        ValueError: no sheet has that name; the message lists similar names, and all names.
    """
    asked = _plain(text)
    by_plain = {_plain(name): gpu for name, gpu in GPUS.items()}
    gpu = by_plain.get(asked) or gpu_by_device_name(text)
    if gpu is not None:
        return gpu
    if not asked:
        raise ValueError(f"no GPU is named; known are {', '.join(GPUS)}")
    begun = [gpu.name for plain, gpu in by_plain.items() if plain.startswith(asked)]
    like = begun or [by_plain[plain].name for plain in get_close_matches(asked, by_plain, n=3, cutoff=0.6)]
    meant = f"did you mean {' or '.join(like)}? Known" if like else "known"
    raise ValueError(f"{text!r} is not a GPU that perflab has a data sheet of; {meant} are {', '.join(GPUS)}")


def parse_modelled(text: str) -> Gpu:
    """Find a GPU as ``parse_gpu`` does, if what PyTorch does there is modelled: one of NVIDIA's.

    Raises:
        ValueError: no sheet has that name, or the GPU is another maker's; the message lists names.
    """
    gpu = parse_gpu(text)
    if isinstance(gpu, Gpu):
        return gpu
    raise ValueError(f"{gpu.name} has bounds alone, by --perf-predict; known are {', '.join(MODELLED)}")


def gpu_by_device_name(device_name: str) -> DataSheet | None:
    """Find the sheet of the GPU with this name from ``torch.cuda.get_device_name()``; None if no sheet has the name.

    The whole name has to match: an ``A10G`` is no A10, a ``4090 D`` or a laptop's 4090 is no 4090, and a slice of a GPU
    (``NVIDIA A100-SXM4-40GB MIG 1g.5gb``) has no sheet.
    """
    asked = _plain(device_name)
    for gpu in GPUS.values():
        if any(_plain(name) == asked for name in (gpu.device_name, *gpu.other_device_names)):
            return gpu
    return None
