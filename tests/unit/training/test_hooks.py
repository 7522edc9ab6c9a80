"""Boundaries of modules, forward and backward."""

from __future__ import annotations

import copy
import io

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed: make torch")

import torch
from torch import Tensor, nn

from polymux.training.hooks import hook_modules, hook_optimizers
from tests.unit.training.loops import Loop, Mixed, Sequences, assert_same_bits


class Counted:
    def __init__(self) -> None:
        self.count = 0
        self.handles = hook_modules(self.check)

    def check(self) -> None:
        self.count += 1

    def __enter__(self) -> Counted:
        return self

    def __exit__(self, *exception: object) -> None:
        for handle in self.handles:
            handle.remove()


def test_there_is_a_boundary_after_every_module_forward_and_before_every_module_backward() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.ReLU(inplace=True), nn.Linear(3, 1))
    with Counted() as counted:
        loss = model(torch.rand(2, 3)).sum()
        assert counted.count == 4
        loss.backward()
        assert counted.count == 8
    model(torch.rand(2, 3)).sum().backward()
    assert counted.count == 8


class Dictionary(nn.Module):
    def forward(self, x: Tensor) -> dict[str, object]:
        return {"none": None, "double": 2 * x}


class Pair(nn.Module):
    def forward(self, x: Tensor) -> tuple[int, Tensor]:
        return 3, 2 * x


class Nothing(nn.Module):
    def forward(self, _x: Tensor) -> None:
        return None


@pytest.mark.parametrize(("module", "pick"), [(Dictionary(), "double"), (Pair(), 1)])
def test_outputs_that_hold_tensors_have_a_boundary_on_the_way_back(module: nn.Module, pick: object) -> None:
    with Counted() as counted:
        module(torch.ones(1, requires_grad=True))[pick].backward()
    assert counted.count == 2


def test_a_module_without_a_tensor_in_its_output_has_a_boundary_forward_only() -> None:
    with Counted() as counted:
        Nothing()(torch.ones(1))
    assert counted.count == 1


def test_nothing_is_attached_to_the_model_so_it_is_saved_and_copied_as_ever() -> None:
    model = Mixed()
    with Counted():
        model(torch.rand(2, 1, 8, 8))
        assert all(not module._forward_hooks for module in model.modules())
        copy.deepcopy(model)
        torch.save(model, io.BytesIO())


@pytest.mark.parametrize("kind", [Mixed, Sequences])
def test_a_loop_computes_the_same_bits_with_boundaries_and_without(kind: type[nn.Module]) -> None:
    plain = Loop(kind).plain(2)
    with Counted() as counted:
        hooked = Loop(kind).plain(2)
    assert counted.count > 50
    assert plain.losses == hooked.losses
    assert_same_bits(plain, hooked)


def test_an_error_at_a_boundary_in_the_backward_pass_leaves_it() -> None:
    loss = None

    def refuse() -> None:
        if loss is not None:
            raise KeyError("no further")

    handles = hook_modules(refuse)
    try:
        loss = nn.Linear(2, 1)(torch.rand(1, 2)).sum()
        with pytest.raises(KeyError, match="no further"):
            loss.backward()
    finally:
        for handle in handles:
            handle.remove()


def test_the_optimizers_tell_when_they_begin_and_end() -> None:
    parameter = nn.Parameter(torch.ones(1))
    first, second = torch.optim.SGD([parameter], lr=0.1), torch.optim.Adam([parameter])
    said: list[object] = []
    handles = hook_optimizers([first, second], lambda: said.append("begins"), said.append)
    first.step()
    second.step()
    assert said == ["begins", first, "begins", second]
    for handle in handles:
        handle.remove()
    first.step()
    assert len(said) == 4
