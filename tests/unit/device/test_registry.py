from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from polymux.core.device_spec import AbsentDevice
from polymux.core.errors import ConfigError, DeviceUnavailable
from polymux.device import registry
from polymux.device.absent import absent_kinds, reason
from polymux.device.blas import hold_blas_threads
from polymux.device.surroundings import Found, Surroundings


class Closable:
    def __init__(self, api: str, log: list[str]) -> None:
        self.spec = SimpleNamespace(api=api)
        self.log = log

    def close(self) -> None:
        self.log.append(self.spec.api)


@pytest.fixture
def closed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Put devices that close themselves into the list, and a kind of device that is never here."""
    log: list[str] = []

    def factory_of(request: Any) -> Any:
        def open_devices(request: Any, surroundings: Surroundings) -> Found:
            if request.api in ("gone", "opencl"):
                raise DeviceUnavailable("it is not here")
            found: list[Any] = [Closable(request.api, log)] * 2
            return Found(found, [AbsentDevice(request.api, f"from {surroundings.next_index}")])

        return open_devices

    monkeypatch.setattr(registry, "factory", factory_of)
    return log


def test_each_api_numbers_its_own_devices(closed: list[str]) -> None:
    devices, absent = registry.discover(["a", "b", "a:1"])
    assert [device.spec.api for device in devices] == ["a", "a", "b", "b", "a", "a"]
    assert [item.reason for item in absent[:3]] == ["from 0", "from 0", "from 2"]


def test_without_a_request_what_is_absent_is_said(closed: list[str]) -> None:
    devices, absent = registry.discover()
    assert [device.spec.api for device in devices] == ["cpu", "cpu"]
    assert AbsentDevice("opencl", "it is not here") in absent
    assert {"cuda", "rocm"} <= {item.name for item in absent}


def test_a_device_that_was_asked_for_and_is_absent_is_an_error_and_nothing_stays_open(
    closed: list[str],
) -> None:
    with pytest.raises(DeviceUnavailable, match="gone:7: it is not here"):
        registry.discover(["a", "gone:7"])
    assert closed == ["a", "a"]


def test_the_same_device_twice_is_refused(closed: list[str]) -> None:
    with pytest.raises(ConfigError, match="asked for twice"):
        registry.discover(["cpu:0-1", "cpu:0-1,streams=2"])
    registry.discover(["cpu:0", "cpu:1"])


def test_an_unknown_kind_of_device_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ConfigError, match="known are cpu, cuda, onnxruntime, opencl, simulated"):
        registry.discover(["fpga:0"])


def test_another_package_brings_a_kind_of_device_by_an_entry_point(monkeypatch: pytest.MonkeyPatch) -> None:
    log: list[str] = []
    devices: list[Any] = [Closable("acme", log)]

    def load() -> Any:
        return lambda *_: Found(devices)

    def entry_points(*, group: str, name: str | None = None) -> list[Any]:
        assert group == "polymux.devices"
        return [SimpleNamespace(name="acme", load=load)] if name in (None, "acme") else []

    monkeypatch.setattr(registry, "entry_points", entry_points)
    assert registry.discover(["acme:3"])[0] == devices
    assert "acme" in registry.known_apis()


def test_a_package_that_cannot_be_imported_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def load() -> Any:
        raise ImportError("no acme here")

    monkeypatch.setattr(registry, "entry_points", lambda **_: [SimpleNamespace(name="acme", load=load)])
    with pytest.raises(DeviceUnavailable, match="brings acme cannot be loaded: no acme here"):
        registry.discover(["acme"])


def test_cores_that_this_process_may_not_use_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"core 1000'.*may use core"):
        registry.discover(["cpu:1000"])


@pytest.mark.parametrize(
    ("text", "remedy"),
    [
        ("cpu:a", "no core"),
        ("cpu=file", "cpu takes cores"),
        ("cpu,memory=gpu", "memory=host"),
        ("cpu,speed=1", "no option"),
        ("opencl:x", "takes the index"),
        ("opencl,memory=gpu", "memory=host"),
        ("opencl,speed=1", "no option"),
    ],
)
def test_a_target_or_option_that_a_device_does_not_have_is_refused(text: str, remedy: str) -> None:
    with pytest.raises(ConfigError, match=remedy):
        registry.discover([text])


def test_absent_kinds_say_in_a_sentence_what_is_missing() -> None:
    assert [item.name for item in absent_kinds()] == ["cuda", "rocm"]
    assert "libnowhere.so.1 cannot be loaded" in reason("ACME", ["libnowhere.so.1"], "numpy")
    assert "package nowhere_at_all is not installed" in reason("ACME", ["libc.so.6"], "nowhere_at_all")
    assert "this version has no such device" in reason("ACME", ["libnowhere.so", "libc.so.6"], "numpy")


def test_blas_computes_with_one_thread_until_it_is_restored() -> None:
    from threadpoolctl import threadpool_info

    def threads() -> list[int]:
        return [library["num_threads"] for library in threadpool_info() if library["user_api"] == "blas"]

    np.dot(np.ones((2, 2)), np.ones((2, 2)))
    before = threads()
    restore = hold_blas_threads()
    assert set(threads()) == {1}
    restore()
    assert threads() == before
