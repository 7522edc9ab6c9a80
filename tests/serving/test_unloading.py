"""What becomes of loaded models when the server goes away."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from polymux.core.errors import Closed
from polymux.serving.lifecycle import Lifecycle
from polymux.serving.models import Models


class FakeRunner:
    closed = False

    def close(self) -> None:
        self.closed = True
        raise Closed("the server is gone")


class FakeLoader:
    scheduled = False

    def __init__(self) -> None:
        self.runners: list[FakeRunner] = []

    async def load(self, *_: Any) -> Any:
        self.runners.append(FakeRunner())
        signature = SimpleNamespace(inputs={}, outputs={})
        return SimpleNamespace(runner=self.runners[-1], signature=signature)

    def let_go(self) -> None: ...


class FakeClient:
    def __init__(self, gone: bool) -> None:
        self.server_gone = gone
        self.closed = False

    def close(self) -> None:
        self.closed = True


def test_models_of_a_server_that_is_gone_are_closed_before_they_are_loaded_again(tmp_path: Path) -> None:
    (tmp_path / "m" / "1").mkdir(parents=True)
    (tmp_path / "m" / "1" / "model.onnx").touch()
    loader, first, models = FakeLoader(), FakeClient(gone=True), Models()

    async def scenario() -> None:
        lifecycle = Lifecycle(
            tmp_path,
            models,
            cast("Any", first),
            lambda: cast("Any", FakeClient(gone=False)),
            cast("Any", loader),
        )
        running = asyncio.create_task(lifecycle.run())
        async with asyncio.timeout(20):
            while len(loader.runners) < 2 or not models.are_ready():
                await asyncio.sleep(0.01)
        running.cancel()
        await asyncio.wait([running])

    asyncio.run(scenario())
    assert first.closed
    assert [runner.closed for runner in loader.runners] == [True, False]
