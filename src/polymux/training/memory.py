"""How PyTorch, Python and the operating system say that there is no memory."""

from __future__ import annotations

import torch

_WORDS = ("out of memory", "can't allocate memory", "not enough memory")


def ran_out_of_memory(error: BaseException) -> bool:
    """Tell whether that is what an error, or one that it follows from, says.

    Notes
    -----
    PyTorch raises its own class for accelerators only; for host memory it is a RuntimeError with a text.
    """
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, (MemoryError, torch.OutOfMemoryError)):
            return True
        if isinstance(seen, RuntimeError) and any(words in str(seen).lower() for words in _WORDS):
            return True
        seen = seen.__cause__
    return False
