"""Streams for the parts of a device, and queues that are pinned to them, as applications see them."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import polymux
from polymux.client import Client
from polymux.core.errors import DeviceUnavailable, InvalidRequest
from polymux.core.implementation import PythonFunction
from polymux.core.kernel_spec import BufferParam, KernelSpec
from polymux.device.cores import allowed_cores
from polymux.device.registry import discover, known_apis
from tests.segment.server_process import ServerProcess

CORES = allowed_cores()
KERNELS = """
import os
from polymux.kernel import kernel

@kernel("where", outputs="cores")
def where(cores):
    cores[:] = 0
    cores[list(os.sched_getaffinity(0))] = 1
"""


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    folder: Path = tmp_path_factory.mktemp("server")
    (folder / "k.py").write_text(KERNELS)
    with (
        ServerProcess(
            folder, "--device", "cpu,shares=nested", "--device", "cpu:0", "--kernels", str(folder / "k.py")
        ) as server,
        server.connect() as made,
    ):
        yield made


def test_the_status_lists_the_streams_with_their_units(client: Client) -> None:
    nested, plain = client.status()["devices"]
    units = [tuple(stream["units"]) for stream in nested["streams"]]
    assert units[0] == tuple(range(len(CORES)))
    assert sorted(part for part in units if len(part) == 1) == [(unit,) for unit in range(len(CORES))]
    assert [stream["pinned_only"] for stream in nested["streams"]] == [False] + [True] * (len(units) - 1)
    assert [(stream["units"], stream["pinned_only"]) for stream in plain["streams"]] == [([0], False)]


def test_a_queue_runs_on_the_units_of_the_stream_to_which_it_is_pinned(client: Client) -> None:
    for stream in client.status()["devices"][0]["streams"]:
        with client.queue(stream=stream["id"]) as queue:
            cores = queue.zeros(max(CORES) + 1, "i4")
            queue.submit("where", [], [cores]).wait(20)
            at_work = [CORES[unit] for unit in stream["units"]]
            # a stream's own thread may run on all of its cores, or on the first of them
            assert set(np.flatnonzero(cores.numpy())) <= set(at_work)
            (seen,) = [each for each in client.status()["queues"] if each["id"] == queue.name]
            assert (seen["pinned"], seen["stream"], seen["state"]) == (stream["id"], stream["id"], "bound")


def test_queues_without_a_pin_share_the_whole_device(client: Client) -> None:
    queues = [client.queue(device="cpu:0") for _ in range(6)] + [client.queue() for _ in range(6)]
    ids = {queue.name for queue in queues}
    streams = {seen["stream"] for seen in client.status()["queues"] if seen["id"] in ids}
    assert streams == {"cpu:0/0", "cpu:1/0"}
    for queue in queues:
        queue.close()


@pytest.mark.parametrize(
    ("pins", "remedy"),
    [
        ({"stream": "cpu:0/99"}, "stream 'cpu:0/99' does not exist; the server has cpu:0/0"),
        ({"stream": "cpu:7/0"}, "does not exist; the server has cpu:0/0"),
        ({"stream": "cpu:0"}, "give a stream such as 'cpu:0/1'"),
        ({"stream": ""}, "give a stream such as 'cpu:0/1'"),
        ({"stream": "cpu:0/0", "device": "cpu:1"}, "alone or with its own device"),
        ({"device": "cpu:0/"}, "stream 'cpu:0/' does not exist"),
    ],
)
def test_a_pin_to_what_is_not_there_is_refused_with_what_there_is(
    client: Client, pins: dict[str, str], remedy: str
) -> None:
    with pytest.raises(InvalidRequest, match=remedy):
        client.queue(**pins)  # type: ignore[arg-type]


def test_a_stream_and_its_own_device_are_no_contradiction(client: Client) -> None:
    with client.queue(device="cpu:0", stream="cpu:0/0") as queue:
        assert queue.name in str(client.status()["queues"])


def test_a_pinned_queue_is_not_migrated(client: Client) -> None:
    with client.queue(stream="cpu:0/0") as queue, pytest.raises(InvalidRequest, match="pinned to cpu:0/0"):
        client.request("migrate", {"queue": queue.name, "device": "cpu:1"})


def test_a_kernel_of_the_application_runs_on_the_cores_of_the_pinned_stream(client: Client) -> None:
    def where(cores):  # type: ignore[no-untyped-def]
        cores[:] = 0
        cores[list(os.sched_getaffinity(0))] = 1

    spec = client.register(KernelSpec("mine", outputs=(BufferParam("cores"),)), PythonFunction(where))
    last = client.status()["devices"][0]["streams"][-1]
    with client.queue(stream=last["id"]) as queue:
        cores = queue.zeros(max(CORES) + 1, "i4")
        queue.submit(spec.name, [], [cores]).wait(30)
        assert [CORES[unit] for unit in last["units"]] == list(np.flatnonzero(cores.numpy()))


def test_parts_of_simulated_and_opencl_devices_nest_in_the_same_way(tmp_path: Path) -> None:
    (tmp_path / "quick.toml").write_text('memory_nbytes = "16MiB"\nunits = 4\n')
    devices = [f"simulated={tmp_path / 'quick.toml'},shares=nested"]
    if "opencl" in known_apis() and discover_quietly("opencl"):
        devices.append("opencl,shares=nested")
    words = [word for device in devices for word in ("--device", device)]
    with ServerProcess(tmp_path, *words) as server, server.connect() as client:
        for device in client.status()["devices"]:
            units = [tuple(stream["units"]) for stream in device["streams"]]
            assert len(units) == 2 * device["units"] - 1
            for stream in device["streams"]:
                with client.queue(stream=stream["id"]) as queue:
                    x, y = queue.array(np.arange(64, dtype="f4")), queue.zeros(64, "f4")
                    queue.submit("saxpy", [x, x], [y], a=2.0).wait(60)
                    assert y.numpy()[63] == 3 * 63


def discover_quietly(request: str) -> bool:
    try:
        return bool(discover([request])[0])
    except DeviceUnavailable:
        return False


class QueueOptions(ctypes.Structure):
    """`polymux_queue_options` of polymux.h."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("device", ctypes.c_char_p),
        ("priority", ctypes.c_int32),
        ("capacity", ctypes.c_uint32),
        ("on_full", ctypes.c_int32),
        ("memory_nbytes", ctypes.c_uint64),
    )


def test_a_c_program_pins_a_queue_to_a_stream(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POLYMUX_SOCKET", client.status()["server"]["socket"])
    library = ctypes.CDLL(str(Path(polymux.__file__).parent / "lib" / "libpolymux.so"))
    library.polymux_last_error.restype = ctypes.c_char_p
    library.polymux_close.argtypes = [ctypes.c_void_p]
    peer, queue = ctypes.c_void_p(), ctypes.c_void_p()
    assert library.polymux_connect(None, ctypes.byref(peer)) == 0
    options = QueueOptions(name=b"from C", device=b"cpu:0/0")
    assert library.polymux_queue_open(peer, ctypes.byref(options), ctypes.byref(queue)) == 0
    (seen,) = [each for each in client.status()["queues"] if each["name"] == "from C"]
    assert (seen["pinned"], seen["stream"]) == ("cpu:0/0", "cpu:0/0")
    wrong = QueueOptions(device=b"cpu:0/77")
    assert library.polymux_queue_open(peer, ctypes.byref(wrong), ctypes.byref(queue)) != 0
    assert b"stream 'cpu:0/77' does not exist" in library.polymux_last_error()
    library.polymux_close(peer)
