"""Draws which model ran when on which part of which device."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from polymux.core.errors import InvalidRequest
from polymux.planning.run import PolicyRun
from polymux.planning.workload import Workload
from polymux.sim.serving.outcome import BatchSpan

MOST_DEVICES = 8
"""Devices that a picture shows."""
_MOST_BATCHES = 4000
_NAMED_MODELS = 24


def lay_out(spans: Iterable[BatchSpan], units: int) -> list[tuple[BatchSpan, list[tuple[int, int]]]]:
    """Give each batch of a device a place among its units.

    Parameters
    ----------
    spans : iterable of BatchSpan
        Of one device.
    units : int
        It has.

    Returns
    -------
    list of (BatchSpan, list of (int, int))
        By start; the pieces (first unit, number of units) that it covers: its block where it has one, otherwise
        units that are free together, or, when there are none, the lowest free ones.
    """
    ends = [0] * units
    placed = []
    for span in sorted(spans, key=lambda span: (span.start_ns, span.batch)):
        if span.block is not None:
            chosen = sorted(span.block)
        else:
            free = [unit for unit in range(units) if ends[unit] <= span.start_ns]
            chosen = _together(free, span.units) or free[: span.units]
        for unit in chosen:
            ends[unit] = span.end_ns
        runs = groupby(enumerate(chosen), key=lambda pair: pair[1] - pair[0])
        pieces = [[unit for _, unit in run] for _, run in runs]
        placed.append((span, [(piece[0], len(piece)) for piece in pieces]))
    return placed


def _together(free: Sequence[int], wanted: int) -> list[int]:
    """Find the smallest run of free units that is large enough, so that larger ones stay whole."""
    runs = [
        [unit for _, unit in run] for _, run in groupby(enumerate(free), key=lambda pair: pair[1] - pair[0])
    ]
    enough = [run for run in runs if len(run) >= wanted]
    return min(enough, key=len)[:wanted] if enough else []


def check_picture(path: Path) -> None:
    """Check that a picture of that name can be drawn.

    Raises
    ------
    InvalidRequest
        If matplotlib is missing, or the format is unknown.
    """
    try:
        from matplotlib.backend_bases import FigureCanvasBase
    except ModuleNotFoundError as error:
        raise InvalidRequest(
            f"a picture needs the package {error.name}: pip install 'polymux[plan]'"
        ) from error
    if path.suffix.removeprefix(".") not in FigureCanvasBase.get_supported_filetypes():
        raise InvalidRequest(f"{path}: no picture has that ending; name it *.png, *.svg or *.pdf")


def draw(
    path: Path, workload: Workload, runs: Sequence[PolicyRun], start_s: float | None, seconds: float | None
) -> None:
    """Draw a panel for each policy and device.

    Parameters
    ----------
    path : Path
        Of the picture; its ending says which format.
    workload : Workload
    runs : sequence of PolicyRun
        With their spans.
    start_s : float, optional
        From when; None: the end of the warm-up.
    seconds : float, optional
        For how long; None: four times the longest SLO, at least 50 ms and at most 2 s.

    Raises
    ------
    OSError
        If the file cannot be written.
    """
    try:
        from matplotlib.figure import Figure  # slow to import, and part of an extra
    except ModuleNotFoundError as error:
        raise InvalidRequest(
            f"a picture needs the package {error.name}: pip install 'polymux[plan]'"
        ) from error
    start_ms = (workload.warmup_ns / 1e9 if start_s is None else start_s) * 1e3
    longest_ms = max(load.model.slo_ns for load in workload.loads) / 1e6
    end_ms = start_ms + (min(2000.0, max(50.0, 4 * longest_ms)) if seconds is None else seconds * 1e3)
    devices = list(runs[0].outcome.devices)[:MOST_DEVICES]
    panels = [(run, device) for run in runs for device in devices]
    names = [str(load.model.name) for load in workload.loads]
    colours = dict(zip(names, _colours(len(names)), strict=True))
    figure = Figure(
        figsize=(13, 0.9 + max(1.3, 2.6 - 0.15 * len(panels)) * len(panels)), layout="constrained"
    )
    axes = figure.subplots(len(panels), 1, sharex=True, squeeze=False)[:, 0]
    shown: dict[str, Any] = {}
    for axis, (run, device) in zip(axes, panels, strict=True):
        _panel(axis, run, device, (start_ms, end_ms), colours, shown)
    axes[-1].set_xlabel("simulated time, ms")
    figure.suptitle(_title(workload, runs, devices))
    if shown:
        kept = [name for name in names if name in shown][:_NAMED_MODELS]
        figure.legend(
            [shown[name] for name in kept],
            kept,
            loc="outside lower center",
            ncols=min(8, len(kept)),
            frameon=False,
        )
    figure.savefig(path, dpi=130)


def _title(workload: Workload, runs: Sequence[PolicyRun], devices: Sequence[object]) -> str:
    total = len(runs[0].outcome.devices)
    some = "" if total == len(devices) else f", {len(devices)} of {total:,} devices"
    return f"{workload.name}{some}: who runs on which part of the device, and how many items in a batch"


def _panel(
    axis: Any,
    run: PolicyRun,
    device: Any,
    window_ms: tuple[float, float],
    colours: dict[str, Any],
    shown: dict[str, Any],
) -> None:
    start_ms, end_ms = window_ms
    units = run.outcome.devices[device].units
    spans = [s for s in run.outcome.spans if s.device == device and s.end_ns > start_ms * 1e6 - 60e9]
    spans = [s for s in spans if s.start_ns < end_ms * 1e6]
    drawn = [(s, pieces) for s, pieces in lay_out(spans, units) if s.end_ns > start_ms * 1e6][:_MOST_BATCHES]
    per_ms = 1150 / (end_ms - start_ms)  # pixels of a common screen: is there room for a number?
    for span, pieces in drawn:
        left, width = span.start_ns / 1e6, (span.end_ns - span.start_ns) / 1e6
        for first, count in pieces:
            bars = axis.barh(
                first + count / 2, width, count, left, color=colours[span.model], edgecolor="white", linewidth=0.4,
                hatch="xx" if span.failed else None,
            )  # fmt: skip
            shown.setdefault(span.model, bars)
        first, count = max(pieces, key=lambda piece: piece[1])
        left, right = max(left, start_ms), min(left + width, end_ms)
        if (right - left) * per_ms > 14 and count / units >= 0.1:
            middle = (left + right) / 2
            axis.text(
                middle, first + count / 2, str(span.items), ha="center", va="center", fontsize=7, clip_on=True
            )
    axis.set_xlim(start_ms, end_ms)
    axis.set_ylim(0, units)
    axis.set_ylabel("% of device" if units == 100 else f"{units} units")
    used = run.outcome.devices[device].utilisation
    axis.set_title(
        f"{run.policy} on {device}: {100 * used:.0f} % used in the whole run", loc="left", fontsize=9
    )
    for side in ("top", "right"):
        axis.spines[side].set_visible(False)


def _colours(count: int) -> list[Any]:
    from matplotlib import colormaps

    table = colormaps["tab10"] if count <= 10 else colormaps["tab20"]
    return [(*(0.35 + 0.65 * part for part in table(index % table.N)[:3]), 1.0) for index in range(count)]
