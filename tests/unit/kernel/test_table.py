from __future__ import annotations

import pytest

from polymux.core.dtype import DType
from polymux.core.errors import InvalidRequest
from polymux.core.implementation import OnnxModel, OpenCLSource, PythonFunction
from polymux.core.kernel_spec import BufferParam, KernelSpec
from polymux.core.opencl_range import OpenCLRange
from polymux.kernel.definition import Definition
from polymux.kernel.table import DispatchTable

SPEC = KernelSpec("scale", inputs=(BufferParam("x", (DType.F32,)),), outputs=(BufferParam("y"),), doc="first")
CPU = PythonFunction(print)
OPENCL = OpenCLSource("__kernel void scale() {}", OpenCLRange("scale", (1,)))


def test_a_kernel_has_one_implementation_per_api() -> None:
    table = DispatchTable()
    table.register(SPEC, CPU)
    table.register(SPEC, OPENCL, origin="kernels.toml")
    assert table.spec("scale") is SPEC
    assert table.apis("scale") == ("cpu", "opencl")
    assert table.implementations("scale") == {"cpu": CPU, "opencl": OPENCL}
    assert table.origins("scale") == {"cpu": "this program", "opencl": "kernels.toml"}
    assert "scale" in table
    assert list(table) == ["scale"]
    assert len(table) == 1


def test_a_second_implementation_for_an_api_is_refused_with_the_first_ones_origin() -> None:
    table = DispatchTable()
    table.register(SPEC, CPU, origin="a.py")
    with pytest.raises(InvalidRequest, match=r"'scale' of b\.py has an implementation for 'cpu', but a\.py"):
        table.register(SPEC, PythonFunction(len), origin="b.py")
    assert table.implementations("scale") == {"cpu": CPU}


def test_another_spec_under_the_same_name_is_refused_and_changes_nothing() -> None:
    table = DispatchTable()
    table.register(SPEC, CPU, origin="a.py")
    other = KernelSpec("scale", inputs=(BufferParam("x"),), outputs=(BufferParam("y"),))
    with pytest.raises(
        InvalidRequest, match=r"takes \(x: any\) -> \(y: any\), but a\.py .* \(x: f4\) -> \(y: any\)"
    ):
        table.register(other, OPENCL, origin="b.toml")
    assert table.apis("scale") == ("cpu",)


def test_the_doc_of_the_first_registration_is_kept() -> None:
    table = DispatchTable()
    table.register(SPEC, CPU)
    table.register(KernelSpec("scale", SPEC.inputs, SPEC.outputs, doc="second"), OPENCL)
    assert table.spec("scale").doc == "first"


def test_a_definition_is_added_as_a_whole_or_not_at_all() -> None:
    table = DispatchTable()
    with pytest.raises(InvalidRequest, match="has an implementation for 'cpu'"):
        table.add(Definition(SPEC, (OPENCL, CPU, PythonFunction(len))))
    assert "scale" not in table
    with pytest.raises(InvalidRequest, match="has no implementation"):
        table.add(Definition(SPEC, ()))


def test_an_unknown_kernel_is_answered_with_similar_ones() -> None:
    table = DispatchTable()
    table.register(SPEC, CPU)
    with pytest.raises(InvalidRequest, match="'scael' is not registered; did you mean scale"):
        table.spec("scael")
    with pytest.raises(InvalidRequest, match="'gemm' is not registered; there are scale"):
        table.implementations("gemm")
    with pytest.raises(InvalidRequest, match="there is none"):
        DispatchTable().apis("scale")


def test_a_session_sees_its_own_kernels_over_those_of_the_server() -> None:
    base = DispatchTable()
    base.register(SPEC, CPU)
    base.register(KernelSpec("other"), CPU)
    session = DispatchTable(base)
    model = OnnxModel("scale.onnx")
    session.register(KernelSpec("scale"), model)
    assert session.implementations("scale") == {"onnx": model}
    assert session.apis("other") == ("cpu",)
    assert session.names() == ("other", "scale")
    assert base.implementations("scale") == {"cpu": CPU}
    session.remove("scale")
    assert session.implementations("scale") == {"cpu": CPU}
    with pytest.raises(InvalidRequest, match="'scale' is not registered here"):
        session.remove("scale")
