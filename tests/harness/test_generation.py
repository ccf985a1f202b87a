"""Generations: what the hook notes, and what becomes of it."""

from __future__ import annotations

import pytest
import torch

from perflab.base.errors import UsageError
from perflab.measure.calls.workload import Outputs, chain
from perflab.measure.clocks import clock
from perflab.measure.clocks.clock import HostStopwatch, Sample
from perflab.measure.counts.counter import CallCounter, compiler_state
from perflab.measure.generation import Generating, TokenHook, generation_of
from perflab.measure.memory.peak import measure_memory
from perflab.results.measurement import Generation, Statistic, formula_of, is_compared
from tests.harness.virtual_clock import VirtualClock

CPU = torch.device("cpu")


@pytest.fixture
def virtual(monkeypatch: pytest.MonkeyPatch) -> VirtualClock:
    found = VirtualClock()
    monkeypatch.setattr(clock, "read_ns", found.read_ns)
    return found


def test_prefill_ends_at_the_first_token_and_nothing_of_it_is_in_decode(virtual: VirtualClock) -> None:
    def generate(hook: TokenHook) -> str:
        virtual.advance(100)
        hook()
        virtual.advance(10)
        hook(2)
        virtual.advance(7)
        return "text"

    work = Generating(generate, batch=3)
    sample = HostStopwatch().time(work, 1)
    assert (sample.total_ns, sample.phases_ns) == (117, {"prefill": 100, "decode": 17})
    assert work.outputs() == Outputs((100, 110), (1, 2), 3)
    assert work.most_calls(1e9) == 1


@pytest.mark.parametrize(
    ("given", "tokens"),
    [(None, 1), (4, 4), (torch.zeros(2), 1), (torch.zeros(2, 3), 3), ([7, 8], 1)],
)
def test_tokens_are_given_as_a_number_for_each_sequence_or_all_of_them(given: object, tokens: int) -> None:
    hook = TokenHook(2, lambda: None)
    hook() if given is None else hook(given)
    assert hook.outputs.tokens == (tokens,)


@pytest.mark.parametrize("wrong", [0, -1, True, None, 1.5, torch.zeros(0)])
def test_what_is_no_number_of_tokens_is_refused(wrong: object) -> None:
    with pytest.raises(UsageError, match="once for each step"):
        TokenHook(1, lambda: None)(wrong)


def test_a_prompt_is_no_token() -> None:
    hook = TokenHook(1, lambda: None)
    hook.put(torch.zeros(1, 9))
    assert hook.outputs.tokens == ()
    hook.put(torch.zeros(1))
    hook.end()
    assert hook.outputs.tokens == (1,)


def test_set_up_runs_once_before_each_call_and_is_not_timed(virtual: VirtualClock) -> None:
    story: list[str] = []

    def set_up() -> None:
        virtual.advance(1000)
        story.append("set up")

    def generate(hook: TokenHook) -> None:
        story.append("generate")
        hook()

    work = Generating(generate, setup=set_up)
    assert work.make_ready(1) == 1000
    work.run()
    work.run()
    assert story == ["set up", "generate"] * 2
    assert work.make_ready(0) == 0


def calls(*lengths: int) -> list[Sample]:
    """Calls of so many tokens, the first after 100 ns, the others 10 ns apart."""
    samples = []
    for many in lengths:
        at_ns = tuple(100 + 10 * number for number in range(many))
        phases_ns = {"prefill": 100, "decode": 10 * (many - 1)}
        samples.append(Sample(at_ns[-1], phases_ns, outputs=Outputs(at_ns, (1,) * many, 4)))
    return samples


def test_statistics_are_those_of_their_formulas() -> None:
    samples = calls(*[5] * 10)
    found = generation_of(samples, {"prefill": {"operators": 90}, "decode": {"operators": 10}}, samples[0].outputs)
    assert found is not None
    assert {name: one.value for name, one in found.statistics.items()} == pytest.approx(
        {
            "ttft": 100.0,
            "tpot": 10.0,
            "itl_p50": 10.0,
            "itl_p90": 10.0,
            "tokens/s": 4 * 5 * 1e9 / 140,
            "sequence_tokens/s": 5 * 1e9 / 140,
            "operators/token": 2.5,
        }
    )
    assert found.known == found.statistics
    assert (found.batch, found.tokens, found.problems) == (4, [5] * 10, [])


def test_a_single_token_has_no_time_per_token_and_differing_numbers_are_said() -> None:
    single, mixed = calls(1, 1), calls(3, 5)
    found = generation_of(single, {"decode": {"operators": 1}}, single[0].outputs)
    assert {"ttft", "tokens/s", "sequence_tokens/s"} == found.statistics.keys()
    assert found.problems == ["one token a call: no time per output token"]
    other = generation_of(mixed, {}, mixed[0].outputs)
    assert other.problems == ["calls gave 3 to 5 tokens"]
    assert other.statistics["ttft"].low is None, "two calls have no interval"
    assert generation_of([Sample(3)], {}, None) is None


def test_a_statistic_by_another_formula_is_not_known() -> None:
    other = Generation(
        batch=1,
        tokens=[2],
        statistics={"tpot": Statistic(value=3.0, formula="end / tokens"), "new": Statistic(value=1.0, formula="x")},
    )
    assert other.known == {}
    assert other.problems == ["tpot, new: by a formula of another version, not shown"]
    assert not is_compared("tpot", "end / tokens")
    assert is_compared("itl_p99", formula_of("itl_p99") or "")
    assert not is_compared("ttft", formula_of("ttft") or ""), "it is the phase prefill"


def test_counts_are_told_apart_by_phase() -> None:
    x = torch.ones(8)
    counter = CallCounter(CPU, compiler_state())
    work = chain({"prefill": lambda: x + 1, "decode": lambda y: torch.relu(torch.relu(y) + 1)})
    measure_memory(work, CPU, counter)
    assert counter.counts["operators"] == 4
    assert {name: found["operators"] for name, found in counter.by_phase.items()} == {"prefill": 1, "decode": 3}
    assert (
        counter.by_phase["prefill"]["allocations"] + counter.by_phase["decode"]["allocations"]
        == (counter.counts["allocations"])
    )
