"""Boundaries within a step: after every module on the way forward, before every module on the way back.

The hooks are PyTorch's own, for all modules of the process, so that nothing is attached to the model: it is copied,
saved and compiled as ever, and modules that are made later have boundaries too. They return nothing and so change no
value; a step computes the same bits with them and without.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn.modules.module import register_module_forward_hook
from torch.optim import Optimizer


class Handle(Protocol):
    """What PyTorch returns for a hook."""

    def remove(self) -> None:
        """Take the hook away."""


def hook_modules(check: Callable[[], None]) -> list[Handle]:
    """Call `check` after each module's forward, and in the backward pass where the gradient reaches its output.

    Parameters
    ----------
    check : callable
        May wait, and may raise: the exception leaves the loop's own call.

    Returns
    -------
    list of Handle
    """

    def before_backward(_gradients: tuple[Tensor, ...]) -> None:
        check()

    def after_forward(_module: object, _arguments: object, output: object) -> None:
        if torch.compiler.is_compiling():  # a compiled part is one operation, without boundaries inside
            return
        check()
        node = _graph_node(output)
        if node is not None:
            # A hook of the graph's node, not of the tensor: what changes the tensor in place does not mind it.
            node.register_prehook(before_backward)

    return [register_module_forward_hook(after_forward)]


def hook_optimizers(
    optimizers: Sequence[Optimizer], before: Callable[[], None], after: Callable[[Optimizer], None]
) -> list[Handle]:
    """Call functions before and after each optimizer's step, the latter with the optimizer.

    Returns
    -------
    list of Handle
    """
    handles: list[Handle] = []
    for optimizer in optimizers:
        handles.append(optimizer.register_step_pre_hook(lambda *_: before()))
        handles.append(optimizer.register_step_post_hook(lambda ran, *_: after(ran)))
    return handles


def _graph_node(output: object) -> Any:
    """Return the node of the graph that made an output, the first one with a gradient if there are several."""
    if isinstance(output, Tensor):
        return output.grad_fn
    values: Any = ()
    if isinstance(output, Mapping):
        values = output.values()
    elif isinstance(output, (tuple, list)):
        values = output
    for value in values:
        if isinstance(value, Tensor) and value.grad_fn is not None:
            return value.grad_fn
    return None
