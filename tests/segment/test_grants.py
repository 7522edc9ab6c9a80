"""Buffers that applications share: explicitly, coherently, and no longer than both want."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from polymux.client import Client
from polymux.core.errors import InvalidRequest, TaskFailed
from polymux.core.implementation import PythonFunction
from polymux.core.kernel_spec import BufferParam, KernelSpec
from tests.segment.server_process import ServerProcess, until

KERNELS = Path(__file__).with_name("kernels_of_operator.py")
DEVICES = ("cpu:0", "cpu:1", "cpu:2")
COUNT = 20_000


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(
        tmp_path_factory.mktemp("server"),
        *("--device", "cpu", "--device", "cpu:0,memory_nbytes=1MiB", "--device", "cpu:1,memory_nbytes=1MiB"),
        *("--kernels", str(KERNELS)),
    ) as made:
        yield made


@pytest.fixture
def owner(server: ServerProcess) -> Iterator[Client]:
    with server.connect("owner") as made:
        yield made


@pytest.fixture
def guest(server: ServerProcess) -> Iterator[Client]:
    with server.connect("guest") as made:
        yield made


def test_both_see_what_the_other_writes(owner: Client, guest: Client) -> None:
    queue = owner.queue()
    buffer = queue.array(np.arange(float(COUNT)))
    imported = guest.import_buffer(buffer.export())
    assert (imported.shape, imported.dtype) == (buffer.shape, buffer.dtype)
    assert (imported.numpy() == np.arange(float(COUNT))).all()
    buffer.numpy()[:] = 1
    assert (imported.numpy() == 1).all()
    imported.numpy()[:] = 2
    assert (buffer.numpy() == 2).all()


def test_tasks_of_both_on_any_devices_work_on_the_one_valid_copy(owner: Client, guest: Client) -> None:
    buffer = owner.queue().array(np.ones(COUNT))
    imported = guest.import_buffer(buffer.export())
    mine = {device: owner.queue(device=device) for device in DEVICES}
    theirs = {device: guest.queue(device=device) for device in DEVICES}
    expected = 1.0
    for device in (*DEVICES, *reversed(DEVICES)):
        for other in DEVICES:
            mine[device].submit("double", [buffer], [buffer]).wait(20)
            theirs[other].submit("double", [imported], [imported]).wait(20)
            expected *= 4
            assert buffer.numpy()[-1] == expected
            assert imported.numpy()[0] == expected


def test_a_shared_buffer_is_counted_once(owner: Client, guest: Client, server: ServerProcess) -> None:
    buffer = owner.queue().array(np.ones(COUNT))
    imported = guest.import_buffer(buffer.export())
    owner.queue(device="cpu:1").submit("double", [buffer], [buffer]).wait(20)
    guest.queue(device="cpu:1").submit("double", [imported], [imported]).wait(20)
    used = next(device["used_nbytes"] for device in server.status()["devices"] if device["id"] == "cpu:1")
    assert COUNT * 8 <= used < COUNT * 8 + 8192
    imported.close()
    buffer.close()
    until(lambda: all(device["used_nbytes"] == 0 for device in server.status()["devices"]))


def test_kernels_in_worker_processes_see_shared_pages(owner: Client, guest: Client) -> None:
    def add_one(x: Any, y: Any) -> None:
        y[...] = x + 1

    spec = KernelSpec("add_one", (BufferParam("x"),), (BufferParam("y"),))
    queues = []
    for client in (owner, guest):
        client.register(spec, PythonFunction(add_one))
        queues.append(client.queue(device="cpu:0"))
    before = queues[0].zeros(COUNT, "f8")
    queues[0].submit("add_one", [before], [before]).wait(30)  # the process runs before the grant is made
    imported = guest.import_buffer(before.export())
    for queue, buffer in ((queues[1], imported), (queues[0], before), (queues[1], imported)):
        queue.submit("add_one", [buffer], [buffer]).wait(30)
    assert (before.numpy() == 4).all()
    before.close()
    fresh = queues[0].zeros(COUNT, "f8")  # most likely in the place of the shared one
    queues[0].submit("add_one", [fresh], [fresh]).wait(30)
    assert (fresh.numpy() == 1).all()
    assert (imported.numpy() == 4).all()


def test_a_small_buffer_needs_pages_of_its_own(owner: Client, guest: Client) -> None:
    queue = owner.queue()
    with pytest.raises(InvalidRequest, match="shareable"):
        queue.zeros(10, "f8").export()
    small = queue.empty(10, "f8", shareable=True)
    small.numpy()[:] = 5
    assert (guest.import_buffer(small.export()).numpy() == 5).all()


def test_exporting_again_gives_the_same_token(owner: Client, server: ServerProcess) -> None:
    buffer = owner.queue().zeros(COUNT, "f8")
    assert buffer.export() == buffer.export()
    assert server.status()["server"]["grants"] == 1


def test_a_revoked_token_opens_nothing_and_who_has_the_buffer_keeps_it(owner: Client, guest: Client) -> None:
    buffer = owner.queue().array(np.full(COUNT, 7.0))
    token = buffer.export()
    imported = guest.import_buffer(token)
    buffer.revoke()
    with pytest.raises(InvalidRequest, match="no grant"):
        guest.import_buffer(token)
    buffer.close()
    assert (imported.numpy() == 7).all()
    guest.queue(device="cpu:1").submit("double", [imported], [imported]).wait(20)
    assert (imported.numpy() == 14).all()


def test_nobody_can_revoke_what_is_not_his(owner: Client, guest: Client) -> None:
    buffer = owner.queue().zeros(COUNT, "f8")
    token = buffer.export()
    with pytest.raises(InvalidRequest, match="no grant of this session"):
        guest.request("revoke", {"token": token})


@pytest.mark.parametrize("token", ["", "0" * 32, "x" * 5000])
def test_a_token_that_was_never_given_opens_nothing(guest: Client, token: str) -> None:
    with pytest.raises(InvalidRequest):
        guest.import_buffer(token)


def test_an_imported_buffer_cannot_be_passed_on(owner: Client, guest: Client) -> None:
    buffer = owner.queue().zeros(COUNT, "f8")
    imported = guest.import_buffer(buffer.export())
    with pytest.raises(InvalidRequest, match="owner"):
        imported.export()


def test_buffers_of_other_applications_cannot_be_named_without_a_grant(owner: Client, guest: Client) -> None:
    secret = owner.queue().array(np.full(COUNT, 42.0))
    queue = guest.queue(device="cpu:0")
    probe = queue.zeros(8, "f8")
    queue.submit("double", [probe], [probe]).wait(20)
    with pytest.raises((InvalidRequest, TaskFailed)):
        guest.request("export", {"slot": str(secret.slot), "generation": "1"})
    assert "42.0" not in str(probe.numpy())


def test_what_one_closes_the_other_keeps_and_all_is_given_back_in_the_end(
    server: ServerProcess, owner: Client
) -> None:
    descriptors = server.descriptors()
    for round_ in range(20):
        buffer = owner.queue(capacity=16).array(np.full(COUNT, float(round_)))
        with server.connect("guest") as guest:
            imported = guest.import_buffer(buffer.export())
            buffer.close()
            assert (imported.numpy() == round_).all()
    until(lambda: server.descriptors() <= descriptors + 1)
    assert server.status()["server"]["grants"] == 0
    assert "polymux-grant" not in Path(f"/proc/{server.pid}/maps").read_text()


def test_memory_that_was_shared_is_the_owners_alone_when_it_is_used_again(
    owner: Client, guest: Client
) -> None:
    queue = owner.queue()
    buffer = queue.array(np.full(COUNT, 1.0))
    imported = guest.import_buffer(buffer.export())
    buffer.close()
    reused = queue.array(np.full(COUNT, 2.0))
    assert (imported.numpy() == 1).all()
    imported.numpy()[:] = 3
    assert (reused.numpy() == 2).all()
    queue.submit("double", [reused], [reused]).wait(20)
    assert (reused.numpy() == 4).all()
    assert (imported.numpy() == 3).all()


def test_a_grant_cannot_be_shrunk_under_the_others(owner: Client, server: ServerProcess) -> None:
    buffer = owner.queue().zeros(COUNT, "f8")
    buffer.export()
    _, descriptors = owner.request("import_info", {"token": buffer.export()})
    assert descriptors == []
    with server.connect("guest") as guest:
        imported = guest.import_buffer(buffer.export())
        offset = guest.queue().zeros(COUNT, "f8")
        fields = {
            "token": buffer.export(),
            "slot": str(offset.slot),
            "generation": "0",
            "offset": str(32 << 20),
        }
        _, (descriptor,) = guest.request("import", fields)
        with pytest.raises(PermissionError):
            os.ftruncate(descriptor, 0)
        os.close(descriptor)
        assert imported.numpy().sum() == 0
