"""Devices and their streams, as the scheduler sees them."""

from __future__ import annotations

from typing import Any

import pytest

from polymux.core.ids import DeviceId
from polymux.core.serving.model import ServingDevice
from polymux.serving.errors import ModelLoadError
from polymux.serving.scheduling.machine import first_share, read_machine


def device(name: str, units: int, *streams: list[int] | None, **other: Any) -> dict[str, Any]:
    return {
        "id": name,
        "api": "cpu",
        "name": "a cpu",
        "memory": "host",
        "details": "",
        "units": units,
        "apis": ["cpu", "onnx"],
        "lost": None,
        "streams": [{"id": f"{name}/{i}", "units": own} for i, own in enumerate(streams)],
        **other,
    }


def test_nested_streams_are_blocks_and_the_small_ones_come_first() -> None:
    machine = read_machine({"devices": [device("cpu:0", 2, [0, 1], [0], [1])]})
    (found,) = machine.devices
    assert (found.units, found.shares) == (2, (1, 2))
    assert found.blocks == (frozenset({0}), frozenset({1}), frozenset({0, 1}))
    assert machine.streams[DeviceId("cpu:0"), frozenset({1})] == "cpu:0/2"
    assert machine.blocks(DeviceId("cpu:0"), 1) == [frozenset({0}), frozenset({1})]


def test_of_streams_with_the_same_units_one_is_used() -> None:
    machine = read_machine({"devices": [device("cpu:0", 4, None, None)]})
    assert machine.devices[0].shares == (4,)
    assert list(machine.streams.values()) == ["cpu:0/0"]


def test_devices_that_are_lost_or_run_no_models_are_left_out() -> None:
    status = {
        "devices": [
            device("cpu:0", 1, None, lost="it burns"),
            device("opencl:0", 1, None, apis=["opencl"]),
            device("cpu:1", 1, None),
            device("cpu:2", 1, None),
        ]
    }
    assert [each.id for each in read_machine(status).devices] == ["cpu:1", "cpu:2"]
    assert [each.id for each in read_machine(status, "cpu:2").devices] == ["cpu:2"]


def test_without_a_device_for_models_the_error_lists_what_there_is() -> None:
    status = {"devices": [device("opencl:0", 1, None, apis=["opencl"])]}
    with pytest.raises(ModelLoadError, match="a device that runs ONNX models; the server has: opencl:0"):
        read_machine(status)
    with pytest.raises(ModelLoadError, match="device cpu:7"):
        read_machine(status, "cpu:7")


def test_devices_of_the_same_kind_have_the_same_profiles() -> None:
    machine = read_machine(
        {"devices": [device("cpu:0", 1, None), device("cpu:1", 1, None), device("cpu:2", 2, None)]}
    )
    kinds = [each.kind for each in machine.devices]
    assert kinds[0] == kinds[1] != kinds[2]


@pytest.mark.parametrize(
    ("units", "shares", "first"),
    [(1, (1,), 1), (2, (1, 2), 1), (4, (1, 2, 4), 1), (8, (1, 2, 4, 8), 2), (100, (10, 20, 30, 50, 100), 30)],
)
def test_an_unknown_model_starts_near_30_per_cent(units: int, shares: tuple[int, ...], first: int) -> None:
    assert first_share(ServingDevice(DeviceId("d"), units, shares)) == first
