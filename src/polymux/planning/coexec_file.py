"""Reads what is to be co-executed in simulation: an operation, the units of a machine, and what goes wrong."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path

from polymux.core.errors import ConfigError, InvalidRequest
from polymux.core.toml_table import TomlTable
from polymux.perfmodel.coexec.compute import constant_rate
from polymux.perfmodel.coexec.link import LinkModel
from polymux.perfmodel.coexec.precision import PRECISIONS, Precision, allowed, error_bound
from polymux.perfmodel.coexec.problem import Objective, Problem, conv2d_problem, gemm_problem
from polymux.perfmodel.coexec.unit import UnitModel
from polymux.perfmodel.energy import PowerModel
from polymux.sim.coexec.scenario import CoexecScenario, Failure, SpeedChange

_ITEMSIZE = {"fp64": 8, "fp32": 4, "tf32": 4, "bf16": 2, "fp16": 2}
_UNIT_KEYS = (
    "id", "device", "gflops", "launch_us", "tile", "min_chunk", "memory", "precision", "bus", "latency_us",
    "gbytes_per_s", "out_gbytes_per_s", "duplex", "overlap", "idle_w", "busy_w", "truth",
)  # fmt: skip
_GEMM_KEYS = ("kind", "m", "n", "k", "dtype", "lowest", "objective")
_CONV_KEYS = (
    "kind", "images", "in_channels", "out_channels", "height", "width", "kernel", "stride", "padding", "groups",
    "dtype", "lowest", "objective",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class CoexecFile:
    """What a file describes.

    Parameters
    ----------
    title : str
        The operation in words.
    scenario : CoexecScenario
    refused : tuple of str
        Units that round more than the file allows.
    bound : float
        Of the error, relative to the sums of absolute values, with the least accurate unit that may be used.
    """

    title: str
    scenario: CoexecScenario
    refused: tuple[str, ...]
    bound: float


def read_coexec(path: Path) -> CoexecFile:
    """Read a file.

    Raises
    ------
    ConfigError
        If something in it is wrong.
    OSError
        If it cannot be read.
    """
    try:
        content = tomllib.loads(path.read_text("utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(str(path), "", "", f"it is no TOML file ({error})") from error
    table = TomlTable(str(path), "", content)
    table.only(("operation", "unit", "change", "failure"))
    operation = table.table("operation")
    if operation is None:
        raise table.error("operation", None, 'it is missing; add [operation] with kind = "gemm" and m, n, k')
    dtype = _precision(operation, "dtype", "fp32")
    lowest = _precision(operation, "lowest", dtype)
    title, problems, depth = _problems(operation, _ITEMSIZE[dtype])
    every = [_unit(its) for its in table.tables("unit")]
    units = tuple(unit for unit, _ in every if allowed(unit.precision, dtype, lowest))
    if not units:
        raise table.error("unit", len(every), f"give at least one that computes in {lowest} or better")
    known = {unit.id for unit in units}
    try:
        scenario = CoexecScenario(
            problems,
            units,
            _objective(operation),
            {unit.id: truth for unit, truth in every if unit.id in known},
            tuple(_change(its) for its in table.tables("change")),
            tuple(_failure(its) for its in table.tables("failure")),
        )
    except InvalidRequest as error:
        raise ConfigError(str(path), "change or failure", "", str(error)) from error
    refused = tuple(unit.id for unit, _ in every if unit.id not in known)
    return CoexecFile(
        f"{title}, {dtype}", scenario, refused, max(error_bound(unit.precision, depth) for unit in units)
    )


def _problems(table: TomlTable, itemsize: int) -> tuple[str, tuple[Problem, ...], int]:
    kind = table.text("kind", "gemm")
    if kind == "gemm":
        table.only(_GEMM_KEYS)
        m, n, k = (table.whole(key, low=1) for key in ("m", "n", "k"))
        title = f"matrix product {m:,} x {k:,} times {k:,} x {n:,}"
        rows, columns = (gemm_problem(m, n, k, itemsize=itemsize, by=by) for by in ("rows", "columns"))
        return title, (rows, columns), k
    if kind != "conv2d":
        raise table.error("kind", kind, 'there are "gemm" and "conv2d"')
    table.only(_CONV_KEYS)
    images, inputs, outputs, height, width, kernel = (
        table.whole(key, low=1)
        for key in ("images", "in_channels", "out_channels", "height", "width", "kernel")
    )
    stride, padding, groups = (
        table.whole("stride", 1, low=1),
        table.whole("padding", 0),
        table.whole("groups", 1, low=1),
    )
    out = tuple((size + 2 * padding - kernel) // stride + 1 for size in (height, width))
    if min(out) < 1:
        raise table.error(
            "kernel", kernel, f"it does not fit into {height} x {width} with a padding of {padding}"
        )
    made = []
    for by in ("images", "channels"):
        try:
            made.append(
                conv2d_problem(
                    images, inputs, outputs, (kernel, kernel), (out[0], out[1]), in_size=(height, width),
                    groups=groups, stride=(stride, stride), itemsize=itemsize, by=by,
                )
            )  # fmt: skip
        except InvalidRequest as error:
            raise table.error("groups", groups, str(error)) from error
    title = (
        f"convolution of {images} images, {inputs} to {outputs} channels, {height} x {width}, kernel {kernel}"
    )
    return title, tuple(made), inputs // groups * kernel * kernel


def _objective(table: TomlTable) -> Objective:
    if "objective" not in table:
        return Objective()
    weights = table.table("objective") if not _is_text(table, "objective") else None
    if weights is None:
        text = table.text("objective")
        try:
            return Objective.parse(text)
        except InvalidRequest as error:
            raise table.error("objective", text, str(error)) from error
    weights.only(("time", "energy"))
    time, energy = weights.amount("time", 0.0), weights.amount("energy", 0.0)
    if not time + energy:
        raise table.error("objective", 0, "give a weight above 0 to time or energy")
    return Objective(time, energy)


def _is_text(table: TomlTable, key: str) -> bool:
    try:
        table.text(key)
    except ConfigError:
        return False
    return True


def _precision(table: TomlTable, key: str, default: str) -> Precision:
    value = table.text(key, default)
    for precision in PRECISIONS:
        if precision == value:
            return precision
    raise table.error(key, value, f"there are {', '.join(PRECISIONS)}")


def _unit(table: TomlTable) -> tuple[UnitModel, float]:
    table.only(_UNIT_KEYS)
    name = table.text("id")
    link = None
    if "bus" in table:
        rate = table.amount("gbytes_per_s", low=1e-6)
        back = table.amount("out_gbytes_per_s", rate, low=1e-6)
        latency = table.amount("latency_us", 10.0) * 1e-6
        link = LinkModel(
            table.text("bus"),
            latency,
            rate * 1e9,
            latency,
            back * 1e9,
            duplex=table.truth("duplex", True),
            overlaps=table.truth("overlap", True),
        )
    power = None
    if "busy_w" in table:
        idle = table.amount("idle_w", 0.0)
        power = PowerModel(idle, table.amount("busy_w", low=idle))
    unit = UnitModel(
        name,
        table.text("device", name.partition("/")[0]),
        constant_rate(table.amount("gflops", low=1e-6) * 1e9, table.amount("launch_us", 10.0) * 1e-6),
        link,
        power,
        table.whole("tile", 1, low=1),
        table.whole("min_chunk", 1, low=1),
        table.nbytes("memory"),
        _precision(table, "precision", "fp32"),
    )
    return unit, table.amount("truth", 1.0, low=1e-3)


def _change(table: TomlTable) -> SpeedChange:
    table.only(("device", "at_ms", "slowdown"))
    return SpeedChange(table.text("device"), table.amount("at_ms") * 1e-3, table.amount("slowdown", low=1e-3))


def _failure(table: TomlTable) -> Failure:
    table.only(("unit", "at_ms"))
    return Failure(table.text("unit"), table.amount("at_ms") * 1e-3)
