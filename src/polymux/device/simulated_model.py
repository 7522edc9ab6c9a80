"""What a simulated device is: the TOML file that describes it, and the times that follow from it.

::

    name = "Simulated accelerator"      # shown to people
    memory_nbytes = "4GiB"              # capacity of its own memory: a number of bytes or a text with a unit
    units = 4                           # compute units; a share of k of them computes at k/units of the speed
    streams = 2                         # accelerator threads

    [transfer]                          # each direction has its own bus, used by one copy at a time
    bandwidth_bytes_per_s = 12e9
    latency_ns = 8000

    [compute]                           # every kernel without a table of its own
    latency_ns = 5000                   # cost of a launch
    bandwidth_bytes_per_s = 400e9       # of its memory, for the bytes of all of a task's buffers
    operations_per_s = 10e12

    [kernels.gemm]                      # any of the keys of [compute], and:
    operations = "2 * a[0] * a[1] * b[1]"   # extents of a buffer, or a scalar, by the kernel's own names

    [faults]                            # see `polymux.device.simulated_faults`

Only ``memory_nbytes`` is required. What is left out costs nothing. A launch takes
``latency_ns + max(nbytes / bandwidth, operations / operations_per_s)``: the roofline model.

References
----------
S. Williams, A. Waterman, D. Patterson. Roofline: an insightful visual performance model for multicore
architectures. Communications of the ACM 52(4), 2009.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from polymux.core.errors import ConfigError
from polymux.core.nbytes import parse_nbytes
from polymux.device.expression import Expression
from polymux.device.request import MAX_STREAMS
from polymux.device.simulated_faults import ALL, FaultModel


@dataclass(frozen=True, slots=True)
class ComputeModel:
    """How long a kernel takes on the whole device.

    Parameters
    ----------
    latency_ns : int
    bandwidth_bytes_per_s, operations_per_s : float
        Infinite: costs nothing.
    operations : Expression, optional
        Operations of one launch; None: none.
    """

    latency_ns: int = 0
    bandwidth_bytes_per_s: float = math.inf
    operations_per_s: float = math.inf
    operations: Expression | None = None

    def duration_ns(self, nbytes: int, values: Mapping[str, Any], fraction: float) -> int:
        """Time of one launch.

        Parameters
        ----------
        nbytes : int
            Bytes of its buffers.
        values : mapping
            Shapes of the buffers and values of the scalars, by name.
        fraction : float
            Part of the device that computes, above 0 and at most 1.
        """
        seconds = nbytes / self.bandwidth_bytes_per_s
        if self.operations is not None:
            seconds = max(seconds, self.operations.value(values) / self.operations_per_s)
        return self.latency_ns + math.ceil(seconds / fraction * 1e9)


@dataclass(frozen=True, slots=True)
class TransferModel:
    """How long a copy in one direction takes."""

    latency_ns: int = 0
    bandwidth_bytes_per_s: float = math.inf

    def duration_ns(self, nbytes: int) -> int:
        """Time of one copy."""
        return self.latency_ns + math.ceil(nbytes / self.bandwidth_bytes_per_s * 1e9)


@dataclass(frozen=True, slots=True)
class SimulatedModel:
    """A described device."""

    name: str
    memory_nbytes: int
    units: int = 1
    streams: int = 1
    transfer: TransferModel = TransferModel()
    compute: ComputeModel = ComputeModel()
    kernels: Mapping[str, ComputeModel] = field(default_factory=dict)
    faults: FaultModel = field(default_factory=FaultModel)

    def of_kernel(self, name: str) -> ComputeModel:
        """Return the model of one kernel."""
        return self.kernels.get(name, self.compute)


def read_model(path: str) -> SimulatedModel:
    """Read a description.

    Raises
    ------
    ConfigError
        If the file cannot be read, or a key is unknown, missing or has a value that cannot be.
    """
    try:
        with open(path, "rb") as file:
            table = tomllib.load(file)
    except OSError as error:
        raise ConfigError(
            path, "file", path, f"cannot be read: {error.strerror}; give the path of a TOML file"
        ) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(path, "file", path, f"is no TOML: {error}") from error
    return parse_model(path, table)


def parse_model(path: str, table: Mapping[str, Any]) -> SimulatedModel:
    """Make a model of a read description; see `read_model`."""
    top = _Table(path, "", table, _TOP_KEYS)
    transfer = top.table("transfer", ("bandwidth_bytes_per_s", "latency_ns"))
    compute = top.table("compute", _COMPUTE_KEYS)
    default = _compute_model(compute, ComputeModel())
    kernels = top.table("kernels", None)
    return SimulatedModel(
        name=top.text("name", "Simulated device"),
        memory_nbytes=top.nbytes("memory_nbytes"),
        units=top.integer("units", 1, 1, 65536),
        streams=top.integer("streams", 1, 1, MAX_STREAMS),
        transfer=TransferModel(
            transfer.integer("latency_ns", 0, 0, _MAX_LATENCY_NS),
            transfer.rate("bandwidth_bytes_per_s", math.inf),
        ),
        compute=default,
        kernels={
            name: _compute_model(kernels.table(name, _COMPUTE_KEYS), default) for name in kernels.values
        },
        faults=_fault_model(top.table("faults", _FAULT_KEYS)),
    )


_TOP_KEYS = ("name", "memory_nbytes", "units", "streams", "transfer", "compute", "kernels", "faults")
_FAULT_KEYS = tuple(key.name for key in fields(FaultModel))
_MAX_LATENCY_NS = 3_600_000_000_000
_COMPUTE_KEYS = ("latency_ns", "bandwidth_bytes_per_s", "operations_per_s", "operations")


def _compute_model(table: _Table, default: ComputeModel) -> ComputeModel:
    return ComputeModel(
        table.integer("latency_ns", default.latency_ns, 0, _MAX_LATENCY_NS),
        table.rate("bandwidth_bytes_per_s", default.bandwidth_bytes_per_s),
        table.rate("operations_per_s", default.operations_per_s),
        table.expression("operations", default.operations),
    )


def _fault_model(table: _Table) -> FaultModel:
    def number(key: str, default: int, low: int) -> int:
        return table.integer(key, default, low, ALL) if key in table.values else default

    return FaultModel(
        launches_after=number("launches_after", ALL, 0),
        launches=number("launches", ALL, 1),
        kernel=table.text("kernel", "") if "kernel" in table.values else "",
        copies_after=number("copies_after", ALL, 0),
        copies=number("copies", ALL, 1),
        allocation=number("allocation", 0, 1),
        hang_launch=number("hang_launch", 0, 1),
        hang_ns=table.integer("hang_ns", 0, 0, _MAX_LATENCY_NS),
    )


@dataclass(frozen=True, slots=True)
class _Table:
    """A TOML table whose keys are read one by one, with errors that name file and key."""

    path: str
    name: str
    values: Mapping[str, Any]
    known: Collection[str] | None
    """None: any key."""

    def __post_init__(self) -> None:
        for key, value in self.values.items():
            if self.known is not None and key not in self.known:
                raise self.error(key, value, f"unknown key; known here are {', '.join(self.known)}")

    def error(self, key: str, value: object, remedy: str) -> ConfigError:
        return ConfigError(self.path, self.name + key, value, remedy)

    def table(self, key: str, known: Collection[str] | None) -> _Table:
        value = self.values.get(key, {})
        if not isinstance(value, dict):
            raise self.error(key, value, f"write it as a table: [{self.name}{key}]")
        return _Table(self.path, f"{self.name}{key}.", value, known)

    def text(self, key: str, default: str) -> str:
        value = self.values.get(key, default)
        if not isinstance(value, str) or not value:
            raise self.error(key, value, "give a text in quotes")
        return value

    def nbytes(self, key: str) -> int:
        value = self.values.get(key)
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            return value
        try:
            return parse_nbytes(value if isinstance(value, str) else "")
        except ValueError:
            remedy = 'is required: a number of bytes or a text with a unit such as "512MiB"'
            raise self.error(key, value, remedy) from None

    def integer(self, key: str, default: int, low: int, high: int) -> int:
        value = self.values.get(key, default)
        whole = int(value) if isinstance(value, float) and value.is_integer() else value
        if isinstance(whole, bool) or not isinstance(whole, int) or not low <= whole <= high:
            raise self.error(key, value, f"give a whole number from {low} to {high}")
        return whole

    def rate(self, key: str, default: float) -> float:
        value = self.values.get(key, default)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not value > 0:
            raise self.error(key, value, "give a positive number per second, such as 12e9")
        return float(value)

    def expression(self, key: str, default: Expression | None) -> Expression | None:
        value = self.values.get(key)
        if value is None:
            return default
        try:
            return Expression(value if isinstance(value, str) else "")
        except ValueError as problem:
            raise self.error(key, value, str(problem)) from None
