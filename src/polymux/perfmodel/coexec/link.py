"""How long copies to and from a unit's own memory take."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from math import isfinite

import numpy as np

from polymux.core.errors import InvalidRequest
from polymux.perfmodel.coexec.law import fit_law


@dataclass(frozen=True, slots=True)
class LinkModel:
    """Copies between the host and a unit: a latency and a bandwidth in each direction, on a bus that others may share.

    Parameters
    ----------
    bus : str
        Copies of units with the same bus wait for each other, in each direction by themselves.
    in_latency_s, out_latency_s : float, s
        Into the unit's memory, and back.
    in_bytes_per_s, out_bytes_per_s : float, bytes/s
    duplex : bool
        Whether copies in and copies back go side by side; otherwise copies back wait until all copies in are done.
    overlaps : bool
        Whether the unit computes a chunk while others are copied, as one with engines of its own for copies does.

    Raises
    ------
    InvalidRequest
        If a latency is negative, or a bandwidth not positive.
    """

    bus: str
    in_latency_s: float
    in_bytes_per_s: float
    out_latency_s: float
    out_bytes_per_s: float
    duplex: bool = True
    overlaps: bool = False

    def __post_init__(self) -> None:
        latencies, rates = (
            (self.in_latency_s, self.out_latency_s),
            (self.in_bytes_per_s, self.out_bytes_per_s),
        )
        if not (min(latencies) >= 0 and min(rates) > 0 and all(map(isfinite, latencies))):
            raise InvalidRequest(
                f"link on bus {self.bus!r}: latencies {latencies} s, bandwidths {rates} bytes/s; give latencies of 0 or"
                " more and positive bandwidths"
            )

    def in_s(self, nbytes: float) -> float:
        """Time to copy bytes into the unit's memory, in s; none for none."""
        return self.in_latency_s + nbytes / self.in_bytes_per_s if nbytes else 0.0

    def out_s(self, nbytes: float) -> float:
        """Time to copy bytes back, in s; none for none."""
        return self.out_latency_s + nbytes / self.out_bytes_per_s if nbytes else 0.0

    def to_json(self) -> str:
        """Write it down."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> LinkModel:
        """Read what `to_json` wrote.

        Raises
        ------
        InvalidRequest
            If it is something else.
        """
        try:
            raw = json.loads(text)
            return cls(**raw)
        except (ValueError, TypeError) as error:
            raise InvalidRequest(f"this is no model of a link ({error}): {text[:80]!r}") from error


def fit_link(
    bus: str,
    into: Sequence[tuple[float, float]],
    out: Sequence[tuple[float, float]],
    *,
    duplex: bool = True,
) -> LinkModel:
    """Fit a link to measured copies, by least squares of relative errors.

    Parameters
    ----------
    bus : str
    into, out : sequence of (float, float)
        Bytes and seconds of copies in each direction, of two sizes or more; repeats count with their median.
    duplex : bool

    Raises
    ------
    InvalidRequest
        If a direction has no copies, or a number is not positive.
    """
    (in_latency, in_per_byte), (out_latency, out_per_byte) = _fit(bus, into), _fit(bus, out)
    return LinkModel(bus, in_latency, 1 / in_per_byte, out_latency, 1 / out_per_byte, duplex)


def _fit(bus: str, copies: Sequence[tuple[float, float]]) -> tuple[float, float]:
    if not copies or min(min(copy) for copy in copies) <= 0:
        raise InvalidRequest(
            f"link on bus {bus!r}: copies {list(copies)[:4]}; give bytes and seconds above 0"
        )
    by_size: dict[float, list[float]] = {}
    for size, took in copies:
        by_size.setdefault(size, []).append(took)
    nbytes = np.array(list(by_size))
    seconds = np.array([np.median(times) for times in by_size.values()])
    latency, per_byte = fit_law(np.stack([np.ones_like(nbytes), nbytes], axis=1), seconds)
    if not per_byte:  # copies of all sizes took as long: the largest says how fast at least
        latency, per_byte = 0.0, float(np.min(seconds / nbytes))
    return float(latency), float(per_byte)
