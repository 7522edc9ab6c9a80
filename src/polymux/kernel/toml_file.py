"""Kernels files in TOML: what is not Python (native libraries, OpenCL sources and binaries, ONNX models).

One ``[[kernel]]`` table per kernel, with the keys of its spec and a table per implementation::

    [[kernel]]
    name = "scale"
    doc = "y = a * x."
    inputs = [{ name = "x", dtypes = ["f4"] }]        # or just "x"; shape = [-1, 3] where extents are fixed
    outputs = [{ name = "y", dtypes = ["f4"] }]
    scalars = [{ name = "a", dtype = "f4", default = 2.0 }]

    [kernel.native]
    library = "libscale.so"
    symbol = "scale"                                  # the kernel's name if left out, as for entry
    threads = false                                   # whether it uses the threads that it is told

    [kernel.opencl]
    source = "scale.cl"
    entry = "scale"
    global_size = ["y.size"]                          # terms: see polymux.core.opencl_range
    local_size = [64]
    arguments = ["y.size", "a"]                       # after the buffers; the scalars if left out
    options = "-cl-mad-enable"

    [[kernel]]
    name = "classify"
    onnx = { model = "classify.onnx" }                # inputs and outputs are the model's

``binary = "kernels.bin"`` in place of ``source`` takes a program binary; all kernels that name one share it. Paths are
relative to the file.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from polymux.core.errors import ConfigError, InvalidRequest, PolymuxError
from polymux.core.implementation import (
    Implementation,
    NativeFunction,
    OnnxModel,
    OpenCLBinary,
    OpenCLSource,
)
from polymux.core.kernel_spec import BufferParam, KernelSpec, ScalarParam
from polymux.core.opencl_range import OpenCLRange
from polymux.core.toml_table import TomlTable
from polymux.kernel.definition import Definition

_KEYS = ("name", "doc", "inputs", "outputs", "scalars", "idempotent", "variadic", "native", "opencl", "onnx")


def read_toml_file(
    file: Path,
    *,
    check_native: Callable[[NativeFunction], object] | None = None,
    model_spec: Callable[[str, str, str], KernelSpec] | None = None,
) -> tuple[Definition, ...]:
    """Read a kernels file; see `polymux.kernel.load.load_kernels` for the parameters.

    Raises
    ------
    ConfigError
        For the first key that cannot be followed.
    """
    try:
        content = tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(str(file), "file", file.name, f"it cannot be read as TOML: {error}") from error
    top = TomlTable(str(file), "", content)
    top.only(("kernel",))
    kernels = top.tables("kernel")
    if not kernels:
        raise top.error(
            "kernel", None, "it defines no kernel; write a table [[kernel]] with name = ... for each"
        )
    found = [_Reader(file.parent, table, check_native, model_spec).definition() for table in kernels]
    return _share_binaries(found)


class _Reader:
    """Reads one kernel's table."""

    def __init__(
        self,
        folder: Path,
        table: TomlTable,
        check_native: Callable[[NativeFunction], object] | None,
        model_spec: Callable[[str, str, str], KernelSpec] | None,
    ) -> None:
        self._folder = folder
        self._table = table
        self._check_native = check_native
        self._model_spec = model_spec

    def definition(self) -> Definition:
        table = self._table
        table.only(_KEYS)
        spec = self._spec()
        readers = {"native": self._native, "opencl": self._opencl, "onnx": self._onnx}
        implementations = [
            read(spec, part) for key, read in readers.items() if (part := table.table(key)) is not None
        ]
        if not implementations:
            raise table.error(
                "name", spec.name, "it has no implementation; give native, opencl or onnx = { ... }"
            )
        return Definition(spec, tuple(implementations))

    def _spec(self) -> KernelSpec:
        table = self._table
        name, doc = table.text("name"), table.text("doc", "")
        model = table.table("onnx")
        if model is not None and "inputs" not in table and "outputs" not in table:
            if self._model_spec is None:
                raise table.error(
                    "inputs", None, "give the inputs and outputs of the model by name and dtypes"
                )
            path = self._file(model, "model")
            try:
                return self._model_spec(path, name, doc)
            except PolymuxError as error:
                raise model.error("model", path, str(error)) from error
        try:
            return KernelSpec(
                name=name,
                inputs=tuple(_buffer(item) for item in table.named_tables("inputs")),
                outputs=tuple(_buffer(item) for item in table.named_tables("outputs")),
                scalars=tuple(_scalar(item) for item in table.tables("scalars")),
                variadic=table.truth("variadic", False),
                idempotent=table.truth("idempotent", False),
                doc=doc,
            )
        except InvalidRequest as error:
            raise table.error("name", name, str(error)) from error

    def _native(self, spec: KernelSpec, part: TomlTable) -> Implementation:
        part.only(("library", "symbol", "threads"))
        library = self._file(part, "library")
        function = NativeFunction(library, part.text("symbol", spec.name), part.truth("threads", False))
        if self._check_native is not None:
            try:
                self._check_native(function)
            except PolymuxError as error:
                raise part.error("library", library, str(error)) from error
        return function

    def _opencl(self, spec: KernelSpec, part: TomlTable) -> Implementation:
        part.only(("source", "binary", "entry", "global_size", "local_size", "arguments", "options"))
        if ("source" in part) == ("binary" in part):
            raise part.error("source", None, "give either source (OpenCL C) or binary (a program binary)")
        plan = OpenCLRange(
            entry=part.text("entry", spec.name),
            global_size=part.terms("global_size"),
            local_size=part.whole_numbers("local_size") if "local_size" in part else None,
            arguments=part.terms("arguments") if "arguments" in part else None,
        )
        try:
            plan.check(spec)
        except InvalidRequest as error:
            raise part.error("global_size", list(plan.global_size), str(error)) from error
        if "source" in part:
            path = self._file(part, "source")
            try:
                source = Path(path).read_text(encoding="utf-8")
            except (OSError, ValueError) as error:
                raise part.error("source", path, f"it cannot be read as text: {error}") from error
            return OpenCLSource(source, plan, part.text("options", ""))
        if "options" in part:
            raise part.error(
                "options", part.text("options"), "a program binary is built already; leave them out"
            )
        return OpenCLBinary(self._file(part, "binary"), (plan.entry,), plan)

    def _onnx(self, _spec: KernelSpec, part: TomlTable) -> Implementation:
        part.only(("model", "options"))
        options = part.table("options")
        pairs = () if options is None else tuple((key, options.text(key)) for key in options)
        return OnnxModel(self._file(part, "model"), pairs)

    def _file(self, part: TomlTable, key: str) -> str:
        path = self._folder / part.text(key)
        if not path.is_file():
            raise part.error(
                key, part.text(key), f"there is no file {path}; paths are relative to the kernels file"
            )
        return str(path.resolve())


def _buffer(table: TomlTable) -> BufferParam:
    table.only(("name", "dtypes", "shape"))
    shape = None
    if "shape" in table:
        extents = table.whole_numbers("shape")
        if min(extents, default=0) < -1:
            raise table.error("shape", list(extents), "give extents of 0 or more, or -1 for any")
        shape = tuple(None if extent == -1 else extent for extent in extents)
    return BufferParam(table.text("name"), table.dtypes("dtypes"), shape)


def _scalar(table: TomlTable) -> ScalarParam:
    table.only(("name", "dtype", "default"))
    return ScalarParam(table.text("name"), table.dtype("dtype"), table.number("default"))


def _share_binaries(definitions: list[Definition]) -> tuple[Definition, ...]:
    """Give every kernel of a program binary the names of all that the file takes from it."""
    entries: dict[str, list[str]] = {}
    for definition in definitions:
        for implementation in definition.implementations:
            if isinstance(implementation, OpenCLBinary):
                known = entries.setdefault(implementation.path, [])
                known += [entry for entry in implementation.entries if entry not in known]

    def shared(implementation: Implementation) -> Implementation:
        if isinstance(implementation, OpenCLBinary):
            return replace(implementation, entries=tuple(entries[implementation.path]))
        return implementation

    return tuple(
        Definition(definition.spec, tuple(map(shared, definition.implementations)))
        for definition in definitions
    )
