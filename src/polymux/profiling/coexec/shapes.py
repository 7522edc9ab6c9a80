"""The problems that are measured: products of matrices, and layers of ResNet-50 and VGG-19."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np
import numpy.typing as npt

from polymux.perfmodel.coexec.features import Features


@dataclass(frozen=True, slots=True)
class Gemm:
    """A product of (m, k) and (k, n)."""

    m: int
    n: int
    k: int

    @property
    def features(self) -> Features:
        """What models of ``gemm`` predict from."""
        return Features(2.0 * self.m * self.n * self.k, (self.m, self.n, self.k))

    @property
    def inputs(self) -> tuple[tuple[int, ...], ...]:
        """Shapes of the inputs."""
        return (self.m, self.k), (self.k, self.n)

    @property
    def output(self) -> tuple[int, ...]:
        """Shape of the output."""
        return self.m, self.n

    @property
    def scalars(self) -> dict[str, int]:
        """Scalars of the kernel."""
        return {}

    def __str__(self) -> str:
        return f"{self.m} x {self.k} x {self.n}"


@dataclass(frozen=True, slots=True)
class Conv:
    """A layer: square images and windows, padding that keeps the size at stride 1."""

    images: int
    channels: int
    size: int
    outputs: int
    kernel: int
    stride: int = 1

    @property
    def positions(self) -> int:
        """Places of the window along an axis."""
        return (self.size + 2 * (self.kernel // 2) - self.kernel) // self.stride + 1

    @property
    def features(self) -> Features:
        """What models of ``conv2d`` predict from."""
        sizes = (self.images, self.outputs, self.positions**2, self.channels, self.kernel**2)
        return Features(2.0 * prod(sizes), (*sizes, self.stride**2))

    @property
    def inputs(self) -> tuple[tuple[int, ...], ...]:
        """Shapes of the inputs."""
        return (
            (self.images, self.channels, self.size, self.size),
            (self.outputs, self.channels, self.kernel, self.kernel),
        )

    @property
    def output(self) -> tuple[int, ...]:
        """Shape of the output."""
        return self.images, self.outputs, self.positions, self.positions

    @property
    def scalars(self) -> dict[str, int]:
        """Scalars of the kernel."""
        padding = self.kernel // 2
        return {
            "stride_h": self.stride,
            "stride_w": self.stride,
            "padding_h": padding,
            "padding_w": padding,
        }

    def __str__(self) -> str:
        window = f"{self.kernel}x{self.kernel}" + (f"/{self.stride}" if self.stride > 1 else "")
        return f"{self.images} x {self.channels}->{self.outputs}, {self.size}x{self.size}, {window}"


Shape = Gemm | Conv

CHOICE: dict[str, tuple[Shape, ...]] = {
    "gemm": (Gemm(384, 1024, 1024),),
    "conv2d": (Conv(1, 64, 56, 64, 3), Conv(2, 256, 14, 256, 3), Conv(1, 256, 56, 64, 1)),
}
"""What the methods of an operation are compared by."""

_SQUARES = tuple(Gemm(n, n, n) for n in (128, 256, 512, 768, 1024, 1536, 2048))
_CHUNKS = tuple(
    Gemm(m, n, n)
    for n, rows in ((512, (32, 128)), (1024, (32, 64, 128, 256, 512)), (2048, (64, 256, 1024)))
    for m in rows
)
_SKEWED = (
    Gemm(1024, 256, 1024),
    Gemm(256, 2048, 256),
    Gemm(512, 4096, 512),
    Gemm(512, 512, 4096),
    Gemm(256, 4096, 4096),
    Gemm(2048, 128, 1024),
    Gemm(64, 4096, 1024),
)
_RESNET = (
    Conv(1, 3, 224, 64, 7, 2),
    Conv(1, 64, 56, 64, 1),
    Conv(1, 64, 56, 64, 3),
    Conv(4, 64, 56, 64, 3),
    Conv(1, 64, 56, 256, 1),
    Conv(1, 256, 56, 64, 1),
    Conv(1, 128, 56, 128, 3, 2),
    Conv(1, 256, 56, 512, 1, 2),
    Conv(1, 128, 28, 32, 3),
    Conv(1, 128, 28, 128, 3),
    Conv(8, 128, 28, 128, 3),
    Conv(1, 512, 28, 128, 1),
    Conv(1, 256, 14, 64, 3),
    Conv(1, 256, 14, 256, 3),
    Conv(4, 256, 14, 256, 3),
    Conv(1, 1024, 14, 256, 1),
    Conv(4, 256, 14, 1024, 1),
    Conv(1, 512, 7, 512, 3),
    Conv(4, 512, 7, 512, 3),
    Conv(4, 2048, 7, 512, 1),
)
_VGG = (
    Conv(1, 3, 224, 64, 3),
    Conv(1, 64, 224, 64, 3),
    Conv(1, 128, 112, 64, 3),
    Conv(1, 256, 56, 128, 3),
    Conv(1, 256, 56, 256, 3),
    Conv(1, 512, 28, 256, 3),
    Conv(2, 512, 14, 512, 3),
)
SHAPES: dict[str, tuple[Shape, ...]] = {"gemm": (*_SQUARES, *_CHUNKS, *_SKEWED), "conv2d": (*_RESNET, *_VGG)}
"""What the models of an operation are fitted to."""

QUICK: dict[str, tuple[Shape, ...]] = {
    "gemm": tuple(Gemm(m, n, n) for m, n in ((64, 64), (128, 128), (32, 256), (256, 256))),
    "conv2d": tuple(Conv(images, 16, 14, outputs, 3) for images, outputs in ((1, 16), (2, 32), (4, 64))),
}
"""Few and small ones, to try the way."""


def values(shape: tuple[int, ...], dtype: str, seed: int) -> npt.NDArray[np.generic]:
    """Random numbers between -1 and 1: zeros and denormal numbers would take other times."""
    generator = np.random.default_rng(seed)
    return (generator.random(shape, np.float32) * 2 - 1).astype(dtype)
