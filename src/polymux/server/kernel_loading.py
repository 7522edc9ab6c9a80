"""Fills the kernel directory from the dispatch table, and the table of native kernels that need no asking."""

from __future__ import annotations

from polymux.core.errors import ConfigError
from polymux.core.implementation import Implementation, NativeFunction
from polymux.core.kernel_spec import KernelSpec
from polymux.device import native_library
from polymux.device.protocol import LaunchError
from polymux.kernel.load import load_kernels
from polymux.kernel.table import DispatchTable
from polymux.segment import NativeTable
from polymux.server.kernels import Isolated, Kernel, KernelDirectory, OperatorKernel
from polymux.server.options import KernelsFile


def load_directory(files: tuple[KernelsFile, ...], natives: NativeTable) -> KernelDirectory:
    """Load the built-in kernels, those of packages and those of the operator's files.

    Raises
    ------
    ConfigError
        For the first thing that cannot be loaded.
    """
    table = load_kernels(
        [file.path for file in files], check_native=native_library.resolve, model_spec=_model_spec
    )
    isolated_files = {str(file.path) for file in files if file.isolate}
    directory = KernelDirectory()
    for name in table.names():
        kernel = _kernel(directory.new_id(), table, name, isolated_files)
        directory.add(kernel)
        native = kernel.implementations.get(NativeFunction.api)
        if isinstance(native, NativeFunction):
            _set_native(natives, kernel, native)
    return directory


def _kernel(kernel_id: int, table: DispatchTable, name: str, isolated_files: set[str]) -> Kernel:
    origins = table.origins(name)
    implementations: dict[str, Implementation] = {}
    isolated: dict[str, Isolated] = {}
    for api, implementation in table.implementations(name).items():
        if origins[api] in isolated_files:
            isolated[api] = OperatorKernel(table.spec(name), api, (origins[api],))
        else:
            implementations[api] = implementation
    origin = ", ".join(dict.fromkeys(origins.values()))
    return Kernel(kernel_id, table.spec(name), implementations, isolated, origin)


def _set_native(natives: NativeTable, kernel: Kernel, native: NativeFunction) -> None:
    try:
        address = native_library.resolve(native)
    except LaunchError as error:
        raise ConfigError(kernel.origin, kernel.spec.name, native.library, error.message) from error
    spec = kernel.spec
    masks = [sum(1 << dtype for dtype in param.dtypes) for param in (*spec.inputs, *spec.outputs)]
    natives.set(
        kernel.id,
        address,
        len(spec.inputs),
        len(spec.outputs),
        spec.variadic,
        masks,
        spec.args_nbytes,
        native.threads,
    )


def _model_spec(path: str, name: str, doc: str) -> KernelSpec:
    from polymux.device.onnx_model import kernel_spec  # loads onnxruntime only when there is a model

    return kernel_spec(path, name, doc)
