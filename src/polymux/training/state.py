"""What a training run is made of between two steps, so that it can be written down at any time.

Forward and backward passes leave parameters and optimizers alone. So what a step changes before its optimizer runs,
buffers of the model and random number generators, is copied when the step begins, and a checkpoint can be written
in the middle of a step: it is that of the step's beginning, to the bit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor
from torch.nn import Module
from torch.optim import Optimizer

from polymux.training.checkpoint import BadCheckpoint
from polymux.training.random_state import RandomState, random_state, set_random_state


class Stateful(Protocol):
    """Anything whose state belongs into a checkpoint: a learning rate scheduler, a gradient scaler, an average."""

    def state_dict(self) -> dict[str, Any]:
        """Return the state."""

    def load_state_dict(self, state: dict[str, Any]) -> Any:
        """Take a state over."""


@dataclass(frozen=True, slots=True)
class Boundary:
    """The run between two steps, apart from what no step changes before its optimizer runs.

    Parameters
    ----------
    steps : int
        Steps done.
    epoch, batch : int
        Where in the data: passes over all of it, batches of the present one.
    epoch_random, random : RandomState or None
        The generators when the pass began, and now.
    buffers : dict of str to Tensor
        Copies of the model's buffers, such as running means.
    """

    steps: int
    epoch: int
    batch: int
    epoch_random: RandomState | None
    random: RandomState | None
    buffers: dict[str, Tensor]


class TrainingState:
    """A model, its optimizers and whatever else makes up the run.

    Parameters
    ----------
    model : Module
    optimizers : sequence of Optimizer
    others : mapping of str to Stateful
    exact : bool
        Whether boundaries copy buffers and generators; False where nobody will write a checkpoint.

    Attributes
    ----------
    steps, epoch, batch, epoch_random
        As in `Boundary`, now.
    exact : bool
        As given.
    changed : bool
        Whether an optimizer has begun a step since the last boundary.
    """

    def __init__(
        self, model: Module, optimizers: Sequence[Optimizer], others: Mapping[str, Stateful], exact: bool
    ) -> None:
        self.steps = self.epoch = self.batch = 0
        self.epoch_random: RandomState | None = None
        self.changed = False
        self._model = model
        self._optimizers = tuple(optimizers)
        self._others = dict(others)
        self.exact = exact
        self._boundary: Boundary | None = None

    def boundary(self) -> None:
        """Take the present state for one between two steps."""
        self.changed = False
        if self.exact:
            self.take()

    def take(self, *, steps: int | None = None, batch: int | None = None) -> None:
        """Copy what the next step changes before its optimizer runs; now is a boundary.

        Parameters
        ----------
        steps, batch : int, optional
            Other numbers than the present ones.
        """
        self.changed = False
        buffers = {name: buffer.detach().clone() for name, buffer in self._model.named_buffers()}
        self._boundary = Boundary(
            self.steps if steps is None else steps,
            self.epoch,
            self.batch if batch is None else batch,
            self.epoch_random,
            random_state(),
            buffers,
        )

    def begin_epoch(self, epoch: int) -> None:
        """Note that a pass over the data begins, which may draw its order from the generators."""
        self.epoch, self.batch = epoch, 0
        self.epoch_random = random_state()
        self.boundary()

    def finish_epochs(self, count: int) -> None:
        """Note that all passes are through."""
        self.epoch, self.batch, self.epoch_random = max(count, self.epoch), 0, None
        self.boundary()

    def restore_epoch_random(self) -> bool:
        """Put the generators to where they were when the pass began; False when it is not known."""
        if self.epoch_random is None:
            return False
        set_random_state(self.epoch_random)
        return True

    def contents(self) -> dict[str, Any] | None:
        """What goes into a checkpoint: the state at the last boundary.

        Returns
        -------
        dict or None
            None when an optimizer has run since then, so that it is no longer there.
        """
        last = self._boundary
        if last is None or self.changed:
            return None
        model = dict(self._model.state_dict())
        model.update({name: buffer for name, buffer in last.buffers.items() if name in model})
        return {
            "steps": last.steps,
            "epoch": last.epoch,
            "batch": last.batch,
            "epoch_random": last.epoch_random,
            "random": last.random,
            "model": model,
            "optimizers": [optimizer.state_dict() for optimizer in self._optimizers],
            "others": {name: other.state_dict() for name, other in self._others.items()},
        }

    def load(self, contents: Mapping[str, Any], path: str) -> None:
        """Take over what `contents` has returned.

        Raises
        ------
        BadCheckpoint
            When it is of another model, or was written with other optimizers or other things to keep.
        """
        optimizers, others = contents["optimizers"], contents["others"]
        if len(optimizers) != len(self._optimizers):
            raise BadCheckpoint(
                path, f"it has {len(optimizers)} optimizers, the job has {len(self._optimizers)}"
            )
        if set(others) != set(self._others):
            raise BadCheckpoint(
                path,
                f"its `state` has {sorted(others) or 'nothing'}, that of the job {sorted(self._others) or 'nothing'}",
            )
        try:
            self._model.load_state_dict(contents["model"])
            for optimizer, state in zip(self._optimizers, optimizers, strict=True):
                optimizer.load_state_dict(state)
            for name, other in self._others.items():
                other.load_state_dict(others[name])
        except (RuntimeError, ValueError, KeyError) as error:
            raise BadCheckpoint(
                path,
                f"it does not fit this job ({error}); train the model that it is of, or name another file",
            ) from error
        self.steps, self.epoch, self.batch = contents["steps"], contents["epoch"], contents["batch"]
        self.epoch_random = contents["epoch_random"]
        set_random_state(contents["random"])
        self.boundary()

    def rewind_random(self) -> None:
        """Put the generators to where they were at the last boundary."""
        if self._boundary is not None and self._boundary.random is not None:
            set_random_state(self._boundary.random)
