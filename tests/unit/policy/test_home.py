"""A queue goes home when that pays, and does not go to and fro."""

from __future__ import annotations

import pytest

from polymux.core.event import HomePossible
from polymux.core.ids import DeviceId, KernelName, QueueId
from polymux.policy.home import LONG_STAY_TRANSFERS, PATIENCE, SMALL_TRANSFER_NS, goes_home
from tests.unit.policy.snapshots import queue

TRANSFER_NS = 10 * SMALL_TRANSFER_NS
SHORT_NS = LONG_STAY_TRANSFERS * TRANSFER_NS - 1
LONG_NS = LONG_STAY_TRANSFERS * TRANSFER_NS


def goes(
    transfer_ns: int | None,
    gain_ns: int | None,
    chances: int = 1,
    credit_ns: int = 0,
    stays_ns: tuple[int, ...] = (),
) -> bool:
    away = queue(home=DeviceId("cpu:0"), chances=chances, credit_ns=credit_ns, stays_ns=stays_ns)
    decision, reason = goes_home(away, HomePossible(QueueId("1.0"), KernelName("gemm"), transfer_ns, gain_ns))
    assert reason
    return decision


def test_it_goes_when_the_gain_pays_for_the_transfer() -> None:
    assert goes(TRANSFER_NS, TRANSFER_NS, credit_ns=TRANSFER_NS)
    assert not goes(TRANSFER_NS, TRANSFER_NS - 1, credit_ns=TRANSFER_NS - 1)


def test_gains_of_several_tasks_add_up() -> None:
    assert goes(TRANSFER_NS, 1, chances=100, credit_ns=TRANSFER_NS)


@pytest.mark.parametrize("gain_ns", [0, -1, -(10**9)])
def test_it_stays_when_home_is_not_faster_however_small_the_transfer(gain_ns: int) -> None:
    assert not goes(0, gain_ns, chances=1000, credit_ns=10**12)


def test_after_a_short_stay_the_way_there_and_back_must_pay() -> None:
    assert not goes(TRANSFER_NS, 1, credit_ns=2 * TRANSFER_NS - 1, stays_ns=(SHORT_NS,))
    assert goes(TRANSFER_NS, 1, credit_ns=2 * TRANSFER_NS, stays_ns=(SHORT_NS,))
    assert goes(TRANSFER_NS, 1, credit_ns=TRANSFER_NS, stays_ns=(LONG_NS,))


def test_with_an_unknown_gain_a_small_transfer_is_tried_at_once() -> None:
    assert goes(SMALL_TRANSFER_NS, None)
    assert not goes(SMALL_TRANSFER_NS + 1, None)


def test_with_an_unknown_gain_a_small_transfer_is_not_tried_at_once_after_a_short_stay() -> None:
    assert not goes(SMALL_TRANSFER_NS, None, stays_ns=(0,))


@pytest.mark.parametrize(("transfer_ns", "gain_ns"), [(None, None), (None, 5), (TRANSFER_NS, None)])
def test_with_an_estimate_missing_patience_ends_after_a_few_tasks(
    transfer_ns: int | None, gain_ns: int | None
) -> None:
    assert not goes(transfer_ns, gain_ns, chances=PATIENCE - 1)
    assert goes(transfer_ns, gain_ns, chances=PATIENCE)
    assert not goes(transfer_ns, gain_ns, chances=2 * PATIENCE - 1, stays_ns=(0,))
    assert goes(transfer_ns, gain_ns, chances=2 * PATIENCE, stays_ns=(0,))


def test_each_further_short_stay_doubles_the_price() -> None:
    for shorts in range(1, 6):
        stays_ns = (LONG_NS, *[SHORT_NS] * shorts)
        price_ns = TRANSFER_NS * 2**shorts
        assert not goes(TRANSFER_NS, 1, credit_ns=price_ns - 1, stays_ns=stays_ns)
        assert goes(TRANSFER_NS, 1, credit_ns=price_ns, stays_ns=stays_ns)


def test_a_long_stay_makes_the_short_ones_before_it_forgotten() -> None:
    assert goes(TRANSFER_NS, 1, credit_ns=TRANSFER_NS, stays_ns=(SHORT_NS, SHORT_NS, LONG_NS))


def test_one_task_that_pays_for_both_ways_goes_home_however_short_the_stays() -> None:
    assert goes(TRANSFER_NS, 2 * TRANSFER_NS, stays_ns=(0,) * 5)
    assert not goes(TRANSFER_NS, 2 * TRANSFER_NS - 1, stays_ns=(0,) * 5)
