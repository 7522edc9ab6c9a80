"""Built-in kernels in the server are called with wrong shapes, types, scalars and counts: errors, never a crash."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from polymux.client import Buffer, Client, Queue
from polymux.core.dtype import DType
from polymux.core.errors import BadArgument, KernelFailed, OutOfDeviceMemory, TaskFailed
from polymux.core.kernel_spec import KernelSpec
from tests.segment.server_process import ServerProcess

TASKS = 4000
Shape = tuple[int, ...]
Call = tuple[list[Shape], list[Shape], dict[str, Any]]
INTEGERS = [
    0,
    1,
    -1,
    2,
    3,
    7,
    64,
    1000,
    65535,
    65536,
    2**20,
    2**30,
    2**31 - 1,
    -(2**31),
    2**62,
    2**63 - 1,
    -(2**63),
]
FLOATS = [0.0, 1.0, -1.0, float("nan"), float("inf"), -float("inf"), 1e308, 1e-308]
TYPES = [DType.F32, DType.F64, DType.I32, DType.I64, DType.U8, DType.F16, DType.BOOL, DType.C128]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    pytest.importorskip("pyopencl")
    devices = ("--device", "cpu", "--device", "cpu:0,memory_nbytes=16MiB", "--device", "opencl:0")
    with ServerProcess(tmp_path_factory.mktemp("server"), *devices) as made:
        yield made


def shape(rng: random.Random, least: int = 1, most: int = 3, largest: int = 40) -> Shape:
    return tuple(rng.randint(0, largest) for _ in range(rng.randint(least, most)))


def same(inputs: int, outputs: int, **scalars: Any) -> Callable[[random.Random], Call]:
    def call(rng: random.Random) -> Call:
        common = shape(rng)
        return [common] * inputs, [common] * outputs, scalars

    return call


def convolution(rng: random.Random) -> tuple[Shape, tuple[int, int], tuple[int, int], dict[str, int]]:
    image = (rng.randint(1, 3), rng.randint(1, 3), rng.randint(1, 9), rng.randint(1, 9))
    kernel = (rng.randint(1, 3), rng.randint(1, 3))
    scalars: dict[str, int] = {}
    positions = []
    for axis, size, taps in zip("hw", image[2:], kernel, strict=True):
        step = {"stride": rng.randint(1, 3), "padding": rng.randint(0, 3), "dilation": rng.randint(1, 3)}
        span = step["dilation"] * (taps - 1) + 1
        positions.append(max(0, (size + 2 * step["padding"] - span) // step["stride"] + 1))
        scalars |= {f"{name}_{axis}": value for name, value in step.items()}
    return image, kernel, (positions[0], positions[1]), scalars


def conv2d(rng: random.Random) -> Call:
    image, kernel, positions, scalars = convolution(rng)
    outputs = rng.randint(1, 20)
    weight = (outputs, image[1], *kernel)
    return [image, weight], [(image[0], outputs, *positions)], {**scalars, "groups": 1}


def im2col(rng: random.Random) -> Call:
    image, kernel, positions, scalars = convolution(rng)
    columns = (image[0], image[1] * kernel[0] * kernel[1], positions[0] * positions[1])
    return [image], [columns], {**scalars, "kernel_h": kernel[0], "kernel_w": kernel[1]}


def col2im(rng: random.Random) -> Call:
    inputs, outputs, scalars = im2col(rng)
    return outputs, inputs, scalars


def gemm(rng: random.Random) -> Call:
    m, k, n = (rng.randint(0, 70) for _ in range(3))
    return [(m, k), (k, n)], [(m, n)], {}


def gemv(rng: random.Random) -> Call:
    m, k = rng.randint(0, 70), rng.randint(0, 70)
    return [(m, k), (k,)], [(m,)], {}


def reduce(rng: random.Random) -> Call:
    x = shape(rng, 1, 4, 15)
    axis = rng.randrange(len(x))
    return [x], [x[:axis] + x[axis + 1 :]], {"op": rng.randint(0, 2), "axis": axis}


def gaussian_step(rng: random.Random) -> Call:
    n = rng.randint(1, 40)
    return [(n, n), (n,)], [(n, n), (n,)], {"k": rng.randrange(n)}


def gaussian_pivots(rng: random.Random) -> Call:
    count, columns = rng.randint(1, 20), rng.randint(20, 70)
    return (
        [(rng.randint(count, 40), columns)],
        [(count, columns)],
        {"first": 0, "column": rng.randint(0, columns - count)},
    )


def gaussian_update(rng: random.Random) -> Call:
    rows, count, columns = rng.randint(0, 40), rng.randint(1, 20), rng.randint(20, 70)
    return (
        [(rows, columns), (count, columns)],
        [(rows, columns)],
        {"first": rng.randint(0, rows), "column": 0},
    )


def hotspot_steps(rng: random.Random) -> Call:
    steps, rows, columns = rng.randint(1, 9), rng.randint(0, 40), rng.randint(0, 70)
    above, below = ((rng.choice([0, steps, 12]), columns) for _ in range(2))
    edges = [(rng.randint(0, rows), columns) for _ in range(2)]
    numbers = {"step": 0.1, "capacity": 0.5, "rx": 1.0, "ry": 1.0, "rz": 1.0, "steps": steps}
    return [*[(rows, columns)] * 2, *[above, below] * 2], [(rows, columns), *edges], numbers


def pathfinder_rows(rng: random.Random) -> Call:
    rows, columns = rng.randint(0, 70), rng.randint(0, 900)
    left, right = (rng.choice([0, rows, 80]) for _ in range(2))
    edges = [(rng.randint(0, columns),) for _ in range(2)]
    inputs: list[tuple[int, ...]] = [(rows, left + columns + right), (columns,), (left,), (right,)]
    return inputs, [(columns,), *edges], {"row": 0, "rows": rows}


def pair_forces(rng: random.Random) -> Call:
    depth, boxes = rng.randint(0, 4), (rng.randint(0, 3), rng.randint(0, 3), rng.randint(0, 20), 4)
    layers = rng.randint(0, depth)
    return [(depth, *boxes)], [(layers, *boxes)], {"first": rng.randint(0, depth - layers)}


def needleman_wunsch(rng: random.Random) -> Call:
    n, m, letters = rng.randint(0, 100), rng.randint(0, 100), rng.choice([1, 4, 256])
    inputs: list[Shape] = [(n,), (m,), (letters, letters), (m + 1,), (n + 1,), (n + 1, m + 1)]
    return inputs, [(n + 1, m + 1)], {"diagonal": 0}


def particle_predict(rng: random.Random) -> Call:
    n = rng.randint(0, 100)
    numbers = {"seed": 1, "position_noise": 1.0, "velocity_noise": 1.0, "gain": 1.0, "level": 1.0}
    return [(4, n), (rng.randint(1, 9), rng.randint(1, 9))], [(4, n), (n,)], numbers


def particle_cumulate(rng: random.Random) -> Call:
    n = rng.randint(0, 1000)
    return [(n,), (1,)], [(n,), (1,)], {}


def particle_resample(rng: random.Random) -> Call:
    n, fields = rng.randint(1, 1000), rng.randint(0, 5)
    return [(fields, n), (n,)], [(fields, rng.randint(0, 1000))], {}


def transpose(rng: random.Random) -> Call:
    x = shape(rng, 2, 4, 20)
    return [x], [(*x[:-2], x[-1], x[-2])], {}


def dot(rng: random.Random) -> Call:
    x = shape(rng, 1, 1, 5000)
    return [x, x], [(1,)], {}


CALLS: dict[str, Callable[[random.Random], Call]] = {
    "copy": same(1, 1),
    "fill": same(0, 1, value=1.0),
    "saxpy": same(2, 1, a=2.0),
    "stencil": same(2, 1, step=0.1, capacity=0.5, rx=1.0, ry=1.0, rz=1.0),
    "random_uniform": same(0, 1, seed=1),
    "random_normal": same(0, 1, seed=1),
    **{
        call.__name__: call
        for call in (
            *(conv2d, im2col, col2im, gemm, gemv, reduce, transpose, dot),
            *(gaussian_step, gaussian_pivots, gaussian_update, hotspot_steps, pathfinder_rows),
            *(pair_forces, needleman_wunsch, particle_predict, particle_cumulate, particle_resample),
        )
    },
}


def scalar(rng: random.Random, dtype: DType) -> Any:
    """Choose an extreme value that the type can hold."""
    if dtype.name.startswith("F"):
        return rng.choice(FLOATS)
    if dtype is DType.BOOL:
        return rng.random() < 0.5
    bits = 8 * dtype.itemsize
    value = rng.choice(INTEGERS) if rng.random() < 0.8 else rng.getrandbits(64)
    value %= 1 << bits
    return value - (1 << bits) if not dtype.name.startswith("U") and value >> (bits - 1) else value


def damage(
    rng: random.Random, spec: KernelSpec, call: Call
) -> tuple[list[list[int]], list[DType], dict[str, Any]]:
    """Make something about a proper call wrong, or nothing."""
    inputs, outputs, scalars = call
    shapes = [list(extents) for extents in (*inputs, *outputs)]
    common = rng.choice(TYPES[:2])
    params = (*spec.inputs, *spec.outputs)
    dtypes = [param.dtypes[0] if len(param.dtypes) == 1 else common for param in params]
    for _ in range(rng.choice([0, 1, 1, 2])):
        kind, at = rng.randrange(5), rng.randrange(len(shapes))
        if kind == 0 and spec.scalars:
            param = rng.choice(spec.scalars)
            scalars = {**scalars, param.name: scalar(rng, param.dtype)}
        elif kind == 1 and shapes[at]:
            shapes[at][rng.randrange(len(shapes[at]))] = rng.choice([0, 1, 2, 5, 17, 100])
        elif kind == 2:
            shapes[at] = shapes[at][:-1] if rng.random() < 0.5 else [1, *shapes[at]][:8]
        elif kind == 3:
            dtypes[at] = rng.choice(TYPES)
        elif kind == 4:
            del shapes[at], dtypes[at]
            break
    return shapes, dtypes, scalars


class Attacker:
    """A client whose library has been told that every kernel takes anything."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self.queues: list[Queue] = [client.queue(device=device) for device in client.devices]
        self.specs = {name: client.kernel_spec(name) for name in CALLS}
        self._numbers = {
            name: int(client.request("kernel", {"name": name})[0]["kernel_id"]) for name in CALLS
        }

    def call(self, rng: random.Random) -> tuple[str, TaskFailed | None]:
        """Make a call; what it was, and how it ended."""
        name = rng.choice(list(CALLS))
        spec = self.specs[name]
        shapes, dtypes, scalars = damage(rng, spec, CALLS[name](rng))
        packed = spec.pack(scalars)
        if rng.random() < 0.02:
            packed = packed[: rng.randint(0, len(packed))]
        queue = rng.choice(self.queues)
        buffers: list[Buffer] = []
        for extents, dtype in zip(shapes, dtypes, strict=True):
            buffers.append(queue.empty(tuple(extents), dtype.to_numpy()))
            buffers[-1].raw_view()[...] = rng.choice([0, 1, 63, 255])
        if len(buffers) > 1 and rng.random() < 0.05:
            buffers[-1] = buffers[0]
        if name == "needleman_wunsch" and len(buffers) == 7 and rng.random() < 0.9:
            buffers[-1] = buffers[-2]
        self._client.define_kernel(f"any {name}", self._numbers[name], 0, 0, True, [], [], packed)
        split = len(spec.inputs)
        error = queue.submit(f"any {name}", buffers[:split], buffers[split:]).error(60)
        said = f"{name} on {queue.name} with {shapes} {[dtype.name for dtype in dtypes]} {scalars}: {error}"
        assert error is None or isinstance(error, TaskFailed), said
        return said, error


def test_nearly_right_calls_of_every_built_in_kernel_on_every_device_never_hurt_the_server(
    server: ServerProcess,
) -> None:
    rng = random.Random(20261203)
    with server.connect() as client:
        attacker = Attacker(client)
        good = bad = 0
        for _ in range(TASKS):
            said, error = attacker.call(rng)
            good += error is None
            bad += error is not None
            assert error is None or isinstance(error, (BadArgument, KernelFailed, OutOfDeviceMemory)), said
            assert "Traceback" not in said
        assert min(good, bad) > TASKS // 10
        for queue in attacker.queues:
            x, y = queue.array(np.arange(9.0)), queue.zeros(9, "f8")
            queue.submit("saxpy", [x, x], [y], a=1.0).wait(60)
            assert (y.numpy() == 2 * np.arange(9.0)).all()
    assert "Traceback" not in server.log.read_text()
