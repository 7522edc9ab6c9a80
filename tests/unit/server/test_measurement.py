"""Estimates for the policies, from what was measured."""

from __future__ import annotations

from polymux.core.ids import DeviceId
from polymux.server.measurement import Measurements
from polymux.server.transfer import Transfer

CPU, FPGA = DeviceId("cpu:0"), DeviceId("opencl:0")


def copy(location: int, into: bool, nbytes: int, duration_ns: int) -> Transfer:
    ends = (0, location) if into else (location, 0)
    return Transfer(*ends, "a", "b", "q", "o", nbytes, 0, duration_ns)


def test_a_gain_is_known_only_when_both_devices_have_run_the_kernel() -> None:
    measured = Measurements()
    measured.launched(CPU, 20, 900)
    assert measured.gain_ns(20, CPU, FPGA) is None
    measured.launched(FPGA, 20, 400)
    assert measured.gain_ns(20, CPU, FPGA) == 500
    assert measured.gain_ns(20, FPGA, CPU) == -500


def test_the_mean_follows_the_measurements() -> None:
    measured = Measurements()
    measured.launched(FPGA, 20, 0)
    measured.launched(CPU, 20, 1000)
    for _ in range(200):
        measured.launched(CPU, 20, 100)
    assert measured.gain_ns(20, CPU, FPGA) == 100


def test_a_transfer_is_the_sum_of_its_legs_and_unknown_when_one_was_never_made() -> None:
    measured = Measurements()
    measured.copied(copy(1, False, 100, 200))
    assert measured.transfer_ns({1: 50}, 0) == 100
    assert measured.transfer_ns({1: 50}, 2) is None
    measured.copied(copy(2, True, 100, 400))
    assert measured.transfer_ns({1: 50, 0: 10, 2: 999}, 2) == 100 + 200 + 40
    assert measured.transfer_ns({0: 10}, 0) == 0


def test_copied_bytes_are_counted_by_direction() -> None:
    measured = Measurements()
    for transfer in (copy(1, True, 5, 1), copy(1, True, 6, 1), copy(1, False, 7, 1), copy(2, True, 0, 1)):
        measured.copied(transfer)
    assert measured.copied_nbytes(1) == (11, 7)
    assert measured.copied_nbytes(2) == (0, 0)


def test_a_kernel_that_is_gone_is_forgotten_on_every_device() -> None:
    measurements = Measurements()
    for number in range(100):
        for device in ("cpu:0", "cpu:1"):
            measurements.launched(DeviceId(device), number, 10)
    for number in range(100):
        measurements.forget(number)
    measurements.forget(1000)
    assert measurements.gain_ns(5, DeviceId("cpu:0"), DeviceId("cpu:1")) is None
    assert measurements._launch_ns == {}


def test_rates_are_told_in_picoseconds_per_byte() -> None:
    measured = Measurements()
    assert measured.ps_per_byte(1) == (None, None)
    measured.copied(copy(1, True, 1000, 250))
    assert measured.ps_per_byte(1) == (250, None)
    measured.copied(copy(1, False, 1000, 500))
    assert measured.ps_per_byte(1) == (250, 500)


def test_a_direct_copy_costs_what_it_cost_and_not_two_legs() -> None:
    measured = Measurements()
    measured.copied(copy(1, False, 100, 500))
    measured.copied(copy(2, True, 100, 500))
    assert measured.transfer_ns({1: 10}, 2) == 100
    measured.copied(Transfer(1, 2, "a", "b", "q", "o", 100, 0, 300))
    assert measured.transfer_ns({1: 10}, 2) == 30
    assert measured.copied_nbytes(2) == (200, 0)


def test_a_device_that_only_copied_from_another_one_has_the_rate_of_that() -> None:
    measured = Measurements()
    measured.copied(Transfer(1, 2, "a", "b", "q", "o", 1000, 0, 300))
    assert measured.ps_per_byte(2) == (300, None)
    assert measured.ps_per_byte(1) == (None, 300)
