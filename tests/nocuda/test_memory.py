"""Device memory: PyTorch's own allocator over it, and what it says when there is none left."""

from __future__ import annotations

import pytest
import torch

from nocuda import Gpu, is_active, library
from perflab.lab.models import build_model
from perflab.lab.train import TrainingConfig, TrainingStep
from perflab.measure.calls.workload import Step
from perflab.measure.memory.peak import measure_memory
from perflab.profiles.take_peak import take_failure, take_peak

from .active import needs_nocuda, said_by

pytestmark = needs_nocuda
MIB = 1 << 20


@pytest.fixture(autouse=True)
def nothing_cached() -> None:
    if is_active():
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def test_blocks_and_segments_are_those_of_pytorchs_allocator() -> None:
    """512 bytes at least; small blocks from 2 MiB, larger ones from 20 MiB; what does not fit has its own."""
    before, reserved = torch.cuda.memory_allocated(), torch.cuda.memory_reserved()
    small = torch.empty(1, device="cuda")
    assert (torch.cuda.memory_allocated() - before, torch.cuda.memory_reserved() - reserved) in (
        (512, 2 * MIB),
        (512, 0),
    )
    with_small = torch.cuda.memory_reserved()
    middle = torch.empty(3 * MIB, dtype=torch.uint8, device="cuda")
    assert torch.cuda.memory_reserved() - with_small == 20 * MIB
    large = torch.empty(18 * MIB + 1, dtype=torch.uint8, device="cuda")
    assert torch.cuda.memory_reserved() - with_small == 40 * MIB
    assert torch.cuda.memory_allocated() - before == 512 + 3 * MIB + 18 * MIB + 512
    del small, middle, large
    assert torch.cuda.memory_allocated() == before
    assert torch.cuda.max_memory_allocated() - before == 512 + 3 * MIB + 18 * MIB + 512
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() <= reserved + 2 * MIB


def test_the_device_counts_what_was_taken_of_it() -> None:
    free, total = torch.cuda.mem_get_info()
    assert total == torch.cuda.get_device_properties(0).total_memory == Gpu().total_bytes
    one = torch.empty(100 * MIB, dtype=torch.uint8, device="cuda")
    assert free - torch.cuda.mem_get_info()[0] == 100 * MIB
    assert library().counts().peak_bytes[0] >= 100 * MIB
    del one
    torch.cuda.empty_cache()
    assert torch.cuda.mem_get_info()[0] == free


def test_out_of_memory_is_pytorchs_error_and_the_next_allocation_works() -> None:
    retries = torch.cuda.memory_stats()["num_alloc_retries"]
    held = torch.empty(60 << 30, dtype=torch.uint8, device="cuda")
    left = torch.cuda.mem_get_info()[0] / 2**30
    with pytest.raises(torch.cuda.OutOfMemoryError) as told:
        torch.empty(30 << 30, dtype=torch.uint8, device="cuda")
    said = str(told.value)
    assert left < 79.18 - 60
    assert "Tried to allocate 30.00 GiB. GPU 0 has a total capacity of 79.18 GiB" in said
    assert f" of which {left:.2f} GiB is free" in said
    assert "Of the allocated memory 60.0" in said
    assert torch.cuda.memory_stats()["num_alloc_retries"] == retries + 1
    assert torch.cuda.memory_stats()["num_ooms"] >= 1
    del held
    assert torch.empty(30 << 30, dtype=torch.uint8, device="cuda").numel() == 30 << 30
    torch.cuda.synchronize()


def test_a_share_of_the_memory_may_be_all_that_a_process_takes() -> None:
    torch.cuda.set_per_process_memory_fraction(0.01)
    try:
        with pytest.raises(torch.cuda.OutOfMemoryError, match=r"810.7. MiB allowed"):
            torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)


def test_expandable_segments_grow_in_pages() -> None:
    lines = said_by(
        "import torch\n"
        "from nocuda import library\n"
        "held = [torch.empty(15 << 20, dtype=torch.uint8, device='cuda')]\n"
        "print(torch.cuda.memory_reserved() >> 20, len(torch.cuda.memory_snapshot()))\n"
        "held.append(torch.empty(15 << 20, dtype=torch.uint8, device='cuda'))\n"
        "print(torch.cuda.memory_reserved() >> 20, len(torch.cuda.memory_snapshot()))\n"
        "print(torch.cuda.memory_snapshot()[0]['is_expandable'], library().calls('cudaMalloc'))\n"
        "held.clear(); torch.cuda.empty_cache()\n"
        "print(torch.cuda.memory_reserved(), torch.cuda.mem_get_info()[0] >> 20)\n"
        "try: torch.empty(200 << 30, dtype=torch.uint8, device='cuda')\n"
        "except torch.cuda.OutOfMemoryError: print('out of memory')\n",
        Gpu(total_bytes=32 << 30, context_bytes=1 << 30),
        PYTORCH_ALLOC_CONF="expandable_segments:True",
    )
    assert lines == ["20 1", "40 1", "True 0", "0 31744", "out of memory"]


def test_what_was_sent_can_be_read_back_and_what_a_kernel_wrote_reads_as_zero() -> None:
    sent = torch.arange(1000.0)
    there = sent.cuda()
    assert torch.equal(there.cpu(), sent)
    assert torch.equal(there[3:5].cpu(), sent[3:5])
    assert torch.count_nonzero((there + 1).cpu()) == 0
    assert torch.equal(there.clone().cpu(), sent)
    assert torch.equal(there.cpu(), sent)
    large = torch.ones(2 << 20)
    assert torch.count_nonzero(large.cuda().cpu()) == 0, "more than 4 MiB is not copied"


def test_numbers_of_a_tensor_that_is_gone_are_not_read_as_results() -> None:
    """A tensor's size is made of such a number: its block was another tensor's."""
    torch.cuda.empty_cache()
    gone = torch.full((128,), float("nan")).cuda()
    where = gone.data_ptr()
    del gone
    result = torch.empty(128, device="cuda")
    assert result.data_ptr() == where
    result.add_(1)
    assert result[0].item() == 0
    assert torch.unique(torch.zeros(100, dtype=torch.long, device="cuda")).numel() in (0, 1)
    assert torch.bincount(torch.zeros(8, dtype=torch.long, device="cuda")).tolist() == [0]


def test_memory_pools_keep_their_blocks_apart() -> None:
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        inside = torch.empty(30 * MIB, dtype=torch.uint8, device="cuda")
    outside = torch.empty(30 * MIB, dtype=torch.uint8, device="cuda")
    where = {one["address"]: one["segment_pool_id"] for one in torch.cuda.memory_snapshot()}
    assert where[inside.data_ptr()] != where[outside.data_ptr()] == (0, 0)


def test_pinned_memory_is_known_as_such() -> None:
    assert torch.empty(10).pin_memory().is_pinned()
    assert torch.empty(10, pin_memory=True).is_pinned()
    assert not torch.empty(10).is_pinned()


def test_the_parts_of_a_training_steps_peak_add_up_to_what_the_gate_measures() -> None:
    device = torch.device("cuda", torch.cuda.current_device())
    net = torch.nn.Sequential(torch.nn.Linear(300, 300), torch.nn.ReLU(), torch.nn.Linear(300, 5)).to(device)
    data, optimizer = torch.ones(64, 300, device=device), torch.optim.AdamW(net.parameters())

    def forward() -> torch.Tensor:
        optimizer.zero_grad()
        return net(data).square().mean()

    step = Step(forward, lambda loss: loss.backward(), optimizer.step)
    for _ in range(2):
        step.run()
    memory, _ = measure_memory(step, device)
    peak = take_peak(step, device)
    assert peak.peak_bytes == memory.peak_bytes
    parameters = [part for part in peak.parts if part.category == "parameters"]
    assert sum(part.size_bytes for part in parameters) == sum(-(-one.nbytes // 512) * 512 for one in net.parameters())
    backward = [part for part in peak.parts if part.category == "new gradients"]
    assert {part.module for part in backward} <= {"0", "2"}
    assert {part.line.split(":")[0] for part in backward} == {"tests/nocuda/test_memory.py"}
    assert backward


def test_a_step_that_fills_the_device_says_what_was_alive_and_who_asked_for_more() -> None:
    device = torch.device("cuda", torch.cuda.current_device())
    net = torch.nn.Sequential(*(torch.nn.Linear(4096, 4096) for _ in range(6))).to(device)
    data = torch.ones(16_384, 4096, device=device)
    step = Step(lambda: net(data).sum(), lambda loss: loss.backward())
    needed = 16_384 * 4096 * 4
    torch.cuda.empty_cache()
    room = torch.cuda.memory_reserved() + 3 * needed + needed // 2
    torch.cuda.set_per_process_memory_fraction(room / Gpu().total_bytes)
    try:
        found = take_failure(step, device)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    assert found is not None
    alive, asked_by = found
    assert (asked_by.operator, asked_by.module) == ("aten::addmm", "*")
    made = [part for part in alive.parts if part.category == "made by the forward"]
    assert [(part.operator, part.blocks, part.size_bytes) for part in made] == [("aten::addmm", 3, 3 * needed)]
    held = sum(part.size_bytes for part in alive.parts) - 3 * needed
    assert held == data.nbytes + sum(-(-one.nbytes // 512) * 512 for one in net.parameters())


def test_a_step_that_empties_the_cache_leaves_only_what_is_in_use_and_asks_the_driver_anew() -> None:
    model, tokens = (
        build_model("tiny", vocab_size=50, device="cuda"),
        torch.zeros(4, 64, dtype=torch.int64, device="cuda"),
    )
    kept, asked = {}, {}
    for empties in (False, True):
        step = TrainingStep(model, tokens, TrainingConfig(empty_cache=empties))
        step()
        torch.cuda.synchronize()
        before = torch.cuda.memory_stats()["segment.all.allocated"]
        step()
        asked[empties] = torch.cuda.memory_stats()["segment.all.allocated"] - before
        kept[empties] = torch.cuda.memory_reserved() - torch.cuda.memory_allocated()
        del step
    assert kept[True] < kept[False]
    assert asked[True] > asked[False] == 0
