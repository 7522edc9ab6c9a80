"""Reading a TOML table with errors that name the file, the key and the value."""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterator, Mapping
from typing import Any

from polymux.core.dtype import DType
from polymux.core.errors import ConfigError, InvalidRequest
from polymux.core.nbytes import parse_nbytes

_MISSING = object()


class TomlTable:
    """A table of a TOML file.

    Parameters
    ----------
    file : str
    place : str
        Where the table is in the file: ``"kernel[0].native"``; empty for the whole file.
    content : mapping
    """

    def __init__(self, file: str, place: str, content: Mapping[str, Any]) -> None:
        self._file = file
        self._place = place
        self._content = content

    def __contains__(self, key: str) -> bool:
        return key in self._content

    def __iter__(self) -> Iterator[str]:
        return iter(self._content)

    def error(self, key: str, value: object, remedy: str) -> ConfigError:
        """Make the error for a key of this table."""
        return ConfigError(self._file, f"{self._place}.{key}" if self._place else key, value, remedy)

    def only(self, keys: tuple[str, ...]) -> None:
        """Check that the table has no other keys."""
        for key in self._content:
            if key not in keys:
                close = difflib.get_close_matches(key, keys, n=1)
                hint = f"did you mean {close[0]}?" if close else f"known are {', '.join(keys)}"
                raise self.error(key, self._content[key], f"the key is unknown; {hint}")

    def text(self, key: str, default: str | None = None) -> str:
        """A string."""
        value = self._content.get(key, _MISSING if default is None else default)
        if value is _MISSING:
            raise self.error(key, None, "it is missing; give a text")
        if not isinstance(value, str):
            raise self.error(key, value, "give a text in quotes")
        return value

    def truth(self, key: str, default: bool) -> bool:
        """A boolean."""
        value = self._content.get(key, default)
        if not isinstance(value, bool):
            raise self.error(key, value, "give true or false")
        return value

    def number(self, key: str) -> float | int | bool | None:
        """A number or boolean; None if the key is missing."""
        value = self._content.get(key)
        if value is not None and not isinstance(value, bool | int | float):
            raise self.error(key, value, "give a number")
        return value

    def amount(
        self, key: str, default: float | None = None, *, low: float = 0.0, high: float = math.inf
    ) -> float:
        """A number from `low` to `high`; without a default the key must be there."""
        value = self._content.get(key, default)
        if value is None:
            raise self.error(key, None, f"it is missing; give a number {_range(low, high)}")
        if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
            raise self.error(key, value, f"give a number {_range(low, high)}")
        if math.isinf(value):
            raise self.error(key, value, f"give a finite number {_range(low, high)}")
        return float(value)

    def whole(self, key: str, default: int | None = None, *, low: int = 0, high: float = math.inf) -> int:
        """A whole number from `low` to `high`; without a default the key must be there."""
        value = self._content.get(key, default)
        if value is None:
            raise self.error(key, None, f"it is missing; give a whole number {_range(low, high)}")
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise self.error(key, value, f"give a whole number {_range(low, high)}")
        return value

    def nbytes(self, key: str, default: int = 0) -> int:
        """A number of bytes, or a text with a unit such as ``"512MiB"``."""
        value = self._content.get(key, default)
        if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
            return value
        try:
            return parse_nbytes(value if isinstance(value, str) else "")
        except ValueError:
            raise self.error(key, value, 'give a number of bytes, or a text such as "512MiB"') from None

    def amounts(self, key: str, *, low: float = 0.0) -> tuple[float, ...]:
        """Numbers of at least `low`; the key must be there."""
        values = self._list(key)
        for value in values:
            if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value < math.inf:
                raise self.error(key, values, f"{value!r} is not a number {_range(low, math.inf)}")
        if not values:
            raise self.error(key, self._content.get(key), "give at least one number: [ ... ]")
        return tuple(float(value) for value in values)

    def rows(self, key: str, *, low: float = 0.0) -> tuple[tuple[float, ...], ...]:
        """Rows of numbers of at least `low`; the key must be there."""
        rows = self._list(key)
        if not rows or not all(isinstance(row, list) and row for row in rows):
            raise self.error(key, self._content.get(key), "give rows of numbers: [[1.0, 2.0], [0.5, 0.9]]")
        within = [TomlTable(self._file, self._place, {f"{key}[{i}]": row}) for i, row in enumerate(rows)]
        return tuple(table.amounts(f"{key}[{i}]", low=low) for i, table in enumerate(within))

    def texts(self, key: str) -> tuple[str, ...]:
        """Strings; none if the key is missing."""
        values = self._list(key)
        if not all(isinstance(value, str) for value in values):
            raise self.error(key, values, 'give texts in quotes: ["a", "b"]')
        return tuple(values)

    def whole_numbers(self, key: str) -> tuple[int, ...]:
        """Integers."""
        values = self._list(key)
        if not all(isinstance(value, int) and not isinstance(value, bool) for value in values):
            raise self.error(key, values, "give whole numbers: [64, 1]")
        return tuple(values)

    def terms(self, key: str) -> tuple[int | str, ...]:
        """Integers and strings; the key must be there."""
        values = self._list(key)
        if key not in self or not all(isinstance(v, int | str) and not isinstance(v, bool) for v in values):
            raise self.error(
                key, values, 'give a list of whole numbers and terms: ["y.shape[1]", "y.shape[0]"]'
            )
        return tuple(values)

    def dtype(self, key: str) -> DType:
        """The name of an element type."""
        return self._parse_dtype(key, self.text(key))

    def dtypes(self, key: str) -> tuple[DType, ...]:
        """Names of element types; none if the key is missing."""
        return tuple(self._parse_dtype(key, name) for name in self._list(key))

    def table(self, key: str) -> TomlTable | None:
        """A table within; None if the key is missing."""
        value = self._content.get(key)
        return None if value is None else self._within(key, value)

    def tables(self, key: str) -> list[TomlTable]:
        """A list of tables; empty if the key is missing."""
        return [self._within(f"{key}[{index}]", item) for index, item in enumerate(self._list(key))]

    def named_tables(self, key: str) -> list[TomlTable]:
        """A list of tables, in which a mere string stands for a table with that name."""
        return [
            self._within(f"{key}[{index}]", {"name": item} if isinstance(item, str) else item)
            for index, item in enumerate(self._list(key))
        ]

    def _list(self, key: str) -> list[Any]:
        value = self._content.get(key, [])
        if not isinstance(value, list):
            raise self.error(key, value, "give a list: [ ... ]")
        return value

    def _within(self, key: str, value: object) -> TomlTable:
        if not isinstance(value, dict):
            raise self.error(key, value, "give a table: { name = ... }")
        return TomlTable(self._file, f"{self._place}.{key}" if self._place else key, value)

    def _parse_dtype(self, key: str, name: object) -> DType:
        if not isinstance(name, str):
            raise self.error(key, name, 'give the name of an element type in quotes: "f4"')
        try:
            return DType.parse(name)
        except InvalidRequest as error:
            raise self.error(key, name, str(error)) from error


def _range(low: float, high: float) -> str:
    low_text, high_text = (f"{int(x):,}" if float(x).is_integer() else f"{x:g}" for x in (low, high))
    return f"of {low_text} or more" if math.isinf(high) else f"from {low_text} to {high_text}"
