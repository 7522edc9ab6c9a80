"""Runs a model whole and in parts: whether the results are the same, and what the cuts cost."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from polymux.core.errors import InvalidRequest
from polymux.onnxgraph.inputs import Arrays
from polymux.onnxgraph.packages import import_onnxruntime
from polymux.onnxgraph.partition.optimized_file import as_written, by_default, load_session

_ROUNDS, _MOST_S = 15, 4.0
TOLERANCE = 1e-5
"""Largest difference, relative to the largest value of an output, of parts that may stand for the whole."""


class Whole:
    """A model in one piece, as onnxruntime runs it by default."""

    def __init__(self, path: Path, threads: int = 1) -> None:
        self._session = load_session(path, by_default(threads))
        self._outputs = [output.name for output in self._session.get_outputs()]

    def run(self, arrays: Arrays) -> Arrays:
        """Run it once; as `polymux.onnxgraph.running.run_session`."""
        values = _call(self._session, self._outputs, _values(arrays))
        return {name: value.numpy() for name, value in values.items()}


class InParts:
    """The parts of a model, one session each; what one gives is handed to the next without a copy.

    Parameters
    ----------
    paths : sequence of pathlib.Path
        Their files, in order.
    outputs : sequence of str
        Of the model.
    threads : int
    optimized : bool
        Whether they are to be run as they are.
    """

    def __init__(
        self, paths: Sequence[Path], outputs: Sequence[str], threads: int = 1, optimized: bool = True
    ) -> None:
        self._outputs = outputs
        options = as_written if optimized else by_default
        self._sessions = [load_session(path, options(threads)) for path in paths]
        self._names = [
            ([its.name for its in session.get_inputs()], [its.name for its in session.get_outputs()])
            for session in self._sessions
        ]

    def run(self, arrays: Arrays, took_ns: list[int] | None = None) -> Arrays:
        """Run all parts; `took_ns` gets the time of each."""
        values = _values(arrays)
        for session, (inputs, outputs) in zip(self._sessions, self._names, strict=True):
            start = time.perf_counter_ns()
            values.update(_call(session, outputs, {name: values[name] for name in inputs}))
            if took_ns is not None:
                took_ns.append(time.perf_counter_ns() - start)
        return {name: values[name].numpy() for name in self._outputs}


@dataclass(frozen=True, slots=True)
class Cost:
    """Medians of interleaved runs.

    Parameters
    ----------
    whole_ns, parts_ns : float
        Of the model in one piece, and of all parts together.
    each_ns : tuple of float
        Of each part.
    added : float
        What the cuts add, as a part of `whole_ns`: median over the rounds.
    """

    whole_ns: float
    parts_ns: float
    each_ns: tuple[float, ...]
    added: float


def difference(one: Arrays, other: Arrays) -> float:
    """Return the largest difference, relative to the largest value of its output; 0 when every bit is the same."""
    worst = 0.0
    for name, a in one.items():
        b = other[name]
        if a.shape != b.shape or a.dtype != b.dtype:
            return float("inf")
        if a.tobytes() == b.tobytes():
            continue
        wide = [array.astype(np.float64) for array in (a, b)]
        if (np.isnan(wide[0]) != np.isnan(wide[1])).any():
            return float("inf")
        first, second = (np.nan_to_num(array) for array in wide)
        largest = max(float(np.abs(first).max()), float(np.abs(second).max()))
        worst = max(worst, float(np.abs(first - second).max()) / largest if largest else 0.0)
    return worst


def compare_cost(whole: Whole, parts: InParts, arrays: Arrays) -> Cost:
    """Run both by turns and see how long they take."""
    each: list[list[int]] = []
    alone: list[int] = []
    end = time.monotonic() + _MOST_S
    for number in range(_ROUNDS + 1):
        by_turns: list[Callable[[], object]] = [
            lambda: alone.append(_took_ns(lambda: whole.run(arrays))),
            lambda: _append(each, parts, arrays),
        ]
        for run in by_turns[:: 1 if number % 2 else -1]:
            run()
        if number == 0:  # the first runs take memory that later ones find
            each.clear()
            alone.clear()
        elif number >= 3 and time.monotonic() > end:
            break
    together = [sum(its) for its in each]
    added = median(b / a - 1 for a, b in zip(alone, together, strict=True))
    return Cost(median(alone), median(together), tuple(median(its) for its in zip(*each, strict=True)), added)


def _append(each: list[list[int]], parts: InParts, arrays: Arrays) -> None:
    took: list[int] = []
    whole_ns = _took_ns(lambda: parts.run(arrays, took))
    took[-1] += whole_ns - sum(took)  # what lies between them
    each.append(took)


def _took_ns(run: Callable[[], object]) -> int:
    start = time.perf_counter_ns()
    run()
    return time.perf_counter_ns() - start


def _values(arrays: Arrays) -> dict[str, Any]:
    make = import_onnxruntime().OrtValue.ortvalue_from_numpy
    return {name: make(np.ascontiguousarray(array)) for name, array in arrays.items()}


def _call(session: Any, outputs: Sequence[str], inputs: Mapping[str, Any]) -> dict[str, Any]:
    try:
        return dict(zip(outputs, session.run_with_ort_values(outputs, inputs), strict=True))
    except Exception as error:  # onnxruntime's errors have no common class but this
        text = " ".join(str(error).split())[:300]
        raise InvalidRequest(f"the model does not run: {text}") from error
