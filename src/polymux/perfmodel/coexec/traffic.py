"""How a unit gets through its part when its memory is smaller than the operation."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from polymux.perfmodel.coexec.problem import Problem
from polymux.perfmodel.coexec.unit import UnitModel


@dataclass(frozen=True, slots=True)
class Traffic:
    """Pieces that fit into a unit's memory.

    Parameters
    ----------
    rows : int
        Length of a piece along the split axis at most.
    across : int
        Width of a piece along the second axis at most.
    blocks : int
        Pieces side by side along the second axis: so often each row is copied in.
    """

    rows: int
    across: int
    blocks: int


def traffic(problem: Problem, unit: UnitModel) -> Traffic | None:
    """Choose pieces that fit into a unit's memory: one is computed while the next one is copied.

    Parameters
    ----------
    problem : Problem
    unit : UnitModel

    Returns
    -------
    Traffic or None
        None: not even the narrowest piece fits.

    Notes
    -----
    As long as what everybody reads fits beside rows, rows stream past it and nothing is copied twice. Otherwise the
    second axis is cut, too. A block of what everybody reads then stays while all rows stream past it, so that it is
    copied once and each row once for each block: as few and wide blocks as there is room for beside the smallest
    pieces copy least. The blocks are made equal, and what that leaves free goes to longer pieces.
    """
    extent, across = problem.extent, problem.across
    row = problem.in_nbytes + problem.out_nbytes
    memory = unit.memory_nbytes
    if not memory or problem.fixed_nbytes + extent * row <= memory:
        return Traffic(extent, across, 1)
    least = min(max(unit.tile, unit.min_chunk), extent)
    widest = _width_beside(problem, memory, least)
    if widest < 1:
        return None
    blocks = ceil(across / widest)
    width = ceil(across / blocks)
    rows = _rows_beside(problem, memory, width)
    return Traffic(min(extent, max(least, rows // unit.tile * unit.tile)), width, blocks)


def _width_beside(problem: Problem, memory: float, rows: int) -> int:
    """Widest block that fits beside two pieces of so many rows; 0: none does."""
    width_nbytes = (problem.fixed_nbytes + 2 * rows * problem.out_nbytes) / problem.across
    room = memory - 2 * rows * problem.in_nbytes
    if room < width_nbytes * problem.across and problem.across == 1:
        return 0
    return max(0, min(problem.across, int(room / width_nbytes))) if width_nbytes else problem.across


def _rows_beside(problem: Problem, memory: float, width: int) -> int:
    """Rows of each of two pieces that fit beside a block of this width."""
    part = width / problem.across
    room = memory - problem.fixed_nbytes * part
    return int(room / (2 * (problem.in_nbytes + problem.out_nbytes * part)))
