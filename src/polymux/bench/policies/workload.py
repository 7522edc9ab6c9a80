"""What is served and asked for: real models with their profiles, deadlines, and the mix of requests."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from polymux.bench.report import Progress
from polymux.client import Client
from polymux.core.dtype import DType
from polymux.core.errors import ConfigError
from polymux.core.serving.model import ServingDevice
from polymux.perfmodel.interference import NO_INTERFERENCE, Interference
from polymux.perfmodel.surface import TableSurface
from polymux.profiles import ProfileStore
from polymux.profiling.model import ModelSource, PreparedModel, prepare
from polymux.profiling.options import ProfileOptions
from polymux.profiling.run import profile
from polymux.profiling.samples import find_sample, write_sample
from polymux.profiling.target import Target, targets
from polymux.profiling.together import measure_together, pair_streams
from polymux.serving.datatype import PROTOCOL_NAMES
from polymux.serving.scheduling.machine import read_machine

MS_NS = 1_000_000

MODELS = ("squeezenet", "shufflenet", "resnet50", "read_text")
"""Light and heavy ones: images, and lines of text in images."""


@dataclass(frozen=True, slots=True)
class Served:
    """A model of the benchmark.

    Attributes
    ----------
    name : str
    surface : TableSurface
        As measured.
    slo_ns : int
    part : float
        Of all requests, those for this model.
    request : str
        As it goes over the wire, in base64.
    """

    name: str
    surface: TableSurface
    slo_ns: int
    part: float
    request: str


@dataclass(frozen=True, slots=True)
class Workload:
    """The models, and the device on which they were measured.

    Attributes
    ----------
    models : tuple of Served
    device : ServingDevice
        As the front end schedules it.
    interference : Interference
        What the models do to each other, side by side.
    repository, store : pathlib.Path
    prepared : mapping of str to PreparedModel
        The models, ready to be run without a front end.
    """

    models: tuple[Served, ...]
    device: ServingDevice
    interference: Interference
    repository: Path
    store: Path
    prepared: Mapping[str, PreparedModel] = field(default_factory=dict)

    def mix(self, count: int, seed: int) -> NDArray[np.int64]:
        """Draw whose requests come, in their order; each model has its part of them, to the nearest request."""
        ends = np.round(np.cumsum([model.part for model in self.models]) * count).astype(np.int64)
        owners = np.searchsorted(ends, np.arange(count), "right").clip(max=len(self.models) - 1)
        return np.random.default_rng([seed, 1]).permutation(owners)

    def arrivals(
        self, rate_per_s: float, seconds: float, seed: int
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Draw an open-loop load: times in ns, ascending, and the model of each; the same for the same seed.

        A Poisson process of which the number of arrivals is given: a load is what it says, also when it is short.
        """
        rng = np.random.default_rng([seed, 0])
        count = max(1, round(rate_per_s * seconds))
        times = np.sort(rng.integers(0, round(seconds * 1e9), count, dtype=np.int64))
        return times, self.mix(count, seed)


def make_workload(
    folder: Path,
    clients: tuple[Client, Client],
    names: Sequence[str],
    options: ProfileOptions,
    progress: Progress,
) -> Workload:
    """Write the models, measure them alone and side by side, and choose deadlines and rates.

    Every model gets the same part of the device's time. The deadline of a model is what it needs alone on the whole
    device, twice, and once what each other one needs: what a patient scheduler can keep, and no less.
    """
    target = targets(clients[0])[0]
    repository, store = folder / "models", folder / "profiles.db"
    prepared: dict[str, PreparedModel] = {}
    surfaces: dict[str, TableSurface] = {}
    with ProfileStore(store, write=True) as profiles:
        for name in names:
            sample = find_sample(name)
            path = write_sample(name, repository / name / "1" / "model.onnx")
            made = prepared[name] = prepare(ModelSource(name, path, sample.shapes, sample.values), folder)
            progress(f"profile of {name}")
            profile(made, target, profiles, options)
            found = profiles.surface(made.record.key, target.identity.key)
            assert found is not None, f"the profile of {name} was just made"
            surfaces[name] = found
        interference = _interference(clients, profiles, prepared, options, progress)
    alone = {name: surface.latency_ns(_units(target), 1) for name, surface in surfaces.items()}
    total = sum(1 / time_ns for time_ns in alone.values())
    models = []
    for name in names:
        slo_ms = round((sum(alone.values()) + 2 * alone[name]) / MS_NS)
        models.append(
            Served(
                name,
                surfaces[name],
                max(1, slo_ms) * MS_NS,
                1 / alone[name] / total,
                base64.b64encode(_request(prepared[name])).decode(),
            )
        )
        _configure(repository / name / "config.pbtxt", slo_ms, options.batches[-1])
    device = read_machine(clients[0].status(), target.device).devices[0]
    return Workload(tuple(models), device, interference, repository, store, prepared)


def _interference(
    clients: tuple[Client, Client],
    profiles: ProfileStore,
    prepared: Mapping[str, PreparedModel],
    options: ProfileOptions,
    progress: Progress,
) -> Interference:
    try:
        pairing = pair_streams(*clients)
    except ConfigError:
        return NO_INTERFERENCE  # a device of one unit: nothing runs side by side
    models = list(prepared.values())
    measure_together(models, pairing, profiles, options, 1, lambda _done, _all, what: progress(what))
    names = {model.record.key: f"{model.record.name}/1" for model in models}
    return profiles.interference(pairing.measured.identity.key, names)


def _units(target: Target) -> int:
    return max(target.streams)


def _configure(path: Path, slo_ms: int, max_batch: int) -> None:
    path.write_text(
        f'max_batch_size: {max_batch}\nparameters {{ key: "slo_ms" value {{ string_value: "{slo_ms}" }} }}\n'
    )


def _request(model: PreparedModel) -> bytes:
    """Write one item as an inference request with binary tensors."""
    rng = np.random.default_rng(0)
    tensors: list[Mapping[str, object]] = []
    pieces: list[bytes] = []
    for item in model.inputs:
        array = np.ascontiguousarray(item.values(1, rng))
        pieces.append(array.tobytes())
        tensors.append(
            {
                "name": item.name,
                "datatype": PROTOCOL_NAMES[DType.from_numpy(array.dtype)],
                "shape": list(array.shape),
                "parameters": {"binary_data_size": array.nbytes},
            }
        )
    text = json.dumps({"inputs": tensors, "parameters": {"binary_data_output": True}}).encode()
    body = text + b"".join(pieces)
    head = (
        f"POST /v2/models/{model.record.name}/infer HTTP/1.1\r\nhost: bench\r\n"
        f"content-length: {len(body)}\r\ninference-header-content-length: {len(text)}\r\n\r\n"
    )
    return head.encode() + body
