"""An instance of a model on a stream: what is left when it cannot be made."""

from __future__ import annotations

from typing import Any, cast

import pytest

from polymux.client import Client
from polymux.core.errors import PolymuxError, QueueFull, SegmentFull
from polymux.core.ids import StreamId
from polymux.core.kernel_spec import KernelSpec
from polymux.serving.model_config_pb2 import ModelConfig
from polymux.serving.output_sizes import OutputSizes
from polymux.serving.registered_model import RegisteredModel
from polymux.serving.scheduling import loading

SPEC = KernelSpec("m/1")
MODEL = RegisteredModel(
    ModelConfig(), cast("Any", None), SPEC, (KernelSpec("m/1/part-1"), KernelSpec("m/1/part-2"))
)


class FakeClient:
    """Prepares kernels, but not `refuses`."""

    def __init__(self, refuses: str = "") -> None:
        self.refuses = refuses
        self.calls: list[str] = []
        self.prepared: set[str] = set()

    def prepare(self, kernel: str, _: str) -> None:
        self.calls.append(kernel)
        if kernel == self.refuses:
            raise PolymuxError("no room for its weights")
        self.prepared.add(kernel)

    def retire(self, kernel: str, _: str) -> None:
        self.prepared.remove(kernel)


class FakeRunner:
    """A runner that fails to be made, or to warm up."""

    made: list[FakeRunner]
    at_once: Exception | None
    warm: Exception | None

    def __init__(self, *_: Any, **__: Any) -> None:
        if self.at_once is not None:
            raise self.at_once
        self.closed = False
        self.made.append(self)

    def warm_up(self) -> None:
        if self.warm is not None:
            raise self.warm

    def allocate(self) -> None: ...

    def run(self) -> None: ...

    def close(self) -> None:
        self.closed = True


@pytest.mark.parametrize(
    ("refuses", "at_once", "warm"),
    [
        ("m/1/part-2", None, None),
        ("", PolymuxError("no such stream"), None),
        ("", None, SegmentFull("no room")),
        ("", None, QueueFull("no room")),
    ],
)
def test_an_instance_that_cannot_be_made_leaves_no_kernel_prepared_and_no_queue(
    refuses: str, at_once: Exception | None, warm: Exception | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = FakeClient(refuses)
    members = {"made": [], "at_once": at_once, "warm": warm}
    runner: Any = type("Runner", (FakeRunner,), members)
    monkeypatch.setattr(loading, "KernelRunner", runner)
    with pytest.raises(PolymuxError):
        loading._Instance(cast("Client", client), MODEL, StreamId("cpu:0/0"), OutputSizes(()))
    assert client.calls
    assert not client.prepared
    assert all(made.closed for made in runner.made)


def test_an_instance_keeps_its_kernels_until_it_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    client = FakeClient()
    runner: Any = type("Runner", (FakeRunner,), {"made": [], "at_once": None, "warm": None})
    monkeypatch.setattr(loading, "KernelRunner", runner)
    instance = loading._Instance(cast("Client", client), MODEL, StreamId("cpu:0/0"), OutputSizes(()))
    assert client.prepared == {"m/1/part-1", "m/1/part-2"}
    assert not runner.made[0].closed
    instance.close()
    assert not client.prepared
    assert runner.made[0].closed
