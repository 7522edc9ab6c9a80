"""What is computed: matrix products, and layers of ResNet-50 and VGG-19."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from polymux.coexec import Session
from polymux.coexec.convolution import CONV2D
from polymux.coexec.matrix_product import MATMUL
from polymux.coexec.operation import Array, Operation

SQUARE = (512, 1024, 2048, 4096, 8192)
SKEWED = ((4096, 512, 4096), (512, 8192, 2048), (8192, 1024, 512), (1024, 1024, 8192))
"""(m, k, n)."""
LARGE = 1024
"""Products whose cube has at least this edge are to reach the ideal."""


@dataclass(frozen=True, slots=True)
class Case:
    """A call to measure.

    Parameters
    ----------
    operation : Operation
    label : str
        For people.
    shapes : tuple of tuple of int
        Of the inputs.
    work : float
        Arithmetic operations.
    parameters : mapping
    """

    operation: Operation
    label: str
    shapes: tuple[tuple[int, ...], ...]
    work: float
    parameters: Mapping[str, Any] = field(default_factory=dict)

    @property
    def is_large(self) -> bool:
        """Whether it is to reach the ideal: as much work as a product of matrices of `LARGE`."""
        return self.work >= 2 * LARGE**3

    def arrays(self, session: Session) -> tuple[Array, ...]:
        """Make inputs in shared memory."""
        generator = np.random.default_rng(7)
        made = []
        for shape in self.shapes:
            array = session.empty(shape)
            array[...] = generator.standard_normal(shape, dtype=np.float32)
            made.append(array)
        return tuple(made)


def product(m: int, k: int, n: int) -> Case:
    """Make the case of a matrix product."""
    return Case(MATMUL, f"{m} x {k} x {n}", ((m, k), (k, n)), 2.0 * m * k * n)


@dataclass(frozen=True, slots=True)
class Layer:
    """A convolutional layer: channels in and out, extent of its square images, of its kernel, its stride."""

    name: str
    channels: int
    outputs: int
    size: int
    kernel: int
    stride: int = 1

    def case(self, batch: int) -> Case:
        """Make the case of a batch."""
        padding = self.kernel // 2
        positions = (self.size + 2 * padding - self.kernel) // self.stride + 1
        work = 2.0 * batch * self.outputs * self.channels * self.kernel**2 * positions**2
        return Case(
            CONV2D,
            f"{self.name}, batch {batch}",
            (
                (batch, self.channels, self.size, self.size),
                (self.outputs, self.channels, self.kernel, self.kernel),
            ),
            work,
            {
                "stride": (self.stride, self.stride),
                "padding": (padding, padding),
                "dilation": (1, 1),
                "groups": 1,
            },
        )


RESNET50 = (
    Layer("ResNet-50 conv1", 3, 64, 224, 7, 2),
    Layer("ResNet-50 conv2 3x3", 64, 64, 56, 3),
    Layer("ResNet-50 conv3 3x3", 128, 128, 28, 3),
    Layer("ResNet-50 conv4 3x3", 256, 256, 14, 3),
    Layer("ResNet-50 conv4 1x1", 1024, 256, 14, 1),
)
VGG19 = (
    Layer("VGG-19 conv1_2", 64, 64, 224, 3),
    Layer("VGG-19 conv3_1", 128, 256, 56, 3),
    Layer("VGG-19 conv4_2", 512, 512, 28, 3),
    Layer("VGG-19 conv5_1", 512, 512, 14, 3),
)
BATCHES = (1, 8, 32)


def cases(quick: bool) -> list[Case]:
    """List all cases."""
    if quick:
        return [product(512, 512, 512), product(1024, 256, 512), RESNET50[2].case(1), RESNET50[3].case(4)]
    products = [product(n, n, n) for n in SQUARE] + [product(*shape) for shape in SKEWED]
    return products + [layer.case(batch) for layer in (*RESNET50, *VGG19) for batch in BATCHES]
