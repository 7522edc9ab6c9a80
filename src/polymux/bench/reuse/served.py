"""The same over HTTP: two models of a front end get the same files, with and without ``share_input``."""

from __future__ import annotations

import base64
from pathlib import Path
from statistics import median
from typing import Any

from polymux.bench.policies.generator import Plan
from polymux.bench.policies.live import HttpFrontEnd, send
from polymux.bench.report import Progress
from polymux.bench.reuse.jobs import STAGE
from polymux.bench.reuse.pictures import LARGE, make_pictures
from polymux.core.errors import PolymuxError

__all__ = ["ServedCase"]

MODELS = ("squeezenet", "shufflenet")
CLIENTS = 4


class ServedCase:
    """Two light models behind HTTP.

    Parameters
    ----------
    folder : pathlib.Path
        Has ``models/NAME/1/model.onnx``.
    socket : str
        Of the server to join.
    """

    def __init__(self, folder: Path, socket: str) -> None:
        self._socket = socket
        self._repository = folder / "served"
        for name in MODELS:
            version = self._repository / name / "1"
            version.mkdir(parents=True)
            (version / "model.onnx").symlink_to(folder / "models" / name / "1" / "model.onnx")
            (version.parent / "config.pbtxt").write_text(
                f'parameters {{ key: "input_stage" value {{ string_value: "{STAGE}" }} }}\n'
            )

    def measure(self, count: int, rounds: int, progress: Progress) -> dict[str, Any]:
        """Measure; `count` is the number of requests of a round."""
        gains: list[float] = []
        rates: list[float] = []
        for index in range(rounds):
            pictures = make_pictures(max(1, count // len(MODELS)), 1000 + index, LARGE)
            rate: dict[bool, float] = {}
            for share in (False, True) if index % 2 == 0 else (True, False):
                what = "shared" if share else "not shared"
                progress(f"served over HTTP, {what}: round {index + 1} of {rounds}")
                rate[share] = self._rate(pictures, share)
            gains.append(rate[True] / rate[False] - 1)
            rates.append(rate[True])
        return {
            "case": "two light models over HTTP, one input of 1.2 megapixels",
            "gain": median(gains),
            "items_per_s": median(rates),
            "baseline": "not shared",
        }

    def _rate(self, pictures: list[bytes], share: bool) -> float:
        words = [str(self._repository), "--socket", self._socket, *(["--share-input"] if share else [])]
        requests = [_request(model, picture) for picture in pictures for model in MODELS]
        with HttpFrontEnd(words) as front:
            send(front, _plan(front.port, requests[: 4 * len(MODELS)]))  # warm
            outcome = send(front, _plan(front.port, requests[4 * len(MODELS) :]))
        if (outcome.latencies_ns < 0).any():
            raise PolymuxError("a request of the benchmark was not answered")
        return outcome.steady_per_s


def _plan(port: int, requests: list[str]) -> Plan:
    return Plan("127.0.0.1", port, tuple(requests), tuple(range(len(requests))), clients=CLIENTS)


def _request(model: str, picture: bytes) -> str:
    """Write a raw binary request: the body is the file."""
    head = (
        f"POST /v2/models/{model}/infer HTTP/1.1\r\nhost: bench\r\n"
        f"content-length: {len(picture)}\r\ninference-header-content-length: 0\r\n\r\n"
    )
    return base64.b64encode(head.encode() + picture).decode()
