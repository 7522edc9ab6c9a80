"""Queues keep order, push back when full, and report what went wrong to whoever asks."""

from __future__ import annotations

import asyncio
import threading

import numpy as np
import pytest

import polymux
from polymux.client import Client, Queue
from polymux.core.dtype import DType
from polymux.core.errors import (
    BadArgument,
    Closed,
    InvalidRequest,
    KernelFailed,
    QueueFull,
    TaskFailed,
    UnknownKernel,
)
from polymux.core.implementation import PythonFunction
from polymux.core.kernel_spec import BufferParam, KernelSpec, ScalarParam


@pytest.fixture(scope="module")
def kernels(client: Client) -> None:
    """An application's own kernels: one that waits for a byte of its input, one that fails when told."""

    def hold(gate, out, *, number):  # type: ignore[no-untyped-def]
        import time

        while gate[0] == 0:
            time.sleep(0.001)
        out[0] = number

    def fail_if(x, out, *, number):  # type: ignore[no-untyped-def]
        if number < 0:
            raise ValueError(f"number is {number}")
        out[...] = x + number

    inputs, outputs = (BufferParam("x"),), (BufferParam("out"),)
    scalars = (ScalarParam("number", DType.I64),)
    client.register(KernelSpec("hold", inputs, outputs, scalars), PythonFunction(hold))
    client.register(KernelSpec("fail_if", inputs, outputs, scalars), PythonFunction(fail_if))


def test_tasks_run_in_order(queue: Queue) -> None:
    x = queue.zeros(1000)
    for number in range(500):
        queue.submit("fill", [], [x], value=float(number))
    queue.submit("saxpy", [x, x], [x], a=1.0)
    queue.synchronize()
    assert (x.numpy() == 998).all()


def test_waiting_twice_and_late_is_fine(queue: Queue) -> None:
    tasks = [queue.submit("noop") for _ in range(3000)]
    queue.synchronize()
    for task in tasks:
        task.wait()
        task.wait(timeout=0)
        assert task.done()
        assert task.error() is None
        assert task.result() == ()


def test_a_result_is_the_output_buffers(queue: Queue) -> None:
    x, y = queue.array(np.arange(5, dtype="f4")), queue.zeros(5)
    [out] = queue.submit("copy", [x], [y]).result(timeout=10)
    assert out is y
    np.testing.assert_array_equal(out.numpy(), np.arange(5))


def test_a_full_queue_raises_when_asked_to(client: Client, kernels: None) -> None:
    with client.queue(capacity=16, on_full="raise") as queue:
        gate, out = queue.zeros(1, "u1"), queue.zeros(1, "i8")
        gate_view = gate.numpy()
        for number in range(16):
            queue.submit("hold", [gate], [out], number=number)
        with pytest.raises(QueueFull, match="16"):
            queue.submit("hold", [gate], [out], number=16)
        gate_view[0] = 1
        queue.synchronize(timeout=60)
        assert out.numpy()[0] == 15
        queue.submit("noop").wait(timeout=10)


def test_a_full_queue_waits_by_default_and_nothing_is_lost(client: Client, kernels: None) -> None:
    with client.queue(capacity=16) as queue:
        gate, out = queue.zeros(1, "u1"), queue.zeros(1, "i8")
        gate_view = gate.numpy()
        threading.Timer(0.3, gate_view.__setitem__, (0, 1)).start()
        for number in range(100):
            queue.submit("hold", [gate], [out], number=number)
        queue.synchronize(timeout=60)
        assert out.numpy()[0] == 99


def test_a_wait_that_takes_too_long_raises_and_can_be_repeated(client: Client, kernels: None) -> None:
    with client.queue() as queue:
        gate, out = queue.zeros(1, "u1"), queue.zeros(1, "i8")
        gate_view = gate.numpy()
        task = queue.submit("hold", [gate], [out], number=1)
        with pytest.raises(TimeoutError):
            task.wait(timeout=0.05)
        with pytest.raises(TimeoutError):
            queue.synchronize(timeout=0)
        with pytest.raises(TimeoutError):
            out.numpy(timeout=0.01)
        assert not task.done()
        gate_view[0] = 1
        task.wait(timeout=60)


def test_an_error_reaches_whoever_waits_for_the_task(queue: Queue, kernels: None) -> None:
    x = queue.zeros(4, "i8")
    good = queue.submit("fail_if", [x], [x], number=1)
    bad = queue.submit("fail_if", [x], [x], number=-5)
    after = queue.submit("fail_if", [x], [x], number=2)
    with pytest.raises(KernelFailed, match="number is -5"):
        bad.wait(timeout=60)
    with pytest.raises(KernelFailed):
        bad.result()
    assert isinstance(bad.error(), KernelFailed)
    good.wait()
    after.wait(timeout=60)
    assert (x.numpy() == 3).all(), "the task that failed left its output alone, the others ran"


def test_synchronize_raises_the_first_error_that_nobody_saw(queue: Queue, kernels: None) -> None:
    x = queue.zeros(4, "i8")
    seen = queue.submit("fail_if", [x], [x], number=-1)
    queue.submit("fail_if", [x], [x], number=-2)
    queue.submit("fail_if", [x], [x], number=-3)
    assert isinstance(seen.error(timeout=60), KernelFailed)
    with pytest.raises(TaskFailed, match="number is -2"):
        queue.synchronize(timeout=60)
    queue.synchronize()


def test_more_failures_than_the_ring_has_texts_for_keep_their_status(queue: Queue, kernels: None) -> None:
    x = queue.zeros(4, "i8")
    tasks = [queue.submit("fail_if", [x], [x], number=-1 - n) for n in range(100)]
    for task in tasks:
        assert isinstance(task.error(timeout=60), KernelFailed)


@pytest.mark.parametrize(
    ("call", "error", "complaint"),
    [
        (lambda q, _: q.submit("no_such_kernel"), UnknownKernel, "no_such_kernel"),
        (lambda q, x: q.submit("copy", [x]), BadArgument, "1 inputs and 1 outputs"),
        (lambda q, x: q.submit("copy", [x, x], [x]), BadArgument, "1 inputs and 1 outputs"),
        (lambda q, x: q.submit("copy", [1.5], [x]), BadArgument, "float"),
        (lambda q, x: q.submit("noop", [x] * 17), BadArgument, "16"),
        (lambda q, x: q.submit("fill", [], [x]), InvalidRequest, "value"),
        (lambda q, x: q.submit("fill", [], [x], value="red"), InvalidRequest, "red"),
        (lambda q, x: q.submit("fill", [], [x], value=1.0, colour=1), InvalidRequest, "colour"),
        (lambda q, x: q.submit("fill", [], [x], value=1.0, priority=128), BadArgument, "128"),
        (lambda q, x: q.submit("fill", [], [x], value=1.0, share=101), BadArgument, "101"),
        (lambda q, x: q.submit("fill", [], [x], value=1.0, device="tpu:9"), InvalidRequest, "tpu:9"),
        (lambda q, x: q.submit("gemm", [q.zeros((2, 2), "i4")] * 2, [x]), BadArgument, "i4"),
        (lambda q, _: q.submit(3), TypeError, "int"),
        (lambda q, _: q.submit(), TypeError, "submit"),
    ],
)
def test_a_wrong_call_is_refused_at_once(queue: Queue, call, error: type[Exception], complaint: str) -> None:  # type: ignore[no-untyped-def]
    submitted = queue.submitted
    with pytest.raises(error, match=complaint):
        call(queue, queue.zeros(4))
    assert queue.submitted == submitted


def test_wrong_shapes_are_an_error_of_the_task(queue: Queue) -> None:
    task = queue.submit("copy", [queue.zeros(4)], [queue.zeros(5)])
    error = task.error(timeout=60)
    assert isinstance(error, TaskFailed)
    assert "4" in str(error)
    assert "5" in str(error)


@pytest.mark.parametrize("capacity", [0, 1, 15, 17, 2**17, -16])
def test_a_capacity_that_cannot_be_is_refused(client: Client, capacity: int) -> None:
    with pytest.raises((InvalidRequest, TypeError)):
        client.queue(capacity=capacity)


def test_buffers_of_another_client_are_refused(queue: Queue) -> None:
    with polymux.connect(start=True) as other:
        foreign = other.queue().zeros(4)
        with pytest.raises(BadArgument, match="another client"):
            queue.submit("copy", [foreign], [queue.zeros(4)])


def test_a_barrier_ends_after_all_before_it(queue: Queue) -> None:
    x = queue.zeros(100_000)
    tasks = [queue.submit("saxpy", [x, x], [x], a=0.5) for _ in range(20)]
    queue.barrier().wait(timeout=60)
    assert all(task.done() for task in tasks)


def test_transfers_are_in_order_with_the_other_tasks(queue: Queue) -> None:
    x = queue.zeros(1000)
    source = np.ones(1000, "f4")
    queue.write(x, source)
    source[:] = 9  # the queue has its own copy
    before = queue.read(x)
    queue.submit("fill", [], [x], value=3.0)
    out = np.empty(1000, "f4")
    after = queue.read(x, out)
    assert (before.result(timeout=60) == 1).all()
    assert after.result(timeout=60) is out
    assert (out == 3).all()


@pytest.mark.parametrize("array", [np.zeros(3, "f4"), np.zeros((4, 1), "f4"), np.zeros(4, "c8")])
def test_a_transfer_of_another_shape_or_kind_is_refused(queue: Queue, array: np.ndarray) -> None:
    with pytest.raises(InvalidRequest):
        queue.write(queue.zeros(4), array)
    with pytest.raises(InvalidRequest):
        queue.read(queue.zeros(4), np.zeros(5, "f4"))


def test_tasks_can_be_awaited(client: Client, queue: Queue, kernels: None) -> None:
    async def one(number: int) -> int:
        out = queue.zeros(1, "i8")
        [result] = await queue.submit("fail_if", [queue.zeros(1, "i8")], [out], number=number)
        return int(result.numpy()[0])

    async def all_of_them() -> list[int | BaseException]:
        return await asyncio.gather(*(one(number) for number in range(-2, 40)), return_exceptions=True)

    results = asyncio.run(all_of_them())
    assert all(isinstance(result, KernelFailed) for result in results[:2])
    assert results[2:] == list(range(40))


def test_an_await_can_be_cancelled(client: Client, kernels: None) -> None:
    async def give_up() -> None:
        with client.queue() as queue:
            gate, out = queue.zeros(1, "u1"), queue.zeros(1, "i8")
            gate_view = gate.numpy()
            task = queue.submit("hold", [gate], [out], number=4)

            async def wait() -> None:
                await task

            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(wait(), 0.05)
            gate_view[0] = 1
            await task
            assert out.numpy()[0] == 4

    asyncio.run(give_up())


def test_closing_twice_is_fine_and_later_calls_say_closed(client: Client) -> None:
    queue = client.queue()
    task = queue.submit("noop")
    task.wait(timeout=10)
    queue.close()
    queue.close()
    assert task.done()
    assert task.error() is None
    with pytest.raises(Closed):
        queue.submit("noop")


def test_tasks_of_a_closed_queue_are_cancelled_not_lost(client: Client, kernels: None) -> None:
    queue = client.queue()
    gate, out = queue.zeros(1, "u1"), queue.zeros(1, "i8")
    gate_view = gate.numpy()
    first = queue.submit("hold", [gate], [out], number=1)
    rest = [queue.submit("hold", [gate], [out], number=n) for n in range(2, 10)]
    threading.Timer(0.2, gate_view.__setitem__, (0, 1)).start()
    queue.close()
    assert first.done()
    assert all(isinstance(task.error(timeout=10), TaskFailed) for task in rest[1:])


def test_queues_of_several_threads_work_side_by_side(client: Client) -> None:
    failures: list[BaseException] = []

    def work(number: int) -> None:
        try:
            with client.queue() as queue:
                x = queue.zeros(256)
                for _ in range(300):
                    queue.submit("fill", [], [x], value=float(number)).wait(timeout=60)
                    assert (x.numpy() == number).all()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
