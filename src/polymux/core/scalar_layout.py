"""How scalars lie in memory: as the members of a C struct."""

from __future__ import annotations

import struct
from collections.abc import Iterable

import numpy as np

from polymux.core.dtype import DType

# "=": the sizes of the C types and native byte order, and a float that overflows is an error
FORMAT = {
    DType.BOOL: "=?",
    DType.I8: "=b",
    DType.I16: "=h",
    DType.I32: "=i",
    DType.I64: "=q",
    DType.U8: "=B",
    DType.U16: "=H",
    DType.U32: "=I",
    DType.U64: "=Q",
    DType.F16: "=e",
    DType.F32: "=f",
    DType.F64: "=d",
}


def struct_layout(members: Iterable[tuple[str, DType]]) -> tuple[tuple[tuple[str, DType, int], ...], int]:
    """Offsets and size of the C struct with these members, in order and naturally aligned."""
    placed = []
    end, widest = 0, 1
    for name, dtype in members:
        size = dtype.itemsize
        offset = -(-end // size) * size
        placed.append((name, dtype, offset))
        end, widest = offset + size, max(widest, size)
    return tuple(placed), -(-end // widest) * widest


def convert(dtype: DType, value: object) -> float | int | bool:
    """Turn `value` into what `struct` packs without surprise, or say in a `ValueError` why it cannot be."""
    if isinstance(value, np.generic):
        value = value.item()
    if dtype is DType.BOOL:
        if isinstance(value, bool) or (isinstance(value, int) and value in (0, 1)):
            return bool(value)
        raise ValueError("a bool is wanted; give True or False")
    if dtype.is_integer:
        if not isinstance(value, int):
            raise ValueError(f"an integer is wanted ({dtype.name_short}); give an int")
        bits = 8 * dtype.itemsize
        low, high = (
            (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if dtype <= DType.I64 else (0, (1 << bits) - 1)
        )
        if not low <= value <= high:
            raise ValueError(f"out of range for {dtype.name_short}; give {low} to {high}")
        return value
    if not isinstance(value, (int, float)):
        raise ValueError(f"a number is wanted ({dtype.name_short}); give a float")
    try:
        number = float(value)
        struct.pack(FORMAT[dtype], number)
    except OverflowError:
        limit = np.finfo(dtype.to_numpy()).max
        raise ValueError(
            f"out of range for {dtype.name_short}; give at most {limit:g} in magnitude"
        ) from None
    return number
