"""Instances of a model on the streams of the machine."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable

import pytest

from polymux.core.dtype import DType
from polymux.core.errors import PolymuxError
from polymux.core.ids import StreamId
from polymux.serving.runner import TensorBuffer
from polymux.serving.scheduling.lanes import Lanes
from polymux.serving.scheduling.merging import Tensors
from tests.unit.serving.scheduling.rig import BLOCKS, CPU, MACHINE


class Lane:
    def __init__(self, stream: StreamId) -> None:
        self.stream = stream
        self.closed = False

    def allocate(self, shape: tuple[int, ...], dtype: DType) -> TensorBuffer:
        raise NotImplementedError

    def run(self, inputs: Tensors) -> Awaitable[Tensors]:
        raise NotImplementedError

    def close(self) -> None:
        self.closed = True


class Opener:
    """Makes lanes; a stream in `broken` has none."""

    def __init__(self) -> None:
        self.made: list[Lane] = []
        self.broken: set[str] = set()

    def __call__(self, stream: StreamId) -> Lane:
        if stream in self.broken:
            raise PolymuxError(f"{stream} is broken")
        self.made.append(Lane(stream))
        return self.made[-1]


async def until_closed(lane: Lane) -> None:
    async with asyncio.timeout(10):
        while not lane.closed:
            await asyncio.sleep(0)


def test_a_share_is_prepared_on_all_of_its_blocks_and_once() -> None:
    async def main() -> None:
        opener = Opener()
        lanes = Lanes(MACHINE, opener)
        await asyncio.gather(lanes.prepare(CPU, 1), lanes.prepare(CPU, 1))
        await lanes.prepare(CPU, 1)
        assert [lane.stream for lane in opener.made] == ["cpu:0/0", "cpu:0/1"]
        with lanes.using(CPU, BLOCKS[1]) as lane:
            assert lane is opener.made[1]
        with pytest.raises(PolymuxError, match="no instance on stream cpu:0/2"), lanes.using(CPU, BLOCKS[2]):
            pass

    asyncio.run(main())


def test_what_is_retired_in_use_goes_when_its_batch_ends() -> None:
    async def main() -> None:
        opener = Opener()
        lanes = Lanes(MACHINE, opener)
        await lanes.prepare(CPU, 1)
        first, second = opener.made
        with lanes.using(CPU, BLOCKS[0]):
            lanes.retire(CPU, 1)
            await until_closed(second)
            assert not first.closed
        await until_closed(first)
        await lanes.prepare(CPU, 1)
        assert len(opener.made) == 4

    asyncio.run(main())


def test_what_is_wanted_again_before_it_went_stays() -> None:
    async def main() -> None:
        opener = Opener()
        lanes = Lanes(MACHINE, opener)
        await lanes.prepare(CPU, 2)
        with lanes.using(CPU, BLOCKS[2]):
            lanes.retire(CPU, 2)
            await lanes.prepare(CPU, 2)
        with lanes.using(CPU, BLOCKS[2]) as lane:
            assert lane is opener.made[0]
        assert not opener.made[0].closed

    asyncio.run(main())


def test_a_share_that_cannot_be_prepared_can_be_tried_again() -> None:
    async def main() -> None:
        opener = Opener()
        opener.broken.add("cpu:0/1")
        lanes = Lanes(MACHINE, opener)
        with pytest.raises(PolymuxError, match="is broken"):
            await lanes.prepare(CPU, 1)
        opener.broken.clear()
        await lanes.prepare(CPU, 1)
        assert [lane.stream for lane in opener.made] == ["cpu:0/0", "cpu:0/1"]
        lanes.close()
        assert all(lane.closed for lane in opener.made)

    asyncio.run(main())
