from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from polymux.core.dtype import DType
from polymux.core.errors import InvalidRequest
from polymux.core.implementation import PythonFunction
from polymux.core.kernel_spec import BufferParam, ScalarParam
from polymux.kernel import kernel
from polymux.kernel.decorator import definition_of


def test_a_decorated_function_becomes_a_kernel_and_stays_a_function() -> None:
    @kernel("scale", inputs=("x",), outputs=("y",), scalars={"a": "f8"}, dtypes=("f4", "f8"), idempotent=True)
    def scale(x: Any, y: Any, a: float = 2.0) -> None:
        """y = a * x."""
        y[...] = a * x

    definition = definition_of(scale)
    assert definition is not None
    spec = definition.spec
    assert spec.name == "scale"
    assert spec.inputs == (BufferParam("x", (DType.F32, DType.F64)),)
    assert spec.outputs == (BufferParam("y", (DType.F32, DType.F64)),)
    assert spec.scalars == (ScalarParam("a", DType.F64, 2.0),)
    assert spec.doc == "y = a * x."
    assert spec.idempotent
    assert definition.implementations == (PythonFunction(scale),)
    y = np.zeros(3)
    scale(np.ones(3), y)
    assert (y == 2).all()


def test_a_single_name_is_one_buffer_and_not_its_letters() -> None:
    @kernel("negate", inputs="source", outputs="target", dtypes="i4")
    def negate(source: Any, target: Any) -> None: ...

    definition = definition_of(negate)
    assert definition is not None
    assert definition.spec.inputs == (BufferParam("source", (DType.I32,)),)


def test_a_buffer_can_have_dtypes_and_shape_of_its_own() -> None:
    index = BufferParam("index", (DType.I64,), (None,))

    @kernel("take", inputs=["x", index], outputs=["y"], dtypes=["f4"])
    def take(x: Any, index: Any, y: Any) -> None: ...

    definition = definition_of(take)
    assert definition is not None
    assert definition.spec.inputs == (BufferParam("x", (DType.F32,)), index)


def test_a_parallel_kernel_takes_a_team() -> None:
    @kernel("wide", inputs="x", outputs="y", parallel=True)
    def wide(x: Any, y: Any, *, team: Any) -> None: ...

    definition = definition_of(wide)
    assert definition is not None
    assert definition.implementations == (PythonFunction(wide, parallel=True),)
    with pytest.raises(InvalidRequest, match=r"cannot be called with 2 buffers and the keywords team"):

        @kernel("narrow", inputs="x", outputs="y", parallel=True)
        def narrow(x: Any, y: Any) -> None: ...


def test_a_function_that_does_not_take_the_kernels_parameters_is_refused() -> None:
    with pytest.raises(
        InvalidRequest, match=r"kernel 'k': function too_few\(.*\) -> .* cannot be called with 2 buffers"
    ):

        @kernel("k", inputs="x", outputs="y")
        def too_few(x: Any) -> None: ...

    with pytest.raises(InvalidRequest, match=r"the keywords a: .*unexpected keyword"):

        @kernel("k", inputs="x", outputs="y", scalars={"a": "f4"})
        def no_scalar(x: Any, y: Any) -> None: ...


def test_unknown_types_and_reserved_names_are_refused() -> None:
    with pytest.raises(InvalidRequest, match="element type 'float99' is unknown"):
        kernel("k", inputs="x", dtypes="float99")
    with pytest.raises(InvalidRequest, match="'priority' is a hint"):

        @kernel("k", scalars={"priority": "i4"})
        def clash(priority: int) -> None: ...


def test_a_plain_function_is_no_kernel() -> None:
    assert definition_of(len) is None
    assert definition_of(lambda: None) is None
    assert definition_of(3) is None
