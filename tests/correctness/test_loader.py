"""The loader: each batch is a function of its seed and number, on every device."""

from __future__ import annotations

import contextlib
from itertools import islice
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from perflab.lab.train import TextLoader
from perflab.lab.train.loader import _Ahead

pytestmark = pytest.mark.correctness

TEXT = (torch.arange(4096) * torch.arange(4096) // 7 % 251).to(torch.uint8)


def first(count: int, **choices: int) -> Tensor:
    return torch.stack(list(islice(TextLoader(TEXT, batch_size=4, seq_len=16, **choices), count)))


def test_rows_are_pieces_of_the_text_and_ids_are_int64(device: torch.device) -> None:
    loader = TextLoader(TEXT, batch_size=4, seq_len=16, device=device)
    offsets = loader.offsets(0)
    batch = next(loader)
    assert (batch.shape, batch.dtype, batch.device) == ((4, 16), torch.int64, device)
    for row, offset in zip(batch.cpu(), offsets, strict=True):
        assert row.tolist() == TEXT[offset : offset + 16].tolist()


def test_every_place_is_drawn_the_first_and_the_last_too() -> None:
    loader = TextLoader(torch.arange(10, dtype=torch.uint8), batch_size=64, seq_len=8)
    assert {row[0].item() for row in next(loader)} == {0, 1, 2}


def test_one_seed_gives_the_same_batches_and_another_gives_others() -> None:
    assert torch.equal(first(5, seed=1), first(5, seed=1))
    assert not torch.equal(first(5, seed=1), first(5, seed=2))
    assert len({tuple(batch.flatten().tolist()) for batch in first(5, seed=1)}) == 5


def test_what_is_drawn_does_not_change_with_versions_of_anything() -> None:
    # Of the definition, worked out with nothing but Python: SHAKE-256("0 0") mod 4081.
    assert TextLoader(TEXT, batch_size=4, seq_len=16).offsets(0) == [438, 3721, 1862, 3524]


def test_a_loader_that_goes_on_gives_the_batches_that_would_have_come(device: torch.device) -> None:
    whole = TextLoader(TEXT, batch_size=4, seq_len=16, seed=3, device=device)
    batches = [next(whole) for _ in range(6)]
    stopped = TextLoader(TEXT, batch_size=4, seq_len=16, seed=3, device=device)
    for _ in range(2):
        next(stopped)
    resumed = TextLoader(TEXT, batch_size=4, seq_len=16, seed=3, device=device, start_at=stopped.next_batch)
    for wanted in batches[2:]:
        assert torch.equal(next(resumed), wanted)
    whole.next_batch = 4
    assert torch.equal(next(whole), batches[4])


def test_the_global_generator_is_neither_asked_nor_moved() -> None:
    torch.manual_seed(0)
    before = torch.get_rng_state()
    batches = first(3)
    assert torch.equal(before, torch.get_rng_state())
    torch.manual_seed(1)
    assert torch.equal(batches, first(3))


@pytest.mark.gpu_numbers
@pytest.mark.skipif(not torch.cuda.is_available(), reason="copies ahead of use are made on CUDA")
def test_batches_that_are_kept_are_not_written_over_by_later_ones_while_the_gpu_is_behind() -> None:
    loader = TextLoader(TEXT, batch_size=64, seq_len=1024, device="cuda")
    kept, sums = [], []
    for _ in range(20):
        batch = next(loader)
        torch.cuda._sleep(2_000_000)  # the compute stream falls behind the host, which goes on gathering
        sums.append(batch.sum())
        kept.append(batch)
    plain = list(islice(TextLoader(TEXT, batch_size=64, seq_len=1024), 20))
    assert all(torch.equal(batch.cpu(), wanted) for batch, wanted in zip(kept, plain, strict=True))
    assert torch.stack(sums).tolist() == [wanted.sum().item() for wanted in plain]


class Event:
    """A CUDA event without CUDA: it is pending from its record until somebody waits for it."""

    def __init__(self) -> None:
        self.is_pending = False

    def record(self, stream: Stream) -> None:
        assert isinstance(stream, Stream)
        self.is_pending = True

    def synchronize(self) -> None:
        self.is_pending = False


class Stream:
    """A CUDA stream without CUDA: it knows which events it has waited for."""

    def __init__(self, device: object = None) -> None:
        self.waited: list[Event] = []

    def wait_event(self, event: Event) -> None:
        assert event.is_pending
        self.waited.append(event)


@pytest.fixture
def compute(monkeypatch: pytest.MonkeyPatch) -> Stream:
    """The current stream of a device that is none; nothing is ever done before it is waited for."""
    current, empty = Stream(), torch.empty
    runtime = SimpleNamespace(
        Event=Event, Stream=Stream, stream=contextlib.nullcontext, current_stream=lambda device: current
    )
    monkeypatch.setattr(torch, "get_device_module", lambda device: runtime)
    monkeypatch.setattr(torch, "empty", lambda *size, pin_memory=False, **choices: empty(*size, **choices))
    monkeypatch.setattr(Tensor, "record_stream", lambda tensor, stream: tensor.__setattr__("used_on", stream))
    return current


def test_no_pinned_buffer_is_written_before_the_copy_out_of_it_is_done_and_no_batch_used_before_its_own(
    compute: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    loader = TextLoader(TEXT, batch_size=4, seq_len=16)
    plain = [next(loader) for _ in range(8)]
    ahead = _Ahead(loader)
    gather, gathered = loader.gather, []

    def watched(number: int, out: Tensor) -> None:
        (slot,) = (slot for slot in ahead.slots if slot.pinned is out)
        assert not slot.copied.is_pending
        gathered.append(number)
        gather(number, out)

    monkeypatch.setattr(loader, "gather", watched)
    for number in (0, 1, 2, 3, 4, 7, 2, 3):  # a loader may be set back or forward
        batch: Any = ahead.take(number)
        assert torch.equal(batch, plain[number])
        assert compute.waited[-1] is ahead.slots[number % 2].copied
        assert batch.used_on is compute
        assert gathered[-1] == number + 1
        assert list(ahead.under_way) == [number + 1]


@pytest.mark.parametrize(
    ("text", "choices", "message"),
    [
        (TEXT, {"batch_size": 0}, r"batch_size=0: give batch_size=1 or more"),
        (TEXT, {"start_at": -1}, r"start_at=-1: give start_at=0 or more"),
        (TEXT.long(), {}, r"text of shape \(4096,\) in torch\.int64: wanted bytes in a row, \(N,\) torch\.uint8"),
        (TEXT[:10], {}, r"text of 10 bytes for sequences of 16: give more text, or a shorter seq_len"),
    ],
)
def test_what_no_batch_can_be_made_of_is_refused(text: Tensor, choices: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        TextLoader(text, **{"batch_size": 4, "seq_len": 16, **choices})


def test_a_device_without_a_module_of_its_own_gets_batches_without_streams() -> None:
    batch = next(TextLoader(TEXT, batch_size=4, seq_len=16, device="meta"))
    assert (batch.device.type, batch.shape) == ("meta", (4, 16))
