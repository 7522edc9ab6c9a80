"""Element types translate to NumPy and back, and everything else is refused by name."""

from __future__ import annotations

import numpy as np
import pytest

from polymux.core.dtype import DType
from polymux.core.errors import InvalidRequest

IN_NUMPY = [dtype for dtype in DType if dtype is not DType.BF16]


@pytest.mark.parametrize("dtype", IN_NUMPY)
def test_a_type_translates_to_numpy_and_back(dtype: DType) -> None:
    described = dtype.to_numpy()
    assert described.itemsize == dtype.itemsize
    assert described.isnative
    assert DType.from_numpy(described) is dtype
    assert DType.from_numpy(described.type) is dtype
    assert np.dtype(dtype.name_short) == described


@pytest.mark.parametrize("dtype", DType)
def test_short_and_long_names_are_read(dtype: DType) -> None:
    assert DType.parse(dtype.name_short) is dtype
    assert DType.parse("<" + dtype.name_short) is dtype
    if dtype in IN_NUMPY:
        assert DType.parse(dtype.to_numpy().name) is dtype
        assert DType.parse(dtype.to_numpy().str) is dtype


def test_short_names_count_bytes_while_members_count_bits() -> None:
    assert DType.parse("i8") is DType.I64
    assert DType.parse("f4") is DType.F32


@pytest.mark.parametrize("name", ["", "f3", "I8", "F32", "object", ">f4", "<<f4", "float128", "half"])
def test_an_unknown_name_is_refused_with_the_known_ones(name: str) -> None:
    with pytest.raises(InvalidRequest, match=r"is unknown; give one of b1, i1.*c16") as caught:
        DType.parse(name)
    assert repr(name) in str(caught.value)


@pytest.mark.parametrize("described", ["O", "U3", "S3", "M8[ns]", ">f4", ">i2", [("x", "f4")], np.longdouble])
def test_a_numpy_type_that_no_device_knows_is_refused_with_the_remedy(described: object) -> None:
    with pytest.raises(InvalidRequest, match="astype"):
        DType.from_numpy(described)


def test_what_numpy_does_not_know_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="'no such type'"):
        DType.from_numpy("no such type")


def test_each_type_is_at_most_one_kind_of_number() -> None:
    integers = {dtype for dtype in DType if dtype.is_integer}
    floats = {dtype for dtype in DType if dtype.is_float}
    assert not integers & floats
    assert set(DType) - integers - floats == {DType.BOOL, DType.C64, DType.C128}


def test_bfloat16_without_its_package_is_refused_with_the_remedy() -> None:
    try:
        described = DType.BF16.to_numpy()
    except InvalidRequest as error:
        assert "ml_dtypes" in str(error)  # noqa: PT017
    else:  # some package that is installed here has registered it
        assert DType.from_numpy(described) is DType.BF16
