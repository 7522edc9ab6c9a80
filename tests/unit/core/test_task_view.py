"""The size of an array is computed without overflow."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from polymux.core.dtype import DType
from polymux.core.errors import InvalidRequest
from polymux.core.task_view import MAX_NBYTES, MAX_RANK, shape_nbytes

ANY = st.sampled_from([dtype for dtype in DType if dtype is not DType.BF16])


@given(st.lists(st.integers(0, 5), max_size=5), ANY)
def test_the_size_is_numpys(shape: list[int], dtype: DType) -> None:
    assert shape_nbytes(shape, dtype) == np.empty(shape, dtype.to_numpy()).nbytes


@given(st.lists(st.integers(0, 2**70), max_size=MAX_RANK), ANY)
def test_a_size_is_exact_or_refused(shape: list[int], dtype: DType) -> None:
    exact = dtype.itemsize
    for extent in shape:
        exact *= extent
    try:
        assert shape_nbytes(shape, dtype) == exact
        assert exact <= MAX_NBYTES
    except InvalidRequest as error:
        assert str(tuple(shape)) in str(error)  # noqa: PT017
        assert exact > MAX_NBYTES or 0 in shape


@pytest.mark.parametrize("shape", [(2**62,), (2**32, 2**32), (2**63, 0), (2**21, 2**21, 2**21)])
def test_a_product_that_overflows_is_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(InvalidRequest, match="bytes; at most"):
        shape_nbytes(shape, DType.F32)


def test_the_largest_size_that_fits_is_accepted() -> None:
    assert shape_nbytes((MAX_NBYTES,), DType.U8) == MAX_NBYTES
    assert shape_nbytes((), DType.C128) == 16


@pytest.mark.parametrize("shape", [(-1,), (3, -2, 0)])
def test_a_negative_extent_is_refused_by_name(shape: tuple[int, ...]) -> None:
    with pytest.raises(InvalidRequest, match=f"negative extent {min(shape)}"):
        shape_nbytes(shape, DType.F32)


def test_too_many_dimensions_are_refused() -> None:
    assert shape_nbytes((1,) * MAX_RANK, DType.U8) == 1
    with pytest.raises(InvalidRequest, match="9 dimensions; at most 8"):
        shape_nbytes((1,) * (MAX_RANK + 1), DType.U8)
