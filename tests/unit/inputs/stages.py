"""Stages for tests: their runs are counted, and can be held."""

from __future__ import annotations

import threading
from io import BytesIO
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from polymux.core.dtype import DType
from polymux.core.kernel_spec import BufferParam
from polymux.inputs import InputStage

TIMEOUT_S = 60


class Doubling:
    """Doubles bytes; while `held`, a run waits. An empty input is an error."""

    def __init__(self, identity: str = "doubling") -> None:
        self.runs: list[bytes] = []
        self.threads: set[str] = set()
        self.begun = threading.Semaphore(0)
        self.gate = threading.Event()
        self.gate.set()
        self.stage = InputStage(
            "doubling",
            identity,
            (BufferParam("data", (DType.U8,), (None,)),),
            (BufferParam("y", (DType.F32,), (16,)),),
            self._double,
        )

    def _double(self, data: NDArray[Any], out: NDArray[Any]) -> list[tuple[int, ...]]:
        self.begun.release()
        assert self.gate.wait(TIMEOUT_S)
        self.runs.append(data.tobytes())
        self.threads.add(threading.current_thread().name)
        if not len(data):
            raise ValueError("nothing to double")
        out[: len(data)] = data.astype(np.float32) * 2
        return [data.shape]


def raw(text: str) -> list[NDArray[np.uint8]]:
    return [np.frombuffer(text.encode(), np.uint8)]


def encoded(pixels: NDArray[np.uint8], kind: str = "PNG", **options: Any) -> bytes:
    """Return an image file."""
    file = BytesIO()
    Image.fromarray(pixels).save(file, kind, **options)
    return file.getvalue()
