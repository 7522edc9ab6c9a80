"""The options of an input stage: ``NAME,KEY=VALUE,...`` as an operator writes it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from polymux.core.errors import InvalidRequest
from polymux.core.kernel_spec import BufferParam

__all__ = ["Options", "parse"]


@dataclass(frozen=True, slots=True)
class Options:
    """What a stage is made of.

    Parameters
    ----------
    text : str
        The whole, as it was written.
    stage : str
        Its name: what stands before the first comma.
    values : mapping of str to str
        What follows.
    targets : tuple of BufferParam
        The tensors that are wanted: a model's inputs, each of one dtype; None in a shape: any extent.
    folder : pathlib.Path
        Where files with a relative path are.
    """

    text: str
    stage: str
    values: Mapping[str, str]
    targets: tuple[BufferParam, ...]
    folder: Path

    def error(self, problem: str) -> InvalidRequest:
        """Make the error that says what is wrong."""
        return InvalidRequest(f"input stage '{self.text}': {problem}")

    def check_known(self, known: Collection[str]) -> None:
        """Refuse options that the stage does not have."""
        for key in self.values:
            if key not in known:
                raise self.error(f"no option '{key}'; it has {', '.join(sorted(known)) or 'none'}")

    def choice(self, key: str, choices: Sequence[str]) -> str:
        """Return an option that is one of `choices`; the first of them by default."""
        value = self.values.get(key, choices[0])
        if value not in choices:
            raise self.error(f"{key}={value}: give one of {', '.join(choices)}")
        return value

    def whole(self, key: str, default: int, least: int, most: int) -> int:
        """Return an option that is a whole number."""
        text = self.values.get(key)
        if text is None:
            return default
        if not (text.isascii() and text.isdigit()) or not least <= int(text) <= most:
            raise self.error(f"{key}={text}: give a whole number from {least} to {most}")
        return int(text)

    def numbers(self, key: str) -> tuple[float, ...] | None:
        """Return an option that is numbers with ``/`` between them; None without it."""
        text = self.values.get(key)
        if text is None:
            return None
        try:
            return tuple(float(part) for part in text.split("/"))
        except ValueError:
            raise self.error(f"{key}={text}: give numbers, such as {key}=0.5/0.5/0.5") from None

    def target(self, kind: str, candidates: Sequence[BufferParam]) -> BufferParam:
        """Choose the tensor to make: what the option ``into`` names, or the only one that it can be."""
        names = [param.name for param in self.targets]
        into = self.values.get("into")
        if into is None:
            if len(candidates) == 1:
                return candidates[0]
            found = f"{len(candidates)} of them" if candidates else "none"
            raise self.error(
                f"it makes {kind}, and of the inputs {names} {found} can be one; name it: into=NAME"
            )
        for param in candidates:
            if param.name == into:
                return param
        raise self.error(f"into={into}: no input of that name can be {kind}; the inputs are {names}")


def parse(text: str) -> tuple[str, dict[str, str]]:
    """Split ``NAME,KEY=VALUE,...``.

    Raises
    ------
    InvalidRequest
        For a part that is no ``KEY=VALUE``, or a key that comes twice.
    """
    name, *parts = (part.strip() for part in text.split(","))
    values: dict[str, str] = {}
    if not name:
        raise InvalidRequest(f"input stage '{text}': no name; write NAME or NAME,KEY=VALUE,...")
    for part in parts:
        key, equals, value = part.partition("=")
        if not equals or not key or not value:
            raise InvalidRequest(f"input stage '{text}': '{part}' is no KEY=VALUE")
        if key in values:
            raise InvalidRequest(f"input stage '{text}': {key} is given twice")
        values[key] = value
    return name, values
