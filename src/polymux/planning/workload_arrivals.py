"""The ``arrivals`` of a model in a workload file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from polymux.core.toml_table import TomlTable
from polymux.planning.trace_file import read_trace
from polymux.sim.serving.arrivals import SECOND_NS, Arrivals, Bursty, ClosedLoop, Poisson, Uniform

_HIGHEST_RATE = 1e9


def read_arrivals(model: TomlTable, folder: Path) -> Arrivals:
    """Read when the requests for a model come: ``rate_per_s`` (Poisson), or a table ``arrivals``.

    Parameters
    ----------
    model : TomlTable
    folder : Path
        What file names of traces are relative to.

    Raises
    ------
    ConfigError
        If neither or both are given, or something in them cannot be.
    """
    table = model.table("arrivals")
    if table is None:
        return Poisson(_rate(model, "rate_per_s"))
    if "rate_per_s" in model:
        remedy = "the arrivals say it already; leave one of both out"
        raise model.error("rate_per_s", model.amount("rate_per_s"), remedy)
    process = table.text("process")
    if process not in _READERS:
        raise table.error("process", process, f"give one of {', '.join(_READERS)}")
    keys, read = _READERS[process]
    table.only(("process", *keys))
    return read(table, folder)


def _rate(table: TomlTable, key: str) -> float:
    return table.amount(key, high=_HIGHEST_RATE)


def _read_bursty(table: TomlTable, folder: Path) -> Arrivals:  # noqa: ARG001
    rates, stay = table.amounts("rates_per_s"), table.amounts("stay_s", low=1e-6)
    if len(rates) != len(stay):
        raise table.error("stay_s", list(stay), f"give one time for each of the {len(rates)} rates_per_s")
    return Bursty(rates, stay)


def _read_closed(table: TomlTable, folder: Path) -> Arrivals:  # noqa: ARG001
    clients = table.whole("clients", low=1, high=1_000_000)
    return ClosedLoop(clients, round(table.amount("think_s", 0.0, high=1e6) * SECOND_NS))


_READERS: dict[str, tuple[tuple[str, ...], Callable[[TomlTable, Path], Arrivals]]] = {
    "uniform": (("rate_per_s",), lambda table, _: Uniform(_rate(table, "rate_per_s"))),
    "poisson": (("rate_per_s",), lambda table, _: Poisson(_rate(table, "rate_per_s"))),
    "bursty": (("rates_per_s", "stay_s"), _read_bursty),
    "closed_loop": (("clients", "think_s"), _read_closed),
    "trace": (("file", "counts", "bin_s", "timestamps", "unit_s"), read_trace),
}
"""Name of a process -> its keys, and what reads them."""
