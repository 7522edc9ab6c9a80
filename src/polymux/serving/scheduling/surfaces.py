"""The latency surfaces of a model's file, from the profile store."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from polymux.perfmodel.surface import TableSurface
from polymux.profiles import ProfileStore, model_key

__all__ = ["read_surfaces"]


def read_surfaces(store: Path, model: Path, kinds: Iterable[str]) -> Mapping[str, TableSurface]:
    """Find what is known of a model.

    Parameters
    ----------
    store : pathlib.Path
        The profile store; that it does not exist is no error.
    model : pathlib.Path
        The model's file.
    kinds : iterable of str
        Keys of devices.

    Returns
    -------
    mapping of str to TableSurface
        By the key of the device.

    Raises
    ------
    ConfigError
        When the store is damaged, or locked by another process.
    """
    if not store.exists():
        return {}
    key = model_key(model)
    with ProfileStore(store) as profiles:
        found = {kind: profiles.surface(key, kind) for kind in sorted(set(kinds))}
    return {kind: surface for kind, surface in found.items() if surface is not None}
