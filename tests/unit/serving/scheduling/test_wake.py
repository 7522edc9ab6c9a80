"""The times at which a policy wants to be asked again, and the way back of answers."""

from __future__ import annotations

import asyncio

from polymux.serving.scheduling.wake import WakeUps
from tests.unit.serving.scheduling.virtual_time import clock, run

MS = 1_000_000


def test_each_time_is_told_once_and_never_early() -> None:
    async def main() -> None:
        told: list[int] = []
        wake_ups = WakeUps(clock, lambda: told.append(clock()))
        for at_ms in (30, 10, 10, 20, 30):
            wake_ups.add(at_ms * MS)
        await asyncio.sleep(0.1)
        assert [round(at / MS) for at in told] == [10, 20, 30]
        assert all(at >= due * MS for at, due in zip(told, (10, 20, 30), strict=True))

    run(main())


def test_a_time_that_has_passed_is_told_soon_and_not_at_once() -> None:
    async def main() -> None:
        told: list[int] = []
        wake_ups = WakeUps(clock, lambda: told.append(clock()))
        await asyncio.sleep(1)
        wake_ups.add(0)
        assert told == []
        await asyncio.sleep(0.002)
        assert len(told) == 1

    run(main())


def test_a_wish_made_while_another_is_told_is_kept() -> None:
    async def main() -> None:
        told: list[int] = []

        def wake() -> None:
            told.append(round(clock() / MS))
            if len(told) < 3:
                wake_ups.add(clock() + 5 * MS)

        wake_ups = WakeUps(clock, wake)
        wake_ups.add(10 * MS)
        await asyncio.sleep(0.1)
        assert told == [10, 15, 20]

    run(main())


def test_nothing_is_told_after_the_end() -> None:
    async def main() -> None:
        told: list[int] = []
        wake_ups = WakeUps(clock, lambda: told.append(clock()))
        wake_ups.add(10 * MS)
        wake_ups.close()
        wake_ups.add(20 * MS)
        await asyncio.sleep(0.1)
        assert told == []

    run(main())
