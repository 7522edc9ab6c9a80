"""Chunks by PyTorch and its oneDNN, in the calling thread; in bfloat16 where that is asked for.

The arrays are converted here: PyTorch's own switch for single precision (``set_float32_matmul_precision``) does not
select bfloat16 on processors without tiles. oneDNN then sums in single precision and rounds results to bfloat16, which
`polymux.coexec.error_bound` takes into account.
"""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from polymux.kernel.chunks.parts import ConvPart

Array = NDArray[Any]
_thread = threading.local()


class TorchChunk:
    """Computes with PyTorch.

    Parameters
    ----------
    lower : bool
        Whether factors and results are rounded to bfloat16.
    """

    def __init__(self, lower: bool = False) -> None:
        self._lower = lower

    def multiply(self, a: Array, b: Array, c: Array) -> None:
        """``c = a @ b``."""
        torch = _ready()
        with torch.inference_mode():
            if self._lower:
                lower = torch.bfloat16
                _tensor(torch, c).copy_(torch.mm(_tensor(torch, a).to(lower), _tensor(torch, b).to(lower)))
            else:
                torch.mm(_tensor(torch, a), _tensor(torch, b), out=_tensor(torch, c))

    def convolve(self, x: Array, weight: Array, y: Array, part: ConvPart) -> None:
        """``y = conv2d(x, weight)``."""
        torch = _ready()
        h, w = part.h, part.w
        with torch.inference_mode():
            given, factors = _tensor(torch, x), _tensor(torch, weight)
            if self._lower:
                given, factors = given.to(torch.bfloat16), factors.to(torch.bfloat16)
            result = torch.nn.functional.conv2d(
                given,
                factors,
                None,
                (h.stride, w.stride),
                (h.padding, w.padding),
                (h.dilation, w.dilation),
                part.groups,
            )
            _tensor(torch, y).copy_(result)


def _ready() -> Any:
    """Import PyTorch, and have it compute in the calling thread alone, whatever other threads have."""
    import torch

    if not hasattr(_thread, "limits"):
        torch.get_num_threads()  # it sets the thread up, after which the limit holds
        _thread.limits = threadpool_limits(limits=1, user_api="openmp")
    return torch


def _tensor(torch: Any, array: Array) -> Any:
    """See an array as a tensor; what is only read has no flag that says so, about which PyTorch would warn."""
    return torch.from_numpy(array if array.flags.writeable else np.asarray(_Writable(array)))


class _Writable:
    def __init__(self, array: Array) -> None:
        interface = dict(array.__array_interface__)
        interface["data"] = (interface["data"][0], False)
        self.__array_interface__ = interface
        self.holds = array
