"""What can be named by a user: a table of strings, and what installed packages bring as entry points."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from polymux.core.errors import InvalidRequest


@dataclass(frozen=True, slots=True)
class Catalogue:
    """Classes by their names.

    Parameters
    ----------
    what : str
        What they are, for errors: ``"policy"``.
    built_in : mapping of str to str
        Name -> ``"module:class"``.
    group : str
        Of entry points.
    otherwise : str
        What may be given instead of a name, for errors: ``", or a file"``.
    """

    what: str
    built_in: Mapping[str, str]
    group: str
    otherwise: str = ""

    def names(self) -> list[str]:
        """List all names: the built-in ones, then those of installed packages."""
        return [*self.built_in, *(point.name for point in self._installed())]

    def summaries(self) -> dict[str, str]:
        """Map each name to the first line of its documentation, for help texts."""
        return {name: self._summary(name) for name in self.names()}

    def find(self, name: str) -> Any:
        """Load a class.

        Raises
        ------
        InvalidRequest
            If none has that name, two have it, or it cannot be loaded.
        """
        found = [self.built_in[name]] if name in self.built_in else []
        found += [point.value for point in self._installed() if point.name == name]
        if not found:
            raise InvalidRequest(
                f"{self.what} {name!r} is unknown; give one of {', '.join(self.names())}{self.otherwise}"
            )
        if len(found) > 1:
            raise InvalidRequest(
                f"{self.what} {name!r} is defined twice, by {' and '.join(found)}; uninstall one of them"
            )
        module, _, attribute = found[0].partition(":")
        try:
            return getattr(import_module(module), attribute)
        except (ImportError, AttributeError) as error:
            raise InvalidRequest(f"{self.what} {name!r} cannot be loaded from {found[0]}: {error}") from error

    def _summary(self, name: str) -> str:
        try:
            return (self.find(name).__doc__ or "").strip().partition("\n")[0]
        except InvalidRequest as error:
            return str(error)

    def _installed(self) -> Iterator[EntryPoint]:
        return iter(sorted(entry_points(group=self.group), key=lambda point: (point.name, point.value)))
