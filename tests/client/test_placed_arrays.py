"""Arrays in shared memory know whether they are a whole buffer, and what only came from one does not hold it."""

from __future__ import annotations

import gc
import weakref

import numpy as np

from polymux.client import Client
from polymux.client.placed import PlacedArray, placed


def test_another_view_of_the_bytes_is_not_the_buffer(client: Client) -> None:
    with client.queue() as queue:
        array = placed(queue.array(np.arange(6, dtype=np.int64)))
        assert array.whole() is array.buffer is not None
        assert array.view(np.float64).whole() is None
        assert array[1:].whole() is None
        assert array[:].whole() is array.buffer
        assert array[1:].buffer is array.buffer


def test_copies_and_what_is_computed_do_not_hold_the_buffer(client: Client) -> None:
    with client.queue() as queue:
        array = placed(queue.array(np.arange(6, dtype=np.float32)))
        buffer = weakref.ref(array.buffer)
        kept = [array.copy(), array + 1, array.astype(np.int32), np.sqrt(array), array[array > 2]]
        assert all(isinstance(other, PlacedArray) and other.buffer is None for other in kept)
        del array
        gc.collect()
        assert buffer() is None
