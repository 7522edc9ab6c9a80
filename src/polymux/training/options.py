"""What a user says of a training job, checked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

from torch.nn import Module
from torch.optim import Optimizer

from polymux.core.errors import InvalidRequest
from polymux.training.state import Stateful

Grain = Literal["module", "step"]


@dataclass(frozen=True, slots=True)
class JobOptions:
    """The parameters of `polymux.training.job`; see there.

    Raises
    ------
    InvalidRequest
        For a value that cannot be.
    """

    model: Module
    optimizers: tuple[Optimizer, ...]
    socket: str | None = None
    name: str | None = None
    priority: int | None = None
    weight: float | None = None
    device: str | None = None
    levels: Sequence[str] | None = None
    memory_nbytes: int = 0
    peak_nbytes: int = 0
    grain: Grain = "module"
    same_threads: bool = True
    alone: bool = False
    checkpoint: Path | None = None
    checkpoint_every_s: float | None = None
    resume: bool = True
    state: Mapping[str, Stateful] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._check_types()
        if self.grain not in get_args(Grain):
            raise InvalidRequest(f"grain={self.grain!r}: give 'module' or 'step'")
        if self.weight is not None and not 0.01 <= self.weight <= 100:
            raise InvalidRequest(f"weight={self.weight}: give a number from 0.01 to 100; 1.0 is normal")
        if not 0 <= self.memory_nbytes <= self.peak_nbytes:
            raise InvalidRequest(
                f"memory_nbytes={self.memory_nbytes}, peak_nbytes={self.peak_nbytes}: what stays resident is a part of"
                " the peak; give a peak that is not smaller"
            )
        if self.checkpoint_every_s is not None:
            if not self.checkpoint_every_s > 0:
                raise InvalidRequest(
                    f"checkpoint_every_s={self.checkpoint_every_s}: give seconds, more than 0"
                )
            if self.checkpoint is None:
                raise InvalidRequest("checkpoint_every_s needs checkpoint=, the file to write")

    def _check_types(self) -> None:
        if not isinstance(self.model, Module):
            raise InvalidRequest(f"model={self.model!r:.80}: give a torch.nn.Module")
        for optimizer in self.optimizers:
            if not isinstance(optimizer, Optimizer):
                raise InvalidRequest(
                    f"optimizer={optimizer!r:.80}: give a torch.optim.Optimizer, or several in a list"
                )
        priority, weight = self.priority, self.weight
        if priority is not None and (isinstance(priority, bool) or not isinstance(priority, int)):
            raise InvalidRequest(f"priority={priority!r:.40}: give a whole number")
        if weight is not None and (isinstance(weight, bool) or not isinstance(weight, (int, float))):
            raise InvalidRequest(f"weight={weight!r:.40}: give a number from 0.01 to 100; 1.0 is normal")
        for label, other in self.state.items():
            if not (hasattr(other, "state_dict") and hasattr(other, "load_state_dict")):
                raise InvalidRequest(f"state[{label!r}]={other!r:.80} has no state_dict and load_state_dict")


def resident_nbytes(model: Module, optimizers: Sequence[Optimizer]) -> int:
    """Bytes that stay while a model trains: parameters, gradients, buffers and the optimizers' state.

    An optimizer makes its state in its first step; until then it is estimated from its settings: two moments where it
    has betas, three with amsgrad, one where it has momentum.
    """
    parameters = list(model.parameters())
    total = sum(parameter.nbytes * (2 if parameter.requires_grad else 1) for parameter in parameters)
    total += sum(buffer.nbytes for buffer in model.buffers())
    for optimizer in optimizers:
        known = sum(
            value.nbytes
            for state in optimizer.state.values()
            for value in state.values()
            if hasattr(value, "nbytes")
        )
        total += known or sum(
            _moments(group) * sum(parameter.nbytes for parameter in group["params"])
            for group in optimizer.param_groups
        )
    return int(total)


def _moments(group: Mapping[str, Any]) -> int:
    if "betas" in group:
        return 3 if group.get("amsgrad") else 2
    return 1 if group.get("momentum") else 0
