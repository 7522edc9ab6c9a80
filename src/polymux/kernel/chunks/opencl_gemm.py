"""OpenCL programs and plans of chunks of a matrix product."""

from __future__ import annotations

from collections.abc import Sequence

from polymux.core.dtype import DType
from polymux.core.errors import InvalidRequest
from polymux.core.kernel_spec import KernelSpec
from polymux.core.opencl_plan import (
    BufferArgument,
    LocalArgument,
    OpenCLArgument,
    OpenCLLaunch,
    OpenCLPlan,
    ScratchArgument,
)
from polymux.core.task_view import BufferView
from polymux.kernel.builtin import operands as check
from polymux.kernel.builtin import tile
from polymux.kernel.builtin.opencl import launch, long, pointers, type_option
from polymux.kernel.chunks import packed
from polymux.kernel.chunks.methods import choose
from polymux.kernel.chunks.parts import GemmPart, gemm_part

PACKED_PART = 128
"""Terms of the sum that a work-item packs."""

SOURCE = f"""
#ifdef PACKED
{packed.DEFINITIONS}
{packed.PACK_ROWS}
{packed.MULTIPLY}
#else
{tile.DEFINITIONS}
#define PREPARE
#define LOAD_A LOAD_TILE(a_tile, TILE_ROWS, a, row0, m, depth, 1)
#define LOAD_B LOAD_TILE(b_tile, TILE_COLUMNS, b, column0, n, 1, all_columns)
#define STORE(row, column, value) c[(row) * all_columns + (column)] = (value)
__kernel __attribute__((reqd_work_group_size(8, 8, 1))) void multiply_tiles(
    __global const T *a, __global const T *b, __global T *c, long first, long first_column, long m, long n, long depth,
    long all_columns) {{
  a += first * depth;
  b += first_column;
  c += first * all_columns + first_column;
{tile.BODY}}}
#endif
"""


def plan(spec: KernelSpec, buffers: Sequence[BufferView], scalars: check.Scalars) -> OpenCLPlan:
    """Launch by the method that the scalars name."""
    arrays = check.named(spec, buffers)
    part = gemm_part(arrays, scalars)
    method = choose(int(scalars["method"]), "opencl", "own")
    shape = packed.tile_of(int(scalars["tile"]))
    dtype: DType = arrays["c"].dtype
    if dtype not in check.FLOATS:
        raise InvalidRequest(
            f"a, b and c have dtype {dtype.name_short}; OpenCL multiplies f4 and f8, a cpu every NumPy type"
        )
    if part.height == 0 or part.width == 0:
        return OpenCLPlan()
    if method.name == "packed" and part.depth:
        return _packed(part, dtype, shape)
    sizes = tile.sizes(part.height, part.width, dtype)
    numbers = (part.rows.start, part.columns.start, part.height, part.width, part.depth, part.n)
    arguments = [*pointers(3), *map(long, numbers)]
    launched = launch("multiply_tiles", arguments, sizes, tile.LOCAL)
    return OpenCLPlan((launched,), (type_option(dtype), *tile.options(dtype)))


def _packed(part: GemmPart, dtype: DType, shape: packed.Tile) -> OpenCLPlan:
    blocks = -(-part.height // shape.rows)
    panels = -(-part.width // shape.columns(dtype))
    at_once = max(1, shape.block_rows // shape.rows)
    at_once = -(-blocks // -(-blocks // at_once))  # groups of about equal size
    rows = ScratchArgument(0)
    numbers = (
        part.rows.start,
        part.height,
        part.columns.start,
        part.columns.stop,
        part.n,
        part.depth,
        at_once,
    )
    panel = LocalArgument(shape.depth * shape.columns(dtype) * dtype.itemsize)
    arguments: list[OpenCLArgument] = [rows, BufferArgument(1), BufferArgument(2), *map(long, numbers), panel]
    launches = (
        pack_rows(BufferArgument(0), rows, (part.rows.start, part.height, part.depth), blocks),
        OpenCLLaunch("multiply_packed", tuple(arguments), (panels, -(-blocks // at_once)), (1, 1)),
    )
    return OpenCLPlan(launches, shape.options(dtype), (blocks * shape.rows * part.depth * dtype.itemsize,))


def pack_rows(
    source: OpenCLArgument, into: OpenCLArgument, numbers: tuple[int, int, int], blocks: int, groups: int = 1
) -> OpenCLLaunch:
    """Launch that packs rows: (first, count, depth) of each group."""
    arguments = (source, into, *map(long, numbers), long(PACKED_PART))
    return OpenCLLaunch("pack_rows", arguments, (-(-numbers[2] // PACKED_PART), blocks, groups), (1, 1, 1))
