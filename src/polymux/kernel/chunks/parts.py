"""Which part of its result a chunk computes, and the checks of its operands."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from polymux.core.dtype import DType
from polymux.core.errors import InvalidRequest
from polymux.core.kernel_spec import ScalarParam
from polymux.kernel.builtin import operands as check
from polymux.kernel.builtin.window import WindowAxis, axis_of

NUMBERS = tuple(dtype for dtype in DType if dtype is not DType.BF16)
"""What NumPy multiplies; to it bfloat16 is an integer."""
CHOICES = (ScalarParam("method", DType.I32, 0), ScalarParam("tile", DType.I32, 0))
"""What calibration chooses: the method, and the tile of an OpenCL method."""


def range_params(first: str, count: str) -> tuple[ScalarParam, ScalarParam]:
    """Scalars of a range; without them it is everything."""
    return ScalarParam(first, DType.I64, 0), ScalarParam(count, DType.I64, -1)


GEMM_SCALARS = (*range_params("first", "count"), *range_params("first_column", "columns"), *CHOICES)
CONV_RANGES = (*range_params("first", "count"), *range_params("first_output", "output_count"), *CHOICES)


@dataclass(frozen=True, slots=True)
class GemmPart:
    """``c[rows, columns] = a[rows] @ b[:, columns]``.

    Parameters
    ----------
    rows, columns : slice
        With a start and an end within c.
    n, depth : int
        Columns of b and c, and columns of a.
    """

    rows: slice
    columns: slice
    n: int
    depth: int

    @property
    def height(self) -> int:
        """Rows to compute."""
        return int(self.rows.stop - self.rows.start)

    @property
    def width(self) -> int:
        """Columns to compute."""
        return int(self.columns.stop - self.columns.start)


@dataclass(frozen=True, slots=True)
class ConvPart:
    """``y[images, outputs] = conv2d(x[images, channels], weight[outputs])``.

    Parameters
    ----------
    images, outputs, channels : slice
        The channels are those of the groups whose outputs are computed.
    groups : int
        Of this part.
    depth : int
        Terms of each sum: channels of a group times taps of the window.
    h, w : WindowAxis
    """

    images: slice
    outputs: slice
    channels: slice
    groups: int
    depth: int
    h: WindowAxis
    w: WindowAxis

    @property
    def count(self) -> int:
        """Images to compute."""
        return int(self.images.stop - self.images.start)

    @property
    def out_channels(self) -> int:
        """Output channels to compute."""
        return int(self.outputs.stop - self.outputs.start)

    @property
    def in_channels(self) -> int:
        """Input channels that are read."""
        return int(self.channels.stop - self.channels.start)

    @property
    def positions(self) -> int:
        """Places of the window."""
        return self.h.positions * self.w.positions


def gemm_part(arrays: Mapping[str, check.Array], scalars: check.Scalars) -> GemmPart:
    """Check ``a``, ``b`` and ``c`` and the ranges.

    Raises
    ------
    InvalidRequest
        If shapes or dtypes do not fit, a range is not within c, or c shares memory with a or b.
    """
    check.require_same_dtypes(arrays)
    for name, layout in (("a", "(m, k)"), ("b", "(k, n)"), ("c", "(m, n)")):
        check.require_rank(arrays, name, 2, layout)
    m, depth = arrays["a"].shape
    n = arrays["b"].shape[1]
    check.require_shape(arrays, "b", (depth, n), f"a has {depth} columns")
    check.require_shape(arrays, "c", (m, n), "rows of a, columns of b")
    check.require_apart(arrays, "c", "a", "b")
    rows = _within(scalars, "first", "count", m)
    return GemmPart(rows, _within(scalars, "first_column", "columns", n), n, depth)


def conv_part(arrays: Mapping[str, check.Array], scalars: check.Scalars) -> ConvPart:
    """Check ``x``, ``weight`` and ``y``, the window and the ranges.

    Raises
    ------
    InvalidRequest
        If shapes or dtypes do not fit, the window does not, or a range of outputs ends in the middle of a group.
    """
    check.require_same_dtypes(arrays)
    check.require_rank(arrays, "x", 4, "(N, C, H, W)")
    check.require_rank(arrays, "weight", 4, "(O, C / groups, kernel_h, kernel_w)")
    images, channels, height, width = arrays["x"].shape
    all_outputs, _, kernel_h, kernel_w = arrays["weight"].shape
    groups = int(scalars["groups"])
    if groups < 1 or channels % groups or all_outputs % groups:
        raise InvalidRequest(
            f"groups is {groups}, expected a divisor of C = {channels} and O = {all_outputs}"
        )
    expected = (all_outputs, channels // groups, kernel_h, kernel_w)
    check.require_shape(arrays, "weight", expected, f"x has {channels} channels in {groups} groups")
    h, w = axis_of("h", height, kernel_h, scalars), axis_of("w", width, kernel_w, scalars)
    shape = (images, all_outputs, h.positions, w.positions)
    check.require_shape(arrays, "y", shape, "N, O and the window's positions")
    check.require_apart(arrays, "y", "x", "weight")
    outputs = _within(scalars, "first_output", "output_count", all_outputs)
    begin, end = _groups_of(outputs, all_outputs // groups if all_outputs else 1)
    per_group = channels // groups
    return ConvPart(
        _within(scalars, "first", "count", images),
        outputs,
        slice(begin * per_group, end * per_group),
        end - begin,
        per_group * kernel_h * kernel_w,
        h,
        w,
    )


def _groups_of(outputs: slice, per_group: int) -> tuple[int, int]:
    """First group and the one after the last, of a range of outputs."""
    begin, end = outputs.start // per_group, -(-outputs.stop // per_group)
    if outputs.start == outputs.stop:
        return begin, begin
    whole = outputs.start % per_group == 0 and outputs.stop % per_group == 0
    if end - begin > 1 and not whole:
        raise InvalidRequest(
            f"outputs {outputs.start} to {outputs.stop} end within a group of {per_group}; give whole groups, or a part"
            " of one"
        )
    return begin, end


def _within(scalars: check.Scalars, first: str, count: str, extent: int) -> slice:
    begin, number = int(scalars[first]), int(scalars[count])
    end = extent if number == -1 else begin + number
    if not 0 <= begin <= end <= extent or number < -1:
        raise InvalidRequest(
            f"{first} is {begin} and {count} {number}, expected a range within {extent} ({count} -1: to the end)"
        )
    return slice(begin, end)
