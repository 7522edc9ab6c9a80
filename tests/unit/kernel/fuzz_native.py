"""Random calls of native kernels next to guard pages; run as a process of its own, which dies when one goes astray."""

from __future__ import annotations

import ctypes
import math
import mmap
import random
import sys
from array import array
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[3]))

from polymux.core.dtype import DType
from polymux.core.kernel_spec import KernelSpec
from tests.unit.kernel.native_call import Given, call
from tests.unit.kernel.test_native_kernels import NATIVE

ROOM = 1 << 16
PAGE = mmap.PAGESIZE
Shape = tuple[int, ...]
PARTICLES = ("particle_predict", "particle_cumulate", "particle_resample")
LAYERS = ("bias_add", "max_pool", "max_pool_gradient", "softmax_cross_entropy")
BANDS = (
    "hotspot_steps",
    "pathfinder_rows",
    "gaussian_pivots",
    "gaussian_update",
    "pair_forces",
    "needleman_wunsch",
    *PARTICLES,
    *LAYERS,
)
INDICES = {"needleman_wunsch": [0, 1], "max_pool_gradient": [1], "softmax_cross_entropy": [1]}
"""Buffers that hold indices (letters, taps, labels), by kernel."""
IN_PLACE = ("needleman_wunsch",)
USUAL = {
    "count": [0, 90],
    "first": [0, 0, 1],
    "block": [16, 32, 64],
    "diagonal": [0, 1, 2],
    "padding_h": [0, 0, 1],
    "padding_w": [0, 0, 1],
}


class Guarded:
    """Memory between two pages that cannot be touched."""

    def __init__(self) -> None:
        self.memory = mmap.mmap(-1, ROOM + 2 * PAGE)
        self.base = ctypes.addressof(ctypes.c_char.from_buffer(self.memory))
        libc = ctypes.CDLL(None)
        for address in (self.base, self.base + PAGE + ROOM):
            assert libc.mprotect(ctypes.c_void_p(address), PAGE, 0) == 0

    def fill(self, content: bytes) -> None:
        """Write something everywhere, so that a kernel finds numbers that it can work with."""
        self.memory[PAGE : PAGE + ROOM] = content

    def place(self, nbytes: int, choose: random.Random) -> int:
        """Address of `nbytes` bytes that touch one of the guard pages."""
        end = self.base + PAGE + ROOM
        return choose.choice([end - nbytes, end - -(-nbytes // 16) * 16, self.base + PAGE])


def any_shape(choose: random.Random, ranks: tuple[int, ...] = (0, 1, 1, 2, 2, 3, 4)) -> Shape:
    return tuple(choose.choices([0, 1, 2, 3, 5, 8, 17, 33], k=choose.choice(ranks)))


def fitting_shapes(spec: KernelSpec, args: bytes, choose: random.Random) -> list[Shape]:
    """Shapes that the kernel accepts, as far as the scalars allow."""
    values = spec.unpack(args)
    shape = any_shape(choose)
    if spec.name == "reduce":
        axis = int(values["axis"])
        whole = not -len(shape) <= axis < len(shape)
        return [shape, () if whole else tuple(e for i, e in enumerate(shape) if i != axis % len(shape))]
    if spec.name == "transpose":
        shape = any_shape(choose, (2, 3, 4))
        return [shape, (*shape[:-2], shape[-1], shape[-2])]
    if spec.name == "stencil":
        return [any_shape(choose, (2,))] * 3
    if spec.name == "gaussian_step":
        n = choose.randint(1, 20)
        b = choose.choice([(n,), (n, choose.randint(0, 4))])
        return [(n, n), b, (n, n), b]
    if spec.name in LAYERS:
        return layer_shapes(spec, values, choose)
    if spec.name in BANDS:
        return band_shapes(spec, values, choose)
    if spec.name in ("im2col", "col2im"):
        image = (choose.randint(1, 3), choose.randint(1, 3), choose.randint(1, 12), choose.randint(1, 12))
        pair = [image, columns_of(image, values)]
        return pair if spec.name == "im2col" else pair[::-1]
    shapes = [shape] * (len(spec.inputs) + len(spec.outputs))
    return [*shapes[:-1], choose.choice([(), (1,)])] if spec.name == "dot" else shapes


def layer_shapes(
    spec: KernelSpec, values: dict[str, float | int | bool], choose: random.Random
) -> list[Shape]:
    image = (choose.randint(1, 3), choose.randint(1, 3), choose.randint(1, 12), choose.randint(1, 12))
    if spec.name == "bias_add":
        shape = image[: choose.choice([2, 3, 4])]
        return [shape, (shape[1],), shape]
    if spec.name == "softmax_cross_entropy":
        rows, classes = choose.choice([0, 1, 7, 33]), choose.choice([1, 2, 10, 33])
        return [(rows, classes), (rows,), (rows,), (rows, classes)]
    pooled = (*image[:2], *positions_of(image, values))
    return [image, pooled, pooled] if spec.name == "max_pool" else [pooled, pooled, image]


def band_shapes(
    spec: KernelSpec, values: dict[str, float | int | bool], choose: random.Random
) -> list[Shape]:
    if spec.name == "hotspot_steps":
        (rows, columns), steps = any_shape(choose, (2,)), max(1, int(values["steps"]))
        above, below = ((choose.choice([0, min(steps, 64), 9]), columns) for _ in range(2))
        edges = [(choose.randint(0, rows), columns) for _ in range(2)]
        return [(rows, columns)] * 2 + [above, below] * 2 + [(rows, columns), *edges]
    if spec.name == "pathfinder_rows":
        (rows, columns) = any_shape(choose, (2,))
        left, right = (choose.choice([0, 3, 9]) for _ in range(2))
        edges = [(choose.randint(0, columns),) for _ in range(2)]
        return [(rows + 6, left + columns + right), (columns,), (left,), (right,), (columns,), *edges]
    if spec.name in ("gaussian_pivots", "gaussian_update"):
        rows, columns = choose.randint(4, 33), choose.randint(4, 70)
        pivots = (choose.randint(1, min(rows, columns) - 2), columns)
        return [(rows, columns), pivots, (rows, columns)][: len(spec.inputs) + 1]
    if spec.name == "needleman_wunsch":
        n, m = choose.choice([0, 1, 15, 16, 33, 70]), choose.choice([0, 1, 17, 31, 64, 90])
        return [(n,), (m,), (7, 7), (m + 1,), (n + 1,), (n + 1, m + 1), (n + 1, m + 1)]
    if spec.name in PARTICLES:
        n, m = choose.choice([0, 1, 15, 17, 300]), choose.choice([0, 1, 2, 70])
        return {
            "particle_predict": [(4, n), (choose.randint(1, 9), choose.randint(1, 9)), (4, n), (n,)],
            "particle_cumulate": [(n,), (1,), (n,), (1,)],
            "particle_resample": [(3, n), (n,), (3, m)],
        }[spec.name]
    if spec.name == "pair_forces":
        layers, first = choose.randint(0, 3), max(0, int(values["first"]))
        depth = min(first, 5) + layers + choose.randint(0, 2)
        boxes = (choose.randint(0, 3), choose.randint(1, 3), choose.choice([1, 3, 16, 18]), 4)
        return [(depth, *boxes), (layers, *boxes)]
    raise AssertionError(spec.name)


def dtypes_of(spec: KernelSpec, choose: random.Random) -> list[DType]:
    """Element types that the kernel accepts, or any for all buffers."""
    common = choose.choice([DType.F32, DType.F64, choose.choice(list(DType))])
    if spec.name in BANDS:
        common = choose.choice([DType.F32, DType.F64])
    params = (*spec.inputs, *spec.outputs)
    return [p.dtypes[0] if len(p.dtypes) == 1 or p.name == "labels" else common for p in params]


def positions_of(image: Shape, values: dict[str, float | int | bool]) -> Shape:
    """Positions of a window in an image, by axis."""
    counts = []
    for size, axis in zip(image[2:], "hw", strict=True):
        kernel, stride, padding, dilation = (
            int(values.get(f"{name}_{axis}", 1)) for name in ("kernel", "stride", "padding", "dilation")
        )
        counts.append((size + 2 * padding - dilation * (kernel - 1) - 1) // max(stride, 1) + 1)
    return tuple(counts)


def columns_of(image: Shape, values: dict[str, float | int | bool]) -> Shape:
    positions = math.prod(positions_of(image, values))
    return (image[0], image[1] * int(values["kernel_h"]) * int(values["kernel_w"]), positions)


def scalars_of(spec: KernelSpec, choose: random.Random) -> bytes:
    values = {}
    wild = choose.random() < 0.2
    for scalar in spec.scalars:
        if scalar.dtype.is_integer:
            low = 0 if scalar.dtype >= DType.U8 else -2
            values[scalar.name] = choose.choice(
                [low, 0, 2**31 - 1] if wild else USUAL.get(scalar.name, [1, 1, 2, 3])
            )
        else:
            values[scalar.name] = choose.choice([0.0, -1.0, float("nan"), 1e300] if wild else [1.0, 2.5])
    return spec.pack(values)


def spoiled(shape: Shape, choose: random.Random) -> Shape:
    extents = list(shape) + [1] * choose.choice([0, 0, 1])
    if extents:
        extents[choose.randrange(len(extents))] = choose.choice([0, 1, 2, 7, 34, -1, 2**31, 2**62])
    return tuple(extents)


def buffer_of(shape: Shape, dtype: DType, guard: Guarded, choose: random.Random) -> Given:
    nbytes = dtype.itemsize * math.prod(shape)
    if not 0 <= nbytes <= ROOM:
        nbytes = choose.randint(0, ROOM)
    elif choose.random() < 0.03:
        nbytes = choose.randint(0, nbytes)
    return Given(guard.place(nbytes, choose), nbytes, int(dtype), shape)


def main(count: int) -> None:
    choose = random.Random(2024)
    guards = [Guarded() for _ in range(9)]
    numbers = array("f", [choose.uniform(1, 2) for _ in range(ROOM // 4)]).tobytes()
    succeeded: dict[str, int] = dict.fromkeys(NATIVE, 0)
    for _ in range(count):
        spec = NATIVE[choose.choice(list(NATIVE))]
        args = scalars_of(spec, choose)
        shapes = fitting_shapes(spec, args, choose)
        dtypes = dtypes_of(spec, choose)
        if spec.name.startswith(("gaussian", "particle", "softmax")):
            for guard in guards[: len(shapes)]:
                guard.fill(numbers)
        buffers = [
            buffer_of(
                spoiled(shape, choose) if choose.random() < 0.1 else shape,
                choose.choice(list(DType)) if choose.random() < 0.03 else dtype,
                guard,
                choose,
            )
            for shape, dtype, guard in zip(shapes, dtypes, guards, strict=False)
        ]
        if spec.name in IN_PLACE and choose.random() < 0.9:
            buffers[-1] = buffers[-2]
        indices = INDICES.get(spec.name, [])
        if choose.random() < 0.9:
            for place in indices:
                guards[place].fill(bytes(ROOM))
        code, message = call(spec.name, buffers, args, threads=choose.choice([0, 1, 2]))
        assert code in (0, 3), (spec.name, code, message)
        assert code == 0 or message
        succeeded[spec.name] += code == 0
    few = {name: times for name, times in succeeded.items() if times < count // 200}
    assert not few, f"hardly any call got beyond the checks: {few}"
    print(f"{count} calls, of which succeeded: {succeeded}")


if __name__ == "__main__":
    main(int(sys.argv[1]))
