"""Accounts: nothing is lost, nothing counted twice, whatever applications come and go."""

from __future__ import annotations

import random
from typing import Any

import pytest

from polymux.server.accounting import (
    FIELDS,
    MAX_ENDED,
    MAX_NAMES,
    OTHER,
    Account,
    Accounts,
    account_name,
    total,
)
from polymux.server.transfer import Transfer


def transfer(queue: str, device: str, nbytes: int, into: bool = True) -> Transfer:
    ends = (0, 1, "host", device) if into else (1, 0, device, "host")
    return Transfer(*ends, queue, "somebody", nbytes, 0, 1)


@pytest.mark.parametrize(
    ("name", "account"),
    [
        ("heat", "heat"),
        ("heat.py[123]", "heat.py"),
        ("a[b]", "a[b]"),
        ("x[1]y", "x[1]y"),
        ("pid 77", "unnamed"),
        ("[5]", "unnamed"),
        ("", "unnamed"),
    ],
)
def test_runs_of_one_program_share_an_account(name: str, account: str) -> None:
    assert account_name(name) == account


def test_what_happens_is_counted_for_the_application_and_the_device() -> None:
    accounts = Accounts()
    accounts.opened(1, "heat[10]")
    accounts.opened(2, "train")
    accounts.ran("1.0", "cpu:0", 5, 100, 40, 1)
    accounts.ran("1.3", "cpu:0", 1, 10, 4, 0)
    accounts.ran("2.0", "opencl:0", 7, 70, 0, 7)
    accounts.moved("2.0", "opencl:0")
    accounts.copied(transfer("1.0", "opencl:0", 30))
    accounts.copied(transfer("1.0", "opencl:0", 20, into=False))
    accounts.copied(Transfer(2, 1, "cpu:1", "opencl:0", "1.0", "somebody", 7, 0, 1))
    assert accounts.table() == {
        ("heat", "cpu:0"): Account(tasks=6, failed=1, busy_ns=110, waiting_ns=44),
        ("heat", "opencl:0"): Account(copied_in_nbytes=30, copied_out_nbytes=20, copied_between_nbytes=7),
        ("train", "opencl:0"): Account(tasks=7, failed=7, busy_ns=70, migrations=1),
    }
    assert accounts.open_names() == {"heat": 1, "train": 1}


def test_an_application_that_has_ended_keeps_its_account_and_gets_what_comes_late() -> None:
    accounts = Accounts()
    accounts.opened(1, "heat")
    accounts.ran("1.0", "cpu:0", 5, 100, 40, 1)
    accounts.closed(1)
    accounts.closed(1)
    accounts.ran("1.1", "cpu:0", 1, 0, 0, 0)
    accounts.copied(transfer("1.0", "cpu:0", 8))
    assert accounts.table()["heat", "cpu:0"] == Account(6, 1, 100, 40, 8)
    assert accounts.open_names() == {}


def test_what_belongs_to_nobody_known_is_counted_as_other() -> None:
    accounts = Accounts()
    accounts.copied(transfer("", "cpu:0", 1))
    accounts.copied(transfer("99.0", "cpu:0", 2))
    for session in range(MAX_ENDED + 1):
        accounts.opened(session, "many")
        accounts.closed(session)
    accounts.copied(transfer("0.0", "cpu:0", 4))
    accounts.copied(transfer("1.0", "cpu:0", 8))
    table = accounts.table()
    assert table[OTHER, "cpu:0"].copied_in_nbytes == 7
    assert table["many", "cpu:0"].copied_in_nbytes == 8


@pytest.mark.parametrize("seed", range(3))
def test_names_are_bounded_sums_are_kept_and_connected_applications_have_their_own(seed: int) -> None:
    rng = random.Random(seed)
    accounts, expected = Accounts(), Account()
    connected: dict[int, str] = {}
    busy: set[int] = set()
    by_device = {device: Account() for device in ("cpu:0", "opencl:0", "none")}
    for session in range(2000):
        connected[session] = f"job-{rng.randrange(5000)}"
        accounts.opened(session, connected[session])
        for _ in range(3):
            device = rng.choice(list(by_device))
            counts = [rng.randrange(100) for _ in range(4)]
            runs = rng.choice(list(connected))
            busy.add(runs)
            accounts.ran(f"{runs}.{rng.randrange(3)}", device, *counts)
            by_device[device].add(Account(counts[0], counts[3], counts[1], counts[2]))
        if len(connected) > 100 or rng.random() < 0.3:
            ended = rng.choice(list(connected))
            accounts.closed(ended)
            del connected[ended]
        if session % 50 == 0:
            table = accounts.table()
            names = {name for name, _ in table}
            assert len(names) <= MAX_NAMES + 1
            assert names >= {connected[session] for session in busy & set(connected)}
    table = accounts.table()
    for device, account in by_device.items():
        assert total(entry for (_, at), entry in table.items() if at == device) == account
        expected.add(account)
    assert total(table.values()) == expected
    assert OTHER in {name for name, _ in table}


class Worker:
    """A stream's counts as `Worker.stats` tells them."""

    def __init__(self) -> None:
        self.queues: dict[str, dict[str, int]] = {}

    def stats(self) -> dict[str, Any]:
        return {"queues": dict(self.queues)}


def counts(tasks: int) -> dict[str, int]:
    return {"tasks": tasks, "busy_ns": 10 * tasks, "waiting_ns": tasks, "failed": 0}


def test_what_runs_now_is_counted_and_no_number_ever_becomes_smaller() -> None:
    accounts, one, two = Accounts(), Worker(), Worker()
    accounts.watch("cpu:0", one.stats)
    accounts.watch("cpu:0", two.stats)
    accounts.opened(1, "heat")
    one.queues["1.0"] = counts(5)
    two.queues["1.1"] = counts(2)
    assert accounts.table() == {("heat", "cpu:0"): Account(7, 0, 70, 7)}
    del one.queues["1.0"]  # let go of, and its counts are on their way
    assert accounts.table()["heat", "cpu:0"].tasks == 7
    two.queues["1.1"] = counts(3)
    accounts.ran("1.0", "cpu:0", 5, 50, 5, 0)
    assert accounts.table() == {("heat", "cpu:0"): Account(8, 0, 80, 8)}
    one.queues["1.0"] = counts(1)  # it came back
    assert accounts.table() == {("heat", "cpu:0"): Account(9, 0, 90, 9)}


def test_a_queue_that_still_runs_after_its_application_was_forgotten_is_counted_once() -> None:
    accounts, worker = Accounts(), Worker()
    accounts.watch("cpu:0", worker.stats)
    accounts.opened(0, "old")
    worker.queues["0.0"] = counts(5)
    accounts.closed(0)
    for session in range(1, 3 * MAX_NAMES):
        accounts.opened(session, f"new {session}")
        accounts.ran(f"{session}.0", "cpu:0", 1, 1, 1, 0)
        accounts.closed(session)
        if session % 7 == 0:
            accounts.table()
    before = total(accounts.table().values())
    del worker.queues["0.0"]
    accounts.ran("0.0", "cpu:0", 5, 50, 5, 0)
    after = total(accounts.table().values())
    assert before.tasks == after.tasks == 5 + 3 * MAX_NAMES - 1


def test_an_account_has_every_field_in_its_sums() -> None:
    one = Account(*range(1, len(FIELDS) + 1))
    assert total([one, one]) == Account(*(2 * number for number in range(1, len(FIELDS) + 1)))
