"""Workload files: which models are to be served on which devices, and when requests come, as TOML.

docs/simulation.md describes every key. Whatever is wrong in a file is told with the file, the key, the value and what
would be right; nothing is guessed.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from polymux.core.errors import ConfigError, InvalidRequest
from polymux.core.ids import DeviceId
from polymux.core.serving.event import ServingDeviceAdded, ServingDeviceLost, ServingEvent
from polymux.core.serving.model import ModelName, ServingDevice
from polymux.core.toml_table import TomlTable
from polymux.perfmodel.interference import NO_INTERFERENCE, Interference
from polymux.planning.workload_devices import DeviceGroup, read_device
from polymux.planning.workload_interference import read_interference
from polymux.planning.workload_models import MOST_MODELS, check_reachable, read_models
from polymux.planning.workload_profiles import WorkloadProfiles
from polymux.policy.serving import registry
from polymux.sim.serving.arrivals import SECOND_NS
from polymux.sim.serving.scenario import Load, Scenario, Slowdown

DEFAULT_POLICIES = ("spacetime",)
_KEYS = ("name", "simulation", "device", "model", "slowdown", "loss")
_SIMULATION_KEYS = ("duration_s", "warmup_s", "seed", "noise", "prepare_s", "policies")
_LONGEST_S = 1e6


@dataclass(frozen=True, slots=True)
class Workload:
    """A workload.

    Parameters
    ----------
    name : str
    devices : tuple of DeviceGroup
    loads : tuple of Load
    duration_ns, warmup_ns : int
    seed : int
    noise : float
    prepare_ns : int
    slowdowns : tuple of Slowdown
    events : tuple of (int, ServingEvent)
        Losses of devices, by time in ns.
    policies : tuple of str
        Under which it is simulated when nobody says otherwise.
    interference : Interference
    """

    name: str
    devices: tuple[DeviceGroup, ...]
    loads: tuple[Load, ...]
    duration_ns: int
    warmup_ns: int = 0
    seed: int = 0
    noise: float = 0.0
    prepare_ns: int = 0
    slowdowns: tuple[Slowdown, ...] = ()
    events: tuple[tuple[int, ServingEvent], ...] = ()
    policies: tuple[str, ...] = ()
    interference: Interference = NO_INTERFERENCE

    def serving_devices(self, count: int | None = None) -> tuple[ServingDevice, ...]:
        """All devices, named ``kind:0``, ``kind:1``, ...; with `count`, so many of the first group's kind instead."""
        groups = self.devices if count is None else (replace(self.devices[0], count=count),)
        made: list[ServingDevice] = []
        for group in groups:
            first = sum(device.kind == group.kind for device in made)
            made += [group.device(DeviceId(f"{group.kind}:{first + index}")) for index in range(group.count)]
        return tuple(made)

    def scaled(self, factor: float) -> Workload:
        """Return the same workload with `factor` times the requests.

        Raises
        ------
        InvalidRequest
            If the factor is not above 0.
        """
        if not 0 < factor < float("inf"):
            raise InvalidRequest(f"load is {factor}; give a number above 0")
        loads = tuple(
            replace(
                load,
                arrivals=load.arrivals.scaled(factor),
                model=replace(load.model, rate_per_s=load.model.rate_per_s * factor),
            )
            for load in self.loads
        )
        return replace(self, loads=loads)

    def scenario(self, devices: int | None = None, *, keep_spans: bool = True) -> Scenario:
        """Put all devices into one pool; `devices` replaces how many there are.

        Raises
        ------
        InvalidRequest
            If one of the models does not run on the first kind, and there are to be only such devices.
        """
        pool = self.serving_devices(devices)
        if devices is not None:
            self._check_only(self.devices[0].kind)
        names = {device.id for device in pool}
        return Scenario(
            pool,
            self.loads,
            self.duration_ns,
            seed=self.seed,
            warmup_ns=self.warmup_ns,
            noise=self.noise,
            slowdowns=self.slowdowns,
            events=tuple((at, event) for at, event in self.events if _device_of(event) in names),
            prepare_ns=self.prepare_ns,
            power={group.kind: group.power for group in self.devices if group.power is not None},
            interference=self.interference,
            keep_spans=keep_spans,
        )

    def _check_only(self, kind: str) -> None:
        for load in self.loads:
            if kind not in load.surfaces:
                raise InvalidRequest(
                    f"model {load.model.name} does not run on {kind}, of which there are to be all devices; leave"
                    f" --devices out, or give it a surface for {kind}"
                )


def read_workload(path: str | Path, profiles: Path | None = None) -> Workload:
    """Read a workload file.

    Parameters
    ----------
    path : str or Path
    profiles : Path, optional
        The profile store for devices and models that were measured here.

    Raises
    ------
    ConfigError
        If it cannot be read, or a key is unknown, missing, or has a value that cannot be.
    """
    try:
        content = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        remedy = f"cannot be read: {error.strerror}; give the path of a TOML file"
        raise ConfigError(str(path), "file", str(path), remedy) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(str(path), "file", str(path), f"is no TOML: {error}") from error
    return parse_workload(str(path), content, profiles)


def parse_workload(file: str, content: Mapping[str, Any], profiles: Path | None = None) -> Workload:
    """Make a workload of a file's content; traces are read relative to the file.

    Raises
    ------
    ConfigError
        As `read_workload`.
    """
    top = TomlTable(file, "", content)
    top.only(_KEYS)
    simulation = top.table("simulation") or TomlTable(file, "simulation", {})
    simulation.only(_SIMULATION_KEYS)
    duration_s = simulation.amount("duration_s", 10.0, low=1e-3, high=_LONGEST_S)
    warmup_s = simulation.amount("warmup_s", 0.0)
    if warmup_s >= duration_s:
        raise simulation.error("warmup_s", warmup_s, f"give less than duration_s, which is {duration_s:g}")
    store = WorkloadProfiles(profiles, Path(file).parent)
    devices = _required(top, "device", [read_device(table, store.device) for table in top.tables("device")])
    kinds = {group.kind: group for group in devices}
    loads: list[Load] = []
    names: set[ModelName] = set()
    read: list[tuple[TomlTable, list[Load]]] = []
    for table in top.tables("model"):
        new = read_models(table, kinds, Path(file).parent, store)
        twice = names & {load.model.name for load in new}
        if twice:
            raise table.error("name", min(twice), "another model has this name; name each differently")
        if len(loads) + len(new) > MOST_MODELS:
            remedy = (
                f"that makes {len(loads) + len(new):,} models with those before; give at most {MOST_MODELS:,}"
            )
            raise table.error("copies", len(new), remedy)
        names |= {load.model.name for load in new}
        check_reachable(table, new[0], devices)
        loads += new
        read.append((table, new))
    _required(top, "model", loads)
    workload = Workload(
        top.text("name", Path(file).stem), tuple(devices), tuple(loads), round(duration_s * SECOND_NS),
        round(warmup_s * SECOND_NS), simulation.whole("seed", 0), simulation.amount("noise", 0.0, high=10.0),
        round(simulation.amount("prepare_s", 0.0, high=_LONGEST_S) * SECOND_NS), policies=_policies(simulation),
        interference=read_interference(read, kinds, store),
    )  # fmt: skip
    slowdowns = tuple(_read_slowdown(table, workload) for table in top.tables("slowdown"))
    losses = tuple(event for table in top.tables("loss") for event in _read_loss(table, workload))
    return replace(workload, slowdowns=slowdowns, events=losses)


def _required(top: TomlTable, key: str, found: Sequence[Any]) -> Sequence[Any]:
    if not found:
        raise top.error(key, None, f"it is missing; describe at least one: [[{key}]]")
    return found


def _policies(simulation: TomlTable) -> tuple[str, ...]:
    policies = simulation.texts("policies")
    for policy in policies:
        check_policy(simulation, policy)
    return policies


def check_policy(simulation: TomlTable, policy: str) -> None:
    """Check that a policy can be made.

    Raises
    ------
    ConfigError
        If it cannot.
    """
    try:
        registry.load(policy)
    except InvalidRequest as error:
        raise simulation.error("policies", policy, str(error)) from error


def _read_slowdown(table: TomlTable, workload: Workload) -> Slowdown:
    table.only(("model", "factor", "from_s", "to_s"))
    model = table.text("model")
    names = [load.model.name for load in workload.loads]
    if model not in names:
        raise table.error("model", model, f"no such model; give one of {', '.join(names[:20])}")
    start_s = table.amount("from_s", 0.0)
    end_s = table.amount("to_s", _LONGEST_S, low=start_s)
    if end_s == start_s:
        raise table.error("to_s", end_s, f"give more than from_s, which is {start_s:g}")
    factor = table.amount("factor", low=1e-3, high=1e6)
    return Slowdown(ModelName(model), round(start_s * SECOND_NS), round(end_s * SECOND_NS), factor)


def _read_loss(table: TomlTable, workload: Workload) -> list[tuple[int, ServingEvent]]:
    table.only(("device", "at_s", "back_s"))
    device = table.text("device")
    known = {str(found.id): found for found in workload.serving_devices()}
    if device not in known:
        raise table.error("device", device, f"no such device; give one of {', '.join(list(known)[:20])}")
    at_s = table.amount("at_s")
    lost = ServingDeviceLost(DeviceId(device), "lost, as the workload says")
    events: list[tuple[int, ServingEvent]] = [(round(at_s * SECOND_NS), lost)]
    if "back_s" in table:
        back_s = table.amount("back_s", low=at_s, high=_LONGEST_S)
        events.append((round(back_s * SECOND_NS), ServingDeviceAdded(known[device])))
    return events


def _device_of(event: ServingEvent) -> DeviceId | None:
    if isinstance(event, ServingDeviceLost):
        return event.device
    return event.device.id if isinstance(event, ServingDeviceAdded) else None
