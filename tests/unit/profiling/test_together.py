"""Which streams of a device two models are measured on beside each other."""

from __future__ import annotations

from typing import Any

import pytest

from polymux.core.errors import ConfigError
from polymux.profiling.together import pair_streams

NESTED = {"cpu:0": [(0, 1, 2, 3), (0, 1), (2, 3), (0,), (1,), (2,), (3,)]}


class FakeClient:
    """Tells the streams of some devices."""

    def __init__(self, devices: dict[str, list[tuple[int, ...]]]) -> None:
        self.devices = devices

    def status(self) -> dict[str, Any]:
        return {
            "devices": [
                {
                    "id": name,
                    "api": "cpu",
                    "name": "A processor",
                    "memory": "host",
                    "apis": ["cpu", "onnx"],
                    "lost": None,
                    "units": 4,
                    "details": "",
                    "streams": [
                        {"id": f"{name}/{at}", "units": list(units)} for at, units in enumerate(streams)
                    ],
                }
                for name, streams in self.devices.items()
            ]
        }


def test_the_largest_two_shares_without_a_common_unit_are_taken() -> None:
    pairing = pair_streams(FakeClient(NESTED), FakeClient(NESTED))
    assert pairing.units == 2
    assert (pairing.measured.streams, pairing.neighbour.streams) == ({2: "cpu:0/1"}, {2: "cpu:0/2"})


def test_a_device_without_two_such_shares_is_passed_over() -> None:
    devices = {"cpu:0": [(0, 1), (0,)], "cpu:1": [(0,), (1,)]}
    pairing = pair_streams(FakeClient(devices), FakeClient(devices))
    assert (pairing.measured.device, pairing.units) == ("cpu:1", 1)


def test_where_nothing_can_run_beside_anything_the_remedy_is_said() -> None:
    devices = {"cpu:0": [(0, 1), (0,)]}
    with pytest.raises(ConfigError, match="no two of equal size are apart.*shares=nested"):
        pair_streams(FakeClient(devices), FakeClient(devices))
