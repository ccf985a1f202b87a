"""Registers the device ``toy``: imported by a project's conftest, as a vendor's package would be.

``TOY`` in the environment says how it lies: ``double`` has events whose clock runs twice as fast, ``silent`` has no
module function that waits, either.
"""

from __future__ import annotations

import os
import types

import torch

torch.ops.load_library(os.environ["TOY_LIBRARY"])
torch.utils.rename_privateuse1_backend("toy")
_how = os.environ.get("TOY", "")
torch.ops.toy.set_speed(1.0 if not _how else 2.0)


class _Properties:
    name = "Toy One"
    driver_version = "7.1"
    L2_cache_size = 1 << 20


_module = types.ModuleType("torch.toy")
_module.is_available = lambda: True
_module.is_initialized = lambda: True
_module.device_count = lambda: 2
_module.current_device = torch.accelerator.current_device_index
_module.get_device_properties = lambda _device: _Properties
_module.get_amp_supported_dtype = lambda: [torch.bfloat16, torch.float16]
_module._is_in_bad_fork = lambda: False
_module.manual_seed_all = lambda _seed: None
if _how != "silent":
    _module.synchronize = lambda device=None: torch.accelerator.synchronize(device)
torch._register_device_module("toy", _module)
