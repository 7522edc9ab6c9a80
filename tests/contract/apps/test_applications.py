"""Every registered application computes what its reference says, on every device and over any number of lanes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import numpy as np
import pytest

import polymux
from polymux.apps.application import Application, WrongResult
from polymux.apps.lane import QueueLane
from polymux.apps.native_lane import native_lanes
from polymux.apps.registry import APPLICATIONS, find
from polymux.client.placed import PlacedArray
from polymux.core.errors import DeviceUnavailable, InvalidRequest
from polymux.kernel.builtin import NAMES

NBYTES = 1 << 20
DEVICES = ("cpu", "opencl")


@pytest.fixture(scope="module")
def client() -> Iterator[polymux.Client]:
    with polymux.connect(start=True, name="applications") as made:
        yield made


@pytest.fixture(scope="module", params=APPLICATIONS)
def application(request: pytest.FixtureRequest) -> Application:
    return find(request.param).of_size(NBYTES, seed=1)


def queue_device(client: polymux.Client, api: str) -> str:
    device = f"{api}:0"
    if device not in client.devices:
        pytest.skip(f"there is no {device}")
    return device


@pytest.mark.parametrize("lanes", [1, 3])
@pytest.mark.parametrize("api", DEVICES)
def test_an_application_gives_the_result_of_its_reference_through_queues(
    application: Application, client: polymux.Client, api: str, lanes: int
) -> None:
    device = queue_device(client, api)
    with ExitStack() as stack:
        queues = [stack.enter_context(client.queue(device=device)) for _ in range(lanes)]
        application.check(application.run([QueueLane(queue) for queue in queues]))


@pytest.mark.parametrize("lanes", [1, 3])
@pytest.mark.parametrize("api", DEVICES)
def test_an_application_gives_the_result_of_its_reference_without_a_server(
    application: Application, api: str, lanes: int
) -> None:
    try:
        made = native_lanes(api, lanes)
    except DeviceUnavailable as error:
        pytest.skip(str(error))
    with ExitStack() as stack:
        for lane in made:
            stack.enter_context(lane)
        application.check(application.run(made))


def test_an_application_may_run_over_queues_of_different_devices_and_again(
    application: Application, client: polymux.Client
) -> None:
    devices = [queue_device(client, api) for api in DEVICES]
    with ExitStack() as stack:
        lanes = [QueueLane(stack.enter_context(client.queue(device=device))) for device in devices]
        application.check(application.run(lanes))
        application.check(application.run(lanes))


class CountingLane(QueueLane):
    """A lane that counts the bytes that are copied into its buffers."""

    copied_nbytes = 0

    def __init__(self, queue: polymux.Queue) -> None:
        super().__init__(queue)
        self.array = self._count  # type: ignore[method-assign]

    def _count(self, array: np.ndarray) -> polymux.Buffer:
        self.copied_nbytes += array.nbytes
        return self.queue.array(array)

    def input(self, array: np.ndarray) -> polymux.Buffer:
        buffer = super().input(array)
        self.copied_nbytes += array.nbytes if getattr(array, "buffer", None) is not buffer else 0
        return buffer


def test_placed_inputs_are_used_where_they_lie_and_stay_as_they_are(
    application: Application, client: polymux.Client
) -> None:
    placed = find(application.name).of_size(NBYTES, seed=1)
    with client.queue(device=queue_device(client, "cpu")) as queue:
        lane = CountingLane(queue)
        application.run([lane])
        usually = lane.copied_nbytes
        placed.place(lane)
        assert all(isinstance(array, PlacedArray) for array in placed.inputs.values())
        lane.copied_nbytes = 0
        placed.check(placed.run([lane]))
        assert lane.copied_nbytes <= usually - 0.8 * sum(a.nbytes for a in application.inputs.values())
        for name, array in placed.inputs.items():
            np.testing.assert_array_equal(array, application.inputs[name])


def test_an_array_is_its_buffer_only_as_a_whole(client: polymux.Client) -> None:
    with client.queue() as queue, polymux.connect(start=True) as stranger, stranger.queue() as other:
        lane = QueueLane(queue)
        placed = lane.place(np.arange(12.0).reshape(3, 4))
        assert lane.input(placed) is placed.buffer
        assert lane.input(placed[:, 0:9]) is placed.buffer
        for part in (placed[1:], placed[:, 1:], placed.T, placed + 1, placed.copy(), placed.reshape(4, 3)):
            copied = lane.input(part)
            assert copied is not placed.buffer
            np.testing.assert_array_equal(copied.numpy(), part)
        assert QueueLane(other).input(placed) is not placed.buffer


def test_a_wrong_result_is_told_with_its_place(application: Application) -> None:
    right = application.reference()
    application.check(right)
    for name in right:
        wrong = {key: np.array(array) for key, array in right.items()}
        element = tuple(extent // 2 for extent in wrong[name].shape)
        wrong[name][element] += 1 + abs(wrong[name]).max()
        with pytest.raises(WrongResult, match=name):
            application.check(wrong)


def test_an_application_says_what_it_is_and_takes_about_the_memory_asked_for(
    application: Application,
) -> None:
    assert application.name in APPLICATIONS
    assert application.title
    assert set(application.kernels) <= set(NAMES)
    assert NBYTES / 2 <= application.nbytes <= NBYTES * 1.2
    assert sum(array.nbytes for array in application.inputs.values()) <= application.nbytes * 1.2


def test_the_same_seed_gives_the_same_inputs_and_another_one_others(application: Application) -> None:
    same, other = (find(application.name).of_size(NBYTES, seed=seed) for seed in (1, 2))
    for name, array in application.inputs.items():
        np.testing.assert_array_equal(array, same.inputs[name])
    assert any(array.tobytes() != other.inputs[name].tobytes() for name, array in application.inputs.items())


def test_an_unknown_application_is_refused_with_the_names_of_all() -> None:
    with pytest.raises(InvalidRequest, match="hotspot"):
        find("coldspot")
