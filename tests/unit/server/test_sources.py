"""From whom a buffer's content is copied, and what happens when that one fails."""

from __future__ import annotations

import pytest

from polymux.server.placement import READ, WRITE
from polymux.server.transfer import CopyFailedError
from tests.unit.server.fakes import Application, Machine

HOST = 0


def use(machine: Machine, location: int, app: Application, slot: int, value: int | None = None) -> int:
    """Let a task read a buffer at a place, or fill it with a value there; returns what it saw first."""
    access = READ if value is None else READ | WRITE
    lease = machine.residency.acquire(location, [app.want(slot, access)], "q")
    content = app.content(slot) if location == HOST else lease.memory(slot)
    seen = int(content[0])
    if value is not None:
        content[:] = value
    machine.residency.release(lease)
    return seen


def sources(machine: Machine) -> list[int]:
    return [transfer.source for transfer in machine.transfers]


def test_a_peer_is_preferred_to_the_host_and_the_host_to_a_stranger() -> None:
    machine, app = Machine(100, 100, 100), Application(1, [10])
    machine.devices[3].peers = [machine.devices[1]]
    for location in (1, 2, 3):
        use(machine, location, app, 0)
    assert sources(machine) == [HOST, HOST, 1]


@pytest.mark.parametrize("peers", [True, False])
def test_a_device_that_cannot_be_read_any_more_costs_nothing_that_somebody_else_has(peers: bool) -> None:
    machine, app = Machine(100, 100), Application(1, [10, 10, 10])
    if peers:
        machine.devices[2].peers = [machine.devices[1]]
    else:
        machine.devices[2].addressable = True
    for slot in range(2):
        app.content(slot)[:] = 4
        use(machine, 1, app, slot)
    use(machine, 1, app, 2, value=5)
    machine.devices[1].failures = 100
    for slot in range(2):
        assert use(machine, 2, app, slot) == 4
        assert sources(machine)[-1] == HOST
    with pytest.raises(CopyFailedError, match="fake:0: OSError: the driver fails"):
        use(machine, 2, app, 2)
    machine.devices[1].failures = 0
    assert use(machine, 2, app, 2) == 5


def test_a_copy_that_could_not_be_made_directly_leaves_the_hosts_bytes_alone() -> None:
    """They were not asked for: somebody may be using them."""
    machine, app = Machine(100, 100), Application(1, [10])
    machine.devices[2].peers = [machine.devices[1]]
    use(machine, 1, app, 0, value=5)
    app.content(0)[:] = 9
    machine.devices[2].failures = 1
    assert use(machine, 2, app, 0) == 5
    assert app.content(0)[0] == 9
    assert use(machine, HOST, app, 0) == 5
