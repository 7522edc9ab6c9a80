"""What is to be computed, along which axis it is split, and what is to become least."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite, prod
from typing import Literal

from polymux.core.errors import InvalidRequest
from polymux.perfmodel.coexec.features import Features


@dataclass(frozen=True, slots=True)
class Problem:
    """An operation that is split along one axis.

    Parameters
    ----------
    op : str
        ``"gemm"``, ``"conv2d"``.
    sizes : tuple of float
        As in `Features`.
    axis : int
        Which of the sizes is split; it is a whole number.
    unit_work : float, operations
        For each unit of that size.
    in_nbytes, out_nbytes : float, bytes
        What a unit of that size reads that no other does, and what it writes.
    fixed_nbytes : float, bytes
        What everybody reads, however small a piece is.
    across : int
        Length of a second axis along which the result and what everybody reads can be cut, when a device's memory has
        no room for all of it; 1: it cannot.

    Raises
    ------
    InvalidRequest
        If a number is out of its range.
    """

    op: str
    sizes: tuple[float, ...]
    axis: int
    unit_work: float
    in_nbytes: float
    fixed_nbytes: float
    out_nbytes: float
    across: int = 1

    def __post_init__(self) -> None:
        if not 0 <= self.axis < len(self.sizes) or self.sizes[self.axis] != int(self.sizes[self.axis]):
            raise InvalidRequest(
                f"{self.op}: axis {self.axis} of sizes {self.sizes}; give the place of a whole number among them"
            )
        if not all(size > 0 and isfinite(size) for size in self.sizes) or not 0 < self.unit_work < float(
            "inf"
        ):
            raise InvalidRequest(
                f"{self.op}: sizes {self.sizes}, {self.unit_work} operations each; give numbers above 0 (an empty"
                " operation needs no plan)"
            )
        if min(self.in_nbytes, self.fixed_nbytes, self.out_nbytes) < 0 or self.across < 1:
            raise InvalidRequest(
                f"{self.op}: {self.in_nbytes}, {self.fixed_nbytes}, {self.out_nbytes} bytes, {self.across} across; give"
                " 0 or more bytes, and 1 or more across"
            )

    @property
    def extent(self) -> int:
        """Length of the axis that is split."""
        return int(self.sizes[self.axis])

    @property
    def work(self) -> float:
        """Operations in all."""
        return self.unit_work * self.extent

    def features(self, count: int) -> Features:
        """Features of a piece of this length."""
        sizes = (*self.sizes[: self.axis], float(count), *self.sizes[self.axis + 1 :])
        return Features(self.unit_work * count, sizes)


def gemm_problem(
    m: int, n: int, k: int, *, itemsize: int = 4, by: Literal["rows", "columns"] = "rows"
) -> Problem:
    """Describe a matrix product C (m x n) = A (m x k) B (k x n).

    Parameters
    ----------
    m, n, k : int
    itemsize : int, bytes
    by : {"rows", "columns"}
        Of C, which are split: whoever gets rows reads all of B, whoever gets columns all of A.

    Raises
    ------
    InvalidRequest
        If a size is below 1.
    """
    if by == "rows":
        axis, length = 0, n
    else:
        axis, length = 1, m
    if min(m, n, k) < 1:
        raise InvalidRequest(f"gemm: m {m}, n {n}, k {k}; give 1 or more (an empty product needs no plan)")
    return Problem(
        op="gemm",
        sizes=(float(m), float(n), float(k)),
        axis=axis,
        unit_work=2.0 * length * k,
        in_nbytes=float(itemsize * k),
        fixed_nbytes=float(itemsize * k * length),
        out_nbytes=float(itemsize * length),
        across=length,
    )


def conv2d_problem(
    images: int,
    in_channels: int,
    out_channels: int,
    kernel: tuple[int, int],
    out_size: tuple[int, int],
    *,
    in_size: tuple[int, int],
    groups: int = 1,
    stride: tuple[int, int] = (1, 1),
    itemsize: int = 4,
    by: Literal["images", "channels"] = "images",
) -> Problem:
    """Describe a two-dimensional convolution of images (NCHW).

    Parameters
    ----------
    images, in_channels, out_channels : int
    kernel, out_size, in_size, stride : (int, int)
        Height and width.
    groups : int
        Divides both numbers of channels.
    itemsize : int, bytes
    by : {"images", "channels"}
        What is split: whoever gets images reads all weights, whoever gets output channels all images.

    Raises
    ------
    InvalidRequest
        If a size is below 1 or the groups do not divide the channels.
    """
    numbers = (images, in_channels, out_channels, *kernel, *out_size, *in_size, groups, *stride)
    if min(numbers) < 1 or in_channels % groups or out_channels % groups:
        raise InvalidRequest(
            f"conv2d: {images} images, channels {in_channels} to {out_channels} in {groups} groups, kernel {kernel},"
            f" sizes {in_size} to {out_size}, stride {stride}; give 1 or more, and groups that divide the channels"
        )
    depth = in_channels // groups
    pixels, taps = prod(out_size), prod(kernel)
    image = float(itemsize * in_channels * prod(in_size))
    filters = float(itemsize * depth * taps)
    sizes = (
        float(images),
        float(out_channels),
        float(pixels),
        float(depth),
        float(taps),
        float(prod(stride)),
    )
    whole = 2.0 * images * out_channels * pixels * depth * taps
    if by == "images":
        return Problem(
            "conv2d",
            sizes,
            0,
            whole / images,
            image,
            filters * out_channels,
            float(itemsize * out_channels * pixels),
        )
    return Problem(
        "conv2d", sizes, 1, whole / out_channels, filters, image * images, float(itemsize * images * pixels)
    )


@dataclass(frozen=True, slots=True)
class Objective:
    """What is to become least: ``time * T + energy * E`` with the makespan T in s and the energy E in J.

    Parameters
    ----------
    time : float
        Weight, 1/s.
    energy : float
        Weight, 1/J.

    Raises
    ------
    InvalidRequest
        If a weight is negative, or both are 0.
    """

    time: float = 1.0
    energy: float = 0.0

    def __post_init__(self) -> None:
        if not (min(self.time, self.energy) >= 0 and 0 < self.time + self.energy < float("inf")):
            raise InvalidRequest(
                f"objective: time {self.time}, energy {self.energy}; give weights of 0 or more, one above 0"
            )

    @classmethod
    def parse(cls, text: str | Mapping[str, float] | Objective) -> Objective:
        """Take ``"time"``, ``"energy"``, or weights such as ``{"time": 1, "energy": 0.01}``.

        Raises
        ------
        InvalidRequest
            If it is something else.
        """
        if isinstance(text, Objective):
            return text
        if text == "time":
            return cls(1.0, 0.0)
        if text == "energy":
            return cls(0.0, 1.0)
        if isinstance(text, Mapping) and set(text) <= {"time", "energy"}:
            try:
                return cls(float(text.get("time", 0.0)), float(text.get("energy", 0.0)))
            except (TypeError, ValueError):
                pass
        raise InvalidRequest(
            f'objective {text!r}; give "time", "energy", or weights: {{"time": 1, "energy": 0.01}}'
        )
