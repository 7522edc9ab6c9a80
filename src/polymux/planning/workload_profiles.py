"""Devices and models of a workload file that were measured here: from the profile store."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from polymux.core.errors import ConfigError
from polymux.core.serving.model import LatencySurface
from polymux.core.toml_table import TomlTable
from polymux.perfmodel.interference import NO_INTERFERENCE, Interference
from polymux.planning.workload_devices import DeviceGroup
from polymux.profiles import ProfileStore, model_key
from polymux.profiles.records import ProfiledModel


class WorkloadProfiles:
    """The store that a workload's profiles come from.

    Parameters
    ----------
    path : Path, optional
        None: there is none.
    folder : Path
        What names of model files are relative to.
    """

    def __init__(self, path: Path | None, folder: Path) -> None:
        self._path = path
        self._folder = folder

    def device(self, table: TomlTable, key: str) -> DeviceGroup:
        """Find a profiled device by its key, or the beginning of it; its shares are those that were measured.

        Raises
        ------
        ConfigError
            If there is no store, it cannot be read, or no such device, or several, are in it.
        """
        with self._store(table, "profile", key) as store:
            found = {name: identity for name, identity in store.devices().items() if name.startswith(key)}
            if len(found) != 1:
                names = ", ".join(found or store.devices()) or "none"
                several = "several begin so" if found else "no device begins so"
                raise table.error("profile", key, f"{several} in {self._path}; profiled are: {names}")
            ((kind, identity),) = found.items()
            grids = [store.grid(*pair) for pair in store.profiles() if pair[1] == kind]
        shares = tuple(sorted({units for grid in grids if grid is not None for units in grid.units}))
        return DeviceGroup(kind, 1, identity.units, shares or (identity.units,), profiled=True)

    def surface(self, table: TomlTable, group: DeviceGroup, max_batch: int) -> tuple[LatencySurface, int]:
        """Find a model's surface on a profiled device, and the size of its weights in bytes.

        Raises
        ------
        ConfigError
            If it was not profiled there; the message says where it was, and what differs.
        """
        name = table.text("profile", table.text("name"))
        with self._store(table, "profile", name) as store:
            model = self._find(store, name)
            surface = store.surface(model.key, group.kind, limit=max_batch)
            if surface is None:
                surface = store.require_surface(model, store.devices()[group.kind])
            return surface, model.weight_nbytes

    def model_key(self, table: TomlTable) -> str | None:
        """Key of a model in the store; None where its times are given by hand, or the store has no such model."""
        if self._path is None or ("surface" in table and "profile" not in table):
            return None
        name = table.text("profile", table.text("name"))
        with self._store(table, "profile", name) as store:
            try:
                return self._find(store, name).key
            except ConfigError as error:
                if error.key != "model":
                    raise
                return None

    def interference(self, group: DeviceGroup, models: Collection[str]) -> Interference:
        """How much models disturb each other on a profiled device, by their keys; none where it was not measured."""
        if self._path is None or not models:
            return NO_INTERFERENCE
        with ProfileStore(self._path) as store:
            return store.interference(group.kind, {key: key for key in models})

    def _find(self, store: ProfileStore, name: str) -> ProfiledModel:
        file = self._folder / name
        return store.find_model(model_key(file) if file.is_file() else name)

    def _store(self, table: TomlTable, key: str, value: str) -> ProfileStore:
        if self._path is None:
            raise table.error(key, value, "there is no profile store; name one with --store")
        return ProfileStore(self._path)
