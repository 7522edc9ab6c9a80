"""Room for requests: how many may wait, and how much memory they may take; one model leaves some for the others."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Room", "RoomOf"]


class Room:
    """Memory for the inputs of requests that have not been answered.

    Half of it is divided among the models, each of which has its part for itself; the other half is for whoever comes
    first.

    Parameters
    ----------
    capacity_nbytes : int
        What all requests together may take, in bytes.
    """

    def __init__(self, capacity_nbytes: int) -> None:
        self._capacity_nbytes = capacity_nbytes
        self._models: list[RoomOf] = []

    def add(self, max_waiting: int) -> RoomOf:
        """Make room for a model of which so many requests may be there at a time."""
        made = RoomOf(self, max_waiting)
        self._models.append(made)
        return made

    def remove(self, model: RoomOf) -> None:
        """Give a model's part to the others."""
        if model in self._models:
            self._models.remove(model)

    def _has(self, wanting: RoomOf, nbytes: int) -> bool:
        own = self._capacity_nbytes // 2 // len(self._models)
        shared = self._capacity_nbytes - own * len(self._models)
        taken = sum(max(0, model.nbytes - own) for model in self._models if model is not wanting)
        return max(0, wanting.nbytes + nbytes - own) <= shared - taken


@dataclass(eq=False, slots=True)
class RoomOf:
    """A model's place in a `Room`.

    Attributes
    ----------
    max_waiting : int
    waiting : int
        Requests that are there.
    nbytes : int
        Bytes that their inputs take.
    """

    room: Room
    max_waiting: int
    waiting: int = 0
    nbytes: int = 0

    @property
    def full(self) -> str:
        """Why no further request may come; empty when one may."""
        if self.waiting >= self.max_waiting:
            return f"{self.waiting} requests wait for it, and no more may"
        return ""

    def take(self, nbytes: int) -> bool:
        """Take memory for an input, if there is enough."""
        if not self.room._has(self, nbytes):
            return False
        self.nbytes += nbytes
        return True

    def give_back(self, nbytes: int) -> None:
        """Give memory back."""
        self.nbytes -= nbytes
