"""The pinned threads of a share, for kernels that split their work."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Sequence
from queue import SimpleQueue

from polymux.core.errors import Closed
from polymux.device.cores import bind_thread, bound_to, current_core

Chunk = tuple[int, int]
Body = Callable[[int, int], object]
_Work = tuple[int, Body, Chunk]
_Outcome = tuple[int, BaseException | None]


class ThreadTeam:
    """One thread per core of a share: the calling thread on the core where it is, workers on the others.

    Parameters
    ----------
    cores : sequence of int
        Cores by the kernel's numbers; not empty.
    name : str
        Of the threads, for debuggers.

    Notes
    -----
    Used by one thread at a time; a body that calls `parallel_for` again gets its work done in line. Workers start
    with the first call that needs them. A body that holds the interpreter lock gains nothing; NumPy releases it in
    all larger operations.
    """

    def __init__(self, cores: Sequence[int], name: str = "team") -> None:
        if not cores:
            raise ValueError("a thread team needs at least one core")
        self.cores = tuple(cores)
        self._name = name
        self._work: dict[int, SimpleQueue[_Work | None]] = {}
        self._done: SimpleQueue[_Outcome] = SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._busy = False
        self._closed = False

    @property
    def size(self) -> int:
        """Number of threads, the caller included."""
        return len(self.cores)

    def parallel_for(self, n: int, body: Body, *, align: int = 1) -> None:
        """Call ``body(begin, end)`` for chunks that cover ``range(n)``, one chunk per core at most.

        Parameters
        ----------
        n : int
            Number of iterations; 0 calls nothing.
        body : callable
        align : int
            Chunks begin at multiples of it.

        Raises
        ------
        Closed
            After `close`.
        BaseException
            What the body raised first, in the order of the chunks, once all of them have ended.
        """
        if self._closed:
            raise Closed("this thread team is closed")
        chunks = split(n, 1 if self._busy else self.size, align)
        if len(chunks) < 2:
            for begin, end in chunks:
                body(begin, end)
            return
        here = self._position()
        others = [position for position in range(self.size) if position != here][: len(chunks) - 1]
        self._start(others)
        self._busy = True
        try:
            for part, position in enumerate(others, 1):
                self._work[position].put((part, body, chunks[part]))
            with bound_to(self.cores[here]):  # no worker shares its core with the caller
                outcomes = [(0, _outcome(body, chunks[0]))]
            outcomes += [self._done.get() for _ in others]
        finally:
            self._busy = False
        for _, failure in sorted(outcomes, key=lambda outcome: outcome[0]):
            if failure is not None:
                raise failure

    def close(self) -> None:
        """End the threads; calling it again is fine."""
        self._closed = True
        for work in self._work.values():
            work.put(None)
        for thread in self._threads:
            thread.join()
        self._threads.clear()
        self._work.clear()

    def _position(self) -> int:
        """Position of the core where the caller is: to move it would cost more than waking a worker."""
        core = current_core()
        return self.cores.index(core) if core in self.cores else 0

    def _start(self, positions: Sequence[int]) -> None:
        for position in positions:
            if position in self._work:
                continue
            work: SimpleQueue[_Work | None] = SimpleQueue()
            name = f"{self._name} {position}"
            thread = threading.Thread(target=self._run, args=(work,), name=name, daemon=True)
            thread.start()
            assert thread.native_id is not None
            try:
                bind_thread((self.cores[position],), thread.native_id)
            except BaseException:
                work.put(None)
                raise
            self._threads.append(thread)
            self._work[position] = work

    def _run(self, work: SimpleQueue[_Work | None]) -> None:
        while (item := work.get()) is not None:
            part, body, chunk = item
            self._done.put((part, _outcome(body, chunk)))
            del item, body  # an idle thread keeps nobody's arrays alive


def split(n: int, parts: int, align: int = 1) -> list[Chunk]:
    """Split ``range(n)`` into at most `parts` chunks of nearly equal size that begin at multiples of `align`.

    Raises
    ------
    ValueError
        If `n` is negative, or `parts` or `align` is below 1.
    """
    if n < 0 or parts < 1 or align < 1:
        raise ValueError(f"cannot split {n} iterations into {parts} parts at multiples of {align}")
    blocks = -(-n // align)
    used = min(parts, blocks)
    bounds = [min(n, (blocks * part // used) * align) for part in range(used + 1)] if used else []
    return list(itertools.pairwise(bounds))


def _outcome(body: Body, chunk: Chunk) -> BaseException | None:
    try:
        body(*chunk)
    except BaseException as error:
        return error
    return None
