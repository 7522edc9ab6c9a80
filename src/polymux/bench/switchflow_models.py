"""What the set-ups of `polymux bench switchflow` run: programs of kernels, from public measurements.

How long a whole request or training step takes was measured; how it is divided among kernels is estimated: each layer's
part is what its multiplications and its memory traffic take at the V100's peak rates. A layer is one kernel forward and
two backward, for its inputs' and its weights' gradients, each as long as forward (the measured steps take 2.99 to 3.2
times as long as forward alone). A run can be left after each layer.

References
----------
Steps of VGG-16, batch 16, single precision: github.com/u39kun/deep-learning-benchmark (TensorFlow 1.5 on a V100, 1.12
on a 2080 Ti). Images per second of ResNet-50: Lambda, "RTX 2080 Ti Deep Learning Benchmarks with TensorFlow" (2019).
Requests on a V100: `perfmodel/data/latency_v100.csv` (CNTK; MobileNet: TensorRT; NMT: the log named gnmt). Layers: the
models' papers (Simonyan 2015, He 2016, Howard 2017). Moves: the table of the SwitchFlow paper.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from polymux.sim.jobs import Program

MS = 1_000_000
MIB = 1 << 20

BATCH = 32
"""Of training, as in the paper."""
LAUNCH_NS = 30_000
"""Time to launch the kernels of one layer: an assumption."""
STEP_MS = {
    ("v100", "vgg16"): 71.7 * BATCH / 16,
    ("2080ti", "vgg16"): 90.8 * BATCH / 16,
    ("v100", "resnet50"): 1000 * BATCH / 405,
    ("2080ti", "resnet50"): 1000 * BATCH / 294,
    ("1080ti", "resnet50"): 1000 * BATCH / 209,
    ("1080ti", "vgg16"): 131.3 * BATCH / 16,
}
"""One training step; VGG-16 on a 1080 Ti with TensorFlow 1.4."""
REQUEST_MS = {"resnet50": 5.494, "vgg19": 5.368, "mobilenet": 1.739, "nmt": 20.785}
"""One request, batch 1, on a V100."""
REQUEST_SLOWER = {"v100": 1.0, "2080ti": 28.8 / 24.0}
"""VGG-16 forward on either; requests on a 2080 Ti are estimated by it."""
CPU_SPEED = 0.08
"""Speed of a training step on the paper's processor, of that on the GPU: 7 to 9 %."""
STATE_MIB = {"resnet50": 199, "vgg16": 1056}
MOVE_MS = {"resnet50": 29, "vgg16": 104}
"""State that the paper moves between GPUs, and how long it takes."""
PEAK_MIB = {"resnet50": 6600, "vgg16": 7000}
"""A step of batch 32 with its activations and workspaces: estimated; two of them exceed the 11 GB of a 2080 Ti."""
NMT_TOKENS = 30
"""After each token the host waits for the device: NMT's loop depends on what came out. An assumption."""

_FLOPS_PER_S = 15.7e12
_BYTES_PER_S = 900e9
_TRAFFIC = 5 * 4
"""Bytes of traffic for each output of a layer: written, normalised, rectified."""


@dataclass(frozen=True, slots=True)
class Layer:
    """A convolution or dense layer.

    Parameters
    ----------
    macs : float
        Multiply-accumulate operations for one image.
    outputs : float
        Numbers that come out, for one image.
    """

    macs: float
    outputs: float

    def time_s(self, batch: int) -> float:
        """Estimate of its time on a V100."""
        return batch * (2 * self.macs / _FLOPS_PER_S + _TRAFFIC * self.outputs / _BYTES_PER_S)


def _conv(size: int, inputs: int, outputs: int, kernel: int = 3) -> Layer:
    return Layer(size * size * inputs * outputs * kernel * kernel, size * size * outputs)


def _vgg(convolutions: tuple[int, ...]) -> Iterator[Layer]:
    channels, size, inputs = (64, 128, 256, 512, 512), 224, 3
    for count, outputs in zip(convolutions, channels, strict=True):
        for _ in range(count):
            yield _conv(size, inputs, outputs)
            inputs = outputs
        size //= 2
    for rows, columns in ((25088, 4096), (4096, 4096), (4096, 1000)):
        yield Layer(rows * columns, columns)


def _resnet50() -> Iterator[Layer]:
    yield _conv(112, 3, 64, 7)
    inputs = 64
    for blocks, middle, size in ((3, 64, 56), (4, 128, 28), (6, 256, 14), (3, 512, 7)):
        outputs = 4 * middle
        for block in range(blocks):
            yield _conv(size, inputs, middle, 1)
            yield _conv(size, middle, middle)
            yield _conv(size, middle, outputs, 1)
            if not block:
                yield _conv(size, inputs, outputs, 1)
            inputs = outputs
    yield Layer(2048 * 1000, 1000)


def _mobilenet() -> Iterator[Layer]:
    yield _conv(112, 3, 32)
    inputs = 32
    shapes = (
        (64, 112),
        (128, 56),
        (128, 56),
        (256, 28),
        (256, 28),
        (512, 14),
        *((512, 14),) * 5,
        (1024, 7),
        (1024, 7),
    )
    for outputs, size in shapes:
        yield Layer(size * size * inputs * 9, size * size * inputs)
        yield _conv(size, inputs, outputs, 1)
        inputs = outputs
    yield Layer(1024 * 1000, 1000)


def layers(model: str) -> list[Layer]:
    """List the layers of a model, in order."""
    of = {
        "vgg16": lambda: _vgg((2, 2, 3, 3, 3)),
        "vgg19": lambda: _vgg((2, 2, 4, 4, 4)),
        "resnet50": _resnet50,
        "mobilenet": _mobilenet,
    }
    return list(of[model]())


def training(kind: str, model: str) -> Program:
    """One training step of a model on a kind of device, which can be left after each layer."""
    forward = [layer.time_s(BATCH) for layer in layers(model)]
    weights = [*forward, *(time for time in reversed(forward) for _ in range(2))]
    count = len(forward)
    boundaries = (*range(1, count + 1), *range(count + 2, len(weights), 2))
    return _timed(weights, STEP_MS[kind, model], boundaries)


def request(kind: str, model: str) -> Program:
    """One request for a model on a kind of device."""
    total_ms = REQUEST_MS[model] * REQUEST_SLOWER[kind]
    if model == "nmt":
        return _nmt(total_ms)
    return _timed([layer.time_s(1) for layer in layers(model)], total_ms)


def _nmt(total_ms: float) -> Program:
    """Ten layers of the encoder, then thirteen kernels for each token."""
    kernels = 10 + 13 * NMT_TOKENS
    return _timed([1.0] * kernels, total_ms, syncs=tuple(range(10, kernels, 13)))


def _timed(
    weights: list[float], total_ms: float, boundaries: tuple[int, ...] = (), syncs: tuple[int, ...] = ()
) -> Program:
    """Scale the kernels so that a run by itself takes as long as was measured."""
    total_ns = round(total_ms * MS)
    factor = total_ns / sum(weights)
    program = Program((1,))
    for _ in range(20):
        kernels = tuple(max(1, round(weight * factor)) for weight in weights)
        program = Program(kernels, boundaries, LAUNCH_NS, syncs)
        factor *= 1 + (total_ns - program.run_ns) / max(1, program.device_ns)
    return program
