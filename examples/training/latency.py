"""Measure how long a served model takes to answer, and draw several such measurements.

    python latency.py measure alone.json --label "alone" --url http://127.0.0.1:8000
    python latency.py draw latency.png alone.json unmanaged.json polymux.json

Requests arrive at random times (Poisson), whether earlier ones are answered or not; a latency counts from the arrival.
"""

from __future__ import annotations

import argparse
import http.client
import json
import sys
import threading
import time
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np

from polymux.apps.digits import load_digits

CONNECTIONS = 16
TIMEOUT_S = 60


def main() -> int:
    options = parse()
    try:
        if options.command == "measure":
            measure(options)
        else:
            draw(options.picture, [json.loads(path.read_text()) for path in options.measured])
    except (OSError, http.client.HTTPException, RuntimeError) as error:
        print(f"latency: {error}", file=sys.stderr)
        return 1
    return 0


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    commands = parser.add_subparsers(dest="command", required=True)
    asked = commands.add_parser("measure", help="send requests and write their latencies")
    asked.add_argument("file", type=Path, help="to write")
    asked.add_argument("--label", required=True, help="what is measured")
    asked.add_argument(
        "--url", default="http://127.0.0.1:8000", help="of polymux serve (default: %(default)s)"
    )
    asked.add_argument("--rate", type=float, default=20.0, help="requests a second (default: %(default)s)")
    asked.add_argument("--seconds", type=float, default=20.0, help="how long (default: %(default)s)")
    asked.add_argument("--images", type=int, default=16, help="digits in a request (default: %(default)s)")
    asked.add_argument("--seed", type=int, default=0, help="of the arrivals (default: %(default)s)")
    drawn = commands.add_parser("draw", help="draw measurements")
    drawn.add_argument("picture", type=Path, help="PNG to write")
    drawn.add_argument("measured", type=Path, nargs="+", help="files that measure has written")
    return parser.parse_args()


def measure(options: argparse.Namespace) -> None:
    random = np.random.default_rng(options.seed)
    count = max(1, round(options.rate * options.seconds))
    arrivals = np.cumsum(random.exponential(1 / options.rate, count))
    images = load_digits()[1].images[: options.images]
    body, headers = request(images)
    latencies = Latencies(options.url, body, headers)
    latencies.warm_up()
    found = 1e3 * latencies.of(arrivals)
    p50, p99 = np.percentile(found, [50, 99])
    print(f"{options.label}: {count} requests, p50 {p50:.1f} ms, p99 {p99:.1f} ms")
    written = {
        "label": options.label,
        "rate": options.rate,
        "images": options.images,
        "latencies_ms": found.tolist(),
    }
    options.file.write_text(json.dumps(written))


def request(images: np.ndarray) -> tuple[bytes, dict[str, str]]:
    """Make an inference request with binary data (Open Inference Protocol)."""
    data = np.ascontiguousarray(images, np.float32).tobytes()
    tensor = {"name": "images", "shape": list(images.shape), "datatype": "FP32"}
    header = json.dumps({"inputs": [{**tensor, "parameters": {"binary_data_size": len(data)}}]}).encode()
    return header + data, {"Inference-Header-Content-Length": str(len(header))}


class Latencies:
    """Sends the same request at given times over some connections."""

    def __init__(self, url: str, body: bytes, headers: dict[str, str]) -> None:
        self.host = urlsplit(url).netloc
        self.body, self.headers = body, headers
        self.lock = threading.Lock()
        self.problem: Exception | None = None

    def warm_up(self) -> None:
        connection = self.connect()
        for _ in range(5):
            self.send(connection)
        connection.close()

    def of(self, arrivals: np.ndarray) -> np.ndarray:
        found = np.zeros(len(arrivals))
        left = iter(range(len(arrivals)))
        began = time.perf_counter() + 0.1

        def work() -> None:
            try:
                connection = self.connect()
                while self.problem is None:
                    with self.lock:
                        index = next(left, None)
                    if index is None:
                        break
                    due = began + arrivals[index]
                    time.sleep(max(0.0, due - time.perf_counter()))
                    self.send(connection)
                    found[index] = time.perf_counter() - due
                connection.close()
            except (OSError, http.client.HTTPException, RuntimeError) as error:
                self.problem = error

        threads = [threading.Thread(target=work) for _ in range(CONNECTIONS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if self.problem is not None:
            raise self.problem
        return found

    def connect(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection(self.host, timeout=TIMEOUT_S)

    def send(self, connection: http.client.HTTPConnection) -> None:
        connection.request("POST", "/v2/models/digits/infer", self.body, self.headers)
        answer = connection.getresponse()
        text = answer.read()
        if answer.status != 200:
            raise RuntimeError(f"status {answer.status}: {text[:200]!r}")


def draw(picture: Path, measured: list[dict]) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4), layout="constrained")
    axes = figure.subplots()
    for run in measured:
        latencies = np.sort(run["latencies_ms"])
        p50, p99 = np.percentile(latencies, [50, 99])
        above = 100 * (1 - np.arange(len(latencies)) / len(latencies))
        axes.plot(latencies, above, label=f"{run['label']}: p50 {p50:.1f} ms, p99 {p99:.1f} ms")
        print(f"{run['label']:<32} p50 {p50:6.1f} ms  p99 {p99:6.1f} ms")
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("latency of a request in ms")
    axes.set_ylabel("requests that take longer, %")
    axes.set_title(f"{measured[0]['images']} digits a request, {measured[0]['rate']:g} requests/s")
    axes.grid(visible=True, which="both", alpha=0.3)
    axes.legend()
    figure.savefig(picture, dpi=120)


if __name__ == "__main__":
    sys.exit(main())
