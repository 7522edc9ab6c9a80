"""A module cut into stages, each of them a module of its own with the same parameters and the same results."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter_ns
from typing import Any

import torch
from torch import Tensor
from torch.fx import Node
from torch.fx.passes.split_module import split_module
from torch.nn import Module

from polymux.core.errors import InvalidRequest
from polymux.training.stage_costs import TracedModule, trace, undisturbed
from polymux.training.stage_cuts import choose_cuts

_DEFAULT_PARTS = 4


@dataclass(frozen=True, slots=True)
class Stage:
    """One part of a module.

    Parameters
    ----------
    module : Module
        Runs it.
    operations : tuple of str
        What it does, by the names of submodules and functions.
    run_ns : int
        How long its operations took forward on the example, in nanoseconds.
    parameters_nbytes : int
        Size of the parameters that it uses.
    cut_nbytes : int
        Size of what goes on to the next stage; 0 for the last one.
    """

    module: Module
    operations: tuple[str, ...]
    run_ns: int
    parameters_nbytes: int
    cut_nbytes: int


@dataclass(frozen=True, slots=True)
class _Version:
    """A module's stages in one mode: which of its submodules train."""

    module: Module
    stages: tuple[Stage, ...]
    whole_because: str | None


class StagedModule(Module):
    """A module that runs stage by stage; `partition` makes one.

    Its parameters are those of the module that it was made of. A job may give way between the stages, since each is a
    module.

    Parameters
    ----------
    model : Module
    example : sequence
        Arguments to measure with.
    parts, longest_ns
        As for `partition`.

    Notes
    -----
    What a module does may depend on which of its parts train, so there is a version of the stages for each mode, made
    when it is first needed.
    """

    def __init__(
        self, model: Module, example: Sequence[Any], parts: int | None, longest_ns: int | None
    ) -> None:
        super().__init__()
        self.training = model.training
        self.model = model
        self._example = tuple(example)
        self._parts = parts
        self._longest_ns = longest_ns
        self._all = tuple(model.modules())
        self._versions: dict[tuple[bool, ...], _Version] = {}

    @property
    def stages(self) -> tuple[Stage, ...]:
        """The stages in the present mode."""
        return self._version().stages

    @property
    def whole_because(self) -> str | None:
        """Why the module runs whole, in the present mode; None when it is cut."""
        return self._version().whole_because

    def describe(self) -> str:
        """Tell the stages in a table, with their times, parameters and what crosses the cuts."""
        lines = [f"{'stage':>5}  {'forward ms':>10}  {'weights MiB':>11}  {'cut KiB':>8}  operations"]
        for number, stage in enumerate(self.stages):
            first, last = stage.operations[0], stage.operations[-1]
            span = first if len(stage.operations) == 1 else f"{first} ... {last} ({len(stage.operations)})"
            lines.append(
                f"{number:>5}  {stage.run_ns / 1e6:>10.3f}  {stage.parameters_nbytes / 2**20:>11.2f}"
                f"  {stage.cut_nbytes / 2**10:>8.1f}  {span}"
            )
        if self.whole_because is not None:
            lines.append(f"runs whole: {self.whole_because}")
        return "\n".join(lines)

    def forward(self, *arguments: Any, **named: Any) -> Any:
        """Run all stages."""
        return self._version().module(*arguments, **named)

    def _version(self) -> _Version:
        mode = tuple(module.training for module in self._all)
        version = self._versions.get(mode)
        if version is None:
            version = self._versions[mode] = _cut(self.model, self._example, self._parts, self._longest_ns)
        return version


def partition(
    model: Module, *example: Any, parts: int | None = None, longest_ms: float | None = None
) -> StagedModule:
    """Cut a module into stages by the measured time of its operations.

    Parameters
    ----------
    model : Module
    *example : Tensor and so on
        Arguments as the module gets them; their values do not matter.
    parts : int, optional
        At most so many stages, the longest as short as possible; 4 when `longest_ms` is not given either.
    longest_ms : float, optional
        As few stages as possible of which none takes longer forward, in milliseconds. A single operation that takes
        longer is a stage by itself.

    Returns
    -------
    StagedModule
        Gives the same bits, forward and backward. A module that cannot be cut, for instance because its way depends on
        values, runs whole and says why.

    Raises
    ------
    InvalidRequest
        For a number that cannot be, or an example that the module does not take.

    Notes
    -----
    Traces with torch.fx: what a module decides by the shapes of its input is fixed as it was for the example.
    """
    if not isinstance(model, Module):
        raise InvalidRequest(f"model={model!r:.80}: give a torch.nn.Module")
    if parts is not None and longest_ms is not None:
        raise InvalidRequest("give parts or longest_ms, not both")
    if parts is not None and (isinstance(parts, bool) or not isinstance(parts, int) or parts < 1):
        raise InvalidRequest(f"parts={parts!r}: give a whole number of 1 or more")
    if longest_ms is not None and not longest_ms > 0:
        raise InvalidRequest(f"longest_ms={longest_ms!r}: give milliseconds, more than 0")
    try:
        with undisturbed(model):
            model(*example)
    except (TypeError, RuntimeError, ValueError) as error:
        raise InvalidRequest(f"the module does not take the example: {error}") from error
    longest_ns = None if longest_ms is None else round(1e6 * longest_ms)
    staged = StagedModule(model, example, parts or (None if longest_ns else _DEFAULT_PARTS), longest_ns)
    staged._version()
    return staged


def _cut(model: Module, example: Sequence[Any], parts: int | None, longest_ns: int | None) -> _Version:
    try:
        traced = trace(model, example)
    except Exception as error:  # tracing runs the module's own code on symbols, which may raise anything
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        return _whole(model, example, f"torch.fx cannot trace it ({reason})")
    if not traced.cut_nbytes:
        return _whole(model, example, "there is no place where only tensors cross")
    cuts = choose_cuts(traced.times_ns, traced.cut_nbytes, parts=parts, longest_ns=longest_ns)
    if not cuts:
        return _whole(
            model, example, "one stage is enough" if len(traced.nodes) > 1 else "it is one operation"
        )
    version = _split(model, traced, cuts)
    if not _agree(model, version.module, example):
        return _whole(model, example, "its stages would give another result than the module")
    return version


def _split(model: Module, traced: TracedModule, cuts: Sequence[int]) -> _Version:
    ends = [*cuts, len(traced.nodes) - 1]
    number: dict[Node, int] = {}
    stage = 0
    for index, node in enumerate(traced.nodes):
        number[node] = stage
        if index == ends[stage]:
            stage += 1
    whole = split_module(traced.graph, model, lambda node: number[node], keep_original_order=True)
    stages = []
    for index, end in enumerate(ends):
        begin = 0 if index == 0 else ends[index - 1] + 1
        module = whole.get_submodule(f"submod_{index}")
        stages.append(
            Stage(
                module=module,
                operations=tuple(_name(node) for node in traced.nodes[begin : end + 1]),
                run_ns=sum(traced.times_ns[begin : end + 1]),
                parameters_nbytes=sum(parameter.nbytes for parameter in module.parameters()),
                cut_nbytes=traced.cut_nbytes[end] if index < len(cuts) else 0,
            )
        )
    return _Version(whole, tuple(stages), None)


def _whole(model: Module, example: Sequence[Any], reason: str) -> _Version:
    with undisturbed(model):
        began = perf_counter_ns()
        model(*example)
        run_ns = perf_counter_ns() - began
    nbytes = sum(parameter.nbytes for parameter in model.parameters())
    return _Version(model, (Stage(model, (type(model).__name__,), run_ns, nbytes, 0),), reason)


def _name(node: Node) -> str:
    return str(node.target) if node.op == "call_module" else node.name


def _agree(model: Module, other: Module, example: Sequence[Any]) -> bool:
    """Whether both give the same bits for the example, from the same state of the generator."""
    with undisturbed(model):
        expected = model(*example)
    with undisturbed(model):
        got = other(*example)
    return _equal(expected, got)


def _equal(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor):
        return isinstance(other, Tensor) and torch.equal(one, other)
    if isinstance(one, (tuple, list)):
        return len(one) == len(other) and all(_equal(a, b) for a, b in zip(one, other, strict=True))
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(_equal(one[key], other[key]) for key in one)
    return bool(one == other)
