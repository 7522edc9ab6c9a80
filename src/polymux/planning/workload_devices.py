"""The ``[[device]]`` tables of a workload file: how many devices of which kind."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from polymux.core.ids import DeviceId
from polymux.core.serving.model import ServingDevice
from polymux.core.toml_table import TomlTable
from polymux.perfmodel import tables
from polymux.perfmodel.energy import PowerModel

PERCENT = 100
TENTHS = tuple(range(10, PERCENT + 1, 10))
_KEYS = ("kind", "profile", "count", "units", "shares", "memory", "idle_w", "busy_w", "estimate_from", "cost")
_MOST = 100_000


@dataclass(frozen=True, slots=True)
class DeviceGroup:
    """Some devices of one kind.

    Parameters
    ----------
    kind : str
    count : int
    units : int
    shares : tuple of int
    memory_nbytes : int
        0: not known.
    power : PowerModel, optional
    estimate_from : str, optional
        Kind of device in the tables whose measurements are scaled for models that were not measured on this one.
    cost : float
        Of each, in any unit that all groups have in common; what a plan keeps low.
    """

    kind: str
    count: int = 1
    units: int = PERCENT
    shares: tuple[int, ...] = TENTHS
    memory_nbytes: int = 0
    power: PowerModel | None = None
    estimate_from: str | None = None
    cost: float = 1.0
    profiled: bool = False

    def device(self, name: DeviceId) -> ServingDevice:
        """Make one of them."""
        return ServingDevice(name, self.units, self.shares, self.kind, (), self.memory_nbytes)


def read_device(table: TomlTable, profiled: Callable[[TomlTable, str], DeviceGroup]) -> DeviceGroup:
    """Read a group of devices.

    Parameters
    ----------
    table : TomlTable
    profiled : callable
        Finds a profiled device.

    Raises
    ------
    ConfigError
        If a key is unknown, or a value cannot be.
    """
    table.only(_KEYS)
    if "profile" in table:
        if "kind" in table:
            raise table.error(
                "kind", table.text("kind"), "the profile says it already; leave one of both out"
            )
        known = profiled(table, table.text("profile"))
    else:
        known = _of_tables(table)
    kind = known.kind
    units = table.whole("units", known.units, low=1, high=65_536)
    shares = _read_shares(table, units, known)
    memory_nbytes = table.nbytes("memory", known.memory_nbytes)
    count = table.whole("count", 1, low=1, high=_MOST)
    estimate_from = _read_estimate(table, kind)
    cost = table.amount("cost", 1.0, low=1e-9, high=1e12)
    power = _read_power(table, known)
    return DeviceGroup(kind, count, units, shares, memory_nbytes, power, estimate_from, cost, known.profiled)


def _of_tables(table: TomlTable) -> DeviceGroup:
    kind = table.text("kind")
    if not kind:
        raise table.error("kind", kind, 'give a kind of device, such as "v100"')
    facts = tables.devices().get(kind)
    if facts is None:
        return DeviceGroup(kind)
    power = PowerModel.of(facts)
    return DeviceGroup(kind, 1, facts.units, facts.shares, facts.memory_nbytes, power)


def _read_estimate(table: TomlTable, kind: str) -> str | None:
    if "estimate_from" not in table:
        return None
    source = table.text("estimate_from")
    for key, wanted in (("estimate_from", source), ("kind", kind)):
        if wanted not in tables.devices():
            remedy = f"nothing is known of its peak rates; give one of {', '.join(tables.devices())}"
            raise table.error(key, wanted, remedy)
    return source


def _read_shares(table: TomlTable, units: int, known: DeviceGroup) -> tuple[int, ...]:
    if "shares" not in table:
        return known.shares if units == known.units else tuple(range(1, units + 1))
    shares = table.whole_numbers("shares")
    for share in shares:
        if not 1 <= share <= units:
            what = "percent of the device" if units == PERCENT else f"units of the device, which has {units}"
            raise table.error("shares", list(shares), f"{share} is outside 1 to {units}; give {what}")
    if not shares or list(shares) != sorted(set(shares)):
        raise table.error("shares", list(shares), "give different numbers, ascending")
    return shares


def _read_power(table: TomlTable, known: DeviceGroup) -> PowerModel | None:
    if "idle_w" not in table and "busy_w" not in table:
        return known.power
    idle_w = table.amount("idle_w", high=1e6)
    return PowerModel(idle_w, table.amount("busy_w", low=idle_w, high=1e6))
