"""The benchmark ``polymux bench reuse``."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from polymux.bench.effort import Effort
from polymux.bench.report import Progress, Report, Row
from polymux.bench.reuse.jobs import InferenceJob, ahead, check_answers, in_turns, side_by_side
from polymux.bench.reuse.pictures import LARGE, SMALL, Size, make_pictures
from polymux.bench.reuse.processes import measure_processes
from polymux.bench.reuse.served import ServedCase
from polymux.profiling.private_server import PrivateServer
from polymux.profiling.samples import write_sample

SHARED_TARGET = 0.3
"""Two light models that take the same JPEG files: throughput over that of time slicing, less 1."""
LIGHT, HEAVY = ("squeezenet", "shufflenet"), ("resnet50", "squeezenet")
THREE = ("squeezenet", "shufflenet", "inception_v1")


@dataclass(frozen=True, slots=True)
class Case:
    """Jobs to compare.

    Attributes
    ----------
    name : str
    models : tuple of str
        Samples; one job each.
    share : bool
        Whether the jobs take the same inputs, and share the stage.
    size : tuple of int
        Width and height of the pictures in pixels.
    target : float or None
        What the gain is to be at least.
    """

    name: str
    models: tuple[str, ...]
    share: bool
    size: Size = SMALL
    target: float | None = None


CASES = (
    Case("two light models, one input", LIGHT, True, SMALL, SHARED_TARGET),
    Case("two light models, one input of 1.2 megapixels", LIGHT, True, LARGE, SHARED_TARGET),
    Case("three models, one input", THREE, True),
    Case("a heavy and a light model, one input", HEAVY, True),
    Case("two light models, inputs of their own", LIGHT, False, SMALL, 0.0),
    Case("a heavy and a light model, inputs of their own", HEAVY, False, SMALL, 0.0),
    Case("one light model, with its own next input", LIGHT[:1], False, SMALL, 0.0),
)


def run(effort: Effort, progress: Progress) -> Report:
    """Measure all cases."""
    quick = effort.rounds <= 2
    count, rounds = (6, 2) if quick else (40, max(5, effort.rounds))
    served_count, cases = (24, CASES[:1] + CASES[4:5]) if quick else (160, CASES)
    results: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="polymux-bench-") as text:
        folder = Path(text)
        names = sorted({name for case in cases for name in case.models})
        for name in names:
            progress(f"writing {name}")
            write_sample(name, folder / "models" / name / "1" / "model.onnx")
        with PrivateServer(["cpu"]) as server, server.connect("reuse") as client:
            jobs = {
                name: InferenceJob(client, name, folder / "models" / name / "1" / "model.onnx")
                for name in names
            }
            results.extend(
                _measure(case, [jobs[name] for name in case.models], count, rounds, progress)
                for case in cases
            )
            results.append(
                ServedCase(folder, server.socket).measure(served_count, 1 if quick else rounds, progress)
            )
            results.append(measure_processes(folder, count, 1 if quick else rounds, progress))
    return Report(
        "reuse",
        "input stages beside the device and shared, against jobs that take turns",
        tuple(_row(result) for result in results),
        results,
        (
            f"JPEG files of 500 x 375 pixels or as it says; decoded, resized, normalised; {count} a job and round",
            f"{rounds} rounds, configurations taking turns; the gain is the median of the rounds'",
            "baseline: time slicing, one job at a time, stage and model; unmanaged: each job in a thread of its own",
            "over HTTP: four clients, against the same front end without share_input",
            "in processes: a linear classifier in batches of 8, against the same jobs without sharing",
        ),
    )


def _measure(
    case: Case, jobs: Sequence[InferenceJob], count: int, rounds: int, progress: Progress
) -> dict[str, Any]:
    gains: list[float] = []
    unmanaged: list[float] = []
    seconds: list[float] = []
    for index in range(rounds + 1):  # the first one warms up
        progress(f"{case.name}: round {index} of {rounds}")
        turns_s, free_s, ahead_s = _round(case, jobs, _items(case, len(jobs), count, index), index % 2 == 1)
        if index:
            gains.append(turns_s / ahead_s - 1)
            unmanaged.append(turns_s / free_s - 1)
            seconds.append(ahead_s)
    per_s = count * len(jobs) / median(seconds)
    result = {
        "case": case.name,
        "gain": median(gains),
        "unmanaged_gain": median(unmanaged),
        "items_per_s": per_s,
        "baseline": "time slicing",
    }
    return result if case.target is None else result | {"target": case.target}


def _round(
    case: Case, jobs: Sequence[InferenceJob], items: list[list[bytes]], backwards: bool
) -> list[float]:
    """Run the jobs in every way, in this order or backwards: seconds in turns, side by side, with stages ahead."""
    ways: list[Callable[[], float]] = [
        lambda: in_turns(jobs, items),
        lambda: side_by_side(jobs, items),
        lambda: ahead(jobs, items, share=case.share),
    ]
    took_s = [0.0] * len(ways)
    answers = []
    for way in reversed(range(len(ways))) if backwards else range(len(ways)):
        took_s[way] = ways[way]()
        answers.append([list(job.answers) for job in jobs])
    for found in answers:
        check_answers(jobs, found)
    return took_s


def _items(case: Case, jobs: int, count: int, seed: int) -> list[list[bytes]]:
    if case.share:
        return [make_pictures(count, seed, case.size)] * jobs
    pictures = make_pictures(count * jobs, seed, case.size)
    return [pictures[index::jobs] for index in range(jobs)]


def _row(result: dict[str, Any]) -> Row:
    gain, target = result["gain"], result.get("target")
    return Row(
        result["case"],
        result["items_per_s"],
        "items/s",
        result["items_per_s"] / (1 + gain),
        result["baseline"],
        "" if target is None else f">= {1 + target:g} x",
        None if target is None else gain >= target,
    )
