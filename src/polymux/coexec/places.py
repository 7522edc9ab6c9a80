"""Where pieces can be computed: the streams of a server, and which of them can work at the same time."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from polymux.profiles import coexec_device_key

MOST_COMBINATIONS = 32
"""Sets of streams that are compared for one call."""


@dataclass(frozen=True, slots=True)
class Place:
    """A stream, as the server describes it.

    Parameters
    ----------
    stream, device : str
        As ``"cpu:0/1"`` and ``"cpu:0"``.
    device_key : str
        Of the device, in the profile store.
    units : frozenset of int
        Compute units that it uses.
    cores : frozenset of int
        Cores of the host that these are; empty where they are none.
    on_host : bool
        Whether it works on the host's memory, so that nothing is copied.
    """

    stream: str
    device: str
    device_key: str
    units: frozenset[int]
    cores: frozenset[int]
    on_host: bool

    def meets(self, other: Place) -> bool:
        """Tell whether both want the same compute units."""
        if self.device == other.device and self.units & other.units:
            return True
        return bool(self.cores & other.cores)

    def is_named(self, names: Collection[str]) -> bool:
        """Tell whether one of these names is this stream or its device."""
        return self.stream in names or self.device in names


def places_of(status: Mapping[str, Any]) -> tuple[Place, ...]:
    """List the streams of devices that work; of several with the same units the first.

    Parameters
    ----------
    status : mapping
        What `polymux.client.Client.status` returns.
    """
    found: list[Place] = []
    seen: set[tuple[str, frozenset[int]]] = set()
    for device in status["devices"]:
        if device["lost"] is not None:
            continue
        key = coexec_device_key(device)
        for stream in device["streams"]:
            units = frozenset(stream["units"])
            if (device["id"], units) in seen:
                continue
            seen.add((device["id"], units))
            on_host = device["memory"] == "host"
            cores = frozenset(stream["cores"])
            found.append(Place(stream["id"], device["id"], key, units, cores, on_host))
    return tuple(found)


def combinations(places: Sequence[Place]) -> tuple[tuple[Place, ...], ...]:
    """List the largest sets of streams of which no two want the same compute units."""
    found = []
    for chosen in _independent(list(places), []):
        found.append(tuple(chosen))
        if len(found) == MOST_COMBINATIONS:
            break
    return tuple(found)


def _independent(left: list[Place], chosen: list[Place]) -> Iterator[list[Place]]:
    """Take the first place or one of those that exclude it; every largest set comes once or more, none is smaller."""
    if not left:
        yield chosen
        return
    first = left[0]
    rivals = [place for place in left if place.meets(first)]
    seen: set[frozenset[str]] = set()
    for place in rivals:
        rest = [other for other in left if not other.meets(place)]
        for found in _independent(rest, [*chosen, place]):
            names = frozenset(member.stream for member in found)
            if names not in seen:
                seen.add(names)
                yield found
