"""Requests of a cut model whose parts hand on as much as the values say, under way at the same time."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import numpy as np
import pytest

import polymux
from polymux.client import Client
from polymux.core.dtype import DType
from polymux.core.implementation import PythonFunction
from polymux.core.kernel_spec import BufferParam, KernelSpec
from polymux.serving.kernel_runner import KernelRunner

X, A = (BufferParam(name, (DType.F32,), (None,)) for name in "xa")
Y = BufferParam("y", (DType.F32,), (1,))
PARTS = (KernelSpec("m/part-1", (X,), (A,)), KernelSpec("m/part-2", (A,), (Y,)))


@pytest.fixture
def client() -> Iterator[Client]:
    with polymux.connect(start=True, name="test") as made:
        yield made


@pytest.fixture
def runner(client: Client) -> Iterator[KernelRunner]:
    def head(x, a):  # type: ignore[no-untyped-def]
        a[: int(x[0])] = 1
        return [(int(x[0]),)]

    def total(a, y):  # type: ignore[no-untyped-def]
        y[0] = a.sum()

    for spec, function in zip(PARTS, (head, total), strict=True):
        client.register(spec, PythonFunction(function))
    made = KernelRunner(client, KernelSpec("m", (X,), (Y,)), parts=PARTS)
    yield made
    made.close()


async def answer(runner: KernelRunner, count: int) -> float:
    x = runner.allocate((5,), DType.F32)
    x.numpy()[:] = np.full(5, count, np.float32)
    (y,) = await runner.run([x])
    value = float(y.numpy()[0])
    x.close()
    y.close()
    return value


@pytest.mark.parametrize("counts", [(3, 5), (5, 3), (3, 5, 2, 5, 5, 1)])
def test_each_request_gets_its_own_answer(runner: KernelRunner, counts: tuple[int, ...]) -> None:
    async def together() -> list[float]:
        assert await answer(runner, 5) == 5
        return await asyncio.gather(*(answer(runner, count) for count in counts))

    assert asyncio.run(together()) == list(counts)
