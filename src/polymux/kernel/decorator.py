"""Registering a Python function as a kernel."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from polymux.core.dtype import DType
from polymux.core.errors import InvalidRequest
from polymux.core.implementation import PythonFunction
from polymux.core.kernel_spec import BufferParam, KernelSpec, ScalarParam
from polymux.kernel.definition import Definition

Function = TypeVar("Function", bound=Callable[..., Any])

_ATTRIBUTE = "__polymux_kernel__"


def kernel(
    name: str,
    *,
    inputs: str | Iterable[str | BufferParam] = (),
    outputs: str | Iterable[str | BufferParam] = (),
    scalars: Mapping[str, str | DType] | None = None,
    dtypes: str | Iterable[str | DType] = (),
    parallel: bool = False,
    idempotent: bool = False,
) -> Callable[[Function], Function]:
    """Make a Python function a kernel for cpu devices.

    The function is called as ``function(*inputs, *outputs, **scalars)`` with NumPy arrays over the buffers' memory.
    It writes its outputs in place (``y[...] = ...``) and returns None, or the outputs' actual shapes as a list of
    tuples where a result is smaller than its buffer. It stays an ordinary function otherwise.

    Parameters
    ----------
    name : str
        The kernel's name.
    inputs, outputs : str, or iterable of str or BufferParam
        Buffers in order; a `BufferParam` gives dtypes and shape of its own.
    scalars : mapping of str to str or DType, optional
        Type of each scalar, such as ``{"a": "f4"}``; its default is that of the function's parameter.
    dtypes : str, or iterable of str or DType
        Types that the buffers given by name alone accept; empty: any.
    parallel : bool
        The function also takes the keyword ``team`` (`polymux.kernel.Team`).
    idempotent : bool
        Running it twice on the same inputs leaves the same outputs.

    Raises
    ------
    InvalidRequest
        If the parameters cannot be those of a kernel, or the function does not take them.

    Examples
    --------
    >>> @kernel("scale", inputs=["x"], outputs=["y"], scalars={"a": "f8"}, dtypes=["f4", "f8"])
    ... def scale(x, y, a=2.0):
    ...     y[...] = a * x
    """
    accepted = tuple(_dtype(dtype) for dtype in ([dtypes] if isinstance(dtypes, str) else dtypes))
    buffers = [
        tuple(
            param if isinstance(param, BufferParam) else BufferParam(param, accepted)
            for param in ([params] if isinstance(params, str) else params)
        )
        for params in (inputs, outputs)
    ]

    def decorate(function: Function) -> Function:
        extra = ("team",) if parallel else ()
        defaults = _defaults(name, function, len(buffers[0]) + len(buffers[1]), tuple(scalars or ()) + extra)
        spec = KernelSpec(
            name=name,
            inputs=buffers[0],
            outputs=buffers[1],
            scalars=tuple(
                ScalarParam(scalar, _dtype(dtype), defaults.get(scalar))
                for scalar, dtype in (scalars or {}).items()
            ),
            idempotent=idempotent,
            doc=inspect.getdoc(function) or "",
        )
        setattr(function, _ATTRIBUTE, Definition(spec, (PythonFunction(function, parallel),)))
        return function

    return decorate


def definition_of(function: object) -> Definition | None:
    """Return what `kernel` has made of a function; None for anything else."""
    found = getattr(function, _ATTRIBUTE, None) if inspect.isfunction(function) else None
    return found if isinstance(found, Definition) else None


def _dtype(dtype: str | DType) -> DType:
    return dtype if isinstance(dtype, DType) else DType.parse(dtype)


def _defaults(
    name: str, function: Callable[..., Any], n_buffers: int, keywords: tuple[str, ...]
) -> dict[str, Any]:
    """Check that the function can be called with the kernel's parameters; return its keywords' defaults."""
    signature = inspect.signature(function)
    try:
        signature.bind(*range(n_buffers), **dict.fromkeys(keywords))
    except TypeError as error:
        raise InvalidRequest(
            f"kernel {name!r}: function {function.__name__}{signature} cannot be called with {n_buffers} buffers"
            f" and the keywords {', '.join(keywords) or '(none)'}: {error}"
        ) from None
    return {
        key: parameter.default
        for key, parameter in signature.parameters.items()
        if key in keywords and parameter.default is not inspect.Parameter.empty
    }
