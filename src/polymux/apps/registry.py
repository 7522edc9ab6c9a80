"""The applications by name."""

from __future__ import annotations

from importlib import import_module
from typing import cast

from polymux.apps.application import Application
from polymux.core.errors import InvalidRequest

APPLICATIONS: dict[str, str] = {
    "gaussian": "polymux.apps.gaussian:Gaussian",
    "hotspot": "polymux.apps.hotspot:Hotspot",
    "lavamd": "polymux.apps.lavamd:LavaMD",
    "needleman-wunsch": "polymux.apps.needleman_wunsch:NeedlemanWunsch",
    "particle-filter": "polymux.apps.particle_filter:ParticleFilter",
    "pathfinder": "polymux.apps.pathfinder:Pathfinder",
}
"""Name -> module and class."""


def find(name: str) -> type[Application]:
    """Find an application's class.

    Raises
    ------
    InvalidRequest
        With the names that there are.
    """
    target = APPLICATIONS.get(name)
    if target is None:
        raise InvalidRequest(f"there is no application {name!r}; there are {', '.join(APPLICATIONS)}")
    module, _, attribute = target.partition(":")
    return cast(type[Application], getattr(import_module(module), attribute))
