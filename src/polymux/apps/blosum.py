"""BLOSUM62: how likely amino acids replace each other in related proteins, in half bits.

References
----------
S. Henikoff, J. G. Henikoff, "Amino acid substitution matrices from protein blocks", PNAS 89 (1992).
"""

from __future__ import annotations

import numpy as np

AMINO_ACIDS = "ARNDCQEGHILKMFPSTWYV"
_LOWER_TRIANGLE = """
 4
-1  5
-2  0  6
-2 -2  1  6
 0 -3 -3 -3  9
-1  1  0  0 -3  5
-1  0  0  2 -4  2  5
 0 -2  0 -1 -3 -2 -2  6
-2  0  1 -1 -3  0  0 -2  8
-1 -3 -3 -3 -1 -3 -3 -4 -3  4
-1 -2 -3 -4 -1 -2 -3 -4 -3  2  4
-1  2  0 -1 -3  1  1 -2 -1 -3 -2  5
-1 -1 -2 -3 -1  0 -2 -3 -2  1  2 -1  5
-2 -3 -3 -3 -2 -3 -3 -3 -1  0  0 -3  0  6
-1 -2 -2 -1 -3 -1 -1 -2 -2 -3 -3 -1 -2 -4  7
 1 -1  1  0 -1  0  0  0 -1 -2 -2  0 -1 -2 -1  4
 0 -1  0 -1 -1 -1 -1 -2 -2 -1 -1 -1 -1 -2 -1  1  5
-3 -3 -4 -4 -2 -2 -3 -2 -2 -3 -2 -3 -1  1 -4 -3 -2 11
-2 -2 -2 -3 -2 -1 -2 -3  2 -1 -1 -2 -1  3 -3 -2 -2  2  7
 0 -3 -3 -3 -1 -2 -2 -3 -3  3  1 -2  1 -1 -2 -2  0 -3 -1  4
"""


def _symmetric(triangle: str) -> np.ndarray:
    rows = [[int(word) for word in line.split()] for line in triangle.strip("\n").splitlines()]
    table = np.zeros((len(rows), len(rows)), np.int32)
    for i, row in enumerate(rows):
        table[i, : i + 1] = table[: i + 1, i] = row
    return table


BLOSUM62 = _symmetric(_LOWER_TRIANGLE)
"""Scores by the positions of two letters in `AMINO_ACIDS`."""
