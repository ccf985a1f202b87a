"""Golden tensors: small float64 results stored beside the tests, so that a changed definition is noticed.

    @pytest.fixture
    def golden(snapshot):
        return snapshot.use_extension(GoldenTensors)

    def test_the_definition_stands(golden):
        assert {"out": out, "logsumexp": logsumexp} == golden

A syrupy extension: `pytest --snapshot-update` accepts new results, and a missing or unused file is reported. A snapshot
is one JSON file, in full precision and readable in a diff. Results are compared within a budget, not bit by bit:
another BLAS adds in another order. The stored values decide the budget, so that a change cannot widen its own budget:

    |got - kept|  <=  ROUNDINGS * eps(float64) * max |kept|
"""

import json
import math
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

__tracebackhide__ = True  # pytest shows the user's frames of an error, not ours

try:
    from syrupy.extensions.single_file import SingleFileSnapshotExtension, WriteMode
except ModuleNotFoundError as error:  # pragma: no cover
    raise ImportError(
        "golden tensors are kept by syrupy, which is not installed: pip install 'perflab[golden]'"
    ) from error

ROUNDINGS = 64
"""Budget in units in the last place of the largest value: the cost of another order of a few dozen additions."""
MOST_ELEMENTS = 4096


class GoldenTensors(SingleFileSnapshotExtension):
    """A tensor, or {name: tensor}, as JSON: shapes, and values as the shortest decimals that give the same bits."""

    _write_mode = WriteMode.TEXT
    file_extension = "json"

    def serialize(self, data: Any, **_: Any) -> str:
        """Return tensors as JSON. TypeError unless all are float64 tensors; ValueError for more than MOST_ELEMENTS."""
        tensors = {"value": data} if isinstance(data, Tensor) else data
        if not isinstance(tensors, Mapping) or not all(isinstance(x, Tensor) for x in tensors.values()):
            raise TypeError(f"golden tensors are a tensor or {{name: tensor}}, got {type(data).__name__}")
        for name, tensor in tensors.items():
            if tensor.dtype != torch.float64:
                raise TypeError(
                    f"golden tensor {name!r} is {tensor.dtype}, wanted float64: keep the definition's result"
                )
            if tensor.numel() > MOST_ELEMENTS:
                raise ValueError(f"golden tensor {name!r} has {tensor.numel()} elements, {MOST_ELEMENTS} at most")
        blocks = [f"  {json.dumps(name)}: {_block(tensor)}" for name, tensor in tensors.items()]
        return "{\n" + ",\n".join(blocks) + "\n}\n"

    def matches(self, *, serialized_data: Any, snapshot_data: Any) -> bool:
        """Whether the new result is within the budget of the kept one."""
        return not list(differences(str(serialized_data), str(snapshot_data)))

    def diff_lines(self, serialized_data: Any, snapshot_data: Any) -> Iterator[str]:
        """Yield a line for each tensor that differs: the tensor, the element, got, kept, budget."""
        yield from differences(str(serialized_data), str(snapshot_data))


def differences(got: str, kept: str) -> Iterator[str]:
    """Yield a line for each tensor that differs from the kept one; both arguments are text of the extension."""
    new, old = json.loads(got), json.loads(kept)
    for name in dict.fromkeys((*old, *new)):
        if name not in new or name not in old:
            yield f"{name} is {'missing' if name in old else 'new'}"
        elif new[name]["shape"] != old[name]["shape"]:
            yield f"{name}: its shape is {new[name]['shape']}, kept {old[name]['shape']}"
        elif line := _worst(new[name]["shape"], _numbers(new[name]), _numbers(old[name])):
            yield f"{name}{line}"


def _worst(shape: list[int], got: list[float], kept: list[float]) -> str:
    largest = max((abs(x) for x in kept if math.isfinite(x)), default=0.0)
    budget = ROUNDINGS * torch.finfo(torch.float64).eps * largest
    errors = []
    for a, b in zip(got, kept, strict=True):
        is_same = a == b or (math.isnan(a) and math.isnan(b))
        both_finite = math.isfinite(a) and math.isfinite(b)
        errors.append(0.0 if is_same else abs(a - b) if both_finite else math.inf)
    off = sum(error > budget for error in errors)
    if not off:
        return ""
    position = errors.index(max(errors))
    index = [int(i) for i in torch.unravel_index(torch.tensor(position), shape)] if shape else []
    return (
        f"{index}: got {got[position]!r}, kept {kept[position]!r}, error {errors[position]:.3g}, budget {budget:.3g}; "
        f"{off} of {len(kept)} elements are off"
    )


def _numbers(block: Mapping[str, Any]) -> list[float]:
    return [float(number) for row in block["rows"] for number in row.split()]


def _block(tensor: Tensor) -> str:
    """Return a tensor as JSON: its shape, and a line for each row (the last dimension)."""
    rows = tensor.detach().cpu().reshape(-1, tensor.shape[-1] if tensor.dim() else 1).tolist()
    lines = ",\n".join(f"      {json.dumps(' '.join(map(repr, row)))}" for row in rows)
    return f'{{\n    "shape": {json.dumps(list(tensor.shape))},\n    "rows": [\n{lines}\n    ]\n  }}'
