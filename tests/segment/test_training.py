"""Training over two devices: every convolution migrates, and not a bit of the result differs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from polymux.apps.digits import load_digits
from polymux.apps.lane import QueueLane
from polymux.apps.lenet import Placement
from polymux.apps.training import Schedule, Training
from polymux.client import Client
from polymux.core.errors import InvalidRequest
from polymux.device.cores import allowed_cores
from tests.segment.server_process import ServerProcess

PLACEMENT = Placement(main="cpu:0", unroll="cpu:1")
CORES = allowed_cores()
PER_STEP = 6
"""im2col of both convolutions and col2im of the second, to and fro."""


def migrations(client: Client, queue: str) -> int:
    queues = json.loads(client.request("status")[0]["json"])["queues"]
    return next(item["migrations"] for item in queues if item["id"] == queue)


@pytest.mark.parametrize("memory", ["host", "own"])
def test_a_training_that_migrates_gives_the_same_bits_as_one_that_stays(tmp_path: Path, memory: str) -> None:
    training, test = load_digits()
    names = (f"cpu:{CORES[0]}-{CORES[0]}", f"cpu:{CORES[-1]}")
    words = [word for name in names for word in ("--device", f"{name},memory={memory},streams=1")]
    with ServerProcess(tmp_path, *words) as server:
        with Client(str(server.socket), segment_nbytes=512 << 20) as client:
            with client.queue(device="cpu:0") as still, client.queue() as moving:
                moving.submit("noop", device="cpu:0").wait(60)
                before = migrations(client, moving.id)
                alone = Training(QueueLane(still), training, Schedule(seed=2))
                migrating = Training(QueueLane(moving), training, Schedule(seed=2), PLACEMENT)
                for _ in range(2):
                    assert migrating.epoch().losses.tobytes() == alone.epoch().losses.tobytes()
                asked = migrating.network.migrations
                assert asked == 2 * migrating.steps_per_epoch * PER_STEP
                assert migrations(client, moving.id) - before == asked
                weights = alone.network.weights()
                for name, array in migrating.network.weights().items():
                    assert array.tobytes() == weights[name].tobytes()
                assert migrating.accuracy(test) == alone.accuracy(test)


def test_a_short_training_reads_more_than_95_per_cent_of_unseen_digits(tmp_path: Path) -> None:
    training, test = load_digits()
    with ServerProcess(tmp_path, "--device", "cpu") as server:
        with Client(str(server.socket), segment_nbytes=512 << 20) as client, client.queue() as queue:
            learning = Training(QueueLane(queue), training, Schedule(batch=32))
            losses = [learning.epoch().loss for _ in range(6)]
            assert losses[-1] < losses[0] / 10
            assert learning.accuracy(test) > 0.95


def test_a_batch_larger_than_all_digits_is_refused(tmp_path: Path) -> None:
    training, _ = load_digits()
    with ServerProcess(tmp_path, "--device", "cpu") as server:
        with server.connect() as client, client.queue() as queue:
            with pytest.raises(InvalidRequest, match="batch is 1439, there are 1438 digits"):
                Training(QueueLane(queue), training, Schedule(batch=1439))
