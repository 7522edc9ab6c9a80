"""A kernel with its buffers on one stream of a server, to be run as often as wanted."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager

from polymux.client import Client
from polymux.profiling.coexec.shapes import Shape, values


@contextmanager
def runs(
    client: Client, stream: str, kernel: str, shape: Shape, dtype: str, scalars: Mapping[str, int]
) -> Iterator[Callable[[], int]]:
    """Give a function that runs a task and returns how long it took until its end was noticed, in ns.

    The first run brings the data.

    Raises
    ------
    SegmentFull
        If the problem does not fit the memory shared with the server.
    TaskFailed
        By the function, if the kernel cannot do it.
    """
    with ExitStack() as stack:
        queue = stack.enter_context(client.queue(f"calibrate {kernel}", stream=stream))
        inputs = [
            stack.enter_context(queue.array(values(extents, dtype, seed)))
            for seed, extents in enumerate(shape.inputs)
        ]
        output = stack.enter_context(queue.zeros(shape.output, dtype))
        given = {**shape.scalars, **scalars}

        def run() -> int:
            start = time.perf_counter_ns()
            queue.submit(kernel, inputs, [output], **given).wait()
            return time.perf_counter_ns() - start

        yield run
