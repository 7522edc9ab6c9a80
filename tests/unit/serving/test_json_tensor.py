from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from polymux.core.dtype import DType
from polymux.serving.errors import RequestError
from polymux.serving.json_tensor import to_array

INTEGERS = [t for t in DType if t.is_integer]
FLOATS = [DType.F16, DType.F32, DType.F64]


def refusal(data: Any, dtype: DType, shape: tuple[int, ...]) -> str:
    with pytest.raises(RequestError) as caught:
        to_array("x", data, dtype, shape)
    assert caught.value.status == 400
    assert "'x'" in caught.value.message
    return caught.value.message


@pytest.mark.parametrize("dtype", INTEGERS)
def test_the_bounds_of_every_integer_type_are_kept_and_one_beyond_is_refused(dtype: DType) -> None:
    bounds = np.iinfo(dtype.to_numpy())
    assert to_array("x", [bounds.min, bounds.max], dtype, (2,)).tolist() == [bounds.min, bounds.max]
    for beyond in (bounds.min - 1, bounds.max + 1):
        assert "element 1" in refusal([0, beyond], dtype, (2,))


@pytest.mark.parametrize("dtype", INTEGERS)
@pytest.mark.parametrize("wrong", [1.5, 1.0, True, None, "1", [1], {"a": 1}, math.nan, 2.0**70])
def test_what_is_not_an_integer_is_refused_for_integers(dtype: DType, wrong: Any) -> None:
    assert "element 1" in refusal([1, wrong], dtype, (2,))


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("wrong", [True, None, "1.0", "NaN", [1.0], {}])
def test_what_is_not_a_number_is_refused_for_floats(dtype: DType, wrong: Any) -> None:
    assert "element 1" in refusal([1.0, wrong], dtype, (2,))


@pytest.mark.parametrize(
    ("dtype", "beyond"), [(DType.F16, 70000.0), (DType.F32, 1e39), (DType.F32, -1e39), (DType.F64, 10**400)]
)
def test_a_number_beyond_a_float_types_range_is_refused_instead_of_becoming_infinite(
    dtype: DType, beyond: float
) -> None:
    assert "element 0" in refusal([beyond, 1.0], dtype, (2,))


@pytest.mark.parametrize("dtype", FLOATS)
def test_floats_keep_nan_infinity_and_integers(dtype: DType) -> None:
    array = to_array("x", [math.nan, math.inf, -math.inf, 3], dtype, (4,))
    assert array.dtype == dtype.to_numpy()
    np.testing.assert_array_equal(array, np.array([np.nan, np.inf, -np.inf, 3], dtype.to_numpy()))


def test_booleans_are_true_false_one_and_zero() -> None:
    assert to_array("x", [True, False, 1, 0], DType.BOOL, (4,)).tolist() == [True, False, True, False]
    for wrong in (2, -1, 1.0, "true", None):
        assert "element 1" in refusal([True, wrong], DType.BOOL, (2,))


def test_bf16_is_refused_with_the_remedy() -> None:
    assert "binary" in refusal([1.0], DType.BF16, (1,))


@given(st.lists(st.integers(0, 4), max_size=4).map(tuple), st.booleans())
def test_flat_and_nested_data_give_the_same_elements(shape: tuple[int, ...], nested: bool) -> None:
    expected = np.arange(math.prod(shape), dtype=np.int32).reshape(shape)
    data = expected.tolist() if nested else expected.reshape(-1).tolist()
    array = to_array("x", data, DType.I32, shape)
    assert array.shape == (expected.size,)
    assert array.tolist() == expected.reshape(-1).tolist()


@pytest.mark.parametrize(
    ("data", "shape"),
    [
        ([1, 2, 3], (2,)),
        ([], (1,)),
        ([1], (0,)),
        ([1], (2**40,)),
        ([[1, 2], [3]], (2, 2)),
        ([[1, 2], [3]], (3,)),
        ([[1, 2, 3, 4]], (2, 2)),
        ([[1], [2]], (1, 2)),
        ([[1, 2], 3], (2, 2)),
        ([[[1]]], (1, 1)),
        ([1, 2], ()),
        (1, (1,)),
        ("1", (1,)),
        ({"0": 1}, (1,)),
    ],
)
def test_data_that_does_not_fit_the_shape_is_refused(data: Any, shape: tuple[int, ...]) -> None:
    refusal(data, DType.I32, shape)


def test_a_scalar_comes_bare_or_as_a_list_of_one() -> None:
    assert to_array("x", 16000, DType.I64, ()).tolist() == [16000]
    assert to_array("x", [16000], DType.I64, ()).tolist() == [16000]
