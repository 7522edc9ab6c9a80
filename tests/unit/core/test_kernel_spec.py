"""Scalars are packed as a C compiler lays a struct out; whatever cannot be packed is refused by name."""

from __future__ import annotations

import ctypes
import json
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from polymux.core.dtype import DType
from polymux.core.errors import InvalidRequest
from polymux.core.kernel_spec import BufferParam, KernelSpec, ScalarParam

C_TYPES: dict[DType, Any] = {
    DType.BOOL: ctypes.c_bool,
    DType.I8: ctypes.c_int8,
    DType.I16: ctypes.c_int16,
    DType.I32: ctypes.c_int32,
    DType.I64: ctypes.c_int64,
    DType.U8: ctypes.c_uint8,
    DType.U16: ctypes.c_uint16,
    DType.U32: ctypes.c_uint32,
    DType.U64: ctypes.c_uint64,
    DType.F32: ctypes.c_float,
    DType.F64: ctypes.c_double,
}
INTEGERS = [dtype for dtype in C_TYPES if dtype.is_integer]
SAXPY = KernelSpec(
    "saxpy",
    inputs=(BufferParam("x", (DType.F32, DType.F64)),),
    outputs=(BufferParam("y", (DType.F32, DType.F64)),),
    scalars=(
        ScalarParam("n", DType.I32),
        ScalarParam("a", DType.F64, 1.0),
        ScalarParam("trace", DType.BOOL, False),
    ),
    idempotent=False,
    doc="y += a * x",
)


def one(dtype: DType, default: Any = None) -> KernelSpec:
    return KernelSpec("k", scalars=(ScalarParam("v", dtype, default),))


def value_of(dtype: DType) -> st.SearchStrategy[Any]:
    if dtype is DType.BOOL:
        return st.booleans()
    if dtype.is_integer:
        info = np.iinfo(dtype.to_numpy())
        return st.integers(int(info.min), int(info.max))
    return st.floats(width=64 if dtype is DType.F64 else 32)


@given(st.data(), st.lists(st.sampled_from(list(C_TYPES)), max_size=12))
def test_packed_scalars_are_the_c_struct_with_these_members(data: st.DataObject, dtypes: list[DType]) -> None:
    names = [f"s{i}" for i in range(len(dtypes))]
    spec = KernelSpec("k", scalars=tuple(map(ScalarParam, names, dtypes)))

    class Struct(ctypes.Structure):
        _fields_ = [(name, C_TYPES[dtype]) for name, dtype in zip(names, dtypes, strict=True)]

    values = {name: data.draw(value_of(dtype)) for name, dtype in zip(names, dtypes, strict=True)}
    packed = spec.pack(values)
    assert len(packed) == spec.args_nbytes == (ctypes.sizeof(Struct) if names else 0)
    assert [offset for _, _, offset in spec.layout] == [getattr(Struct, name).offset for name in names]
    read = Struct.from_buffer_copy(packed) if names else None
    unpacked = spec.unpack(packed)
    for name, value in values.items():
        for got in (getattr(read, name), unpacked[name]):
            assert got == value or (math.isnan(got) and math.isnan(value))


def test_padding_is_zero_so_that_equal_arguments_have_equal_bytes() -> None:
    spec = KernelSpec(
        "k", scalars=(ScalarParam("a", DType.I8), ScalarParam("b", DType.I64), ScalarParam("c", DType.I8))
    )
    assert spec.pack({"a": -1, "b": -1, "c": -1}) == b"\xff" + bytes(7) + b"\xff" * 8 + b"\xff" + bytes(7)


def test_half_precision_is_packed() -> None:
    assert one(DType.F16).pack({"v": 1.5}) == np.float16(1.5).tobytes()


def test_missing_scalars_take_their_defaults() -> None:
    assert SAXPY.unpack(SAXPY.pack({"n": 3})) == {"n": 3, "a": 1.0, "trace": False}
    assert SAXPY.unpack(SAXPY.pack({"n": 3, "a": 2, "trace": True})) == {"n": 3, "a": 2.0, "trace": True}


def test_a_missing_scalar_without_default_is_named() -> None:
    with pytest.raises(InvalidRequest, match=r"'saxpy' needs scalar 'n' \(i4\); pass n=\.\.\."):
        SAXPY.pack({"a": 1.0})


def test_none_is_no_value_even_where_there_is_a_default() -> None:
    with pytest.raises(InvalidRequest, match="a=None"):
        SAXPY.pack({"n": 1, "a": None})


def test_an_unknown_scalar_is_named_with_those_that_exist() -> None:
    with pytest.raises(
        InvalidRequest, match=r"no scalar 'alpha' \(given 2\.0\); it takes n: i4, a: f8, trace: b1"
    ):
        SAXPY.pack({"n": 1, "alpha": 2.0})
    with pytest.raises(InvalidRequest, match="it takes none"):
        KernelSpec("noop").pack({"alpha": 2.0})


@pytest.mark.parametrize("dtype", INTEGERS)
def test_integers_are_taken_to_their_limits_and_refused_beyond(dtype: DType) -> None:
    info = np.iinfo(dtype.to_numpy())
    for limit in (int(info.min), int(info.max)):
        assert one(dtype).unpack(one(dtype).pack({"v": limit})) == {"v": limit}
    for beyond in (int(info.min) - 1, int(info.max) + 1, 10**30):
        with pytest.raises(InvalidRequest, match=f"v={beyond}.*give {info.min} to {info.max}"):
            one(dtype).pack({"v": beyond})


@pytest.mark.parametrize("value", [1.0, 1.5, "1", None, [1], np.float32(1), 1j, object()])
def test_what_is_no_integer_is_refused_with_the_remedy(value: object) -> None:
    with pytest.raises(InvalidRequest, match="an integer is wanted"):
        one(DType.I32).pack({"v": value})


@pytest.mark.parametrize("value", ["1.0", b"1", None, [1.0], 1j, np.zeros(1), object()])
@pytest.mark.parametrize("dtype", [DType.F16, DType.F32, DType.F64])
def test_what_is_no_number_is_refused_with_the_remedy(dtype: DType, value: object) -> None:
    with pytest.raises(InvalidRequest, match="a number is wanted"):
        one(dtype).pack({"v": value})


@pytest.mark.parametrize("value", [2, -1, 1.0, "yes", None])
def test_what_is_no_bool_is_refused_with_the_remedy(value: object) -> None:
    with pytest.raises(InvalidRequest, match="give True or False"):
        one(DType.BOOL).pack({"v": value})


@pytest.mark.parametrize(("dtype", "value"), [(DType.F16, 1e6), (DType.F32, 1e39), (DType.F64, 10**400)])
def test_a_finite_number_that_would_become_infinite_is_refused(dtype: DType, value: float) -> None:
    with pytest.raises(InvalidRequest, match=f"out of range for {dtype.name_short}"):
        one(dtype).pack({"v": value})


@pytest.mark.parametrize("dtype", [DType.F16, DType.F32, DType.F64])
def test_nan_and_infinities_are_values(dtype: DType) -> None:
    assert math.isnan(one(dtype).unpack(one(dtype).pack({"v": math.nan}))["v"])
    assert one(dtype).unpack(one(dtype).pack({"v": -math.inf})) == {"v": -math.inf}


@pytest.mark.parametrize("value", [np.int64(3), np.uint8(3), np.bool_(True), True, 3])
def test_numpy_numbers_are_taken_as_python_numbers_are(value: object) -> None:
    assert one(DType.I32).unpack(one(DType.I32).pack({"v": value})) == {"v": int(value)}  # type: ignore[call-overload]
    assert one(DType.F32).unpack(one(DType.F32).pack({"v": value})) == {"v": float(value)}  # type: ignore[arg-type]


@pytest.mark.parametrize("nbytes", [0, 23, 25, 256])
def test_scalars_of_another_size_are_refused_with_the_signature(nbytes: int) -> None:
    with pytest.raises(InvalidRequest, match=f"takes 24 bytes of scalars .n: i4.*the task has {nbytes}"):
        SAXPY.unpack(bytes(nbytes))


def test_as_many_scalars_as_fit_a_task_are_accepted_and_one_more_is_refused() -> None:
    scalars = tuple(ScalarParam(f"s{i}", DType.F64) for i in range(32))
    assert KernelSpec("k", scalars=scalars).args_nbytes == 256
    with pytest.raises(InvalidRequest, match="take 264 bytes, a task has room for 256"):
        KernelSpec("k", scalars=(*scalars, ScalarParam("one_more", DType.I8)))


@pytest.mark.parametrize("name", ["", "a b", "a\n", "tab\t"])
def test_a_kernel_name_that_cannot_be_typed_is_refused(name: str) -> None:
    with pytest.raises(InvalidRequest, match="kernel name"):
        KernelSpec(name)


@pytest.mark.parametrize("name", ["", "a b", "3d", "a-b"])
def test_a_scalar_name_that_is_no_keyword_argument_is_refused(name: str) -> None:
    with pytest.raises(InvalidRequest, match="rename it"):
        KernelSpec("k", scalars=(ScalarParam(name, DType.I8),))


@pytest.mark.parametrize("name", ["priority", "deadline_ns", "device", "share"])
def test_a_scalar_that_submit_would_take_for_a_hint_is_refused(name: str) -> None:
    with pytest.raises(InvalidRequest, match="hint of submit"):
        KernelSpec("k", scalars=(ScalarParam(name, DType.I8),))


def test_repeated_names_are_refused() -> None:
    with pytest.raises(InvalidRequest, match="'a' is taken"):
        KernelSpec("k", scalars=(ScalarParam("a", DType.I8), ScalarParam("a", DType.I8)))
    with pytest.raises(InvalidRequest, match="give each its own name"):
        KernelSpec("k", inputs=(BufferParam("x"), BufferParam("x")))


def test_a_buffer_updated_in_place_may_have_one_name_on_both_sides() -> None:
    assert KernelSpec("k", inputs=(BufferParam("x"),), outputs=(BufferParam("x"),)).inputs[0].name == "x"


def test_more_buffers_than_a_task_holds_are_refused() -> None:
    buffers = tuple(BufferParam(f"b{i}") for i in range(9))
    KernelSpec("k", inputs=buffers, outputs=buffers[:7])
    with pytest.raises(InvalidRequest, match="takes 17 buffers, a task has room for 16"):
        KernelSpec("k", inputs=buffers, outputs=buffers[:8])


@pytest.mark.parametrize("dtype", [DType.BF16, DType.C64, DType.C128])
def test_a_scalar_type_without_a_c_equivalent_is_refused(dtype: DType) -> None:
    with pytest.raises(InvalidRequest, match=f"cannot be of type {dtype.name_short}"):
        one(dtype)


@pytest.mark.parametrize(
    ("dtype", "default"), [(DType.I8, 128), (DType.F32, "x"), (DType.BOOL, 3), (DType.U8, -1)]
)
def test_a_default_that_does_not_fit_is_refused_when_the_kernel_is_made(dtype: DType, default: Any) -> None:
    with pytest.raises(InvalidRequest, match="scalar v="):
        one(dtype, default)


def test_a_spec_is_the_same_after_a_trip_through_text() -> None:
    specs = [
        SAXPY,
        KernelSpec("noop", variadic=True, idempotent=True),
        KernelSpec(
            "model",
            inputs=(BufferParam("x", (DType.F32,), (None, 3, 224)),),
            outputs=(BufferParam("y", (), ()),),
        ),
    ]
    for spec in specs:
        assert KernelSpec.from_text(spec.to_text()) == spec
        assert "\n" not in spec.to_text()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "3",
        "null",
        "{}",
        '{"name": 3}',
        '{"name": "k", "inputs": [{}]}',
        '{"name": "k", "inputs": [3]}',
        '{"name": "k", "inputs": 3}',
        '{"name": "k", "inputs": [{"name": "x", "dtypes": ["f3"]}]}',
        '{"name": "k", "inputs": [{"name": "x", "dtypes": [{}]}]}',
        '{"name": "k", "inputs": [{"name": "x", "shape": ["a"]}]}',
        '{"name": "k", "scalars": [{"name": "a", "dtype": "f4", "default": "x"}]}',
        '{"name": "k", "scalars": [{"name": 7, "dtype": "f4"}]}',
        '{"name": "k", "variadic": 1}',
        "[" * 100_000,
    ],
)
def test_text_that_describes_no_kernel_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest):
        KernelSpec.from_text(text)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


@given(
    st.fixed_dictionaries(
        {"name": st.just("k") | json_values},
        optional={
            field: json_values
            | st.lists(st.fixed_dictionaries({"name": json_values}, optional={"dtype": json_values}))
            for field in ("inputs", "outputs", "scalars", "variadic", "idempotent", "doc")
        },
    )
)
def test_any_json_is_read_as_a_spec_or_refused(fields: dict[str, Any]) -> None:
    try:
        spec = KernelSpec.from_text(json.dumps(fields))
    except InvalidRequest:
        return
    assert KernelSpec.from_text(spec.to_text()) == spec
