"""Where it is measured: one core through BLAS, the other one through OpenCL or in bfloat16, on the same memory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from polymux.bench.cores import choose_cores
from polymux.coexec import Session
from polymux.coexec.operation import Operation
from polymux.core.errors import PolymuxError
from polymux.perfmodel.coexec.precision import Precision
from polymux.profiling.private_server import PrivateServer


@dataclass(frozen=True, slots=True)
class Pair:
    """Two units that compute together.

    Parameters
    ----------
    name : str
        For people.
    units : tuple of str
        Their ids.
    precision : str, optional
        The lowest that the pair needs.
    """

    name: str
    units: tuple[str, str]
    precision: Precision | None = None


@contextmanager
def serving() -> Iterator[PrivateServer]:
    """Run a server with a cpu device on each of two cores and OpenCL on the second one.

    Raises
    ------
    PolymuxError
        On a machine with one core.
    """
    cores = choose_cores()
    if not cores.pinned:
        raise PolymuxError("co-execution on the host's cores needs two of them; this process may use one")
    units = "+".join(["1"] * (cores.server + 1))
    devices = [
        f"cpu:{cores.client},memory=host",
        f"cpu:{cores.server},memory=host",
        f"opencl:0,memory=host,shares={units}",
    ]
    with PrivateServer(devices) as server:
        yield server


def pairs(session: Session, operation: Operation) -> list[Pair]:
    """List the pairs that this machine has for an operation: BLAS beside OpenCL, and beside bfloat16."""
    units = session.units(operation)
    exact, low = (kernel.name for kernel in operation.kernels[:2])
    first = f"cpu:0/0/{exact}"
    opencl = [unit.id for unit in units if unit.place.device == "opencl:0" and unit.kernel.name == exact]
    found = []
    if opencl:
        found.append(Pair("BLAS + OpenCL", (first, opencl[-1])))
    if f"cpu:1/0/{low}" in {unit.id for unit in units}:
        found.append(Pair("BLAS + bf16", (first, f"cpu:1/0/{low}"), "bf16"))
    return found
