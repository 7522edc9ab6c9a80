"""The matrix product and convolution as functions of arrays, on a session of the process or a given one."""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from polymux.coexec.convolution import CONV2D, group_count, pair
from polymux.coexec.matrix_product import FLOATS, MATMUL
from polymux.coexec.operation import Array
from polymux.coexec.session import ObjectiveLike, Session
from polymux.core.errors import InvalidRequest
from polymux.perfmodel.coexec.precision import Precision

_lock = threading.Lock()
_session: Session | None = None
_owner = 0


def default_session() -> Session:
    """Return the session of this process, on a connection of its own; opened by the first call.

    Notes
    -----
    Joins the running server, or starts the runtime inside the process (`polymux.connect`). When the server went away,
    the next call connects again.
    """
    global _session, _owner
    with _lock:
        gone = _session is not None and (_session.client.closed or _session.client.server_gone)
        if _session is None or gone or _owner != os.getpid():
            from polymux import (
                connect,
            )  # the library's front, which puts this module's row together with the server

            if gone and _session is not None and _owner == os.getpid():
                _session.client.close()
            _session, _owner = Session(connect(name="coexec")), os.getpid()
        return _session


def _close_default() -> None:
    global _session
    if _session is not None and _owner == os.getpid() and not _session.client.closed:
        if not _session.client.server_gone:
            _session.close()
        _session.client.close()
    _session = None


atexit.register(_close_default)


def matmul(
    a: npt.ArrayLike,
    b: npt.ArrayLike,
    out: Array | None = None,
    *,
    objective: ObjectiveLike = "time",
    devices: Collection[str] | None = None,
    precision: Precision | None = None,
    session: Session | None = None,
) -> Any:
    """Compute the matrix product ``a @ b`` on all devices together.

    Parameters
    ----------
    a, b : array_like
        As `numpy.matmul` takes them: vectors, matrices, stacks of matrices. Arrays in shared memory (`Session.array`,
        or results of earlier calls) are used where they are, others are copied there.
    out : ndarray, optional
        For the result.
    objective : {"time", "energy"}, mapping or Objective
        What to minimise; weights as ``{"time": 1, "energy": 0.01}``, in s and J.
    devices : collection of str, optional
        Devices ("cpu:0"), streams ("opencl:0/1") or units that may be used; all by default.
    precision : {"tf32", "bf16", "fp16"}, optional
        The lowest precision that parts of the result may be computed in. `polymux.coexec.error_bound` says what that
        may cost: |result - exact| <= bound * (|a| @ |b|).
    session : Session, optional
        By default the process has one.

    Returns
    -------
    ndarray or scalar
        As `numpy.matmul`; the last places depend on which device computed them.

    Raises
    ------
    InvalidRequest
        For shapes that do not fit, and when no device may compute it.
    SegmentFull
        When the arrays have no room in shared memory.

    Notes
    -----
    Floats of 32 and 64 bits are computed by the devices. Other numbers, for which no device is faster, are left to
    `numpy.matmul` in the calling thread.
    """
    left, right = np.asanyarray(a), np.asanyarray(b)
    if not left.ndim or not right.ndim or left.shape[-1] != right.shape[-2 if right.ndim > 1 else 0]:
        raise InvalidRequest(
            f"matmul of shapes {left.shape} and {right.shape}: the last extent of the first must be the last but one of"
            " the second"
        )
    dtype = np.result_type(left, right)
    if dtype.name not in FLOATS:
        return np.matmul(left, right) if out is None else np.matmul(left, right, out=out)
    left, right = left.astype(dtype, copy=False), right.astype(dtype, copy=False)
    used = session or default_session()

    def product(x: Array, y: Array, into: Array | None = None) -> Array:
        wanted = None if into is None else (into,)
        (result,) = used.run(
            MATMUL, x, y, out=wanted, objective=objective, devices=devices, precision=precision
        )
        return result

    if left.ndim == 2 and right.ndim == 2:
        return product(left, right, out)
    result = _stacked(left, right, product)
    if out is None:
        return result
    if out.shape != result.shape or out.dtype != result.dtype:
        raise InvalidRequest(f"out is {out.dtype}{list(out.shape)}; give {result.dtype}{list(result.shape)}")
    out[...] = result
    return out


def conv2d(
    x: npt.ArrayLike,
    weight: npt.ArrayLike,
    bias: npt.ArrayLike | None = None,
    *,
    stride: int | Sequence[int] = 1,
    padding: int | Sequence[int] = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
    out: Array | None = None,
    objective: ObjectiveLike = "time",
    devices: Collection[str] | None = None,
    precision: Precision | None = None,
    session: Session | None = None,
) -> Array:
    """Convolve images on all devices together: correlation, as neural networks use it.

    Parameters
    ----------
    x : array_like, shape (N, C, H, W)
    weight : array_like, shape (O, C / groups, kernel_h, kernel_w)
    bias : array_like, shape (O,), optional
        Added to the outputs.
    stride, padding, dilation : int or two
        For height and width.
    groups : int
    out, objective, devices, precision, session
        As for `matmul`.

    Returns
    -------
    ndarray, shape (N, O, P, Q)
        With P = (H + 2 padding - dilation (kernel_h - 1) - 1) // stride + 1, and Q likewise.

    Raises
    ------
    InvalidRequest
        For shapes, parameters or dtypes that do not fit.
    SegmentFull
        When the arrays have no room in shared memory.
    """
    images, filters = np.asanyarray(x), np.asanyarray(weight)
    dtype = np.result_type(images, filters)
    if dtype.name not in FLOATS:
        raise InvalidRequest(f"conv2d of {images.dtype} and {filters.dtype}: give float32 or float64 arrays")
    added = None if bias is None else np.asarray(bias, dtype)
    if added is not None and added.shape != filters.shape[:1]:
        raise InvalidRequest(f"conv2d with a bias of shape {added.shape}: give {filters.shape[:1]}")
    (result,) = (session or default_session()).run(
        CONV2D,
        images.astype(dtype, copy=False),
        filters.astype(dtype, copy=False),
        out=None if out is None else (out,),
        objective=objective,
        devices=devices,
        precision=precision,
        stride=pair(stride, "stride"),
        padding=pair(padding, "padding"),
        dilation=pair(dilation, "dilation"),
        groups=group_count(groups),
    )
    if added is not None:
        result += added[:, None, None]
    return result


def _stacked(left: Array, right: Array, product: Any) -> Any:
    """Multiply vectors and stacks of matrices as `numpy.matmul` does."""
    matrix_left = left[None, :] if left.ndim == 1 else left
    matrix_right = right[:, None] if right.ndim == 1 else right
    if matrix_right.ndim == 2:
        rows = matrix_left.reshape(-1, matrix_left.shape[-1])
        result = product(rows, matrix_right).reshape(*matrix_left.shape[:-1], matrix_right.shape[-1])
    else:
        try:
            stack = np.broadcast_shapes(matrix_left.shape[:-2], matrix_right.shape[:-2])
        except ValueError:
            raise InvalidRequest(
                f"matmul of shapes {left.shape} and {right.shape}: the stacks do not fit each other"
            ) from None
        lefts = np.broadcast_to(matrix_left, (*stack, *matrix_left.shape[-2:]))
        rights = np.broadcast_to(matrix_right, (*stack, *matrix_right.shape[-2:]))
        result = np.empty((*stack, lefts.shape[-2], rights.shape[-1]), left.dtype)
        for index in np.ndindex(*stack):
            result[index] = product(lefts[index], rights[index])
    if left.ndim == 1:
        result = result[..., 0, :]
    if right.ndim == 1:
        result = result[..., 0]
    return result
