"""The ways to compute a chunk, by name and number."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from typing import Literal

from polymux.core.errors import InvalidRequest
from polymux.kernel.chunks import native_chunk

Precision = Literal["own", "tf32", "bf16", "fp16"]


@dataclass(frozen=True, slots=True)
class Method:
    """A way to compute chunks.

    Parameters
    ----------
    name : str
    number : int
        Value of the scalar ``method``; part of what calibration stores, so it never changes.
    api : str
        The device API that has it.
    precision : {"own", "tf32", "bf16", "fp16"}
        What factors are rounded to; "own": the arrays' own type. Sums are of single precision or better.
    package : str
        Without which it is not there; empty: it needs none.
    """

    name: str
    number: int
    api: str
    precision: Precision = "own"
    package: str = ""

    @property
    def is_installed(self) -> bool:
        """Whether this machine has what it needs."""
        return not self.missing

    @property
    def missing(self) -> str:
        """What it needs that is not here; empty when it can be used."""
        if self.package and importlib.util.find_spec(self.package) is None:
            return f"the package {self.package}"
        if self.name == "native-bf16" and not native_chunk.is_there():
            return "a processor with instructions for bfloat16 (avx512_bf16)"
        return ""


METHODS = (
    Method("numpy", 1, "cpu"),
    Method("onnxruntime", 2, "cpu", package="onnxruntime"),
    Method("torch", 3, "cpu", package="torch"),
    Method("native-bf16", 5, "cpu", "bf16"),
    Method("torch-bf16", 4, "cpu", "bf16", "torch"),
    Method("tiles", 10, "opencl"),
    Method("packed", 11, "opencl"),
    Method("cublas", 20, "cuda", package="cupy"),
    Method("cublas-tf32", 21, "cuda", "tf32", "cupy"),
    Method("cublas-fp16", 22, "cuda", "fp16", "cupy"),
    Method("cublas-bf16", 23, "cuda", "bf16", "cupy"),
)
"""All of them; ``method=0`` means the first of an API and precision that is here."""


def methods_of(api: str, precision: Precision) -> tuple[Method, ...]:
    """Methods of a device API and precision, the default first."""
    return tuple(method for method in METHODS if (method.api, method.precision) == (api, precision))


def choose(number: int, api: str, precision: Precision) -> Method:
    """Find the method of a number for a kernel; 0 is the default.

    Raises
    ------
    InvalidRequest
        If there is none of that number, for that API and precision, or what it needs is not here.
    """
    offered = methods_of(api, precision)
    wanted = [method for method in offered if number in (0, method.number)]
    if not wanted:
        names = ", ".join(f"{method.number} ({method.name})" for method in offered) or "none"
        raise InvalidRequest(f"method is {number}, expected 0 (the default) or one of {names}")
    found = next((method for method in wanted if method.is_installed), None)
    if found is None:
        needs = "; ".join(f"method {method.name} needs {method.missing}" for method in wanted)
        raise InvalidRequest(f"{needs}; use another device or kernel")
    return found
