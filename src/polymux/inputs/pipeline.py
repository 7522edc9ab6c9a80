"""A job's inputs, prepared ahead: while the job works on one batch, the next ones go through their stage."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from polymux.core.errors import InvalidRequest
from polymux.inputs.pool import StagePool
from polymux.inputs.shared_store import SharedStore
from polymux.inputs.stage import InputStage, Results

__all__ = ["Pipeline", "RawItem"]

RawInput = bytes | Path | NDArray[Any]
RawItem = RawInput | tuple[RawInput, ...]
"""What a stage takes: bytes, a file whose content is meant, an array; a tuple for a stage with several inputs."""


class Pipeline(Iterator[Results]):
    """The results of a stage for some items, in their order.

    Parameters
    ----------
    stage : InputStage
    items : iterable of bytes, Path, ndarray, or tuple of them
    batch : int, optional
        Items whose results are put together, along a new first dimension; the last batch may be smaller. None: each
        item alone, as the stage gives it.
    ahead : int
        Batches that are prepared while the job works on one. So many go on, and no more, when the job stands still.
    pool : StagePool, optional
        Threads to use; by default a pool of its own with one thread, which ends with the last item or with `close`.
    share : bool
        Whether items with the same stage and bytes are prepared once for all who share: pipelines that use the same
        pool, and with a pool of its own all processes of this user that share.
    priority : int
        Larger begins first in a pool that several use.

    Raises
    ------
    InvalidRequest
        For a batch or `ahead` that cannot be. While it runs: when the stage does not take an item (its number is in the
        message), or results of a batch differ in shape.

    Examples
    --------
    >>> with Pipeline(stage, files, batch=8) as batches:  # doctest: +SKIP
    ...     for (images,) in batches:
    ...         step(images)
    """

    def __init__(
        self,
        stage: InputStage,
        items: Iterable[RawItem],
        *,
        batch: int | None = None,
        ahead: int = 2,
        pool: StagePool | None = None,
        share: bool = False,
        priority: int = 0,
    ) -> None:
        if batch is not None and batch < 1:
            raise InvalidRequest(f"batch={batch}: give 1 or more, or None for single items")
        if ahead < 0:
            raise InvalidRequest(f"ahead={ahead}: give the number of batches to prepare, 0 or more")
        self._stage = stage
        self._items = iter(items)
        self._batch = batch
        self._ahead = ahead
        self._own = StagePool(1, store=SharedStore() if share else None) if pool is None else None
        self._pool = pool or self._own
        self._share = share
        self._priority = priority
        self._prepared: deque[list[Future[Results]]] = deque()
        self._taken = 0

    def __next__(self) -> Results:
        """Wait for the next batch, and have those after it prepared meanwhile."""
        while len(self._prepared) <= self._ahead and (futures := self._submit()):
            self._prepared.append(futures)
        if not self._prepared:
            self.close()
            raise StopIteration
        futures = self._prepared.popleft()
        results = []
        for future in futures:
            try:
                results.append(future.result())
            except InvalidRequest as error:
                raise InvalidRequest(f"item {self._taken}: {error}") from error
            self._taken += 1
        return results[0] if self._batch is None else self._together(results)

    def close(self) -> None:
        """Give up what has not begun; calling it again is fine."""
        self._items = iter(())
        for futures in self._prepared:
            for future in futures:
                future.cancel()
        self._prepared.clear()
        if self._own is not None:
            self._own.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _submit(self) -> list[Future[Results]]:
        assert self._pool is not None
        return [
            self._pool.submit(
                self._stage, _arrays(self._stage, item), share=self._share, priority=self._priority
            )
            for item in islice(self._items, self._batch or 1)
        ]

    def _together(self, results: Sequence[Results]) -> Results:
        try:
            return tuple(np.stack(arrays) for arrays in zip(*results, strict=True))
        except ValueError as error:
            raise InvalidRequest(
                f"items {self._taken - len(results)} to {self._taken - 1} cannot be one batch ({error}); give the stage"
                " a fixed size, or batch=None"
            ) from error


def _arrays(stage: InputStage, item: RawItem) -> list[NDArray[Any]]:
    """Return an item as the arrays that the stage takes."""
    raw = item if isinstance(item, tuple) else (item,)
    if len(raw) != len(stage.inputs):
        raise InvalidRequest(
            f"the input stage '{stage.name}' takes {len(stage.inputs)} inputs, an item has {len(raw)}"
        )
    arrays = []
    for value, param in zip(raw, stage.inputs, strict=True):
        if isinstance(value, Path):
            value = value.read_bytes()  # noqa: PLW2901
        array = np.frombuffer(value, np.uint8) if isinstance(value, bytes) else np.asarray(value)
        if param.dtypes and array.dtype != param.dtypes[0].to_numpy():
            raise InvalidRequest(
                f"the input stage '{stage.name}' takes '{param.name}' as {param.dtypes[0].name_short}, the item is"
                f" {array.dtype}"
            )
        arrays.append(array)
    return arrays
