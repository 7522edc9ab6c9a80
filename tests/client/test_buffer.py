"""Buffers are arrays in shared memory, without copies, for as long as anybody looks at them."""

from __future__ import annotations

import gc

import numpy as np
import pytest

from polymux.client import Client, Queue
from polymux.core.errors import Closed, InvalidRequest, SegmentFull


@pytest.mark.parametrize(
    "dtype", ["?", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8", "c8", "c16"]
)
@pytest.mark.parametrize("shape", [(), (0,), (1,), (7,), (3, 5), (2, 1, 4, 3)])
def test_an_array_comes_back_as_it_went_in(queue: Queue, dtype: str, shape: tuple[int, ...]) -> None:
    array = (np.random.default_rng(0).random(shape) * 100).astype(dtype)
    buffer = queue.array(array)
    assert buffer.shape == shape
    assert buffer.dtype == np.dtype(dtype)
    assert buffer.nbytes == array.nbytes
    np.testing.assert_array_equal(buffer.numpy(), array)


def test_every_view_of_a_buffer_is_the_same_memory(queue: Queue) -> None:
    buffer = queue.zeros((4, 3), "f4")
    array = buffer.numpy()
    array[1, 2] = 5
    assert np.asarray(buffer)[1, 2] == 5
    assert np.from_dlpack(buffer)[1, 2] == 5
    view = memoryview(buffer)
    assert (view.shape, view.format, view.nbytes) == ((4, 3), "f", 48)
    assert view[1, 2] == 5
    view[0, 0] = 7
    assert array[0, 0] == 7


def test_a_non_contiguous_array_is_copied_in_order(queue: Queue) -> None:
    array = np.arange(24).reshape(4, 6)[::2, ::3]
    np.testing.assert_array_equal(queue.array(array).numpy(), array)


def test_memory_returns_when_a_buffer_and_its_views_are_gone(client: Client, queue: Queue) -> None:
    gc.collect()
    before = client.memory()["live_nbytes"]
    buffer = queue.zeros(100_000)
    view = buffer.numpy()
    buffer.close()
    assert client.memory()["live_nbytes"] > before, "a view still looks at it"
    view[:] = 3
    del view
    gc.collect()
    assert client.memory()["live_nbytes"] == before
    buffer.close()  # twice is fine


def test_memory_of_a_buffer_in_use_returns_when_the_task_is_done(client: Client, queue: Queue) -> None:
    gc.collect()
    before = client.memory()["live_nbytes"]
    for _ in range(100):
        queue.submit("copy", [queue.zeros(1000)], [queue.empty(1000)])
    queue.synchronize()
    gc.collect()
    queue.zeros(1).close()  # any allocation looks for what has become free
    assert client.memory()["live_nbytes"] == before


def test_a_closed_buffer_says_so(queue: Queue) -> None:
    buffer = queue.zeros(4)
    buffer.close()
    with pytest.raises(Closed):
        buffer.numpy()
    with pytest.raises(Exception, match="closed"):
        queue.submit("copy", [buffer], [queue.zeros(4)])


@pytest.mark.parametrize("shape", [-1, (2, -3), (2**62, 8), (2**40, 2**40), (1,) * 9, 1.5, "ab"])
def test_an_impossible_shape_is_refused(queue: Queue, shape: object) -> None:
    with pytest.raises((InvalidRequest, TypeError)):
        queue.empty(shape, "f4")  # type: ignore[arg-type]


@pytest.mark.parametrize("dtype", ["S4", "O", "M8[s]", ">f4", "i4,f4"])
def test_a_dtype_that_no_kernel_takes_is_refused(queue: Queue, dtype: str) -> None:
    with pytest.raises(InvalidRequest):
        queue.empty(4, dtype)


def test_a_full_segment_names_what_is_in_use(client: Client, queue: Queue) -> None:
    with pytest.raises(SegmentFull, match="free"):
        queue.empty(client.segment_nbytes, "u1")
    queue.zeros(10).close()  # and nothing is lost by it


def test_many_buffers_can_come_and_go(client: Client, queue: Queue) -> None:
    gc.collect()
    before = client.memory()["live_nbytes"]
    random = np.random.default_rng(1)
    live = []
    for _ in range(2000):
        live.append(queue.array(np.full(int(random.integers(1, 5000)), len(live), "i4")))
        if len(live) > 50:
            live.pop(int(random.integers(0, len(live)))).close()
    for buffer in live:
        array = buffer.numpy()
        assert (array == array[0]).all()
    del array, buffer
    live.clear()
    gc.collect()
    assert client.memory()["live_nbytes"] == before
