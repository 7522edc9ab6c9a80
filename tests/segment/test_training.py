"""Training over two devices: every convolution migrates, and not a bit of the result differs."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest

from polymux.apps.digits import load_digits
from polymux.apps.lane import QueueLane
from polymux.apps.lenet import Placement
from polymux.apps.native_lane import NativeCpuLane
from polymux.apps.training import Schedule, Training
from polymux.client import Client, Queue
from polymux.core.errors import InvalidRequest
from polymux.device.cores import allowed_cores
from tests.segment.server_process import ServerProcess

PLACEMENT = Placement(main="cpu:0", unroll="cpu:1")
CORES = allowed_cores()
EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "train_digits.py"
PER_STEP = 6
"""im2col of both convolutions and col2im of the second, to and fro."""


def migrations(client: Client, queues: list[Queue]) -> int:
    counted = {item["id"]: item for item in json.loads(client.request("status")[0]["json"])["queues"]}
    return sum(counted[queue.id]["migrations"] for queue in queues)


@pytest.mark.parametrize("lanes", [1, 2])
@pytest.mark.parametrize("memory", ["host", "own"])
def test_a_training_that_migrates_gives_the_same_bits_as_one_that_stays(
    tmp_path: Path, memory: str, lanes: int
) -> None:
    training, test = load_digits()
    names = (f"cpu:{CORES[0]}-{CORES[0]}", f"cpu:{CORES[-1]}")
    words = [word for name in names for word in ("--device", f"{name},memory={memory},streams=1")]
    with ServerProcess(tmp_path, *words) as server:
        with Client(str(server.socket), segment_nbytes=512 << 20) as client, ExitStack() as stack:
            still = [stack.enter_context(client.queue(device="cpu:0")) for _ in range(lanes)]
            moving = [stack.enter_context(client.queue(priority=-lane)) for lane in range(lanes)]
            for queue in moving:
                queue.submit("noop", device="cpu:0").wait(60)
            before = migrations(client, moving)
            alone = Training([QueueLane(queue) for queue in still], training, Schedule(seed=2))
            migrating = Training(
                [QueueLane(queue) for queue in moving], training, Schedule(seed=2), PLACEMENT
            )
            assert migrating.epoch().losses.tobytes() == alone.epoch().losses.tobytes()
            asked = migrating.migrations
            assert asked == migrating.steps_per_epoch * PER_STEP * lanes
            assert migrations(client, moving) - before == asked
            weights = alone.weights()
            for name, array in migrating.weights().items():
                assert array.tobytes() == weights[name].tobytes()
            assert migrating.accuracy(test) == alone.accuracy(test)


def test_lanes_that_share_a_batch_learn_the_same_but_for_rounding(tmp_path: Path) -> None:
    training, _ = load_digits()
    with ServerProcess(tmp_path, "--device", "cpu") as server:
        with Client(str(server.socket), segment_nbytes=512 << 20) as client, ExitStack() as stack:
            lanes = [QueueLane(stack.enter_context(client.queue())) for _ in range(5)]
            one, several = (Training(some, training, Schedule(batch=64)) for some in (lanes[:1], lanes[1:]))
            for _ in range(2):
                np.testing.assert_allclose(several.epoch().losses, one.epoch().losses, rtol=1e-3)


def test_a_short_training_reads_more_than_95_per_cent_of_unseen_digits(tmp_path: Path) -> None:
    training, test = load_digits()
    with ServerProcess(tmp_path, "--device", "cpu") as server:
        with Client(str(server.socket), segment_nbytes=512 << 20) as client, client.queue() as queue:
            learning = Training([QueueLane(queue)], training, Schedule(batch=32))
            losses = [learning.epoch().loss for _ in range(6)]
            assert losses[-1] < losses[0] / 10
            assert learning.accuracy(test) > 0.95


def example(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(EXAMPLE), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=100)


def test_the_example_prints_the_same_losses_with_a_helper_and_without(tmp_path: Path) -> None:
    with ServerProcess(tmp_path, "--device", "cpu", "--device", f"cpu:{CORES[0]}") as server:
        words = ("--socket", str(server.socket), "--epochs", "1", "--batch", "128", "--main", "cpu:0")
        alone, helped = example(*words), example(*words, "--helper", "cpu:1")
    assert (alone.returncode, alone.stderr, helped.returncode, helped.stderr) == (0, "", 0, "")
    assert "11 steps of 128" in alone.stdout
    assert "migrations/s" in helped.stdout
    found = [re.findall(r"epoch 1: loss [\d.]+, accuracy [\d.]+%", done.stdout) for done in (alone, helped)]
    assert len(found[0]) == 1
    assert found[0] == found[1]


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        (("--helper", "cpu:1"), 2, "--helper needs --main"),
        (("--epochs", "0"), 2, "--epochs 0: give 1 or more"),
        (("--batch", "0"), 1, "batch is 0, expected 1 or more"),
        (("--socket", "/nowhere/socket"), 1, "/nowhere/socket"),
        (("--main", "gpu:9"), 1, "there is no device gpu:9; there are"),
    ],
)
def test_the_example_says_what_is_wrong(arguments: tuple[str, ...], status: int, words: str) -> None:
    done = example(*arguments)
    assert done.returncode == status
    assert words in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("batch", "lanes", "message"),
    [
        (1439, 1, "batch is 1439, there are 1438 digits"),
        (64, 3, "batch is 64, which 3 lanes cannot share"),
        (64, 0, "batch is 64, which 0 lanes cannot share"),
    ],
)
def test_a_batch_that_cannot_be_is_refused(batch: int, lanes: int, message: str) -> None:
    training, _ = load_digits()
    with NativeCpuLane(1) as lane, pytest.raises(InvalidRequest, match=message):
        Training([lane] * lanes, training, Schedule(batch=batch))
