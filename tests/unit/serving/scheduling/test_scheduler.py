"""The live driver of the engine of requests, in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from polymux.core.decision import WakeAt
from polymux.core.errors import DeviceFailed, PolymuxError, ServerGone
from polymux.core.serving.decision import PrepareInstance, RejectRequest, RetireInstance
from polymux.core.serving.model import Request
from polymux.core.status import TaskStatus
from polymux.serving.errors import RequestError
from tests.unit.serving.scheduling.rig import BLOCKS, CPU, MS, Model, Rig, outcome
from tests.unit.serving.scheduling.virtual_time import clock, run

Scenario = Callable[[], Coroutine[Any, Any, None]]


def scenario(test: Scenario) -> Callable[[], None]:
    """Run a test in virtual time."""

    def inner() -> None:
        run(test())

    inner.__name__, inner.__doc__ = test.__name__, test.__doc__
    return inner


@scenario
async def test_requests_that_come_together_are_one_batch_and_each_gets_its_own_answer() -> None:
    rig = Rig()
    model = await rig.add(Model())
    answers = await asyncio.gather(rig.ask(model, 1), rig.ask(model, 2, 3), rig.ask(model, 4))
    assert answers == [[2], [4, 6], [8]]
    assert model.ran == [4]
    assert not model.live


@scenario
async def test_a_batch_is_no_larger_than_the_model_takes() -> None:
    rig = Rig()
    model = await rig.add(Model(), max_batch=4)
    answers = await asyncio.gather(*(rig.ask(model, value) for value in range(10)))
    assert answers == [[2 * value] for value in range(10)]
    assert model.ran == [4, 4, 2]


@scenario
async def test_a_bad_item_fails_alone_and_the_others_of_its_batch_are_answered() -> None:
    rig = Rig()
    model = await rig.add(Model())
    answers = await asyncio.gather(
        rig.ask(model, 1), rig.ask(model, 13), rig.ask(model, 3), return_exceptions=True
    )
    assert [outcome(answer) for answer in answers] == [[2], "13 is bad luck", [6]]
    assert model.ran == [3, 1, 1, 1]
    assert not model.live
    assert rig.count("requests_total", outcome="failed") == 1
    assert rig.count("requests_total", outcome="on_time") == 2


@scenario
async def test_requests_of_different_shapes_run_in_the_same_batch_as_tasks_of_their_own() -> None:
    rig = Rig()
    model = await rig.add(Model(batched=False))
    assert await asyncio.gather(rig.ask(model, 1, 2), rig.ask(model, 3)) == [[2, 4], [6]]
    assert model.ran == [2, 1]


@scenario
async def test_two_models_run_at_the_same_time_on_units_of_their_own() -> None:
    rig = Rig()
    one, two = await rig.add(Model("one/1"), shares=[1]), await rig.add(Model("two/1"), shares=[1])
    start = clock()
    await asyncio.gather(rig.ask(one, 1), rig.ask(two, 1))
    assert clock() - start < 12 * MS
    assert {*one.blocks, *two.blocks} == {BLOCKS[0], BLOCKS[1]}


@scenario
async def test_a_refusal_is_a_503_with_reason_and_the_seconds_after_which_to_come_back() -> None:
    rig = Rig()
    model = await rig.add(Model())
    rig.policy.refuse = lambda request: RejectRequest(request, clock() + 2_300 * MS, "it is overloaded")
    with pytest.raises(RequestError) as refused:
        await rig.ask(model, 1)
    assert refused.value.status == 503
    assert refused.value.headers == ((b"retry-after", b"3"),)
    assert "it is overloaded; its like could be met in 2300 ms" in refused.value.message
    assert rig.count("requests_total", outcome="refused") == 1
    assert not model.live


@scenario
async def test_a_policy_that_waits_is_asked_again_at_the_time_it_named() -> None:
    rig = Rig()
    model = await rig.add(Model())
    rig.policy.wait_until = clock() + 50 * MS
    start = clock()
    assert await rig.ask(model, 1) == [2]
    assert 60 * MS <= clock() - start <= 62 * MS


@scenario
async def test_a_request_that_waits_past_its_own_timeout_is_given_up_and_not_run() -> None:
    rig = Rig()
    model = await rig.add(Model())
    rig.policy.wait_until = clock() + 50 * MS
    with pytest.raises(RequestError, match="timeout expired"):
        await rig.ask(model, 1, within_ms=20, expires=True)
    await asyncio.sleep(0.1)
    assert model.ran == []
    assert rig.count("requests_total", outcome="expired") == 1


@scenario
async def test_a_request_past_the_models_deadline_is_answered_and_counted_as_late() -> None:
    rig = Rig()
    model = await rig.add(Model())
    assert await rig.ask(model, 1, within_ms=5) == [2]
    assert rig.count("requests_total", outcome="late") == 1


@scenario
async def test_a_request_whose_client_went_away_is_taken_out_before_its_batch() -> None:
    rig = Rig()
    model = await rig.add(Model())
    rig.policy.wait_until = clock() + 20 * MS
    gone, stays = (asyncio.create_task(rig.ask(model, value)) for value in (1, 2))
    await asyncio.sleep(0.01)
    gone.cancel()
    assert await stays == [4]
    assert model.ran == [1]
    with pytest.raises(asyncio.CancelledError):
        await gone
    assert not model.live


@scenario
async def test_a_client_that_goes_away_while_its_batch_runs_leaves_the_others_and_no_memory_behind() -> None:
    rig = Rig()
    model = await rig.add(Model())
    gone, stays = (asyncio.create_task(rig.ask(model, value)) for value in (1, 2))
    await asyncio.sleep(0.005)
    gone.cancel()
    assert await stays == [4]
    with pytest.raises(asyncio.CancelledError):
        await gone
    assert not model.live


@scenario
async def test_a_clock_that_goes_back_stops_nothing() -> None:
    jumped = 0
    rig = Rig(lambda: clock() - jumped)
    model = await rig.add(Model())
    assert await rig.ask(model, 1) == [2]
    first = asyncio.create_task(rig.ask(model, 2))
    await asyncio.sleep(0.005)
    jumped = 3_600_000 * MS
    assert await first == [4]
    assert await asyncio.gather(*(rig.ask(model, value) for value in range(3))) == [[0], [2], [4]]
    assert rig.policy.times == sorted(rig.policy.times)


@scenario
async def test_a_policy_that_fails_once_costs_nobody_an_answer() -> None:
    rig = Rig()
    model = await rig.add(Model())
    failures = iter([ValueError("a defect")])

    def chosen(*_: object) -> list[Any]:
        error = next(failures, None)
        rig.policy.chosen = None
        raise error or AssertionError

    rig.policy.chosen = chosen
    assert await rig.ask(model, 1, within_ms=5000) == [2]


@scenario
async def test_what_waits_is_refused_when_a_policy_does_nothing_but_fail() -> None:
    rig = Rig()
    model = await rig.add(Model())

    def chosen(*_: object) -> list[Any]:
        raise ValueError("a defect")

    rig.policy.chosen = chosen
    with pytest.raises(RequestError, match="the scheduling policy failed"):
        await rig.ask(model, 1, within_ms=60_000)
    rig.policy.chosen = None
    assert await rig.ask(model, 2) == [4]


@scenario
async def test_a_share_is_prepared_beside_the_one_that_serves_and_the_longest_gap_is_told() -> None:
    rig = Rig()
    model = await rig.add(Model(), shares=[1])
    model.prepare_ms = 100
    asked: list[PrepareInstance] = []

    def chosen(*_: object) -> list[Any]:
        rig.policy.chosen = None
        asked.append(PrepareInstance(model.name, CPU, 2))
        return [*asked, WakeAt(clock() + MS)]

    rig.policy.chosen = chosen
    for value in range(20, 40):
        assert await rig.ask(model, value) == [2 * value]
    assert model.prepared == [1, 2]
    used = [len(block) for block in model.blocks]
    assert used == sorted(used)
    assert set(used) == {1, 2}
    assert 0.009 < rig.count("longest_gap_seconds", model="m/1") < 0.02
    assert rig.count("share_changes_total", model="m/1") == 1


@scenario
async def test_a_share_that_cannot_be_prepared_leaves_the_model_as_it_is() -> None:
    rig = Rig()
    model = await rig.add(Model(), shares=[1])
    model.problem = PolymuxError("no memory")
    rig.policy.chosen = lambda *_: [PrepareInstance(model.name, CPU, 2)] if model.problem else []
    waiting = asyncio.create_task(rig.ask(model, 1, within_ms=1000))
    await asyncio.sleep(0.01)
    model.problem, rig.policy.chosen = None, None
    assert await rig.ask(model, 2) == [4]
    assert await waiting == [2]
    assert model.prepared == [1]


@scenario
async def test_a_retired_share_is_let_go_of() -> None:
    rig = Rig()
    model = await rig.add(Model())

    def chosen(*_: object) -> list[Any]:
        rig.policy.chosen = None
        return [RetireInstance(model.name, CPU, 2), WakeAt(clock() + MS)]

    rig.policy.chosen = chosen
    assert await asyncio.gather(rig.ask(model, 1), rig.ask(model, 2)) == [[2], [4]]
    assert model.retired == [2]
    assert {len(block) for block in model.blocks} == {1}


@scenario
async def test_a_device_that_fails_is_used_no_more_and_its_requests_are_told() -> None:
    rig = Rig()
    model = await rig.add(Model())
    model.problem = DeviceFailed(TaskStatus.DEVICE_FAILED, "q", 1, "m", "it burns")
    with pytest.raises(DeviceFailed):
        await rig.ask(model, 1)
    assert model.ran == [1]
    assert rig.scheduler.view.devices[CPU].lost is not None
    with pytest.raises(DeviceFailed, match="it burns"):  # at once: there is no other device
        await rig.ask(model, 1)
    assert model.ran == [1]


@scenario
async def test_refusals_do_not_make_later_deadlines_shorter() -> None:
    rig = Rig()
    model = await rig.add(Model())
    due: list[int] = []

    def refuse(request: Request) -> RejectRequest | None:
        due.append(request.deadline_ns - request.arrival_ns)
        return RejectRequest(request, None, "no") if len(due) < 20 else None

    rig.policy.refuse = refuse
    await asyncio.sleep(5)
    for _ in range(19):
        with pytest.raises(RequestError):
            await rig.ask(model, 1)
    assert await rig.ask(model, 1) == [2]
    assert set(due) == {99 * MS}


@scenario
async def test_a_model_that_is_loaded_nowhere_is_an_error_and_not_served() -> None:
    rig = Rig()
    model = Model()
    model.problem = PolymuxError("no model")
    with pytest.raises(PolymuxError, match="no model"):
        await rig.add(model)
    assert model.name not in rig.scheduler.view.models


@scenario
async def test_the_end_fails_what_waits_and_what_comes_later() -> None:
    rig = Rig()
    model = await rig.add(Model())
    rig.policy.wait_until = clock() + 1000 * MS
    waiting = asyncio.create_task(rig.ask(model, 1))
    await asyncio.sleep(0.01)
    rig.scheduler.close()
    with pytest.raises(ServerGone):
        await waiting
    with pytest.raises(ServerGone):
        await rig.ask(model, 2)
    assert model.closed
    assert not model.live


@scenario
async def test_a_burst_of_requests_is_one_event_and_leaves_other_models_alone() -> None:
    rig = Rig()
    one, two = await rig.add(Model("one/1"), max_batch=64), await rig.add(Model("two/1"), shares=[1])
    burst = [asyncio.create_task(rig.ask(one, value, within_ms=1e6)) for value in range(20, 2020)]
    await asyncio.sleep(0)
    await asyncio.sleep(0.001)
    events = [event for event in rig.policy.events if type(event).__name__ == "RequestsArrived"]
    assert len(events) == 1
    assert await rig.ask(two, 1) == [2]
    assert await asyncio.gather(*burst) == [[2 * value] for value in range(20, 2020)]
