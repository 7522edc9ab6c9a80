"""Handwritten digits: what `polymux.apps.training` trains on."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polymux.core.errors import PolymuxError

SIDE = 28
"""Pixels along an edge: the scanned 8 x 8 are enlarged to what LeNet takes."""
CLASSES = 10
TEST_SHARE = 0.2

Array = NDArray[Any]


@dataclass(frozen=True, slots=True)
class Digits:
    """Pictures of digits and which digit each shows.

    Parameters
    ----------
    images : ndarray
        float32, (N, 1, `SIDE`, `SIDE`), 0 (white) to 1.
    labels : ndarray
        int32, (N,), 0 to 9.
    """

    images: Array
    labels: Array

    def __len__(self) -> int:
        return len(self.labels)

    def batches(self, size: int, random: np.random.Generator) -> Iterator[tuple[Array, Array]]:
        """Yield all of them in random order, `size` at a time; what does not fill a batch is left out."""
        order = random.permutation(len(self))
        for begin in range(0, len(self) - size + 1, size):
            chosen = order[begin : begin + size]
            yield self.images[chosen], self.labels[chosen]


def load_digits(seed: int = 0) -> tuple[Digits, Digits]:
    """Load the digits of scikit-learn.

    Parameters
    ----------
    seed : int
        Of the choice which pictures are kept for the test.

    Returns
    -------
    training, test : Digits
        1438 and 359 of them.

    Raises
    ------
    PolymuxError
        If scikit-learn is not installed; tells what to do.

    References
    ----------
    E. Alpaydin, C. Kaynak, "Optical Recognition of Handwritten Digits", UCI Machine Learning Repository, 1998.
    """
    try:
        from scipy.ndimage import zoom
        from sklearn import datasets
    except ImportError as error:
        raise PolymuxError(
            f"the digits come with scikit-learn, which is not installed ({error}); install it: pip install"
            " 'polymux[examples]', or pip install scikit-learn"
        ) from error
    found = datasets.load_digits()
    enlarged = zoom(found.images / 16.0, (1, SIDE / 8, SIDE / 8), order=1)
    images = enlarged.astype(np.float32).reshape(-1, 1, SIDE, SIDE)
    labels = found.target.astype(np.int32)
    order = np.random.default_rng(seed).permutation(len(labels))
    test, training = np.split(order, [int(TEST_SHARE * len(order))])
    return Digits(images[training], labels[training]), Digits(images[test], labels[test])
