"""A candidate on CUDA in a process of its own: inputs go to the device, outputs come back, all within the span."""

from __future__ import annotations

import torch

from perflab.untrusted.command import held
from perflab.untrusted.messages import Entry, Role
from perflab.untrusted.stranger import Stranger

from .active import needs_nocuda

pytestmark = needs_nocuda
SOURCE = """
import torch
side = []
def kernel(x):
    assert x.is_cuda and x.stride() == (1, 16)
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        return x @ x.T
"""


def test_outputs_of_a_device_are_read_on_the_host() -> None:
    with held("cuda", 60.0, [], []) as holding:
        entry = Entry(name="candidate:kernel", source=SOURCE)
        with Stranger(Role.CANDIDATE, entry, holding) as one:
            assert one.ready.missing == []
            span = one.span([[torch.ones(16, 8).reshape(8, 16).T], [torch.ones(8, 16).T]])
            assert [[told is not None and told.shape for told in each] for each in span.outputs] == [
                [[16, 16]],
                [[16, 16]],
            ]
            for (told,) in span.outputs:
                found = one.result(told)
                assert found is not None
                assert found.device.type == "cpu"
            assert one.narrow() == []
            assert one.look().operators["aten::mm"] == 2
