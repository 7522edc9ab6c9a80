"""stencil: one step of hotspot, the thermal simulation of the Rodinia benchmarks.

With C the cell's temperature, N, S, W, E its neighbours' (the cell's own beyond an edge) and P its power::

    C' = C + step / capacity * (P + (N + S - 2 C) / ry + (W + E - 2 C) / rx + (ambient - C) / rz)

References
----------
W. Huang et al., "HotSpot: a compact thermal modeling methodology for early-stage VLSI design", IEEE TVLSI 14 (2006).
S. Che et al., "Rodinia: a benchmark suite for heterogeneous computing", IISWC 2009.
"""

from __future__ import annotations

from collections.abc import Sequence

from polymux.core.dtype import DType
from polymux.core.errors import InvalidRequest
from polymux.core.implementation import OpenCLSource
from polymux.core.kernel_spec import BufferParam, KernelSpec, ScalarParam
from polymux.core.opencl_plan import OpenCLPlan, ScalarArgument
from polymux.core.task_view import BufferView
from polymux.kernel.builtin import operands as check
from polymux.kernel.builtin.native import native
from polymux.kernel.builtin.opencl import EXACT, launch, long, pointers, type_option
from polymux.kernel.definition import Definition

SPEC = KernelSpec(
    "stencil",
    inputs=(BufferParam("temperature", check.FLOATS), BufferParam("power", check.FLOATS)),
    outputs=(BufferParam("temperature_out", check.FLOATS),),
    scalars=(
        *(ScalarParam(name, DType.F64) for name in ("step", "capacity", "rx", "ry", "rz")),
        ScalarParam("ambient", DType.F64, 80.0),
    ),
    idempotent=True,
    doc="One step of hotspot (Rodinia) on a (rows, columns) grid: step in s, capacity in J/K, rx, ry, rz in K/W,"
    " ambient in degrees Celsius; see hotspot_constants. The same bits on every device.",
)
SOURCE = (
    EXACT
    + """
__kernel void stencil(__global const T *now, __global const T *power, __global T *next, long rows, long columns,
                      T step_over_capacity, T per_rx, T per_ry, T per_rz, T ambient) {
  const long column = get_global_id(0), row = get_global_id(1);
  if (row >= rows || column >= columns) return;
  const long cell = row * columns + column;
  const T centre = now[cell], twice = centre + centre;
  const T up = now[max(row - 1, 0L) * columns + column], down = now[min(row + 1, rows - 1) * columns + column];
  T left = centre, right = centre;
  if (column > 0) left = now[cell - 1];
  if (column < columns - 1) right = now[cell + 1];
  const T vertical = (up + down - twice) * per_ry;
  const T horizontal = (left + right - twice) * per_rx;
  const T sink = (ambient - centre) * per_rz;
  next[cell] = centre + step_over_capacity * (power[cell] + vertical + horizontal + sink);
}
"""
)


def hotspot_constants(rows: int, columns: int) -> dict[str, float]:
    """Scalars of Rodinia's chip for a grid of `rows` x `columns` cells.

    Returns
    -------
    dict
        ``step`` (s), ``capacity`` (J/K), ``rx``, ``ry``, ``rz`` (K/W), ``ambient`` (degrees Celsius): keywords for
        ``queue.submit("stencil", ...)``.
    """
    thickness, side = 0.0005, 0.016  # m
    heat_capacity, conductivity, fraction = 1.75e6, 100.0, 0.5  # J/(m3 K), W/(m K), of the chip's capacity
    largest_power_density, precision = 3.0e6, 0.001  # W/m2, K
    height, width = side / rows, side / columns
    return {
        "step": precision / (largest_power_density / (fraction * thickness * heat_capacity)),
        "capacity": fraction * heat_capacity * thickness * width * height,
        "rx": width / (2.0 * conductivity * thickness * height),
        "ry": height / (2.0 * conductivity * thickness * width),
        "rz": thickness / (conductivity * height * width),
        "ambient": 80.0,
    }


def plan(spec: KernelSpec, buffers: Sequence[BufferView], scalars: check.Scalars) -> OpenCLPlan:
    """One work-item per cell."""
    arrays = check.named(spec, buffers)
    check.require_same_dtypes(arrays)
    check.require_rank(arrays, "temperature", 2, "(rows, columns)")
    check.require_same_shapes(arrays)
    check.require_apart(arrays, "temperature_out", "temperature", "power")
    dtype = arrays["temperature"].dtype
    numbers = constants(dtype, scalars)
    rows, columns = arrays["temperature"].shape
    if rows * columns == 0:
        return OpenCLPlan()
    arguments = [
        *pointers(3),
        long(rows),
        long(columns),
        *numbers,
    ]
    return OpenCLPlan((launch("stencil", arguments, (columns, rows), (64, 4)),), (type_option(dtype),))


def constants(dtype: DType, scalars: check.Scalars) -> tuple[ScalarArgument, ...]:
    """Make the kernel's numbers of a task's scalars: quotients in double precision, rounded once.

    Raises
    ------
    InvalidRequest
        If a resistance or the capacity is not positive.
    """
    for name in ("capacity", "rx", "ry", "rz"):
        if not scalars[name] > 0:
            raise InvalidRequest(f"{name} is {scalars[name]}, expected a positive number")
    values = (
        scalars["step"] / scalars["capacity"],
        1 / scalars["rx"],
        1 / scalars["ry"],
        1 / scalars["rz"],
        scalars["ambient"],
    )
    return tuple(ScalarArgument(dtype, value) for value in values)


KERNEL = Definition(SPEC, (native("stencil"), OpenCLSource(SOURCE, plan)))
