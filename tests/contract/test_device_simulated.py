"""The simulated device in real time: never faster than told."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from polymux.core.errors import ConfigError
from polymux.core.task_view import Access
from polymux.device.protocol import Device
from polymux.device.registry import discover
from polymux.device.simulated import WallClock
from tests.contract.device_rig import NOOP, Rig, noop

LAUNCH_NS = 3_000_000
COPY_NS = 2_000_000


@pytest.fixture
def device(tmp_path: Path) -> Iterator[Device]:
    path = tmp_path / "slow.toml"
    path.write_text(
        f'memory_nbytes = "1MiB"\nstreams = 2\n[transfer]\nlatency_ns = {COPY_NS}\n'
        f"[compute]\nlatency_ns = {LAUNCH_NS}\n"
    )
    (device, *_), _ = discover([f"simulated={path}"])
    yield device
    device.close()


def test_the_clock_sleeps_until_the_deadline_and_not_for_one_that_has_passed() -> None:
    clock = WallClock()
    end_ns = clock.now_ns() + 2_000_000
    clock.sleep_until(end_ns)
    assert clock.now_ns() >= end_ns
    clock.sleep_until(0)


def test_copies_and_launches_take_at_least_the_time_of_the_description(device: Device) -> None:
    rig = Rig(device)
    start_ns = time.monotonic_ns()
    operand = rig.put(np.zeros(10, np.float32), Access.WRITE)
    assert time.monotonic_ns() - start_ns >= COPY_NS
    for _ in range(3):
        rig.run(NOOP, noop("cpu"), [operand])
    rig.get(operand)
    assert time.monotonic_ns() - start_ns >= 2 * COPY_NS + 3 * LAUNCH_NS
    rig.free()


def test_two_streams_of_the_whole_device_take_as_long_as_one(device: Device) -> None:
    rigs = [Rig(device), Rig(device)]
    start_ns = time.monotonic_ns()
    threads = [
        threading.Thread(target=rig.run, args=(NOOP, noop("cpu"), [])) for rig in rigs for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert time.monotonic_ns() - start_ns >= 4 * LAUNCH_NS


def test_devices_are_numbered_in_the_order_in_which_they_are_asked_for(tmp_path: Path) -> None:
    for name, nbytes in (("b", 2), ("a", 1)):
        (tmp_path / f"{name}.toml").write_text(f"memory_nbytes = {nbytes}")
    devices, _ = discover([f"simulated={tmp_path}/b.toml", f"simulated={tmp_path}/a.toml,streams=5"])
    found = [(device.spec.id, device.spec.memory_nbytes, device.spec.streams) for device in devices]
    assert found == [("simulated:0", 2, 1), ("simulated:1", 1, 5)]


def test_a_missing_file_or_none_is_an_error_with_the_remedy() -> None:
    with pytest.raises(ConfigError, match="simulated=FILE"):
        discover(["simulated"])
    with pytest.raises(ConfigError, match="cannot be read"):
        discover(["simulated=/nowhere/device.toml"])
