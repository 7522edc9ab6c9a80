"""An instance whose constructor has raised, as a debugger finds it, tells what it is and hurts nobody."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from polymux.client import Buffer, Client, Queue
from polymux.core.errors import BadArgument, Closed, InvalidRequest, NoServer, PolymuxError


def left_over(error: PolymuxError, kind: type[Any]) -> Any:
    """The instance that the constructor was working on."""
    trace = error.__traceback__
    while trace is not None:
        found = trace.tb_frame.f_locals.get("self")
        if type(found) is kind:
            return found
        trace = trace.tb_next
    raise AssertionError(f"no {kind.__name__} in the traceback")


def raised(make: Callable[[], object]) -> PolymuxError:
    try:
        make()
    except PolymuxError as error:
        return error
    raise AssertionError("it was made")


@pytest.fixture
def queue_left(client: Client) -> Queue:
    made = left_over(raised(lambda: client.queue(device="gpu:99")), Queue)
    assert isinstance(made, Queue)
    return made


@pytest.fixture
def buffer_left(queue: Queue) -> Buffer:
    made = left_over(raised(lambda: queue.empty(1 << 60, "u1")), Buffer)
    assert isinstance(made, Buffer)
    return made


@pytest.mark.parametrize("make", [Queue, Buffer, Client])
def test_an_instance_that_was_never_made_can_be_shown(make: type[Any]) -> None:
    assert repr(make.__new__(make)).startswith(f"<{make.__name__}: could not")


def test_what_a_failed_constructor_leaves_can_be_shown(queue_left: Queue, buffer_left: Buffer) -> None:
    assert repr(queue_left) == "<Queue: could not be opened>"
    assert repr(buffer_left) == "<Buffer: could not be allocated>"
    error = raised(lambda: Client("/nowhere/polymux.sock"))
    assert isinstance(error, NoServer)
    assert repr(left_over(error, Client)) == "<Client: could not connect>"


def test_a_failure_of_the_arguments_leaves_something_that_can_be_shown(client: Client) -> None:
    for wrong in ({"on_full": "never"}, {"memory_nbytes": -1}, {"capacity": 17}):
        error = raised(lambda: client.queue(**wrong))  # type: ignore[arg-type]  # noqa: B023
        assert isinstance(error, InvalidRequest)
        assert "could not be opened" in repr(left_over(error, Queue))


def test_nothing_can_be_submitted_to_a_queue_that_could_not_be_opened(queue_left: Queue) -> None:
    with pytest.raises(Closed, match="could not be opened"):
        queue_left.submit("noop")


def test_a_buffer_that_could_not_be_allocated_is_no_argument_and_has_no_memory(
    queue: Queue, buffer_left: Buffer
) -> None:
    with pytest.raises(BadArgument, match="argument 0 is a buffer that could not be allocated"):
        queue.submit("copy", [buffer_left], [queue.zeros(4)])
    with pytest.raises((Closed, BufferError)):
        memoryview(buffer_left)
    queue.submit("fill", [], [queue.zeros(4)], value=1.0).wait(10)


@pytest.mark.filterwarnings("ignore:nanobind")
def test_every_other_use_of_what_is_left_is_an_error(queue_left: Queue, buffer_left: Buffer) -> None:
    uses: list[Callable[[], object]] = [
        queue_left.synchronize,
        queue_left.barrier,
        queue_left.close,
        buffer_left.raw_view,
        buffer_left.close,
        buffer_left.export,
        lambda: np.asarray(buffer_left),
    ]
    for use in uses:
        with pytest.raises((TypeError, AttributeError, Closed)):
            use()
