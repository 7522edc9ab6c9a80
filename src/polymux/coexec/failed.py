"""Units that failed lately, which are left out for a while."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from time import monotonic

from polymux.coexec.units import Unit
from polymux.core.errors import PolymuxError

RETRY_S = 10.0
"""How long a unit that has failed is left out."""


class Failed:
    """Which units failed lately; used by one thread at a time."""

    def __init__(self) -> None:
        self._at_s: dict[str, float] = {}

    def note(self, names: Iterable[str]) -> None:
        """Leave units out from now on."""
        self._at_s.update(dict.fromkeys(names, monotonic()))

    def until_s(self) -> float:
        """When the next of them may be tried again; infinity when none has failed."""
        now_s = monotonic()
        self._at_s = {name: at_s for name, at_s in self._at_s.items() if now_s - at_s < RETRY_S}
        return min((at_s + RETRY_S for at_s in self._at_s.values()), default=math.inf)

    def choose(self, units: Sequence[Unit], excluded: Mapping[str, PolymuxError]) -> tuple[Unit, ...]:
        """Choose units that did not fail lately; where there are none, those that this call has not tried.

        Parameters
        ----------
        units : sequence of Unit
            At least one.
        excluded : mapping of str to PolymuxError
            Units that have failed in this call.

        Raises
        ------
        PolymuxError
            The last failure, when the call has tried all.
        """
        self.until_s()
        left = tuple(unit for unit in units if unit.id not in excluded)
        if not left:
            raise list(excluded.values())[-1]
        return tuple(unit for unit in left if unit.id not in self._at_s) or left
