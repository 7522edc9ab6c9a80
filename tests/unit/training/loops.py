"""Training loops that are run with and without a job, and a lease that a test gives and takes."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Iterator

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from polymux.core.errors import NoServer
from polymux.training.options import JobOptions
from polymux.training.training_job import Job


class Fake:
    """A lease: tests set its word, and say what happens when the job asks."""

    def __init__(self) -> None:
        self.gate = np.ones(1, np.uint32)
        self.device: str | None = "cpu:0"
        self.cores: tuple[int, ...] = ()
        self.threads = 0
        self.asked = self.steps = 0
        self.closed = 0
        self.idles = 0
        self.reports: list[tuple[int, int]] = []
        self.on_check: Callable[[], None] = self.grant

    def grant(self) -> None:
        self.gate[0] = 0

    def check(self) -> None:
        if self.gate[0]:
            self.asked += 1
            self.on_check()

    def step(self) -> None:
        if self.gate[0]:
            self.steps += 1
            self.asked += 1
            self.on_check()

    def report(self, run_ns: int = 0, boundary_ns: int = 0) -> None:
        self.reports.append((run_ns, boundary_ns))

    def idle(self) -> None:
        self.idles += 1

    def close(self) -> None:
        self.closed += 1


def no_server() -> Fake:
    raise NoServer("nothing listens")


def job_of(
    model: nn.Module,
    optimizer: torch.optim.Optimizer | list[torch.optim.Optimizer],
    open_lease: Callable[[], Fake],
    **options: object,
) -> Job:
    optimizers = tuple(optimizer) if isinstance(optimizer, list) else (optimizer,)
    return Job(JobOptions(model, optimizers, **options), open_lease)  # type: ignore[arg-type]


class Mixed(nn.Module):
    """Convolutions, running means, dropout, an operation in place, and functions between modules."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(inplace=True))
        self.second = nn.Conv2d(4, 4, 3, padding=1)
        self.drop = nn.Dropout(0.3)
        self.last = nn.Linear(4 * 3 * 3, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        x = nn.functional.max_pool2d(torch.relu_(self.second(x)) + x, 2)
        return self.last(self.drop(x.flatten(1)))


class Sequences(nn.Module):
    """A recurrent and a transformer part, whose outputs are tuples."""

    def __init__(self) -> None:
        super().__init__()
        self.recurrent = nn.LSTM(8, 8, batch_first=True)
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.1, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.last = nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        x, _ = self.recurrent(x.flatten(2).squeeze(1).reshape(len(x), 8, 8))
        return self.last(self.encoder(x).mean(1))


class Noisy(Dataset[tuple[Tensor, int]]):
    """Pictures that are changed at random as they are loaded, by all three generators."""

    def __init__(self, count: int = 12) -> None:
        generator = torch.Generator().manual_seed(5)
        self.images = torch.rand((count, 1, 8, 8), generator=generator)
        self.labels = torch.randint(5, (count,), generator=generator)

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        noise = 0.1 * torch.rand(1) + 0.1 * random.random() + 0.1 * np.random.rand()
        return self.images[index] + noise.float(), int(self.labels[index])


class Loop:
    """All that one training run consists of, made from a seed."""

    def __init__(self, kind: type[nn.Module] = Mixed, seed: int = 3) -> None:
        torch.manual_seed(seed)
        random.seed(seed)
        np.random.seed(seed)
        self.model = kind()
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=0.01)
        self.scheduler = torch.optim.lr_scheduler.ExponentialLR(self.optimizer, 0.5)
        self.loader = DataLoader(Noisy(), batch_size=4, shuffle=True)
        self.losses: list[float] = []

    def learn(self, batch: tuple[Tensor, Tensor]) -> None:
        images, labels = batch
        self.optimizer.zero_grad()
        loss = nn.functional.cross_entropy(self.model(images), labels)
        loss.backward()
        self.optimizer.step()
        self.losses.append(loss.item())

    def evaluate(self) -> float:
        self.model.eval()
        with torch.no_grad():
            score = float(self.model(self.loader.dataset.images).square().sum())  # type: ignore[attr-defined]
        self.model.train()
        return score

    def plain(self, epochs: int, evaluate: bool = True) -> Loop:
        for _ in range(epochs):
            for batch in self.loader:
                self.learn(batch)
            if evaluate:
                self.losses.append(self.evaluate())
            self.scheduler.step()
        return self

    def under(self, job: Job, epochs: int) -> Loop:
        for _ in job.epochs(epochs):
            for batch in job.batches(self.loader):
                self.learn(batch)
            self.losses.append(self.evaluate())
            self.scheduler.step()
        return self

    def job(self, open_lease: Callable[[], Fake], **options: object) -> Job:
        return job_of(self.model, self.optimizer, open_lease, state={"scheduler": self.scheduler}, **options)

    def tensors(self) -> Iterator[Tensor]:
        yield from self.model.state_dict().values()
        for state in self.optimizer.state.values():
            yield from state.values()

    def digest(self) -> str:
        found = hashlib.sha256()
        for tensor in self.tensors():
            found.update(tensor.numpy().tobytes())
        return f"digest {found.hexdigest()}"


def assert_same_bits(one: Loop, other: Loop) -> None:
    pairs = list(zip(one.tensors(), other.tensors(), strict=True))
    assert pairs
    assert all(torch.equal(a, b) for a, b in pairs)
    assert one.scheduler.state_dict() == other.scheduler.state_dict()
