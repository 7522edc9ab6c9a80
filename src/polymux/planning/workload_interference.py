"""How much the models of a workload file disturb each other: given in the file, or measured here."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from itertools import product

from polymux.core.toml_table import TomlTable
from polymux.perfmodel.interference import NO_INTERFERENCE, Interference
from polymux.planning.workload_devices import DeviceGroup
from polymux.planning.workload_profiles import WorkloadProfiles
from polymux.sim.serving.scenario import Load

Models = Sequence[tuple[TomlTable, Sequence[Load]]]


def read_interference(
    models: Models, kinds: Mapping[str, DeviceGroup], profiles: WorkloadProfiles
) -> Interference:
    """Read ``sensitivity`` and ``pressure`` of each model; where no model has one, take what was measured.

    Parameters
    ----------
    models : sequence of (TomlTable, sequence of Load)
        Each with its copies.
    kinds : mapping of str to DeviceGroup
        The workload's devices by kind.
    profiles : WorkloadProfiles

    Returns
    -------
    Interference
        With 0 where a model has no number in a file that has some. Measured is that of the first profiled device on
        which models were measured together (``polymux profile together``).

    Raises
    ------
    ConfigError
        If a number is negative, or the profile store cannot be read.
    """
    if any(key in table for table, _ in models for key in ("sensitivity", "pressure")):
        return _given(models)
    for group in kinds.values():
        if group.profiled:
            found = _measured(models, group, profiles)
            if found.sensitivity:
                return found
    return NO_INTERFERENCE


def _given(models: Models) -> Interference:
    sensitivity, pressure = {}, {}
    for table, loads in models:
        sensitive, pressing = (table.amount(key, 0.0, high=1e6) for key in ("sensitivity", "pressure"))
        for load in loads:
            sensitivity[str(load.model.name)], pressure[str(load.model.name)] = sensitive, pressing
    if not any(sensitivity.values()) or not any(pressure.values()):
        return NO_INTERFERENCE
    return Interference(sensitivity, pressure)


def _measured(models: Models, group: DeviceGroup, profiles: WorkloadProfiles) -> Interference:
    """What was measured, by the names that the models have in the workload; several may be one measured model."""
    keys = {
        str(load.model.name): key
        for table, loads in models
        if group.kind in loads[0].surfaces and (key := profiles.model_key(table)) is not None
        for load in loads
    }
    found = profiles.interference(group, set(keys.values()))
    names: dict[Hashable, list[str]] = {}
    for name, key in keys.items():
        names.setdefault(key, []).append(name)
    return Interference(
        {name: found.sensitivity[key] for name, key in keys.items() if key in found.sensitivity},
        {name: found.pressure[key] for name, key in keys.items() if key in found.pressure},
        found.left_out,
        {
            pair: effect
            for (one, two), effect in found.pairs.items()
            for pair in product(names.get(one, ()), names.get(two, ()))
        },
    )
