"""What is measured: a call with its arguments, or the phases of a step, in order."""

from __future__ import annotations

import weakref

from perflab.measure.calls.workload import Step, Workload, chain, phases_of


def test_a_call_gets_its_arguments_every_time_gives_its_result_and_marks_no_phase() -> None:
    got: list[tuple[int, int]] = []

    def work(first: int, *, second: int) -> int:
        got.append((first, second))
        return len(got)

    workload = Workload(work, (1,), {"second": 2})
    assert workload.run() == 1
    assert workload.run() == 2
    assert got == [(1, 2), (1, 2)]
    marks: list[None] = []
    workload = Workload(lambda: None, (), {})
    workload.run(after_phase=lambda: marks.append(None))
    assert workload.phases == ()
    assert marks == []


def test_a_step_runs_its_phases_in_order_and_hands_the_loss_on() -> None:
    story: list[object] = []

    def forward() -> str:
        story.append("forward")
        return "loss"

    step = Step(
        forward=forward,
        backward=lambda loss: story.append(("backward", loss)),
        optimizer=lambda: story.append("optimizer"),
    )
    assert step.run(after_phase=lambda: story.append("mark")) == "loss"
    assert story == ["forward", "mark", ("backward", "loss"), "mark", "optimizer", "mark"]
    assert step.phases == ("forward", "backward", "optimizer")


def test_phases_that_are_left_out_leave_no_mark() -> None:
    marks: list[None] = []
    for step, phases in (
        (Step(lambda: 1), ("forward",)),
        (Step(lambda: 1, backward=lambda _loss: None), ("forward", "backward")),
        (Step(lambda: 1, optimizer=lambda: None), ("forward", "optimizer")),
    ):
        marks.clear()
        assert step.run(after_phase=lambda: marks.append(None)) == 1
        assert step.phases == phases
        assert len(marks) == len(phases)


def test_what_a_workload_and_a_step_have_in_their_hands() -> None:
    data, option = object(), object()

    def call(*_args: object, **_kwargs: object) -> None:
        """Takes anything."""

    assert Workload(call, (data,), {"option": option}).roots == (call, (data,), {"option": option})
    forward, backward, optimizer = (lambda *_args: None for _ in range(3))
    assert Step(forward, backward, optimizer).roots == (forward, backward, optimizer)


def test_micro_batches_run_forward_and_backward_in_turn_and_the_optimizer_once() -> None:
    story: list[str] = []
    losses = iter(("first", "second", "third"))

    def forward() -> str:
        story.append("forward")
        return next(losses)

    step = Step(
        forward,
        backward=lambda loss: story.append(f"backward {loss}"),
        optimizer=lambda: story.append("optimizer"),
        micro_batches=3,
    )
    assert step.run(after_phase=lambda: story.append("|")) == "third"
    once = ["forward", "|", "backward {}", "|"]
    assert story == [*[text.format(loss) for loss in ("first", "second", "third") for text in once], "optimizer", "|"]
    assert step.phases == ("forward", "backward", "optimizer")
    assert step.spans == ("forward", "backward") * 3 + ("optimizer",)


def test_the_loss_of_one_micro_batch_is_gone_before_the_next_begins() -> None:
    class Loss:
        """Something that a weak reference can be had of."""

    alive: list[weakref.ref[Loss]] = []

    def forward() -> Loss:
        assert [one for one in alive if one() is not None] == []
        loss = Loss()
        alive.append(weakref.ref(loss))
        return loss

    assert isinstance(Step(forward, micro_batches=3).run(), Loss)
    assert len(alive) == 3


def test_phases_of_any_names_hand_results_on_and_keep_none_of_them_alive() -> None:
    class Cache:
        """Something that a weak reference can be had of."""

    alive: list[weakref.ref[Cache]] = []

    def start() -> Cache:
        cache = Cache()
        alive.append(weakref.ref(cache))
        return cache

    def drop(cache: Cache) -> str:
        del cache
        assert alive[-1]() is None
        return "first"

    work = chain({"prefill": start, "decode": drop, "detokenize": lambda text: text + " word"})
    marks: list[str] = []
    assert work.run(after_phase=lambda: marks.append("|")) == "first word"
    assert work.phases == work.spans == ("prefill", "decode", "detokenize")
    assert len(marks) == 3
    work.replace_calls(lambda *_given: "else")
    assert work.run() == "else"


def test_what_fits_is_built_of_is_a_step_if_it_has_a_step_s_phases_alone() -> None:
    assert isinstance(phases_of({"forward": int, "micro_batches": 2}), Step)
    assert phases_of({"forward": int, "sample": str}).run() == "0"
    assert phases_of({"prefill": int, "decode": str}).phases == ("prefill", "decode")
