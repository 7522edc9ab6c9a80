"""A module in stages gives the same bits, forward and backward, in every mode."""

from __future__ import annotations

import copy

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed: make torch")

import torch
from torch import Tensor, nn

from polymux.core.errors import InvalidRequest
from polymux.training import partition
from polymux.training.hooks import hook_modules
from tests.unit.training.loops import Mixed, Sequences

IMAGES = torch.rand((4, 1, 8, 8), generator=torch.Generator().manual_seed(1))


class Functional(nn.Module):
    """No submodules: without stages there would be no boundary inside."""

    def __init__(self) -> None:
        super().__init__()
        self.weights = nn.ParameterList([nn.Parameter(torch.randn(8, 8)) for _ in range(6)])

    def forward(self, x: Tensor) -> Tensor:
        for weight in self.weights:
            x = nn.functional.dropout(torch.tanh(x @ weight), 0.2, training=self.training)
        return x


class ByValue(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x + 1 if x.sum() > 0 else x - 1


class TwoInputs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        hidden = torch.relu(self.one(x)) * mask
        return self.two(hidden) * mask, hidden.mean()


def _trained(model: nn.Module, *inputs: Tensor) -> list[Tensor]:
    torch.manual_seed(7)
    output = model(*inputs)
    outputs = output if isinstance(output, tuple) else (output,)
    sum(part.square().sum() for part in outputs).backward()
    found = [*outputs, *(p.grad for p in model.parameters()), *model.buffers()]
    return [tensor.detach().clone() for tensor in found]


@pytest.mark.parametrize(
    ("make", "inputs"),
    [
        (Mixed, (IMAGES,)),
        (Functional, (torch.ones(3, 8),)),
        (TwoInputs, (torch.ones(3, 8), torch.full((3, 8), 0.5))),
        (lambda: nn.Sequential(*[nn.Linear(8, 8) for _ in range(9)]), (torch.ones(2, 8),)),
    ],
)
@pytest.mark.parametrize("training", [True, False])
def test_a_module_in_stages_gives_the_same_bits_forward_and_backward(
    make: type[nn.Module], inputs: tuple[Tensor, ...], training: bool
) -> None:
    torch.manual_seed(2)
    plain = make().train(training)
    model = copy.deepcopy(plain)
    staged = partition(model, *inputs, parts=3)
    assert 2 <= len(staged.stages) <= 3
    assert staged.whole_because is None
    for expected, got in zip(_trained(plain, *inputs), _trained(staged, *inputs), strict=True):
        assert torch.equal(expected, got)


def test_the_stages_follow_the_mode_of_the_module() -> None:
    torch.manual_seed(2)
    plain = Functional()
    staged = partition(copy.deepcopy(plain), torch.ones(3, 8), parts=4)
    for training in (True, False, True):
        plain.train(training)
        staged.train(training)
        torch.manual_seed(7)
        expected = plain(torch.ones(3, 8))
        torch.manual_seed(7)
        assert torch.equal(expected, staged(torch.ones(3, 8)))


def test_measuring_changes_neither_running_means_nor_the_generator() -> None:
    model = Mixed()
    before = copy.deepcopy(model.state_dict())
    torch.manual_seed(4)
    state = torch.get_rng_state()
    partition(model, IMAGES)
    assert torch.equal(state, torch.get_rng_state())
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())


def test_stages_share_the_parameters_and_are_boundaries() -> None:
    model = Functional()
    staged = partition(model, torch.ones(3, 8), parts=4)
    assert {id(p) for p in staged.parameters()} == {id(p) for p in model.parameters()}
    passed: list[int] = []
    handles = hook_modules(lambda: passed.append(1))
    staged(torch.ones(3, 8)).sum().backward()
    for handle in handles:
        handle.remove()
    assert len(passed) >= 2 * len(staged.stages)


def test_another_size_of_batch_runs_through_the_same_stages() -> None:
    model = Mixed().eval()
    staged = partition(model, IMAGES, parts=4)
    assert torch.equal(staged(IMAGES[:2]), model(IMAGES[:2]))


def test_the_table_tells_stages_and_sizes() -> None:
    staged = partition(Mixed(), IMAGES, parts=4)
    lines = staged.describe().splitlines()
    assert len(lines) == 1 + len(staged.stages)
    assert "first.0" in lines[1]
    assert sum(stage.parameters_nbytes for stage in staged.stages) == sum(
        p.nbytes for p in Mixed().parameters()
    )
    assert [stage.cut_nbytes > 0 for stage in staged.stages] == [True] * (len(lines) - 2) + [False]


def test_a_tiny_bound_makes_every_operation_that_can_be_cut_off_a_stage() -> None:
    staged = partition(nn.Sequential(*[nn.Linear(8, 8) for _ in range(5)]), torch.ones(1, 8), longest_ms=1e-6)
    assert len(staged.stages) == 5
    assert len(partition(Mixed(), IMAGES, longest_ms=1e6).stages) == 1


@pytest.mark.parametrize(
    ("model", "inputs", "words"),
    [
        (ByValue(), (torch.ones(2),), "torch.fx cannot trace it"),
        (Sequences(), (IMAGES,), "torch.fx cannot trace it"),
        (nn.Linear(2, 2), (torch.ones(1, 2),), "it is one operation"),
    ],
)
def test_a_module_that_cannot_be_cut_runs_whole_and_says_why(
    model: nn.Module, inputs: tuple[Tensor, ...], words: str
) -> None:
    model.eval()
    staged = partition(model, *inputs)
    assert words in str(staged.whole_because)
    assert words in staged.describe()
    assert torch.equal(staged(*inputs), model(*inputs))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"parts": 0}, "parts=0"),
        ({"parts": 2.5}, "parts=2.5"),
        ({"longest_ms": -1.0}, "longest_ms=-1.0"),
        ({"parts": 2, "longest_ms": 1.0}, "not both"),
    ],
)
def test_a_number_that_cannot_be_is_told(options: dict[str, float], words: str) -> None:
    with pytest.raises(InvalidRequest, match=words):
        partition(Mixed(), IMAGES, **options)  # type: ignore[arg-type]


def test_an_example_that_does_not_fit_is_told() -> None:
    with pytest.raises(InvalidRequest, match="does not take the example"):
        partition(Mixed(), torch.ones(3))
    with pytest.raises(InvalidRequest, match=r"give a torch\.nn\.Module"):
        partition(3, torch.ones(3))  # type: ignore[arg-type]
