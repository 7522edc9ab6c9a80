"""The states of the random number generators that a training loop draws from."""

from __future__ import annotations

import random
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray

_Legacy = tuple[str, NDArray[np.uint32], int, int, float]
RandomState = dict[str, Any]
"""Made of tensors, numbers and tuples only, so that it is read back without running code from the file."""


def random_state() -> RandomState:
    """Read the states of PyTorch's, Python's and NumPy's global generators."""
    kind, keys, position, has_gauss, gauss = cast(_Legacy, np.random.get_state(legacy=True))
    return {
        "torch": torch.get_rng_state(),
        "python": random.getstate(),
        "numpy": (
            str(kind),
            torch.from_numpy(keys.astype(np.int64)),
            int(position),
            int(has_gauss),
            float(gauss),
        ),
    }


def set_random_state(state: RandomState) -> None:
    """Put the generators into states that `random_state` has read."""
    torch.set_rng_state(state["torch"])
    version, internal, gauss_next = state["python"]
    random.setstate((version, tuple(internal), gauss_next))
    kind, keys, position, has_gauss, gauss = state["numpy"]
    np.random.set_state((kind, keys.numpy().astype(np.uint32), position, has_gauss, gauss))
