"""Filling the dispatch table: built-in kernels, those of installed packages, those of kernels files."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import ModuleType

from polymux.core.errors import ConfigError, InvalidRequest
from polymux.core.implementation import NativeFunction
from polymux.core.kernel_spec import KernelSpec
from polymux.kernel import builtin
from polymux.kernel.decorator import definition_of
from polymux.kernel.definition import Definition
from polymux.kernel.python_file import definitions_in, read_python_file
from polymux.kernel.table import DispatchTable
from polymux.kernel.toml_file import read_toml_file

ENTRY_POINTS = "polymux.kernels"
"""Group of entry points of other packages: a module with kernels, one kernel, or an iterable of them."""

CheckNative = Callable[[NativeFunction], object]
ModelSpec = Callable[[str, str, str], KernelSpec]


def load_kernels(
    files: Iterable[str | Path] = (),
    *,
    check_native: CheckNative | None = None,
    model_spec: ModelSpec | None = None,
) -> DispatchTable:
    """Load all kernels that the operator offers.

    Parameters
    ----------
    files : iterable of str or Path
        Kernels files, ``*.py`` and ``*.toml``, in order.
    check_native : callable, optional
        Called with every `NativeFunction` of a file; raises a `PolymuxError` when its library cannot be used (missing
        symbol, other ABI). None: found out at the first use.
    model_spec : callable, optional
        ``model_spec(path, name, doc)`` returns the spec of a kernel that runs an ONNX model; without it a file must
        say what its models take.

    Returns
    -------
    DispatchTable
        The built-in kernels, then those of the packages' entry points, then those of the files.

    Raises
    ------
    ConfigError
        For the first thing that cannot be loaded: names the file or entry point, key, value and remedy.

    Notes
    -----
    Runs the code of Python files and packages, and where `check_native` does so, the initializers of libraries.
    """
    table = DispatchTable()
    for definition in builtin.definitions():
        table.add(definition, origin="built in")
    for point in entry_points(group=ENTRY_POINTS):
        origin = f"entry point {point.name} ({point.value})"
        _add(table, _of_entry_point(point), origin, point.name)
    for file in map(Path, files):
        _add(
            table,
            read_kernels_file(file, check_native=check_native, model_spec=model_spec),
            str(file),
            "name",
        )
    return table


def read_kernels_file(
    file: Path, *, check_native: CheckNative | None = None, model_spec: ModelSpec | None = None
) -> tuple[Definition, ...]:
    """Read one kernels file; see `load_kernels`."""
    if not file.is_file():
        raise ConfigError(
            str(file), "kernels", str(file), "there is no such file; give the path of a .py or .toml"
        )
    if file.suffix == ".py":
        return read_python_file(file)
    if file.suffix == ".toml":
        return read_toml_file(file, check_native=check_native, model_spec=model_spec)
    raise ConfigError(str(file), "kernels", file.name, "a kernels file ends in .py or .toml")


def _add(table: DispatchTable, definitions: Iterable[Definition], origin: str, key: str) -> None:
    for definition in definitions:
        try:
            table.add(definition, origin=origin)
        except InvalidRequest as error:
            raise ConfigError(origin, key, definition.spec.name, str(error)) from error


def _of_entry_point(point: EntryPoint) -> tuple[Definition, ...]:
    origin = f"entry point {point.name} of {ENTRY_POINTS}"
    try:
        loaded = point.load()
    except Exception as error:
        package = point.dist.name if point.dist is not None else "its package"
        remedy = f"it cannot be loaded ({type(error).__name__}: {error}); repair or uninstall {package}"
        raise ConfigError(origin, "value", point.value, remedy) from error
    if isinstance(loaded, ModuleType):
        found = definitions_in(loaded)
    else:
        items = loaded if isinstance(loaded, tuple | list) else (loaded,)
        found = tuple(
            definition
            for item in items
            if (definition := item if isinstance(item, Definition) else definition_of(item)) is not None
        )
    if not found:
        remedy = "it holds no kernel; name a module with kernels, a function decorated with @kernel or a Definition"
        raise ConfigError(origin, "value", point.value, remedy)
    return found
