"""The applications through Polymux against the same kernels called directly, and over several queues and devices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from polymux.apps.registry import APPLICATIONS, find
from polymux.bench.app_setups import SETUPS, Setup, Setups
from polymux.bench.app_times import LONGEST_RUN_S, Measured, Native, TooLong, measure
from polymux.bench.effort import MIB, Effort
from polymux.bench.report import Progress, Report, Row
from polymux.core.errors import DeviceUnavailable

SIZES = (4 * MIB, 64 * MIB, 1024 * MIB)
ELASTIC_NBYTES = 64 * MIB
"""Size for the set-ups with several queues, streams and devices."""
APIS = ("cpu", "opencl")
TARGET = 1.05


@dataclass(frozen=True, slots=True)
class _Found:
    app: str
    nbytes: int
    setup: Setup
    times: Measured

    @property
    def ratio(self) -> float:
        return self.times.polymux_s / self.times.native_s


def run(effort: Effort, progress: Progress) -> Report:
    """Measure every application on every API and size, then on the set-ups with several queues."""
    names = effort.applications or tuple(APPLICATIONS)
    sizes = effort.sizes_nbytes or tuple(size for size in SIZES if size <= effort.largest_nbytes)
    found: list[_Found] = []
    left_out: list[str] = []
    for api in APIS:
        try:
            found += _on_one_queue(api, names, sizes, effort, progress, left_out)
        except DeviceUnavailable as error:
            left_out.append(f"{api}: {error}")
    elastic = _on_setups(names, min(ELASTIC_NBYTES, max(sizes)), effort, progress, left_out)
    notes = (
        "native: the same kernels called directly from this process, no server; the data lies in its arrays, or is"
        " written to the OpenCL device",
        "Polymux: the data lies in the application's buffers; copied: it lies in other arrays and is copied into"
        " buffers by every run",
        "a run is everything from the inputs to the result on the host; native and Polymux take turns, medians;"
        " every result is checked",
        f"several queues: {min(ELASTIC_NBYTES, max(sizes)) // MIB} MiB, against the native run on one device; a"
        " ratio below 1 is a gain",
        *(f"left out: {what}" for what in left_out),
    )
    rows = [row for item in found for row in _rows(item)] + [_elastic_row(item) for item in elastic]
    results = [_result(item) for item in [*found, *elastic]]
    return Report("apps", "applications through Polymux and without it", tuple(rows), results, notes)


def _on_one_queue(
    api: str,
    names: Sequence[str],
    sizes: Sequence[int],
    effort: Effort,
    progress: Progress,
    left_out: list[str],
) -> list[_Found]:
    found: list[_Found] = []
    setup = Setup(f"{api}, 1 queue", (f"{api},streams=1",), (f"{api}:0",))
    with Native(api) as native, Setups([setup]) as setups:
        for name in names:
            for nbytes in sizes:
                what = f"{name} on {api}, {size_text(nbytes)}"
                progress(what)
                last = found[-1] if found and found[-1].app == name else None
                if last and last.times.native_s * (nbytes / last.nbytes) > LONGEST_RUN_S:
                    left_out.append(f"{what}: a run would take more than {LONGEST_RUN_S:.0f} s")
                    continue
                application = find(name).of_size(nbytes)
                try:
                    (times,) = measure(application, native, setups, effort.rounds, copied=True)
                except TooLong as error:
                    left_out.append(f"{what}: {error}")
                    break
                found.append(_Found(name, nbytes, setup, times))
    return found


def _on_setups(
    names: Sequence[str], nbytes: int, effort: Effort, progress: Progress, left_out: list[str]
) -> list[_Found]:
    found: list[_Found] = []
    for api in APIS:
        chosen = [setup for setup in SETUPS if setup.api == api]
        try:
            with Native(api) as native, Setups(chosen) as setups:
                for name in names:
                    progress(f"{name} from {api} over several queues")
                    application = find(name).of_size(nbytes)
                    try:
                        times = measure(application, native, setups, effort.rounds)
                    except TooLong as error:
                        left_out.append(f"{name} over several queues: {error}")
                        continue
                    found += [_Found(name, nbytes, *pair) for pair in zip(chosen, times, strict=True)]
        except DeviceUnavailable as error:
            left_out.append(f"set-ups of {api}: {error}")
    return sorted(found, key=lambda item: names.index(item.app))


def size_text(nbytes: int) -> str:
    """Write a size in MiB or GiB."""
    return f"{nbytes / (1 << 30):g} GiB" if nbytes >= 1 << 30 else f"{nbytes / MIB:g} MiB"


def _rows(item: _Found) -> list[Row]:
    times = item.times
    label = f"{item.app}, {item.setup.api}, {size_text(item.nbytes)}"
    native = (times.native_s * 1e3, "native")
    rows = [Row(label, times.polymux_s * 1e3, "ms", *native, f"<= {TARGET} x", item.ratio <= TARGET)]
    if times.copied_s is not None:
        rows.append(Row("  copied", times.copied_s * 1e3, "ms", *native))
    return rows


def _elastic_row(item: _Found) -> Row:
    times = item.times
    label = f"{item.app}, {item.setup.name}"
    return Row(label, times.polymux_s * 1e3, "ms", times.native_s * 1e3, "native")


def _result(item: _Found) -> dict[str, Any]:
    times = item.times
    result: dict[str, Any] = {
        "app": item.app,
        "setup": item.setup.name,
        "api": item.setup.api,
        "queues": len(item.setup.queues),
        "nbytes": item.nbytes,
        "native_s": times.native_s,
        "polymux_s": times.polymux_s,
        "ratio": item.ratio,
    }
    if times.copied_s is not None:
        result["copied_s"] = times.copied_s
    return result
