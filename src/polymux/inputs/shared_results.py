"""Results that somebody else may want as well: the last ones, up to a number of bytes."""

from __future__ import annotations

from collections import OrderedDict

from polymux.inputs.stage import Results

__all__ = ["SharedResults"]


class SharedResults:
    """Results by key, of which those not used for the longest time make room.

    Parameters
    ----------
    capacity_nbytes : int
        Bytes of all results together; one that is larger is not kept.
    """

    def __init__(self, capacity_nbytes: int) -> None:
        self._capacity_nbytes = capacity_nbytes
        self._results: OrderedDict[bytes, Results] = OrderedDict()
        self.nbytes = 0

    def get(self, key: bytes) -> Results | None:
        """Return a result; None when it is not there."""
        found = self._results.get(key)
        if found is not None:
            self._results.move_to_end(key)
        return found

    def put(self, key: bytes, results: Results) -> None:
        """Keep a result that is not there yet."""
        nbytes = _nbytes(results)
        if nbytes > self._capacity_nbytes or key in self._results:
            return
        self._results[key] = results
        self.nbytes += nbytes
        while self.nbytes > self._capacity_nbytes:
            _, oldest = self._results.popitem(last=False)
            self.nbytes -= _nbytes(oldest)


def _nbytes(results: Results) -> int:
    return sum(array.nbytes if array.base is None else array.base.nbytes for array in results)
