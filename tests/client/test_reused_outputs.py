"""A buffer that several tasks write one after the other has the shape that the last of them gave it."""

from __future__ import annotations

import numpy as np
import pytest

from polymux.client import Buffer, Client, Queue
from polymux.core.implementation import PythonFunction
from polymux.core.kernel_spec import BufferParam, KernelSpec


@pytest.fixture(scope="module", autouse=True)
def kernels(client: Client) -> None:
    """Register kernels that give as many elements as their input says, all elements, and the number of them."""

    def first(count, out):  # type: ignore[no-untyped-def]
        out[: int(count[0])] = count[0]
        return [(int(count[0]),)]

    def every(count, out):  # type: ignore[no-untyped-def]
        out[...] = count[0]

    def size(x, out):  # type: ignore[no-untyped-def]
        out[0] = x.size

    for function in (first, every, size):
        spec = KernelSpec(function.__name__, (BufferParam("x"),), (BufferParam("out"),))
        client.register(spec, PythonFunction(function))


def count(queue: Queue, value: int) -> Buffer:
    return queue.array(np.full(1, value, np.float32))


@pytest.mark.parametrize("kernel", ["first", "every", "fill"])
def test_a_task_that_fills_a_buffer_after_one_that_did_not_gives_it_its_declared_shape(
    queue: Queue, kernel: str
) -> None:
    out, seen = queue.zeros(5), queue.zeros(1)
    for _ in range(3):
        queue.submit("first", [count(queue, 3)], [out])
        queue.submit("size", [out], [seen]).wait()
        assert (out.shape, seen.numpy()[0]) == ((3,), 3)
        if kernel == "fill":
            queue.submit("fill", [], [out], value=1.0)
        else:
            queue.submit(kernel, [count(queue, 5)], [out])
        queue.submit("size", [out], [seen]).wait()
        assert (out.shape, seen.numpy()[0]) == ((5,), 5)


def test_a_task_that_adds_to_what_is_there_leaves_its_shape(queue: Queue) -> None:
    out = queue.zeros(5)
    queue.submit("first", [count(queue, 3)], [out])
    queue.submit("saxpy", [out, out], [out], a=1.0).wait()
    assert out.shape == (3,)
    assert (out.numpy() == 6).all()
