"""What the dispatch table holds for a kernel and a device API: values only; a device runs them.

Every class says in ``api``, or an object of it, which devices can run it: those whose `DeviceSpec.apis` lists it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from polymux.core.opencl_plan import OpenCLPlanner


@dataclass(frozen=True, slots=True)
class PythonFunction:
    """A Python callable over NumPy views.

    Called as ``function(*inputs, *outputs, **scalars)``; it writes its outputs in place. With `parallel` it
    also gets ``team``, the pinned threads of the stream's share.
    """

    api: ClassVar[str] = "cpu"
    function: Callable[..., Any]
    parallel: bool = False


@dataclass(frozen=True, slots=True)
class NativeFunction:
    """A C function of type ``polymux_kernel_fn`` (``include/polymux.h``), run without the GIL.

    Parameters
    ----------
    library : str
        Path of the shared library.
    symbol : str
    threads : bool
        Whether it uses the number of threads that it is told.
    """

    api: ClassVar[str] = "cpu"
    library: str
    symbol: str
    threads: bool = False


@dataclass(frozen=True, slots=True)
class OpenCLSource:
    """A kernel in OpenCL C.

    Parameters
    ----------
    source : str
        The program's text.
    plan : OpenCLPlanner
        Makes a task's launches; `OpenCLRange` says a single one without code.
    options : str
        Options of the OpenCL compiler; those of the plan follow them.
    """

    api: ClassVar[str] = "opencl"
    source: str
    plan: OpenCLPlanner
    options: str = ""


@dataclass(frozen=True, slots=True)
class OpenCLBinary:
    """A kernel in a program binary that holds several; loading another binary reconfigures the device.

    Parameters
    ----------
    path : str
        File of the binary.
    entries : tuple of str
        Every kernel function in it.
    plan : OpenCLPlanner
        As for `OpenCLSource`; its launches name functions of `entries`.
    """

    api: ClassVar[str] = "opencl"
    path: str
    entries: tuple[str, ...]
    plan: OpenCLPlanner


@dataclass(frozen=True, slots=True)
class OnnxModel:
    """A model file for onnxruntime.

    Parameters
    ----------
    path : str
    options : tuple of (str, str)
        Session configuration entries.
    optimized : bool
        The file holds the graph as onnxruntime computes it on this processor: it is run as it is, its weights mapped.
    """

    api: ClassVar[str] = "onnx"
    path: str
    options: tuple[tuple[str, str], ...] = ()
    optimized: bool = False


@dataclass(frozen=True, slots=True)
class OpenVinoModel:
    """A model file for OpenVINO: another implementation of what an `OnnxModel` does.

    Parameters
    ----------
    path : str
        An ONNX file.
    """

    api: ClassVar[str] = "openvino"
    path: str


@dataclass(frozen=True, slots=True)
class CudaFunction:
    """A Python callable over CuPy arrays.

    Called as ``function(*inputs, *outputs, **scalars)`` with the stream current; what it enqueues there writes the
    outputs in place.
    """

    api: ClassVar[str] = "cuda"
    function: Callable[..., Any]


@dataclass(frozen=True, slots=True)
class ProviderModel:
    """A model file for an execution provider of onnxruntime that is not the processor's own.

    Parameters
    ----------
    path : str
        An ONNX file; not one that was optimized for a processor.
    provider : str
        Which one, as `polymux.device.onnx_providers` calls it: ``"cuda"``.
    """

    path: str
    provider: str

    @property
    def api(self) -> str:
        """Its own for each provider, so that the dispatch table holds all of them."""
        return self.api_of(self.provider)

    @staticmethod
    def api_of(provider: str) -> str:
        """Return the API of a provider."""
        return f"{_PROVIDER}{provider}"

    @staticmethod
    def provider_of(api: str) -> str | None:
        """Return the provider of such an API; None: it is another one."""
        return api.removeprefix(_PROVIDER) if api.startswith(_PROVIDER) else None


_PROVIDER = "onnx:"

Implementation = (
    PythonFunction
    | NativeFunction
    | OpenCLSource
    | OpenCLBinary
    | CudaFunction
    | OnnxModel
    | OpenVinoModel
    | ProviderModel
)
