"""Meters of energy: RAPL from a folder as the kernel shows it, NVML from a library with its functions."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from polymux.core.errors import DeviceUnavailable
from polymux.device.energy_meter import EnergyMeters, RaplMeter, find_meters

NO_LIBRARY = "libthere-is-no-such-library.so.1"
LIBRARY = """
static unsigned long long counted[2] = {1000, 500};
int nvmlInit_v2(void) { return INIT; }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = 2; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device) { *device = counted + index; return 0; }
#ifndef OLD
int nvmlDeviceGetTotalEnergyConsumption(void *device, unsigned long long *mj) {
  if (device == counted + 1) return 3;  /* NVML_ERROR_NOT_SUPPORTED */
  *mj = *(unsigned long long *)device;
  *(unsigned long long *)device += 2500;
  return 0;
}
#endif
"""


def _domain(powercap: Path, folder: str, name: str, energy: int = 1000, wraps_at: int = 10_000_000) -> Path:
    path = powercap / folder
    path.mkdir(parents=True)
    for file, value in (("name", name), ("energy_uj", energy), ("max_energy_range_uj", wraps_at)):
        (path / file).write_text(f"{value}\n")
    return path


def _library(folder: Path, *flags: str) -> str:
    (folder / "nvml.c").write_text(LIBRARY)
    built = folder / "libnvml.so"
    subprocess.run(
        ["gcc", "-shared", "-fPIC", *flags, "-o", str(built), str(folder / "nvml.c")], check=True, timeout=60
    )
    return str(built)


def test_packages_and_their_memory_are_metered_and_parts_of_packages_are_not(tmp_path: Path) -> None:
    _domain(tmp_path, "intel-rapl:0", "package-0")
    _domain(tmp_path, "intel-rapl:0:0", "core")
    _domain(tmp_path, "intel-rapl:0:1", "dram")
    _domain(tmp_path, "intel-rapl:1", "package-1")
    _domain(tmp_path, "intel-rapl:2", "psys")
    found = find_meters(tmp_path, NO_LIBRARY)
    assert [meter.name for meter in found.meters] == ["package-0", "dram-0", "package-1"]
    assert [item.reason for item in found.absent] == [
        f"no NVIDIA GPU tells its energy: {NO_LIBRARY} cannot be loaded"
    ]


def test_a_meter_counts_from_when_it_was_made_and_over_the_end_of_its_counter(tmp_path: Path) -> None:
    folder = _domain(tmp_path, "intel-rapl:0", "package-0", energy=9_000_000)
    meter = RaplMeter("package-0", folder)
    assert meter.joules() == 0
    (folder / "energy_uj").write_text("9500000")
    assert meter.joules() == pytest.approx(0.5)
    (folder / "energy_uj").write_text("499999")
    assert meter.joules() == pytest.approx(1.5)
    assert meter.joules() == pytest.approx(1.5)


def test_a_counter_that_cannot_be_read_is_absent_with_the_reason(tmp_path: Path) -> None:
    folder = _domain(tmp_path, "intel-rapl:0", "package-0")
    (folder / "energy_uj").write_text("nonsense")
    found = find_meters(tmp_path, NO_LIBRARY)
    assert found.meters == ()
    assert "energy_uj cannot be read" in found.absent[0].reason


def test_a_counter_that_goes_away_later_is_told_and_the_others_go_on(tmp_path: Path) -> None:
    _domain(tmp_path, "intel-rapl:0", "package-0")
    gone = _domain(tmp_path, "intel-rapl:1", "package-1")
    found = find_meters(tmp_path, NO_LIBRARY)
    (gone / "energy_uj").unlink()
    first, second = found.read()
    assert first == {"name": "package-0", "joules": 0, "problem": None}
    assert (second["joules"], "cannot be read" in second["problem"]) == (None, True)


def test_a_machine_without_counters_says_so(tmp_path: Path) -> None:
    found = find_meters(tmp_path / "not-there", NO_LIBRARY)
    assert found.read() == []
    assert [item.name for item in found.absent] == ["energy meter", "energy meter"]
    assert "has no RAPL domain" in found.absent[0].reason


def test_a_gpu_counts_millijoules_and_one_that_does_not_is_absent(tmp_path: Path) -> None:
    found = find_meters(tmp_path, _library(tmp_path, "-DINIT=0"))
    assert [meter.name for meter in found.meters] == ["nvml:0"]
    assert found.read() == [{"name": "nvml:0", "joules": pytest.approx(2.5), "problem": None}]
    assert found.absent[-1].reason == (
        "nvml:1 does not tell its energy: nvmlDeviceGetTotalEnergyConsumption returned 3"
    )


@pytest.mark.parametrize(
    ("flags", "reason"),
    [(("-DINIT=9",), "nvmlInit_v2 returned 9"), (("-DINIT=0", "-DOLD"), "it is too old")],
)
def test_a_driver_that_does_not_answer_is_absent(tmp_path: Path, flags: tuple[str, ...], reason: str) -> None:
    found = find_meters(tmp_path, _library(tmp_path, *flags))
    assert found.meters == ()
    assert reason in found.absent[-1].reason


def test_meters_of_this_machine_can_be_read_or_are_absent_with_a_sentence() -> None:
    found = find_meters()
    assert isinstance(found, EnergyMeters)
    assert len(found.meters) + len(found.absent) >= 1
    for reading in found.read():
        assert reading["problem"] is not None or reading["joules"] >= 0
    for item in found.absent:
        assert str(DeviceUnavailable(item.reason))
