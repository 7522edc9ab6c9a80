"""Sizes as people write them."""

from __future__ import annotations

import re
from decimal import Decimal

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*(B|KiB|MiB|GiB|TiB|kB|MB|GB|TB)?")
_FACTORS = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}
_FACTORS |= {"kB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}


def parse_nbytes(text: str) -> int:
    """Read a size: ``"1048576"``, ``"512MiB"``, ``"1.5GB"``.

    Raises
    ------
    ValueError
        If it is none, or not positive.
    """
    found = _SIZE.fullmatch(text.strip())
    nbytes = int(Decimal(found[1]) * _FACTORS[found[2] or "B"]) if found else 0
    if nbytes < 1:
        raise ValueError("give a number of bytes, or one with a unit such as 512MiB or 4GiB")
    return nbytes
