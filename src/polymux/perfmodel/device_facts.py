"""What a data sheet says of a kind of device."""

from __future__ import annotations

from dataclasses import dataclass

from polymux.core.errors import InvalidRequest

PERCENT_SHARES = tuple(range(10, 101, 10))
"""Shares, in percent of a GPU, on which the paper's models were measured."""


@dataclass(frozen=True, slots=True)
class DeviceFacts:
    """Peak rates, memory and power of a kind of device.

    Parameters
    ----------
    kind : str
        Short name: ``"v100"``.
    name : str
    compute_units : int
        Streaming multiprocessors, cores.
    flops_per_s : float
        Peak of ordinary single precision, operations/s.
    tensor_flops_per_s : float
        Peak of half precision on matrix units, without sparsity, operations/s; 0: there are none.
    bandwidth_bytes_per_s : float
        Of its memory, bytes/s.
    memory_nbytes : int
    max_watts, idle_watts : float, W
        Board power under full load, and with nothing running.
    unit_speed : float
        How many times faster than a V100's one compute unit is, on convolutional networks; 0: not known.
    units : int
        What its shares count in: 100 where they are a percentage.
    shares : tuple of int
        Numbers of those units that a batch may be given.
    source : str
    """

    kind: str
    name: str
    compute_units: int
    flops_per_s: float
    tensor_flops_per_s: float
    bandwidth_bytes_per_s: float
    memory_nbytes: int
    max_watts: float
    idle_watts: float
    unit_speed: float = 0.0
    units: int = 100
    shares: tuple[int, ...] = PERCENT_SHARES
    source: str = ""

    def __post_init__(self) -> None:
        rates = (self.flops_per_s, self.bandwidth_bytes_per_s)
        if self.compute_units < 1 or min(rates) <= 0 or self.tensor_flops_per_s < 0:
            raise InvalidRequest(
                f"device {self.kind}: {self.compute_units} compute units, {rates[0]} operations/s, {rates[1]} bytes/s,"
                f" {self.tensor_flops_per_s} operations/s on matrix units; give positive numbers"
            )
        if not 0 <= self.idle_watts <= self.max_watts:
            raise InvalidRequest(
                f"device {self.kind}: {self.idle_watts} W idle and {self.max_watts} W at most; give 0 <= idle <= most"
            )

    @property
    def ridge_flops_per_byte(self) -> float:
        """Arithmetic intensity from which on the peak rate, not the memory, bounds a kernel, operations/byte.

        Of matrix units where the device has them: 138.9 for a V100 (the D-STACK paper says 139.8).

        References
        ----------
        Williams, Waterman, Patterson: Roofline. Communications of the ACM 52(4), 2009.
        """
        return (self.tensor_flops_per_s or self.flops_per_s) / self.bandwidth_bytes_per_s
