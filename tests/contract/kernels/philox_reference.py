"""Philox4x32-10 and the numbers made of it, written a second time in NumPy from the paper and the definition.

J. K. Salmon, M. A. Moraes, R. O. Dror, D. E. Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC'11.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

U4, U8 = np.uint32, np.uint64
PUBLISHED = (
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
)
"""Known answers of the authors' library Random123: counter, key, result."""


def philox(counter: NDArray[np.uint32], key: tuple[int, int]) -> NDArray[np.uint32]:
    """Ten rounds on counters of shape (n, 4)."""
    c = [counter[:, i].astype(U8) for i in range(4)]
    low, high = key
    for _ in range(10):
        even, odd = c[0] * U8(0xD2511F53), c[2] * U8(0xCD9E8D57)
        mask, shift = U8(0xFFFFFFFF), U8(32)
        c = [(odd >> shift) ^ c[1] ^ U8(low), odd & mask, (even >> shift) ^ c[3] ^ U8(high), even & mask]
        low, high = (low + 0x9E3779B9) % 2**32, (high + 0xBB67AE85) % 2**32
    return np.stack(c, axis=1).astype(U4)


def words(first_block: int, blocks: int, seed: int, stream: int) -> NDArray[np.uint32]:
    """Words of blocks, shape (blocks, 4)."""
    index = U8(first_block) + np.arange(blocks, dtype=U8)
    counter = np.empty((blocks, 4), U4)
    counter[:, 0] = (index & U8(0xFFFFFFFF)).astype(U4)
    counter[:, 1] = (index >> U8(32)).astype(U4)
    counter[:, 2] = stream % 2**32
    counter[:, 3] = stream >> 32
    return philox(counter, (seed % 2**32, seed >> 32))


def _blocks_of(
    n: int, per_block: int, seed: int, stream: int, offset: int
) -> tuple[NDArray[np.uint32], slice]:
    first = offset // per_block
    blocks = (offset + n + per_block - 1) // per_block - first
    begin = offset - first * per_block
    return words(first, blocks, seed, stream), slice(begin, begin + n)


def uniform(n: int, dtype: str, seed: int, stream: int, offset: int) -> NDArray[np.floating]:
    """Numbers offset to offset + n in [0, 1)."""
    w, part = _blocks_of(n, 16 // np.dtype(dtype).itemsize, seed, stream, offset)
    if dtype == "f4":
        return ((w >> U4(8)).astype("f4") * np.float32(2**-24)).reshape(-1)[part]
    high, low = (w[:, ::2] >> U4(5)).astype("f8"), (w[:, 1::2] >> U4(6)).astype("f8")
    return ((high * 2.0**26 + low) * 2.0**-53).reshape(-1)[part]


def normal(n: int, dtype: str, seed: int, stream: int, offset: int) -> NDArray[np.floating]:
    """Numbers offset to offset + n, normally distributed."""
    w, part = _blocks_of(n, 16 // np.dtype(dtype).itemsize, seed, stream, offset)
    pairs = _normal_f4(w.reshape(-1, 2)) if dtype == "f4" else _normal_f8(w)
    return pairs.reshape(-1)[part]


def _normal_f4(w: NDArray[np.uint32]) -> NDArray[np.float32]:
    f4 = np.float32
    u = (w[:, 0] >> U4(1)).astype("i4").astype("f4") * f4(2**-31) + f4(2**-32)
    bits = u.view("i4")
    e = (bits - np.int32(0x3F3504F3)) >> np.int32(23)
    f = (bits - e * np.int32(0x800000)).view("f4") - f4(1)
    p = np.full_like(f, f4(-0.07634493))
    for k in (0.12761575, -0.13160183, 0.14201759, -0.16623357, 0.20001227, -0.2500082, 0.3333333):
        p = p * f + f4(k)
    p = f + f * f * (f * p - f4(0.5))
    p = (e.astype("f4") * f4(-2.12194440e-4) + p) + e.astype("f4") * f4(0.693359375)
    radius = np.sqrt(f4(-2) * p)
    quarter = (w[:, 1] + U4(0x20000000)) >> U4(30)
    x = (w[:, 1] - (quarter << U4(30))).view("i4").astype("f4") * f4(np.pi / 2 / 2**30)
    xx = x * x
    sine = x + x * xx * (f4(-1 / 6) + xx * (f4(1 / 120) + xx * (f4(-1 / 5040) + xx * f4(1 / 362880))))
    cosine = f4(1) + xx * (f4(-0.5) + xx * (f4(1 / 24) + xx * (f4(-1 / 720) + xx * f4(1 / 40320))))
    return _turned(radius, quarter, sine, cosine)


def _normal_f8(w: NDArray[np.uint32]) -> NDArray[np.float64]:
    long = w.astype(U8)
    u = ((long[:, 0] << U8(32) | long[:, 1]) >> U8(12)).astype("f8") * 2.0**-52 + 2.0**-53
    bits = u.view("i8")
    e = ((bits >> 32).astype("i4") - np.int32(0x3FE6A09E)) >> np.int32(20)
    f = (bits - (e.astype("i8") << 52)).view("f8") - 1.0
    s = f / (2.0 + f)
    ss = s * s
    p = np.full_like(s, 1 / 21)
    for k in range(19, 1, -2):
        p = p * ss + 1.0 / k
    p = 2.0 * s + 2.0 * s * (ss * p)
    p = (e * 1.90821492927058770002e-10 + p) + e * 6.93147180369123816490e-01
    radius = np.sqrt(-2.0 * p)
    angle = long[:, 2] << U8(32) | long[:, 3]
    quarter = (angle + U8(2**61)) >> U8(62)
    x = ((angle - (quarter << U8(62))).view("i8") >> 11).astype("f8") * (np.pi / 2 / 2**51)
    xx = x * x
    sine = x + x * xx * _taylor(xx, 17, 3)
    cosine = 1.0 + xx * _taylor(xx, 16, 2)
    return _turned(radius, quarter.astype(U4), sine, cosine)


def _taylor(xx: NDArray[np.float64], last: int, first: int) -> NDArray[np.float64]:
    """Alternating series of x^2 with coefficients 1 / k! for k = first, first + 2, ..., last, from its end."""
    factorial = {k: float(np.prod(np.arange(1, k + 1, dtype="f8"))) for k in range(first, last + 1)}
    p = np.full_like(xx, 1.0 / factorial[last])
    sign = -1.0
    for k in range(last - 2, first - 1, -2):
        p = p * xx + sign / factorial[k]
        sign = -sign
    return p


def _turned(
    radius: NDArray[np.floating],
    quarter: NDArray[np.uint32],
    sine: NDArray[np.floating],
    cosine: NDArray[np.floating],
) -> NDArray[np.floating]:
    swap = (quarter & U4(1)) != 0
    first, second = np.where(swap, sine, cosine), np.where(swap, cosine, sine)
    first = np.where(((quarter + U4(1)) & U4(2)) != 0, -first, first)
    second = np.where((quarter & U4(2)) != 0, -second, second)
    return np.stack([radius * first, radius * second], axis=1)
