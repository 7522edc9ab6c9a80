"""What a kernel takes: its buffers and scalars, and how the scalars lie in a task descriptor."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from polymux.core.dtype import DType
from polymux.core.errors import InvalidRequest
from polymux.core.scalar_layout import FORMAT, convert, struct_layout
from polymux.core.task_view import MAX_BUFFERS

MAX_ARGS_NBYTES = 256
"""Bytes of scalar arguments in one task descriptor."""

HINTS = frozenset({"priority", "deadline_ns", "share", "device"})
"""Keywords of ``queue.submit`` that are hints to the scheduler; no scalar can have such a name."""


@dataclass(frozen=True, slots=True)
class BufferParam:
    """A buffer that a kernel takes.

    Parameters
    ----------
    name : str
    dtypes : tuple of DType
        Element types that it accepts; empty: any.
    shape : tuple of (int or None), optional
        Extents, None where any will do; None altogether: any shape.
    """

    name: str
    dtypes: tuple[DType, ...] = ()
    shape: tuple[int | None, ...] | None = None


@dataclass(frozen=True, slots=True)
class ScalarParam:
    """A scalar that a kernel takes.

    Parameters
    ----------
    name : str
        A Python identifier that is no hint of ``submit``.
    dtype : DType
        Bool, an integer, F16, F32 or F64.
    default : float, int or bool, optional
        Value when the caller gives none; None: the caller must give one.
    """

    name: str
    dtype: DType
    default: float | int | bool | None = None


@dataclass(frozen=True, slots=True)
class KernelSpec:
    """A kernel's name and parameters: the contract between whoever submits it and its implementations.

    Parameters
    ----------
    name : str
        Unique in the dispatch table; printable, without blanks.
    inputs, outputs : tuple of BufferParam
        In order. A buffer that is updated in place is given both as input and as output.
    scalars : tuple of ScalarParam
        In the order in which they lie in the descriptor.
    variadic : bool
        Takes any number of buffers of any type.
    idempotent : bool
        Running it twice on the same inputs leaves the same outputs.
    doc : str
        One or more sentences for ``polymux kernels``.

    Attributes
    ----------
    layout : tuple of (str, DType, int)
        Name, type and offset in bytes of each scalar.
    args_nbytes : int
        Size of the packed scalars: ``sizeof`` of the C struct that has them as members.

    Raises
    ------
    InvalidRequest
        For names that are empty, repeated or reserved, more than 16 buffers, a scalar type or default that
        cannot be packed, or scalars of more than 256 bytes.
    """

    name: str
    inputs: tuple[BufferParam, ...] = ()
    outputs: tuple[BufferParam, ...] = ()
    scalars: tuple[ScalarParam, ...] = ()
    variadic: bool = False
    idempotent: bool = False
    doc: str = ""
    layout: tuple[tuple[str, DType, int], ...] = field(init=False, repr=False, compare=False)
    args_nbytes: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not self.name or not self.name.isprintable() or any(c.isspace() for c in self.name):
            raise InvalidRequest(f"kernel name {self.name!r}: give a printable name without blanks")
        self._check_buffers()
        self._check_scalars()
        layout, nbytes = struct_layout((param.name, param.dtype) for param in self.scalars)
        if nbytes > MAX_ARGS_NBYTES:
            raise InvalidRequest(
                f"kernel {self.name!r}: its scalars take {nbytes} bytes, a task has room for"
                f" {MAX_ARGS_NBYTES}; pass the rest in a buffer"
            )
        object.__setattr__(self, "layout", layout)
        object.__setattr__(self, "args_nbytes", nbytes)

    def pack(self, values: Mapping[str, object]) -> bytes:
        """Lay the scalars out as a C struct with natural alignment, native byte order and zeroed padding.

        Parameters
        ----------
        values : mapping of str to number
            Python or NumPy numbers by name; those left out take their defaults. NaN and infinities are fine.

        Returns
        -------
        bytes
            `args_nbytes` of them.

        Raises
        ------
        InvalidRequest
            For a name that the kernel does not have, a scalar without value and default, or a value that its
            type cannot hold. The message names scalar, value and remedy.
        """
        data = bytearray(self.args_nbytes)
        used = 0
        for param, (name, dtype, offset) in zip(self.scalars, self.layout, strict=True):
            value = values.get(name)
            if name in values:
                used += 1
            else:
                value = param.default
                if value is None:
                    raise InvalidRequest(
                        f"kernel {self.name!r} needs scalar {name!r} ({dtype.name_short}); pass {name}=..."
                    )
            struct.pack_into(FORMAT[dtype], data, offset, self._converted(name, dtype, value))
        if used != len(values):
            self._refuse_unknown(values)
        return bytes(data)

    def unpack(self, data: bytes) -> dict[str, float | int | bool]:
        """Read what `pack` wrote.

        Raises
        ------
        InvalidRequest
            If `data` does not have `args_nbytes` bytes.
        """
        if len(data) != self.args_nbytes:
            raise InvalidRequest(
                f"kernel {self.name!r} takes {self.args_nbytes} bytes of scalars"
                f" ({self._signature()}), the task has {len(data)}"
            )
        return {
            name: struct.unpack_from(FORMAT[dtype], data, offset)[0] for name, dtype, offset in self.layout
        }

    def to_text(self) -> str:
        """Write it as one line of JSON."""
        return json.dumps(
            {
                "name": self.name,
                "inputs": [_buffer_to_json(param) for param in self.inputs],
                "outputs": [_buffer_to_json(param) for param in self.outputs],
                "scalars": [
                    {"name": p.name, "dtype": p.dtype.name_short, "default": p.default} for p in self.scalars
                ],
                "variadic": self.variadic,
                "idempotent": self.idempotent,
                "doc": self.doc,
            },
            separators=(",", ":"),
        )

    @classmethod
    def from_text(cls, text: str) -> KernelSpec:
        """Read what `to_text` wrote.

        Raises
        ------
        InvalidRequest
            If the text is no such JSON, or describes a spec that cannot be.
        """
        try:
            fields = json.loads(text)
            return cls(
                name=_of_type(fields["name"], str, "name"),
                inputs=tuple(_buffer_from_json(item) for item in fields.get("inputs", ())),
                outputs=tuple(_buffer_from_json(item) for item in fields.get("outputs", ())),
                scalars=tuple(_scalar_from_json(item) for item in fields.get("scalars", ())),
                variadic=_of_type(fields.get("variadic", False), bool, "variadic"),
                idempotent=_of_type(fields.get("idempotent", False), bool, "idempotent"),
                doc=_of_type(fields.get("doc", ""), str, "doc"),
            )
        except InvalidRequest:
            raise
        except KeyError as error:
            raise InvalidRequest(f"kernel spec {text[:200]!r}: the field {error} is missing") from None
        except (ValueError, TypeError, AttributeError, RecursionError) as error:
            raise InvalidRequest(f"kernel spec {text[:200]!r} cannot be read: {error}") from None

    def _check_buffers(self) -> None:
        count = len(self.inputs) + len(self.outputs)
        if count > MAX_BUFFERS:
            raise InvalidRequest(
                f"kernel {self.name!r} takes {count} buffers, a task has room for {MAX_BUFFERS}; pack several"
                " arrays into one buffer"
            )
        for params in (self.inputs, self.outputs):
            names = [param.name for param in params]
            if len(set(names)) != len(names) or not all(names):
                raise InvalidRequest(
                    f"kernel {self.name!r}: its buffers are named {names}; give each its own name"
                )

    def _check_scalars(self) -> None:
        seen: set[str] = set()
        for param in self.scalars:
            if not param.name.isidentifier() or param.name in seen:
                raise InvalidRequest(
                    f"kernel {self.name!r}: scalar name {param.name!r} is taken or no identifier; rename it"
                )
            if param.name in HINTS:
                raise InvalidRequest(
                    f"kernel {self.name!r}: scalar name {param.name!r} is a hint of submit(); rename it"
                )
            if param.dtype not in FORMAT:
                raise InvalidRequest(
                    f"kernel {self.name!r}: scalar {param.name!r} cannot be of type {param.dtype.name_short};"
                    f" use one of {', '.join(dtype.name_short for dtype in FORMAT)} or pass a buffer"
                )
            if param.default is not None:
                self._converted(param.name, param.dtype, param.default)
            seen.add(param.name)

    def _converted(self, name: str, dtype: DType, value: object) -> float | int | bool:
        try:
            return convert(dtype, value)
        except ValueError as problem:
            raise InvalidRequest(f"kernel {self.name!r}: scalar {name}={value!r}: {problem}") from None

    def _refuse_unknown(self, values: Mapping[str, object]) -> None:
        known = {param.name for param in self.scalars}
        unknown = next(name for name in values if name not in known)
        takes = f"it takes {self._signature()}" if known else "it takes none"
        raise InvalidRequest(
            f"kernel {self.name!r} has no scalar {unknown!r} (given {values[unknown]!r}); {takes}"
        )

    def _signature(self) -> str:
        return ", ".join(f"{p.name}: {p.dtype.name_short}" for p in self.scalars) or "no scalars"


def _buffer_to_json(param: BufferParam) -> dict[str, Any]:
    shape = None if param.shape is None else list(param.shape)
    return {"name": param.name, "dtypes": [dtype.name_short for dtype in param.dtypes], "shape": shape}


def _buffer_from_json(fields: Mapping[str, Any]) -> BufferParam:
    shape = fields.get("shape")
    if shape is not None:
        shape = tuple(None if extent is None else _of_type(extent, int, "shape") for extent in shape)
    dtypes = tuple(DType.parse(name) for name in fields.get("dtypes", ()))
    return BufferParam(_of_type(fields["name"], str, "name"), dtypes, shape)


def _scalar_from_json(fields: Mapping[str, Any]) -> ScalarParam:
    dtype = DType.parse(fields["dtype"])
    return ScalarParam(_of_type(fields["name"], str, "name"), dtype, fields.get("default"))


def _of_type(value: Any, wanted: type, name: str) -> Any:
    if type(value) is not wanted:
        raise InvalidRequest(f"kernel spec: field {name} is {value!r}; a {wanted.__name__} is wanted")
    return value
