"""Models are moved between devices while clients use them, and the clients notice nothing."""

from __future__ import annotations

import subprocess
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import tritonclient.http as triton

from tests.serving import repository
from tests.serving.front_end import POLYMUX, FrontEnd, server, serving

MOVES = 8


@pytest.fixture
def served(tmp_path: Path) -> Iterator[tuple[FrontEnd, Path]]:
    """Serve a model from a server with two devices, the second of which has a memory of its own."""
    repository.add(tmp_path, "repeat", repository.repeat())
    with tempfile.TemporaryDirectory(prefix="polymux-test-") as folder:
        socket = Path(folder) / "s"
        with server(socket, "cpu", "cpu:0-0"), serving(tmp_path, "--socket", str(socket)) as front:
            front.wait_until_loaded()
            yield front, socket


def migrate(socket: Path, device: str) -> None:
    said = subprocess.run(
        [POLYMUX, "migrate", "repeat/1", device, "--socket", str(socket)],
        check=False,
        timeout=60,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert said.returncode == 0, said.stdout


def ask(client: triton.InferenceServerClient, seed: int) -> bool:
    """Ask for one repetition of random numbers and say whether the answer is right."""
    rng = np.random.default_rng(seed)
    value = rng.random(int(rng.integers(1, 50_000)), np.float32)
    count = np.array([rng.integers(1, 5)], np.int64)
    inputs = []
    for name, array, datatype in (("x", value, "FP32"), ("count", count, "INT64")):
        inputs.append(triton.InferInput(name, list(array.shape), datatype))
        inputs[-1].set_data_from_numpy(array)
    return bool(np.array_equal(client.infer("repeat", inputs).as_numpy("y"), np.tile(value, count[0])))


def test_no_answer_is_lost_or_wrong_while_a_model_moves_between_memories(
    served: tuple[FrontEnd, Path],
) -> None:
    front, socket = served
    stop = threading.Event()
    right: list[bool] = []
    errors: list[BaseException] = []

    def use(first_seed: int) -> None:
        try:
            with triton.InferenceServerClient(front.url) as client:
                seed = first_seed
                while not stop.is_set():
                    right.append(ask(client, seed))
                    seed += 1
        except BaseException as error:
            errors.append(error)

    users = [threading.Thread(target=use, args=(1_000_000 * number,)) for number in range(3)]
    for user in users:
        user.start()
    try:
        for move in range(MOVES):
            migrate(socket, "cpu:1" if move % 2 == 0 else "cpu:0")
            seen = len(right)
            front.wait_for(lambda seen=seen: len(right) >= seen + 5 or errors)
    finally:
        stop.set()
        for user in users:
            user.join()
    assert errors == []
    assert all(right)
    assert len(right) >= 5 * MOVES


def test_a_model_can_be_pinned_to_a_device_that_exists_and_to_no_other(tmp_path: Path) -> None:
    repository.add(tmp_path, "id", repository.identity("FP32"))
    with tempfile.TemporaryDirectory(prefix="polymux-test-") as folder:
        socket = Path(folder) / "s"
        with server(socket, "cpu", "cpu:0-0"):
            with serving(tmp_path, "--socket", str(socket), "--device", "cpu:1") as front:
                front.wait_until_loaded()
                assert front.index()["id"]["state"] == "READY"
            with serving(tmp_path, "--socket", str(socket), "--device", "cpu:7") as front:
                front.wait_until_loaded()
                assert front.index()["id"]["state"] == "UNAVAILABLE"
                assert "cpu:7" in front.index()["id"]["reason"]
