"""The ``[[model]]`` tables of a workload file: what is served, under which deadline, and how long it takes where."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from polymux.core.serving.model import ModelName, ServedModel
from polymux.core.toml_table import TomlTable
from polymux.planning.workload_arrivals import read_arrivals
from polymux.planning.workload_devices import DeviceGroup
from polymux.planning.workload_profiles import WorkloadProfiles
from polymux.planning.workload_surfaces import read_surfaces
from polymux.sim.serving.scenario import Load

_KEYS = (
    "name", "copies", "slo_ms", "weight", "priority", "items", "max_batch", "memory", "rate_per_s", "arrivals",
    "surface", "table", "framework", "assume", "profile", "known", "sensitivity", "pressure",
)  # fmt: skip
MOST_MODELS = 20_000
"""Of a workload: starting 10,000 under ``spacetime`` takes most of a minute, and its time grows faster than they do."""
_NS_PER_MS = 1_000_000


def read_models(
    table: TomlTable, kinds: Mapping[str, DeviceGroup], folder: Path, profiles: WorkloadProfiles
) -> list[Load]:
    """Read a model, and its copies if there are several.

    Parameters
    ----------
    table : TomlTable
    kinds : mapping of str to DeviceGroup
        The workload's devices by kind.
    folder : Path
        What file names are relative to.
    profiles : WorkloadProfiles

    Raises
    ------
    ConfigError
        If a key is unknown or missing, or a value cannot be.
    """
    table.only(_KEYS)
    name = table.text("name")
    if not name:
        raise table.error("name", name, "give the model a name")
    slo_ms = table.amount("slo_ms", high=1e9)
    if round(slo_ms * _NS_PER_MS) < 1:
        raise table.error("slo_ms", slo_ms, "give more than 0")
    surfaces, weight_nbytes = read_surfaces(table, kinds, profiles)
    arrivals = read_arrivals(table, folder)
    copies = table.whole("copies", 1, low=1, high=MOST_MODELS)
    items = table.whole("items", 1, low=1, high=65_536)
    is_known = table.truth("known", True)
    max_batch = max(surface.max_batch for surface in surfaces.values())
    model = ServedModel(
        ModelName(name), round(slo_ms * _NS_PER_MS), surfaces if is_known else {},
        table.whole("weight", 100, low=1, high=10_000), table.whole("priority", 0, low=-1_000_000, high=1_000_000),
        arrivals.mean_rate_per_s, table.nbytes("memory", weight_nbytes), max_batch,
    )  # fmt: skip
    names = [name] if copies == 1 else [f"{name}-{index}" for index in range(copies)]
    return [
        Load(replace(model, name=ModelName(each)), arrivals, items, None if is_known else surfaces)
        for each in names
    ]


def check_reachable(table: TomlTable, load: Load, devices: Sequence[DeviceGroup]) -> None:
    """Check that a request alone on the fastest device could be answered in time.

    Raises
    ------
    ConfigError
        If it could not; the message has the fastest possible time.
    """
    fastest = [
        (surface.latency_ns(share, load.items), share, group)
        for group in devices
        if (surface := load.surfaces.get(group.kind)) is not None
        for share in group.shares
    ]
    time_ns, share, group = min(fastest, key=lambda found: found[0])
    if time_ns > load.model.slo_ns:
        items = "one item" if load.items == 1 else f"{load.items} items"
        raise table.error(
            "slo_ms",
            load.model.slo_ns / _NS_PER_MS,
            f"the fastest possible run, {items} on {share} of {group.units} units of {group.kind}, takes"
            f" {time_ns / _NS_PER_MS:.3f} ms; give more than that, or a faster device",
        )
