"""How long a model of a workload file takes on each kind of device: given in the file, or from the tables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from polymux.core.errors import InvalidRequest
from polymux.core.serving.model import LatencySurface
from polymux.core.toml_table import TomlTable
from polymux.perfmodel import tables
from polymux.perfmodel.surface import TableSurface
from polymux.planning.workload_devices import DeviceGroup
from polymux.planning.workload_profiles import WorkloadProfiles

NS_PER_MS = 1_000_000
_KEYS = ("kind", "share", "batch", "latency_ms")


def read_surfaces(
    table: TomlTable, kinds: Mapping[str, DeviceGroup], profiles: WorkloadProfiles
) -> tuple[dict[str, LatencySurface], int]:
    """Find a model's surfaces, by kind of device, and the size of its weights as far as its profile says.

    Parameters
    ----------
    table : TomlTable
        The model's: its ``[[model.surface]]`` tables come first, then the tables that come with the package, by
        ``table`` (the model's name) and ``framework``; ``assume = "flat"`` takes the paper's knee instead of
        measurements. On a profiled device it is the profile that counts, by ``profile`` (the model's name).
    kinds : mapping of str to DeviceGroup
        The workload's devices by kind.
    profiles : WorkloadProfiles

    Raises
    ------
    ConfigError
        If something in them cannot be, or there is none for any of the devices.
    """
    max_batch = table.whole("max_batch", 0, low=1, high=65_536) if "max_batch" in table else 0
    surfaces = _read_given(table, kinds, max_batch)
    problems: dict[str, None] = {}
    weight_nbytes = 0
    for kind, group in kinds.items():
        if kind not in surfaces and group.profiled:
            surfaces[kind], weight_nbytes = profiles.surface(table, group, max_batch)
        elif kind not in surfaces:
            try:
                surfaces[kind] = _of_tables(table, group, max_batch)
            except InvalidRequest as problem:
                problems[str(problem)] = None
    if not surfaces:
        remedy = f"{'; '.join(problems)}; or give the times of its batches as [[model.surface]]"
        raise table.error("table", table.text("table", table.text("name")), remedy)
    return surfaces, weight_nbytes


def _read_given(
    table: TomlTable, kinds: Mapping[str, DeviceGroup], max_batch: int
) -> dict[str, LatencySurface]:
    surfaces: dict[str, LatencySurface] = {}
    for given in table.tables("surface"):
        given.only(_KEYS)
        wanted = [given.text("kind")] if "kind" in given else list(kinds)
        for kind in wanted:
            if kind not in kinds:
                raise given.error("kind", kind, f"there is no such device; give one of {', '.join(kinds)}")
            if kind in surfaces:
                raise given.error("kind", kind, "there is a surface for this kind already; leave one out")
            surfaces[kind] = _read_surface(given, kinds[kind], max_batch)
    return surfaces


def _read_surface(table: TomlTable, group: DeviceGroup, max_batch: int) -> TableSurface:
    shares, batches = table.whole_numbers("share"), table.whole_numbers("batch")
    for share in shares:
        if not 1 <= share <= group.units:
            raise table.error(
                "share", list(shares), f"{share} is outside 1 to {group.units}, the units of {group.kind}"
            )
    rows = table.rows("latency_ms", low=1e-6)
    times = tuple(tuple(round(time_ms * NS_PER_MS) for time_ms in row) for row in rows)
    try:
        return TableSurface(shares, batches, times, max_batch)
    except InvalidRequest as error:
        raise table.error("latency_ms", [list(row) for row in rows], str(error)) from error


def _of_tables(table: TomlTable, group: DeviceGroup, max_batch: int) -> LatencySurface:
    """Find a model in the tables that come with the package; `InvalidRequest` when it is not there."""
    name, framework = table.text("table", table.text("name")), table.text("framework", "")
    assume = table.text("assume", "measured")
    if assume not in ("measured", "flat"):
        raise table.error("assume", assume, "give measured or flat")
    kind = group.kind
    source = group.estimate_from
    if assume == "flat":
        flat = tables.flat_knee(kind, name) if source is None else tables.scaled_flat_knee(kind, name, source)
        return replace(flat, limit=max_batch)
    if source is None or name in tables.measured(kind):
        return tables.surface(kind, name, framework, max_batch)
    return tables.scaled_surface(kind, name, framework, max_batch, source)
