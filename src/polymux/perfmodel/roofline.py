"""The roofline: whether a kernel waits for the arithmetic or for the memory, and how long it takes at least.

A kernel's arithmetic intensity is operations per byte. Below the device's ridge, peak rate over bandwidth, the memory
bounds it; above, the arithmetic.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from polymux.core.errors import InvalidRequest
from polymux.perfmodel.device_facts import DeviceFacts
from polymux.perfmodel.operations import Node

Bound = Literal["memory", "compute"]


def arithmetic_intensity(flops: float, nbytes: float) -> float:
    """Operations per byte; infinite where no byte is moved.

    Raises
    ------
    InvalidRequest
        If a number is negative.

    References
    ----------
    D-STACK: VGG-19's conv11 has 3.70 GFLOP over 9.44 MB of weights, 392; an LSTM of GNMT 2.
    """
    if not (flops >= 0 and nbytes >= 0):
        raise InvalidRequest(f"{flops} operations over {nbytes} bytes; give 0 or more of both")
    return flops / nbytes if nbytes else float("inf") if flops else 0.0


@dataclass(frozen=True, slots=True)
class Roofline:
    """A device's two limits.

    Parameters
    ----------
    flops_per_s : float, operations/s
    bandwidth_bytes_per_s : float, bytes/s

    Raises
    ------
    InvalidRequest
        If one is not positive.

    References
    ----------
    Williams, Waterman, Patterson: Roofline. Communications of the ACM 52(4), 2009.
    """

    flops_per_s: float
    bandwidth_bytes_per_s: float

    def __post_init__(self) -> None:
        if not (self.flops_per_s > 0 and self.bandwidth_bytes_per_s > 0):
            raise InvalidRequest(
                f"roofline of {self.flops_per_s} operations/s and {self.bandwidth_bytes_per_s} bytes/s; give positive"
                " numbers"
            )

    @classmethod
    def of(cls, device: DeviceFacts, *, matrix_units: bool = True) -> Roofline:
        """Take the limits of a device from its facts.

        Parameters
        ----------
        device : DeviceFacts
        matrix_units : bool
            Whether the peak is that of its matrix units, where it has them; otherwise of ordinary single precision.
        """
        peak = device.tensor_flops_per_s if matrix_units else 0
        return cls(peak or device.flops_per_s, device.bandwidth_bytes_per_s)

    @property
    def ridge(self) -> float:
        """Intensity from which on the arithmetic is the limit, operations/byte."""
        return self.flops_per_s / self.bandwidth_bytes_per_s

    def share(self, part: float) -> Roofline:
        """Limits of a part of the device; the bandwidth grows with the compute units that are allotted.

        Parameters
        ----------
        part : float
            Of the device's compute units, above 0 and up to 1.

        Raises
        ------
        InvalidRequest
            If `part` is outside.

        References
        ----------
        D-STACK: the memory term of its analytical model.
        """
        if not 0 < part <= 1:
            raise InvalidRequest(f"a share of {part} of a device; give more than 0 and at most 1")
        return Roofline(self.flops_per_s * part, self.bandwidth_bytes_per_s * part)

    def attainable_flops_per_s(self, intensity: float) -> float:
        """Highest rate at an intensity, operations/s."""
        return min(self.flops_per_s, self.bandwidth_bytes_per_s * intensity)

    def bound(self, intensity: float) -> Bound:
        """Say what limits a kernel of an intensity."""
        return "memory" if intensity < self.ridge else "compute"

    def least_ns(self, flops: float, nbytes: float) -> float:
        """Shortest time of a kernel, in ns."""
        return 1e9 * max(flops / self.flops_per_s, nbytes / self.bandwidth_bytes_per_s)


@dataclass(frozen=True, slots=True)
class NodeCost:
    """What a node takes at least on a device.

    Parameters
    ----------
    name, op : str
    flops : int
    nbytes : int
        Read and written.
    intensity : float, operations/byte
    bound : "memory" or "compute"
    least_ns : float, ns
    is_known : bool
        Whether the operations were counted by a rule.
    """

    name: str
    op: str
    flops: int
    nbytes: int
    intensity: float
    bound: Bound
    least_ns: float
    is_known: bool


@dataclass(frozen=True, slots=True)
class GraphCost:
    """What a graph takes at least on a device when its nodes run one after the other.

    Parameters
    ----------
    nodes : tuple of NodeCost
    weight_nbytes : int
    roofline : Roofline
    """

    nodes: tuple[NodeCost, ...]
    weight_nbytes: int
    roofline: Roofline

    @property
    def flops(self) -> int:
        """Arithmetic operations of all nodes."""
        return sum(node.flops for node in self.nodes)

    @property
    def nbytes(self) -> int:
        """Bytes that all nodes read and write."""
        return sum(node.nbytes for node in self.nodes)

    @property
    def intensity(self) -> float:
        """Operations per byte of the graph as a whole."""
        return arithmetic_intensity(self.flops, self.nbytes)

    @property
    def least_ns(self) -> float:
        """Shortest time, in ns."""
        return sum(node.least_ns for node in self.nodes)

    @property
    def memory_bound_part(self) -> float:
        """Part of the shortest time that is spent in nodes bound by the memory, 0 to 1."""
        whole = self.least_ns
        return sum(node.least_ns for node in self.nodes if node.bound == "memory") / whole if whole else 0.0

    @property
    def bound(self) -> Bound:
        """What limits most of its time: not always what its intensity as a whole would say."""
        return "memory" if self.memory_bound_part > 0.5 else "compute"

    @property
    def unknown_ops(self) -> tuple[str, ...]:
        """Operators whose operations are a guess."""
        return tuple(sorted({node.op for node in self.nodes if not node.is_known}))


def graph_cost(nodes: Sequence[Node], roofline: Roofline) -> GraphCost:
    """Count the operations and bytes of each node and say what bounds it.

    Parameters
    ----------
    nodes : sequence of Node
        With shapes for the batch of interest; weights are counted once in `GraphCost.weight_nbytes` for each node.
    roofline : Roofline

    Raises
    ------
    InvalidRequest
        If a node's inputs do not fit its operator.

    Notes
    -----
    Bytes are those of inputs and outputs, each once: what a cache or a fused kernel saves is not known here, so the
    intensity is a lower bound.
    """
    costs = []
    for node in nodes:
        flops, nbytes = node.flops, node.nbytes
        intensity = arithmetic_intensity(flops, nbytes)
        costs.append(
            NodeCost(
                node.name,
                node.op,
                flops,
                nbytes,
                intensity,
                roofline.bound(intensity),
                roofline.least_ns(flops, nbytes),
                node.is_known,
            )
        )
    return GraphCost(tuple(costs), sum(node.weight_nbytes for node in nodes), roofline)
