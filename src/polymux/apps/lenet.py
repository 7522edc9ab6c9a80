"""LeNet, a convolutional network, as tasks: forward, backward and the update of the weights.

convolution - pooling - convolution - pooling - dense - relu - dense - softmax, with the extents that Caffe's example
for handwritten digits has. A convolution is im2col and a product of matrices; its gradient a product and col2im.

References
----------
Y. LeCun, L. Bottou, Y. Bengio, P. Haffner, "Gradient-based learning applied to document recognition", Proceedings of
the IEEE 86(11), 1998.
K. Chellapilla, S. Puri, P. Simard, "High performance convolutional neural networks for document processing", 2006
(im2col).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from polymux.apps.lane import Array, Lane

POOL = {"kernel_h": 2, "kernel_w": 2, "stride_h": 2, "stride_w": 2}


@dataclass(frozen=True, slots=True)
class Extents:
    """Sizes of the network's layers.

    Parameters
    ----------
    side : int
        Pixels along an edge of the square input.
    kernel : int
        Of both convolutions, along an edge.
    channels : tuple of int
        That the two convolutions make.
    hidden, classes : int
        That the two dense layers make.
    """

    side: int = 28
    kernel: int = 5
    channels: tuple[int, int] = (20, 50)
    hidden: int = 500
    classes: int = 10


@dataclass(frozen=True, slots=True)
class Placement:
    """Where the tasks of convolutions go.

    Parameters
    ----------
    main : str
        Device of everything else.
    unroll : str
        Device of im2col and col2im, the helper accelerator.

    Notes
    -----
    A task names a device only where the queue has to change it, so each im2col and col2im is a migration to the helper,
    with the data that it reads, and the task after it one back.
    """

    main: str
    unroll: str


@dataclass(slots=True)
class _Convolution:
    """Buffers of a convolution and its pooling."""

    weight: Any
    bias: Any
    columns: Any
    y: Any
    pooled: Any
    taps: Any
    window: dict[str, int]


class LeNet:
    """The network with the buffers of one batch on one lane.

    Parameters
    ----------
    lane : Lane
    batch : int
        Images that a step takes.
    extents : Extents
    seed : int
        Of the first weights.
    dtype : dtype
        float32 or float64.
    placement : Placement, optional
        For a task queue that may migrate; without one the tasks name no device.
    parameters : dict of str to buffer, optional
        Those of another network, which is to be trained with other images at the same time.

    Attributes
    ----------
    parameters, gradients : dict of str to buffer
        Weights and biases by name, and the gradients that the last `backward` left.
    migrations : int
        Changes of the device that the tasks submitted so far ask for.
    """

    def __init__(
        self,
        lane: Lane,
        batch: int,
        extents: Extents = Extents(),
        *,
        seed: int = 0,
        dtype: npt.DTypeLike = np.float32,
        placement: Placement | None = None,
        parameters: Mapping[str, Any] | None = None,
    ) -> None:
        self.batch, self.extents = batch, extents
        self.migrations = 0
        self._lane, self._placement, self._unrolling = lane, placement, False
        self._dtype = np.dtype(dtype)
        first = initial_weights(extents, seed)
        own = parameters or {name: lane.array(array.astype(dtype)) for name, array in first.items()}
        self.parameters = dict(own)
        self.gradients = {name: lane.empty(array.shape, dtype) for name, array in first.items()}
        self._momenta = {name: lane.array(np.zeros(array.shape, dtype)) for name, array in first.items()}
        side, channels = extents.side, 1
        self._convolutions: list[_Convolution] = []
        for layer, outputs in enumerate(extents.channels, 1):
            self._convolutions.append(self._convolution(f"conv{layer}", channels, outputs, side))
            side, channels = (side - extents.kernel + 1) // 2, outputs
        self._hidden, self._scores = self._empty(batch, extents.hidden), self._empty(batch, extents.classes)
        self._dscores, self._dhidden = self._like(self._scores), self._like(self._hidden)
        self._dpooled = [self._like(layer.pooled) for layer in self._convolutions]
        self._dy = [self._like(layer.y) for layer in self._convolutions]
        self._sums = [
            [self._empty(*layer.pooled.shape[1:]), self._empty(*layer.pooled.shape[1:3])]
            for layer in self._convolutions
        ]

    def unroll(self, images: Any) -> None:
        """Submit what prepares a batch for `forward`; it needs no weights, so it can be done ahead.

        Parameters
        ----------
        images : buffer
            (batch, 1, side, side).
        """
        first = self._convolutions[0]
        self._unroll("im2col", [images], [first.columns], **first.window)
        if self._unrolling:
            self._do(
                "noop", [], []
            )  # so that the queue comes back at once, before there are other tasks for it

    def forward(self) -> Any:
        """Submit what computes the scores of the batch that `unroll` was given last.

        Returns
        -------
        buffer
            (batch, classes), the same one every time.
        """
        first, second = self._convolutions
        self._convolve(first)
        self._unroll("im2col", [first.pooled], [second.columns], **second.window)
        self._convolve(second)
        self._dense("dense1", second.pooled, self._hidden)
        self._do("relu", [self._hidden], [self._hidden])
        self._dense("dense2", self._hidden, self._scores)
        return self._scores

    def backward(self, labels: Any, loss: Any) -> object:
        """Submit what computes the loss of `forward`'s batch, and all gradients.

        Parameters
        ----------
        labels : buffer
            int32, (batch,).
        loss : buffer
            (batch,); of each image.

        Returns
        -------
        object
            What the lane returned for the last task.
        """
        second = self._convolutions[1]
        self._do("softmax_cross_entropy", [self._scores, labels], [loss, self._dscores])
        self._dense_gradient("dense2", self._hidden, self._dscores, self._dhidden)
        self._do("relu_gradient", [self._hidden, self._dhidden], [self._dhidden])
        self._dense_gradient("dense1", second.pooled, self._dhidden, self._dpooled[1])
        self._convolution_gradient(1)
        # The columns are not needed any more: their gradient takes their place.
        self._do("gemm_batch", [second.weight, self._dy[1]], [second.columns], transpose_a=True)
        self._unroll("col2im", [second.columns], [self._dpooled[0]], **second.window)
        return self._convolution_gradient(0)

    def add_gradients(self, other: LeNet) -> None:
        """Submit what adds the gradients of another network with the same parameters; its lane has to be done."""
        for name, mine in self.gradients.items():
            self._do("saxpy", [other.gradients[name], mine], [mine], a=1.0)

    def update(self, rate: float, momentum: float = 0.0) -> object:
        """Submit a step of gradient descent: velocity = momentum * velocity + gradient, weight -= rate * velocity.

        Returns
        -------
        object
            What the lane returned for the last task.
        """
        last: object = None
        for name, weight in self.parameters.items():
            step = self.gradients[name]
            if momentum:
                velocity = self._momenta[name]
                self._do("saxpy", [velocity, step], [velocity], a=momentum)
                step = velocity
            last = self._do("saxpy", [step, weight], [weight], a=-rate)
        return last

    def weights(self) -> dict[str, Array]:
        """Wait and copy the present weights."""
        return {name: self._lane.read(buffer).copy() for name, buffer in self.parameters.items()}

    # ---- layers ----

    def _convolution(self, name: str, inputs: int, outputs: int, side: int) -> _Convolution:
        kernel = self.extents.kernel
        positions = side - kernel + 1
        return _Convolution(
            self.parameters[f"{name}.weight"],
            self.parameters[f"{name}.bias"],
            self._empty(self.batch, inputs * kernel * kernel, positions * positions),
            self._empty(self.batch, outputs, positions, positions),
            self._empty(self.batch, outputs, positions // 2, positions // 2),
            self._lane.empty((self.batch, outputs, positions // 2, positions // 2), np.uint8),
            {"kernel_h": kernel, "kernel_w": kernel},
        )

    def _convolve(self, layer: _Convolution) -> None:
        self._do("gemm_batch", [layer.weight, layer.columns], [layer.y])
        self._do("max_pool", [layer.y], [layer.pooled, layer.taps], **POOL)
        # The bias is the same for all that a maximum is taken of, so it may as well be added to the maximum.
        self._do("bias_add", [layer.pooled, layer.bias], [layer.pooled])

    def _convolution_gradient(self, at: int) -> object:
        layer, dy, dpooled = self._convolutions[at], self._dy[at], self._dpooled[at]
        name = f"conv{at + 1}"
        images, lines = self._sums[at]
        self._do("reduce", [dpooled], [images], axis=0)
        self._do("reduce", [images], [lines])
        self._do("reduce", [lines], [self.gradients[f"{name}.bias"]])
        self._do("max_pool_gradient", [dpooled, layer.taps], [dy], **POOL)
        return self._do(
            "gemm_batch", [dy, layer.columns], [self.gradients[f"{name}.weight"]], transpose_b=True
        )

    def _dense(self, name: str, x: Any, y: Any) -> None:
        self._do("gemm", [x, self.parameters[f"{name}.weight"]], [y], transpose_b=True)
        self._do("bias_add", [y, self.parameters[f"{name}.bias"]], [y])

    def _dense_gradient(self, name: str, x: Any, dy: Any, dx: Any) -> None:
        self._do("gemm", [dy, x], [self.gradients[f"{name}.weight"]], transpose_a=True)
        self._do("reduce", [dy], [self.gradients[f"{name}.bias"]], axis=0)
        self._do("gemm", [dy, self.parameters[f"{name}.weight"]], [dx])

    # ---- tasks and buffers ----

    def _do(self, kernel: str, inputs: Sequence[Any], outputs: Sequence[Any], **scalars: Any) -> object:
        if self._unrolling:
            assert self._placement is not None, "only then it is elsewhere"
            self._unrolling = False
            self.migrations += 1
            return self._lane.submit(kernel, inputs, outputs, device=self._placement.main, **scalars)
        return self._lane.submit(kernel, inputs, outputs, **scalars)

    def _unroll(self, kernel: str, inputs: Sequence[Any], outputs: Sequence[Any], **scalars: Any) -> None:
        if self._placement is None or self._placement.main == self._placement.unroll:
            self._lane.submit(kernel, inputs, outputs, **scalars)
            return
        self._unrolling = True
        self.migrations += 1
        self._lane.submit(kernel, inputs, outputs, device=self._placement.unroll, **scalars)

    def _empty(self, *shape: int) -> Any:
        return self._lane.empty(shape, self._dtype)

    def _like(self, buffer: Any) -> Any:
        return self._lane.empty(buffer.shape, self._dtype)


def initial_weights(extents: Extents, seed: int) -> dict[str, Array]:
    """Draw the first weights, uniform in +- sqrt(3 / inputs) as Caffe's "xavier" does; biases are 0.

    Returns
    -------
    dict of str to ndarray
        float64: convN.weight (outputs, inputs * kernel * kernel), denseN.weight (outputs, inputs), and biases.

    References
    ----------
    X. Glorot, Y. Bengio, "Understanding the difficulty of training deep feedforward neural networks", AISTATS 2010.
    """
    random = np.random.default_rng(seed)
    taps, (first, second) = extents.kernel**2, extents.channels
    side = extents.side
    for _ in extents.channels:
        side = (side - extents.kernel + 1) // 2
    shapes = {
        "conv1": (first, taps),
        "conv2": (second, first * taps),
        "dense1": (extents.hidden, second * side * side),
        "dense2": (extents.classes, extents.hidden),
    }
    found: dict[str, Array] = {}
    for name, (outputs, inputs) in shapes.items():
        bound = float(np.sqrt(3 / inputs))
        found[f"{name}.weight"] = random.uniform(-bound, bound, (outputs, inputs))
        found[f"{name}.bias"] = np.zeros(outputs)
    return found
