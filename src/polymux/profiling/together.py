"""Measures how much models slow each other down: each beside each other one, on shares that have no unit in common."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import combinations, product

from polymux.client import Client
from polymux.core.errors import ConfigError, PolymuxError
from polymux.profiles import Beside, ProfileStore
from polymux.profiling.model import PreparedModel
from polymux.profiling.options import ProfileOptions
from polymux.profiling.repeats import repeat
from polymux.profiling.target import Target, batches_on, registered, targets


@dataclass(frozen=True, slots=True)
class Pairing:
    """Two streams of a device without a common unit, by two connections.

    Parameters
    ----------
    measured, neighbour : Target
        Each with just one stream.
    units : int
        Of each.
    """

    measured: Target
    neighbour: Target
    units: int


@dataclass(frozen=True, slots=True)
class Outcome:
    """What was done.

    Parameters
    ----------
    measured, kept : int
        Pairs that were measured now, and that the store had.
    imprecise : int
        Pairs with an interval that stayed wider than was asked for.
    """

    measured: int
    kept: int
    imprecise: int


def pair_streams(client: Client, other: Client) -> Pairing:
    """Find the largest share of which a device has two that are apart.

    Parameters
    ----------
    client, other : Client
        Two connections to one server: what runs beside must not wait for what is measured.

    Raises
    ------
    ConfigError
        If no device that runs ONNX models has two such streams.
    """
    known = {device["id"]: device for device in client.status()["devices"]}
    theirs = {target.device: target for target in targets(other)}
    for target in targets(client):
        streams = {stream["id"]: frozenset(stream["units"]) for stream in known[target.device]["streams"]}
        apart = [
            (len(streams[one]), one, two)
            for one, two in combinations(sorted(streams), 2)
            if len(streams[one]) == len(streams[two]) and not streams[one] & streams[two]
        ]
        if apart:
            units, one, two = max(apart, key=lambda found: found[0])
            measured = replace(target, streams={units: one})
            return Pairing(measured, replace(theirs[target.device], streams={units: two}), units)
    remedy = "measure on a device with two cores or more, such as --device cpu,shares=nested"
    raise ConfigError("server", "streams", "no two of equal size are apart", remedy)


def measure_together(
    models: Sequence[PreparedModel],
    pairing: Pairing,
    store: ProfileStore,
    options: ProfileOptions,
    batch: int,
    report: Callable[[int, int, str], None] = lambda *_: None,
) -> Outcome:
    """Measure each model alone and beside each of them, itself included, into the store.

    Parameters
    ----------
    models : sequence of PreparedModel
    pairing : Pairing
    store : ProfileStore
        Open for writing; every pair is written when it is measured.
    options : ProfileOptions
        What the store has is measured again only when it says so.
    batch : int
        Of both, where a model's batch is free.
    report : callable
        Is told before each pair: how many are done, how many there are, and which is next.

    Returns
    -------
    Outcome

    Raises
    ------
    ConfigError
        If the store cannot be written.
    PolymuxError
        If a model cannot be run.

    Notes
    -----
    The neighbour runs batch after batch while the other one is measured. The time alone is measured anew for each pair,
    right before it, so that a machine that becomes slower or faster meanwhile changes both.
    """
    device = pairing.measured.identity
    for model in models:
        store.put_model(model.record)
    store.put_device(device)
    have = {(its.model, its.neighbour) for its in store.besides(device.key)} if not options.again else set()
    pairs = [pair for pair in product(models, models) if (pair[0].record.key, pair[1].record.key) not in have]
    imprecise = 0
    for done, (model, neighbour) in enumerate(pairs):
        report(done, len(pairs), f"{model.record.name} beside {neighbour.record.name}")
        beside, is_precise = _measure(model, neighbour, pairing, options, batch)
        store.put_beside(device.key, beside)
        imprecise += not is_precise
    return Outcome(len(pairs), len(models) ** 2 - len(pairs), imprecise)


def _measure(
    model: PreparedModel, neighbour: PreparedModel, pairing: Pairing, options: ProfileOptions, batch: int
) -> tuple[Beside, bool]:
    units = pairing.units
    (its_batch,), (other_batch,) = model.batches((batch,)), neighbour.batches((batch,))
    with (
        registered(pairing.measured.client, f"{model.record.name}:beside", model.path) as kernel,
        batches_on(pairing.measured, units, kernel, model.inputs, model.outputs, its_batch) as once,
    ):
        alone = repeat(once, options)
        with _running(neighbour, pairing, other_batch):
            beside = repeat(once, options)
    pair = Beside(
        model.record.key,
        neighbour.record.key,
        units,
        its_batch,
        units,
        other_batch,
        alone.median_ns,
        beside.median_ns,
        int(time.time()),
    )
    return pair, alone.is_precise and beside.is_precise


@contextmanager
def _running(model: PreparedModel, pairing: Pairing, batch: int) -> Iterator[None]:
    """Have a model run batch after batch meanwhile; a failure of it is raised at the end."""
    stop, failed = threading.Event(), []
    target = pairing.neighbour
    with (
        registered(target.client, f"{model.record.name}:neighbour", model.path) as kernel,
        batches_on(target, pairing.units, kernel, model.inputs, model.outputs, batch) as once,
    ):
        once()  # loads the model

        def run() -> None:
            try:
                while not stop.is_set():
                    once()
            except PolymuxError as error:
                failed.append(error)

        thread = threading.Thread(target=run, name="neighbour")
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()
    if failed:
        raise failed[0]
