"""Element types of buffers and scalars; the numbers are part of the C interface (``include/polymux.h``)."""

from __future__ import annotations

from enum import IntEnum
from typing import Any

import numpy as np

from polymux.core.errors import InvalidRequest


class DType(IntEnum):
    """An element type; the member's name gives its width in bits, `name_short` in bytes as NumPy does."""

    BOOL = 0
    I8 = 1
    I16 = 2
    I32 = 3
    I64 = 4
    U8 = 5
    U16 = 6
    U32 = 7
    U64 = 8
    F16 = 9
    F32 = 10
    F64 = 11
    BF16 = 12
    C64 = 13
    C128 = 14

    @property
    def itemsize(self) -> int:
        """Size of one element in bytes."""
        return _ITEMSIZE[self]

    @property
    def name_short(self) -> str:
        """NumPy's short name, kind and bytes (``"f4"``, ``"i8"``, ``"b1"``); bfloat16 is ``"bf16"``."""
        return _SHORT[self]

    @property
    def is_integer(self) -> bool:
        """Whether it is a signed or unsigned integer (bool is not)."""
        return DType.I8 <= self <= DType.U64

    @property
    def is_float(self) -> bool:
        """Whether it is a real floating point type."""
        return DType.F16 <= self <= DType.BF16

    @classmethod
    def parse(cls, text: str) -> DType:
        """Read a NumPy name, short (``"f4"``, ``"<f4"``) or long (``"float32"``), or ``"bf16"``.

        Raises
        ------
        InvalidRequest
            If it names no element type of Polymux.
        """
        found = _PARSE.get(text)
        if found is None:
            found = _PARSE.get(text.removeprefix("<").removeprefix("=").removeprefix("|"))
        if found is None:
            raise InvalidRequest(
                f"element type {text!r} is unknown; give one of {', '.join(_SHORT.values())}"
            )
        return found

    @classmethod
    def from_numpy(cls, dtype: Any) -> DType:
        """Translate a NumPy dtype, or anything that `numpy.dtype` takes.

        Raises
        ------
        InvalidRequest
            If Polymux has no such type (strings, objects, structures, other byte order, long double).
        """
        if type(dtype) is str and dtype in _PARSE:
            return _PARSE[dtype]
        try:
            described = np.dtype(dtype)
        except TypeError as error:
            raise InvalidRequest(f"element type {dtype!r} is unknown to NumPy ({error})") from None
        found = _PARSE.get(described.name) if described.isnative else None
        if found is None:
            remedy = "convert with array.astype(...) to one of " + ", ".join(_SHORT.values())
            raise InvalidRequest(f"buffers of NumPy type {described!r} are not supported; {remedy}")
        return found

    def to_numpy(self) -> np.dtype[Any]:
        """Translate to a NumPy dtype.

        Raises
        ------
        InvalidRequest
            For BF16 while no package has taught NumPy its bfloat16 (``import ml_dtypes`` does).
        """
        try:
            return np.dtype(_NUMPY[self])
        except TypeError:
            raise InvalidRequest(
                "NumPy alone has no bfloat16: import the package ml_dtypes first, or view the buffer as 'u2'"
            ) from None


_TABLE: tuple[tuple[DType, int, str, str], ...] = (
    (DType.BOOL, 1, "b1", "bool"),
    (DType.I8, 1, "i1", "int8"),
    (DType.I16, 2, "i2", "int16"),
    (DType.I32, 4, "i4", "int32"),
    (DType.I64, 8, "i8", "int64"),
    (DType.U8, 1, "u1", "uint8"),
    (DType.U16, 2, "u2", "uint16"),
    (DType.U32, 4, "u4", "uint32"),
    (DType.U64, 8, "u8", "uint64"),
    (DType.F16, 2, "f2", "float16"),
    (DType.F32, 4, "f4", "float32"),
    (DType.F64, 8, "f8", "float64"),
    (DType.BF16, 2, "bf16", "bfloat16"),
    (DType.C64, 8, "c8", "complex64"),
    (DType.C128, 16, "c16", "complex128"),
)
_ITEMSIZE = {dtype: itemsize for dtype, itemsize, _, _ in _TABLE}
_SHORT = {dtype: short for dtype, _, short, _ in _TABLE}
_NUMPY = {dtype: name for dtype, _, _, name in _TABLE}
_PARSE = {name: dtype for dtype, _, short, long in _TABLE for name in (short, long)}
