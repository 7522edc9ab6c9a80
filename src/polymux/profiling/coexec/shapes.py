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

_ROWS = (32, 64, 128, 256, 512, 1024)
_FACTORS = (
    (128, 128),
    (256, 256),
    (512, 512),
    (1024, 1024),
    (2048, 2048),
    (256, 1024),
    (1024, 256),
    (4096, 1024),
    (1024, 4096),
)
"""(n, k) of the second factor."""
_LARGE = ((128, 4096, 4096), (512, 4096, 4096), (1536, 1536, 1536), (2048, 2048, 2048))

_LAYERS: tuple[tuple[int, int, int, int, tuple[tuple[int, int], ...]], ...] = (
    (3, 224, 7, 2, ((1, 64), (1, 32), (2, 64))),
    (64, 56, 1, 1, ((1, 64), (1, 256), (1, 128))),
    (64, 56, 3, 1, ((1, 64), (1, 32), (1, 16), (4, 64))),
    (256, 56, 1, 1, ((1, 64), (1, 32), (2, 64))),
    (128, 56, 3, 2, ((1, 128), (1, 64), (2, 128))),
    (256, 56, 1, 2, ((1, 512), (1, 256))),
    (128, 28, 3, 1, ((1, 128), (1, 64), (1, 32), (2, 128), (8, 128))),
    (512, 28, 1, 1, ((1, 128), (1, 64), (4, 128))),
    (128, 28, 1, 1, ((1, 512), (1, 256))),
    (256, 14, 3, 1, ((1, 256), (1, 128), (1, 64), (2, 256), (4, 256))),
    (1024, 14, 1, 1, ((1, 256), (1, 128), (4, 256))),
    (256, 14, 1, 1, ((1, 1024), (4, 1024))),
    (512, 7, 3, 1, ((1, 512), (1, 256), (1, 128), (4, 512))),
    (2048, 7, 1, 1, ((1, 512), (4, 512))),
    (3, 224, 3, 1, ((1, 64), (1, 32))),
    (64, 224, 3, 1, ((1, 64), (1, 32))),
    (128, 112, 3, 1, ((1, 128), (1, 64))),
    (256, 56, 3, 1, ((1, 256), (1, 128), (1, 64))),
    (512, 28, 3, 1, ((1, 512), (1, 256), (1, 128))),
    (512, 14, 3, 1, ((1, 512), (1, 128), (2, 512))),
)
"""Layers of ResNet-50, then of VGG-19: channels, size, window, stride, and (images, outputs) of parts."""

SHAPES: dict[str, tuple[Shape, ...]] = {
    "gemm": tuple(
        sorted(
            (
                *(Gemm(m, n, k) for n, k in _FACTORS for m in _ROWS if (n, k) != (128, 128) or m < 512),
                *(Gemm(*extents) for extents in _LARGE),
            ),
            key=lambda gemm: gemm.features.work,
        )
    ),
    "conv2d": tuple(
        sorted(
            (
                Conv(images, channels, size, outputs, kernel, stride)
                for channels, size, kernel, stride, parts in _LAYERS
                for images, outputs in parts
            ),
            key=lambda layer: layer.features.work,
        )
    ),
}
"""What the models of an operation are fitted to, the least work first; a model keeps 64 places, some are for runs."""

QUICK: dict[str, tuple[Shape, ...]] = {
    "gemm": tuple(Gemm(m, n, n) for m, n in ((64, 64), (128, 128), (32, 256), (256, 256))),
    "conv2d": tuple(Conv(images, 16, 14, outputs, 3) for images, outputs in ((1, 16), (2, 32), (4, 64))),
}
"""Few and small ones, to try the way."""


def values(shape: tuple[int, ...], dtype: str, seed: int) -> npt.NDArray[np.generic]:
    """Random numbers between -1 and 1: zeros and denormal numbers would take other times."""
    generator = np.random.default_rng(seed)
    return (generator.random(shape, np.float32) * 2 - 1).astype(dtype)
