"""Draws a plan: who is on which part of which device, and how much of it is used."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from polymux.core.errors import InvalidRequest
from polymux.perfmodel.capacity.placement import PlacedDevice
from polymux.planning.plan import Plan

_MOST_DEVICES = 48
"""Of which the lanes are drawn; of more, only how much of each is used."""
_NAMED_MODELS = 24
_IN_ROW = 12
_LOGARITHMIC = 100
"""Models, of more than which the axis is logarithmic."""
_GREY = "#e4e4e4"


def draw_plan(path: Path, plan: Plan) -> None:
    """Draw a plan.

    Parameters
    ----------
    path : Path
        Of the picture; its ending says which format.
    plan : Plan

    Raises
    ------
    InvalidRequest
        If matplotlib is missing, the format is unknown, or there is nothing to draw.
    OSError
        If the file cannot be written.
    """
    try:
        from matplotlib.figure import Figure  # slow to import, and part of an extra
    except ModuleNotFoundError as error:
        raise InvalidRequest(
            f"a picture needs the package {error.name}: pip install 'polymux[plan]'"
        ) from error
    devices = plan.placement.devices
    if not devices:
        raise InvalidRequest("there is nothing to draw: no model has a place")
    few = len(devices) <= _MOST_DEVICES
    rows = -(-len(devices) // _IN_ROW) if few else 2
    figure = Figure(figsize=(13, 1.2 + 3.0 * rows), layout="constrained")
    axes = figure.subplots(rows, 1, squeeze=False)[:, 0]
    if few:
        _draw_lanes(figure, list(axes), plan)
    else:
        _draw_use(axes[0], plan)
        _draw_attained(axes[1], plan)
    figure.suptitle(_title(plan))
    try:
        figure.savefig(path, dpi=130)
    except ValueError as error:
        raise InvalidRequest(f"{path}: {error}; name the picture *.png, *.svg or *.pdf") from error


def _title(plan: Plan) -> str:
    counts = " + ".join(f"{count:,} × {kind}" for kind, count in plan.placement.counts.items())
    text = f"{plan.workload.name}: {len(plan.demands):,} models on {counts}"
    if plan.outcome is not None:
        text += f", {100 * plan.outcome.attainment:.2f} % on time in the simulation"
    return text if plan.is_met else f"{text}; NOT MET"


def _draw_lanes(figure: Any, axes: Sequence[Any], plan: Plan) -> None:
    names = [demand.model for demand in plan.demands]
    colours = _colours(names)
    shown: dict[str, Any] = {}
    in_row = min(_IN_ROW, len(plan.placement.devices))
    for row, axis in enumerate(axes):
        devices = plan.placement.devices[row * _IN_ROW : (row + 1) * _IN_ROW]
        for column, device in enumerate(devices):
            _draw_device(axis, column, device, colours, shown)
        axis.set_xlim(-0.55, max(in_row, 3) - 0.45)
        axis.set_ylim(0, 100)
        axis.set_ylabel("share, % of the device")
        axis.set_xticks(
            range(len(devices)),
            [f"{device.kind}\n{100 * device.busy:.0f} % busy" for device in devices],
            fontsize=8,
        )
        for side in ("top", "right"):
            axis.spines[side].set_visible(False)
    kept = [name for name in names if name in shown][:_NAMED_MODELS]
    left = len(names) - len(kept)
    label = f"and {left:,} more model{'s' if left > 1 else ''}" if left else None
    figure.legend(
        [shown[name] for name in kept], kept, loc="outside lower center", ncols=min(8, max(1, len(kept))),
        frameon=False, title=label, title_fontsize=8, fontsize=8,
    )  # fmt: skip
    axes[-1].set_xlabel(
        "height: the share of a lane; width: the part of its time that each model takes; grey: free",
        fontsize=8,
    )


def _draw_device(
    axis: Any, column: int, device: PlacedDevice, colours: dict[str, Any], shown: dict[str, Any]
) -> None:
    bottom, left = 0.0, column - 0.45
    for lane in sorted(device.lanes, key=lambda lane: -lane.units):
        height = 100 * lane.units / device.units
        axis.bar(left, height, 0.9, bottom, align="edge", color=_GREY, edgecolor="white", linewidth=1.2)
        at = left
        for replica in lane.replicas:
            width = 0.9 * replica.busy
            bars = axis.bar(
                at,
                height,
                width,
                bottom,
                align="edge",
                color=colours[replica.model],
                edgecolor="white",
                linewidth=0.4,
            )
            shown.setdefault(replica.model, bars)
            if height >= 8 and width >= 0.3:
                axis.text(
                    at + width / 2, bottom + height / 2, f"{_rate(replica.rate_per_s)}/s\n×{replica.batch}"
                    if height >= 14 else f"{_rate(replica.rate_per_s)}/s", ha="center", va="center", fontsize=6.5,
                )  # fmt: skip
            at += width
        bottom += height


def _rate(per_s: float) -> str:
    return f"{per_s:,.0f}" if per_s >= 100 else f"{per_s:.3g}"


def _draw_use(axis: Any, plan: Plan) -> None:
    """How much of each device is used, the fullest first, by kind."""
    devices = sorted(plan.placement.devices, key=lambda device: (device.kind, -device.busy))
    kinds = list(dict.fromkeys(device.kind for device in devices))
    colours = _colours(kinds)
    for kind in kinds:
        places = [index for index, device in enumerate(devices) if device.kind == kind]
        axis.fill_between(places, [100] * len(places), color=_GREY, step="mid", linewidth=0)
        busy = [100 * devices[index].busy for index in places]
        axis.fill_between(
            places, busy, color=colours[kind], step="mid", linewidth=0, label=f"{kind}: batches"
        )
    axis.set_ylim(0, 100)
    axis.set_xlim(-0.5, len(devices) - 0.5)
    axis.set_xlabel("devices, the fullest first")
    axis.set_ylabel("% of units × time")
    axis.legend(loc="lower left", fontsize=8)


def _draw_attained(axis: Any, plan: Plan) -> None:
    """How much of each model was on time in the simulation, or how large the models are when there was none."""
    if plan.outcome is None:
        rates = np.sort([demand.rate_per_s for demand in plan.demands])[::-1]
        axis.semilogy(np.arange(1, len(rates) + 1), np.maximum(rates, 1e-3))
        axis.set_ylabel("requests/s")
        axis.set_xlabel("models, those with the most requests first")
        return
    missed = np.sort([100 * (1 - model.attainment) for model in plan.outcome.models.values()])[::-1]
    axis.plot(np.arange(1, len(missed) + 1), missed, drawstyle="steps-mid", label="models")
    allowed = 100 * (1 - plan.options.attainment)
    axis.axhline(
        allowed,
        color="tab:red",
        linewidth=1,
        linestyle="--",
        label="allowed; of few requests one may be more",
    )
    if len(missed) > _LOGARITHMIC:
        axis.set_xscale("log")
    axis.set_xlabel("models, those with the most late first")
    axis.set_ylabel("% late in the simulation")
    axis.legend(frameon=False, fontsize=8)


def _colours(names: Sequence[str]) -> dict[str, Any]:
    from matplotlib import colormaps

    table = colormaps["tab10"] if len(names) <= 10 else colormaps["tab20"]
    return {
        name: (*(0.35 + 0.65 * part for part in table(index % table.N)[:3]), 1.0)
        for index, name in enumerate(names)
    }
