"""OpenCL plans as values: what is checked before a device is asked for anything."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polymux.core.dtype import DType
from polymux.core.errors import InvalidRequest
from polymux.core.implementation import OpenCLSource
from polymux.core.opencl_plan import BufferArgument, OpenCLPlan, ScratchArgument
from polymux.core.task_view import Access, BufferView
from polymux.kernel.builtin import definitions
from polymux.kernel.builtin.fill import element_bits

KERNELS = {definition.spec.name: definition for definition in definitions()}
F4 = DType.F32


def view(shape: tuple[int, ...], dtype: DType = F4, slot: int | None = None) -> BufferView:
    number = view.next if slot is None else slot  # type: ignore[attr-defined]
    view.next += 1  # type: ignore[attr-defined]
    return BufferView(number, dtype, shape, math.prod(shape) * dtype.itemsize, Access.READ | Access.WRITE, 0)


view.next = 100  # type: ignore[attr-defined]


def planned(name: str, *buffers: BufferView, **scalars: float) -> OpenCLPlan:
    definition = KERNELS[name]
    (source,) = (i for i in definition.implementations if isinstance(i, OpenCLSource))
    return source.plan(definition.spec, buffers, definition.spec.unpack(definition.spec.pack(scalars)))


def views_of(name: str, shapes: list[tuple[int, ...]]) -> list[BufferView]:
    """Views of element types that the kernel accepts: f4 where it leaves a choice."""
    spec = KERNELS[name].spec
    params = (*spec.inputs, *spec.outputs)
    dtypes = [param.dtypes[0] if len(param.dtypes) == 1 else F4 for param in params]
    views = [view(shape, dtype) for shape, dtype in zip(shapes, dtypes, strict=True)]
    if name in IN_PLACE:
        views[-1] = view(shapes[-1], dtypes[-1], slot=views[-2].slot)
    return views


IN_PLACE = ("needleman_wunsch",)

FITTING = {
    "copy": ([(5,), (5,)], {}),
    "fill": ([(5,)], {"value": 1.0}),
    "saxpy": ([(5,), (5,), (5,)], {"a": 1.0}),
    "dot": ([(50_000,), (50_000,), ()], {}),
    "reduce": ([(50_000,), ()], {}),
    "gemm": ([(3, 4), (4, 5), (3, 5)], {}),
    "gemv": ([(3, 4), (4,), (3,)], {}),
    "conv2d": ([(1, 3, 9, 9), (20, 3, 3, 3), (1, 20, 7, 7)], {}),
    "im2col": ([(1, 3, 9, 9), (1, 27, 49)], {"kernel_h": 3, "kernel_w": 3}),
    "col2im": ([(1, 27, 49), (1, 3, 9, 9)], {"kernel_h": 3, "kernel_w": 3}),
    "coexec_gemm": ([(3, 4), (4, 5), (3, 5)], {"method": 11}),
    "coexec_conv2d": ([(1, 3, 9, 9), (20, 3, 3, 3), (1, 20, 7, 7)], {"method": 11}),
    "transpose": ([(3, 4), (4, 3)], {}),
    "stencil": ([(3, 4), (3, 4), (3, 4)], {"step": 1, "capacity": 1, "rx": 1, "ry": 1, "rz": 1}),
    "gaussian_step": ([(4, 4), (4,), (4, 4), (4,)], {"k": 1}),
    "random_uniform": ([(50,)], {"seed": 1}),
    "random_normal": ([(50,)], {"seed": 1}),
}

BANDS = {
    "hotspot_steps": (
        [(9, 4), (9, 4), (4, 4), (0, 4), (4, 4), (0, 4), (9, 4), (4, 4), (0, 4)],
        {"steps": 3, "step": 1, "capacity": 1, "rx": 1, "ry": 1, "rz": 1},
    ),
    "gaussian_pivots": ([(6, 9), (3, 9)], {"first": 2, "column": 2}),
    "gaussian_update": ([(6, 9), (3, 9), (6, 9)], {"first": 2, "column": 2}),
    "needleman_wunsch": ([(70,), (20,), (4, 4), (21,), (71,), (71, 21), (71, 21)], {"diagonal": 1}),
    "particle_cumulate": ([(900,), (1,), (900,), (1,)], {}),
    "particle_predict": (
        [(4, 70), (1, 1, 9, 8), (4, 70), (70,)],
        {"seed": 1, "position_noise": 1, "velocity_noise": 1, "gain": 1, "level": 1},
    ),
    "particle_resample": ([(4, 70), (70,), (4, 90)], {}),
    "pair_forces": ([(5, 2, 3, 7, 4), (2, 2, 3, 7, 4)], {"first": 1}),
    "pathfinder_rows": ([(90, 80), (40,), (40,), (0,), (40,), (4,), (0,)], {"row": 3, "rows": 40}),
}
"""Kernels that leave the extents of some buffers to the caller."""


@pytest.mark.parametrize("name", FITTING | BANDS)
def test_a_plan_names_only_what_there_is(name: str) -> None:
    shapes, scalars = (FITTING | BANDS)[name]
    plan = planned(name, *views_of(name, shapes), **scalars)
    (source,) = (i for i in KERNELS[name].implementations if isinstance(i, OpenCLSource))
    assert plan.launches
    for launch in plan.launches:
        assert f"{launch.entry}(" in source.source or f"({launch.entry}," in source.source
        assert launch.local_size is not None
        assert all(
            size > 0 and size % local == 0
            for size, local in zip(launch.global_size, launch.local_size, strict=True)
        )
        assert math.prod(launch.local_size) <= 256
        for argument in launch.arguments:
            if isinstance(argument, BufferArgument):
                assert 0 <= argument.index < len(shapes)
            if isinstance(argument, ScratchArgument):
                assert plan.scratch_nbytes[argument.index] > 0


@pytest.mark.parametrize("name", FITTING | BANDS)
def test_a_plan_refuses_a_buffer_too_few_and_one_too_many(name: str) -> None:
    shapes, scalars = (FITTING | BANDS)[name]
    views = views_of(name, shapes)
    with pytest.raises(InvalidRequest, match=f"{len(shapes) - 1} buffers were given, expected {len(shapes)}"):
        planned(name, *views[:-1], **scalars)
    with pytest.raises(InvalidRequest, match=f"{len(shapes) + 1} buffers were given"):
        planned(name, *views, view((1,)), **scalars)


@pytest.mark.parametrize("name", [name for name, (shapes, _) in FITTING.items() if len(shapes) > 1])
@given(data=st.data())
def test_a_plan_refuses_any_other_shape(name: str, data: st.DataObject) -> None:
    """Changing one extent of one buffer is always noticed, except by reductions that then mean something else."""
    shapes, scalars = FITTING[name]
    changed = [list(shape) for shape in shapes]
    index = data.draw(st.sampled_from([i for i, shape in enumerate(shapes) if shape]))
    axis = data.draw(st.integers(0, len(shapes[index]) - 1))
    extent = data.draw(st.integers(0, 60).filter(lambda e: e != shapes[index][axis]))
    changed[index][axis] = extent
    if name == "reduce":
        return
    if name.endswith("conv2d") and index == 1 and axis == 0 and extent == shapes[2][1]:
        return
    with pytest.raises(InvalidRequest, match=r"has shape|less than the window|(k|groups|kernel_.) is"):
        planned(name, *(view(tuple(shape)) for shape in changed), **scalars)


@pytest.mark.parametrize("name", [name for name, (shapes, _) in FITTING.items() if len(shapes) > 1])
def test_a_plan_refuses_buffers_of_different_dtypes(name: str) -> None:
    shapes, scalars = FITTING[name]
    views = [view(shape) for shape in shapes]
    with pytest.raises(InvalidRequest, match=r"has dtype f8, expected f4 \(that of"):
        planned(name, *views[:-1], view(shapes[-1], DType.F64), **scalars)


@pytest.mark.parametrize(
    "name", ["dot", "gemm", "gemv", "conv2d", "transpose", "stencil", "im2col", "reduce"]
)
def test_a_plan_refuses_an_output_that_is_an_input(name: str) -> None:
    shapes, scalars = FITTING[name]
    square = {
        "gemm": [(4, 4)] * 3,
        "gemv": [(4, 4), (4,), (4,)],
        "transpose": [(4, 4)] * 2,
        "dot": [(1,)] * 3,
    }
    shapes = square.get(name, shapes)
    views = [view(shape) for shape in shapes]
    output = BufferView(views[-2].slot, F4, shapes[-1], views[-1].nbytes, Access.WRITE, 0)
    with pytest.raises(InvalidRequest, match="must not share memory with"):
        planned(name, *views[:-1], output, **scalars)


def test_an_image_too_large_for_32_bits_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="expected less than 2\\^31"):
        planned("im2col", view((1, 1, 1, 5)), view((1, 1, 5)), kernel_h=1, kernel_w=1, padding_h=2**30)


def test_gaussian_steps_in_place_copy_nothing() -> None:
    a, b = view((4, 4)), view((4,))
    assert [launch.entry for launch in planned("gaussian_step", a, b, a, b, k=0).launches] == [
        "multipliers",
        "eliminate",
    ]
    apart = planned("gaussian_step", a, b, view((4, 4)), view((4,)), k=0)
    assert [launch.entry for launch in apart.launches] == ["copy", "copy", "multipliers", "eliminate"]
    assert planned("gaussian_step", a, b, a, b, k=3).launches == ()


@given(value=st.floats(allow_nan=False, width=32))
def test_bits_of_an_element_are_those_of_the_float(value: float) -> None:
    assert element_bits(DType.F64, value).to_bytes(8, "little") == bytearray(
        memoryview(_array("d", value)).cast("B")
    )
    assert element_bits(F4, value).to_bytes(4, "little") == bytearray(
        memoryview(_array("f", value)).cast("B")
    )


def _array(code: str, value: float) -> object:
    import array

    return array.array(code, [value])
