"""Cuts a model's file into files of parts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from polymux.core.errors import InvalidRequest, PolymuxError
from polymux.core.task_view import MAX_BUFFERS
from polymux.onnxgraph.inputs import Arrays, ItemInput, batch_of
from polymux.onnxgraph.partition.choose import OVERHEAD, Wish, choose, cost_ns
from polymux.onnxgraph.partition.comparison import TOLERANCE, InParts, Whole, difference
from polymux.onnxgraph.partition.flow import CutPoint, Flow, cut_points, flow_of
from polymux.onnxgraph.partition.node_times import NodeTimes, measure
from polymux.onnxgraph.partition.optimized_file import write_optimized
from polymux.onnxgraph.partition.plain import PlainModel
from polymux.onnxgraph.partition.split import boundary, split

_TRIED = 3
"""Random inputs for which whole and parts are compared."""


@dataclass(frozen=True, slots=True)
class Part:
    """One part of a model.

    Parameters
    ----------
    path : pathlib.Path
        Its file, for onnxruntime.
    first, end : int
        Its first node, and the first one behind it.
    inputs, outputs : tuple of str
        What it takes from the model's inputs and earlier parts, and what it gives to later parts and the model's
        outputs.
    time_ns : float
        Of its nodes together, for one item.
    plain : pathlib.Path, optional
        The same part for other libraries; with portable cuts only.
    """

    path: Path
    first: int
    end: int
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    time_ns: float
    plain: Path | None = None


@dataclass(frozen=True, slots=True)
class Partition:
    """A model that was cut, or why it was not.

    Parameters
    ----------
    flow : Flow
        The optimised graph.
    nodes : NodeTimes
    points : tuple of CutPoint
        All places where it could be cut.
    cuts : tuple of CutPoint
        Those where it is.
    parts : tuple of Part
        In order; empty: it runs whole.
    why_whole : str
        Why it runs whole; empty: it does not.
    note : str
        What of the wish could not be met.
    difference : float
        Largest difference to the whole, relative to an output's largest value; 0: the same bits.
    portable : bool
        Whether the cuts are such that other libraries can run parts, too. If not, the files are graphs that are to be
        run as they are, not optimised again.
    """

    flow: Flow
    nodes: NodeTimes
    points: tuple[CutPoint, ...] = ()
    cuts: tuple[CutPoint, ...] = ()
    parts: tuple[Part, ...] = ()
    why_whole: str = ""
    note: str = ""
    difference: float = 0.0
    portable: bool = False

    @property
    def total_ns(self) -> float:
        """Time of all nodes."""
        return sum(self.nodes.times_ns)

    @property
    def longest_ns(self) -> float:
        """Time of the longest part: for how long others wait at most."""
        return max((part.time_ns for part in self.parts), default=self.total_ns)

    @property
    def estimated_cost(self) -> float:
        """What the cuts should add, as a part of the time of all nodes."""
        return cost_ns(self.cuts) / self.total_ns if self.total_ns else 0.0

    def whole(self, why: str) -> Partition:
        """Leave it whole."""
        return replace(self, cuts=(), parts=(), why_whole=why, note="", difference=0.0)


def partition(
    path: Path,
    inputs: Sequence[ItemInput],
    wish: Wish,
    folder: Path,
    *,
    threads: int = 1,
    estimate: bool = False,
    portable: bool = False,
) -> Partition:
    """Cut a model and prove that its parts give what the whole gives.

    Parameters
    ----------
    path : pathlib.Path
        The model's file.
    inputs : sequence of ItemInput
        Of the model.
    wish : Wish
        How finely.
    folder : pathlib.Path
        Empty; gets the files, which belong together and to this processor.
    threads : int
        Threads for which the times are measured.
    estimate : bool
        Estimate the times of nodes from their operations and bytes instead of measuring them.
    portable : bool
        Cut only at tensors that the file has as well, in their plain layout, and write the parts for other libraries.

    Returns
    -------
    Partition

    Raises
    ------
    InvalidRequest
        If the model cannot be loaded or does not run.
    DeviceUnavailable
        If onnx or onnxruntime is not installed.

    Notes
    -----
    Loads the model three times and runs it for about a second.
    """
    arrays = [batch_of(inputs, 1, np.random.default_rng(seed)) for seed in range(_TRIED)]
    model = write_optimized(path, folder, portable)
    plain = PlainModel(path) if portable else None
    flow = flow_of(model)
    nodes = measure(model, arrays[0], folder, threads, estimate)
    made = {name for step in flow.steps for name in step.writes}
    sizes = {
        name: seen.nbytes for name, seen in nodes.tensors.items() if plain is None or name in plain.tensors
    }
    points = tuple(cut_points(flow, sizes)) if set(flow.outputs) <= made else ()
    found = Partition(flow, nodes, points, portable=portable)
    found = replace(found, cuts=tuple(choose(nodes.times_ns, found.points, wish)))
    if not found.cuts:
        return found.whole(_why_not(found, wish))
    parts = []
    edges = [0, *(cut.before for cut in found.cuts), len(flow.steps)]
    models = split(model, flow, found.cuts, nodes.tensors)
    for number, (first, end, part) in enumerate(zip(edges, edges[1:], models, strict=False)):
        file = folder / f"part-{number:02}.onnx"
        file.write_bytes(part.SerializeToString(deterministic=True))
        its = Part(file, first, end, *boundary(flow, first, end), sum(nodes.times_ns[first:end]))
        if len(its.inputs) + len(its.outputs) > MAX_BUFFERS:
            return found.whole(f"a part would take more than {MAX_BUFFERS} tensors, which no task can")
        parts.append(its if plain is None else _with_plain(its, plain))
    return _proved(replace(found, parts=tuple(parts), note=_note(found, parts, wish)), path, arrays)


def _with_plain(part: Part, plain: PlainModel) -> Part:
    """Write a part for other libraries, where that is possible."""
    file = part.path.with_suffix(".plain.onnx")
    try:
        plain.extract(part.inputs, part.outputs, file)
    except PolymuxError:
        return part  # the fused nodes take other tensors than the file's: it runs with onnxruntime only
    return replace(part, plain=file)


def _proved(found: Partition, path: Path, arrays: Sequence[Arrays]) -> Partition:
    whole = Whole(path)
    try:
        parts = InParts([part.path for part in found.parts], found.flow.outputs, optimized=not found.portable)
        worst = max(difference(whole.run(its), parts.run(its)) for its in arrays)
    except InvalidRequest as error:
        return found.whole(f"its parts do not run: {error}")
    if worst > TOLERANCE:
        return found.whole(f"its parts give other results: they differ by {worst:.1e} of the largest value")
    return replace(found, difference=worst)


def _why_not(found: Partition, wish: Wish) -> str:
    if wish.parts == 1:
        return "one part was asked for"
    if len(found.flow.steps) == 1:
        return f"it is a single node, {found.flow.steps[0].op}"
    if not found.points:
        return f"it has no place between its {len(found.flow.steps)} nodes where only a few tensors of numbers cross"
    if wish.longest_ns is not None:
        return f"all of it takes {found.total_ns / 1e6:.2f} ms, which is not longer than asked for"
    longest = max(range(len(found.flow.steps)), key=found.nodes.times_ns.__getitem__)
    cheapest = min(cost_ns([point]) for point in found.points)
    if cheapest > OVERHEAD * found.total_ns:
        return f"it takes {found.total_ns / 1e6:.2f} ms, of which the cheapest cut would cost more than {OVERHEAD:.0%}"
    share = found.nodes.times_ns[longest] / found.total_ns
    if share > 0.9:
        name = found.flow.steps[longest].name
        return f"nothing gets shorter by a cut: node {name} alone takes {share:.0%} of the time"
    time_ms = found.total_ns / 1e6
    return (
        f"it takes {time_ms:.2f} ms, of which cuts that make it shorter would cost more than {OVERHEAD:.0%}"
    )


def _note(found: Partition, parts: Sequence[Part], wish: Wish) -> str:
    if wish.parts is not None and len(parts) < wish.parts:
        return f"{wish.parts} parts were asked for; there are places for {len(parts)}"
    longest = max(parts, key=lambda part: part.time_ns)
    if wish.longest_ns is None or longest.time_ns <= wish.longest_ns:
        return ""
    first, last = found.flow.steps[longest.first], found.flow.steps[longest.end - 1]
    return (
        f"the longest part takes {longest.time_ns / 1e6:.2f} ms: there is no place for a cut between {first.name} and"
        f" {last.name}"
    )
