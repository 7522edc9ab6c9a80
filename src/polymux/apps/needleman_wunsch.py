"""needleman-wunsch: the best global alignment of two sequences, by many small tasks that depend on each other.

References
----------
S. B. Needleman, C. D. Wunsch, "A general method applicable to the search for similarities in the amino acid sequence
of two proteins", Journal of Molecular Biology 48 (1970).
S. Che et al., "Rodinia: a benchmark suite for heterogeneous computing", IISWC 2009.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from itertools import pairwise
from math import isqrt
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from polymux.apps.application import Application, Arrays, require_equal
from polymux.apps.bands import bands
from polymux.apps.blosum import AMINO_ACIDS, BLOSUM62
from polymux.apps.lane import Lane
from polymux.apps.traceback import Panel, alignment_of
from polymux.core.errors import InvalidRequest
from polymux.kernel.builtin.needleman_wunsch import diagonals

BLOCK = 64
GAP = 10
CHUNKS = 4
"""Panels next to each other for each lane: while one waits for the lane above, the others work."""


class NeedlemanWunsch(Application):
    """The matrix of alignment scores, a task for each anti-diagonal of blocks, and the best way through it.

    Parameters
    ----------
    first, second : ndarray of uint8
        The sequences: numbers of rows of `substitution`. Any lengths.
    substitution : (k, k) ndarray of int32
        Score of two letters that are aligned.
    gap : int
        What a gap costs for each letter.
    """

    name = "needleman-wunsch"
    title = "global alignment of two sequences, dynamic programming by blocks"
    kernels = ("needleman_wunsch",)

    def __init__(
        self,
        first: NDArray[np.uint8],
        second: NDArray[np.uint8],
        substitution: NDArray[np.int32] = BLOSUM62,
        gap: int = GAP,
    ) -> None:
        for name, sequence in (("first", first), ("second", second)):
            if sequence.ndim != 1 or sequence.dtype != np.uint8:
                raise InvalidRequest(
                    f"{name} is of {sequence.dtype} and shape {sequence.shape}; give a sequence of uint8"
                )
            if len(sequence) and sequence.max() >= len(substitution):
                raise InvalidRequest(
                    f"{name} has the letter {sequence.max()}, expected less than {len(substitution)}, the rows of"
                    " substitution"
                )
        self.gap = gap
        table = np.ascontiguousarray(substitution, np.int32)
        self.inputs = {"first": first, "second": second, "substitution": table}
        self.nbytes = (len(first) + 1) * (len(second) + 1) * 4 + 5 * (len(first) + len(second))

    @classmethod
    def of_size(cls, nbytes: int, seed: int = 0) -> Self:
        """Make one with two related proteins whose matrix takes about `nbytes`."""
        return cls(*related_sequences_of_size(nbytes, seed))

    def run(self, lanes: Sequence[Lane]) -> Arrays:
        """Fill the matrix and go back through it.

        A lane has a band of rows. Where there are several, a band is cut into panels, and the lanes work like a
        pipeline: a panel begins with the last row of the one above and the last column of the one before.

        Returns
        -------
        dict of str to ndarray
            ``scores``: the last row of the matrix, whose last element is the score of the alignment;
            ``alignment``: (steps + 1, 2) cells of the best way, from (0, 0) to the lengths of the sequences.
        """
        n, m = len(self.inputs["first"]), len(self.inputs["second"])
        down = bands(n, min(len(lanes), n // BLOCK or 1))
        across = bands(m, min(CHUNKS * len(down) if len(down) > 1 else 1, m // BLOCK or 1))
        panels: dict[tuple[int, int], Panel] = {}
        for step in range(len(down) + len(across) - 1):
            now = [(k, step - k) for k in range(len(down)) if 0 <= step - k < len(across)]
            filled = [self._fill(lanes[k], down[k], across[c], *self._edges(panels, k, c)) for k, c in now]
            for (k, c), scores in zip(now, filled, strict=True):
                panels[k, c] = Panel(down[k][0], across[c][0], lanes[k].read(scores))
        last = [panels[len(down) - 1, c].scores[-1] for c in range(len(across))]
        return {
            "scores": np.concatenate([last[0], *(row[1:] for row in last[1:])]),
            "alignment": alignment_of(list(panels.values()), **self.inputs, gap=self.gap),
        }

    def _edges(
        self, panels: Mapping[tuple[int, int], Panel], k: int, c: int
    ) -> tuple[NDArray[Any] | None, NDArray[Any] | None]:
        """Row above and column before a panel; None at the edge of the matrix."""
        above, before = panels.get((k - 1, c)), panels.get((k, c - 1))
        return above.scores[-1] if above else None, before.scores[:, -1] if before else None

    def _fill(
        self,
        lane: Lane,
        rows: tuple[int, int],
        columns: tuple[int, int],
        top: NDArray[Any] | None,
        left: NDArray[Any] | None,
    ) -> Any:
        """Submit the tasks that fill a panel; its buffer."""
        edges = [
            lane.array(
                np.ascontiguousarray(edge)
                if edge is not None
                else -self.gap * np.arange(*span, dtype=np.int32)
            )
            for edge, span in ((top, (columns[0], columns[1] + 1)), (left, (rows[0], rows[1] + 1)))
        ]
        first = lane.input(self.inputs["first"][slice(*rows)])
        second = lane.input(self.inputs["second"][slice(*columns)])
        n, m = rows[1] - rows[0], columns[1] - columns[0]
        scores = lane.empty((n + 1, m + 1), np.int32)
        operands = [first, second, lane.input(self.inputs["substitution"]), *edges, scores]
        for diagonal in range(diagonals(n, m, BLOCK)):
            lane.submit("needleman_wunsch", operands, [scores], diagonal=diagonal, block=BLOCK, gap=self.gap)
        return scores

    def reference(self) -> Arrays:
        """Compute the same with NumPy, a row of the matrix at a time."""
        return self._reference

    def check(self, result: Mapping[str, NDArray[Any]]) -> None:
        """Compare with the reference: whole numbers, which must be equal."""
        for name, expected in self._reference.items():
            require_equal(name, result[name], expected)

    @cached_property
    def _reference(self) -> Arrays:
        first, second, table = (self.inputs[name] for name in ("first", "second", "substitution"))
        gaps = self.gap * np.arange(len(second) + 1, dtype=np.int32)
        scores = np.empty((len(first) + 1, len(second) + 1), np.int32)
        scores[0] = -gaps
        for i, letter in enumerate(first, 1):
            row = scores[i]
            row[0] = -self.gap * i
            np.maximum(scores[i - 1, :-1] + table[letter, second], scores[i - 1, 1:] - self.gap, out=row[1:])
            row += gaps  # the chain of gaps along a row is a running maximum
            np.maximum.accumulate(row, out=row)
            row -= gaps
        alignment = alignment_of([Panel(0, 0, scores)], first, second, table, self.gap)
        return {"scores": scores[-1].copy(), "alignment": alignment}


def related_sequences_of_size(nbytes: int, seed: int = 0) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Make two related proteins whose matrix takes about `nbytes`."""
    return related_sequences(max(8, isqrt(nbytes // 4) - 4), seed)


def related_sequences(length: int, seed: int = 0) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Make a random protein of `length` amino acids, and a descendant of about the same length.

    A fifth of the letters are replaced, and pieces of up to nine letters are lost and put in.
    """
    random = np.random.default_rng(seed)
    letters = len(AMINO_ACIDS)
    first = random.integers(0, letters, length, np.uint8)
    changed = np.where(random.random(length) < 0.2, random.integers(0, letters, length, np.uint8), first)
    cuts = np.sort(random.integers(0, length + 1, 2 * (length // 100)))
    pieces, begin = [], 0
    for index, cut in enumerate(cuts.tolist()):
        size = int(random.integers(1, 10))
        if index % 2:
            pieces += [changed[begin:cut], random.integers(0, letters, size, np.uint8)]
            begin = cut
        elif cut > begin:
            pieces.append(changed[begin:cut])
            begin = min(length, cut + size)
    return first, np.concatenate([*pieces, changed[begin:]])


def aligned_text(
    result: Mapping[str, NDArray[Any]],
    first: NDArray[np.uint8],
    second: NDArray[np.uint8],
    begin: int,
    end: int,
) -> str:
    """Write steps `begin` to `end` of an alignment of proteins: two lines of letters, equal ones marked between."""
    way = result["alignment"][begin : end + 1]
    lines: list[list[str]] = [[], [], []]
    for (i, j), (next_i, next_j) in pairwise(way.tolist()):
        a = AMINO_ACIDS[first[i]] if next_i > i else "-"
        b = AMINO_ACIDS[second[j]] if next_j > j else "-"
        for line, sign in zip(lines, (a, "|" if a == b else " ", b), strict=True):
            line.append(sign)
    return "\n".join("".join(line).rstrip() for line in lines)
