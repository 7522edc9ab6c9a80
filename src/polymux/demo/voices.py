"""The application that listens to voices as they speak."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from polymux.demo.inference import Infer, Reference
from polymux.demo.message import Finding
from polymux.demo.speech import WINDOW_S, Listener, Recording
from polymux.demo.workload import Stop, Workload

__all__ = ["Voices"]

_ENOUGH = 0.9


class Voices(Workload):
    """Listens to a recorded telephone talk, several times at once, in real time: a window of sound each 32 ms."""

    models = ("hear_speech",)
    clients = 3

    def __init__(self) -> None:
        self._recording = Recording.of_package()
        self._expected: NDArray[np.bool_] = np.zeros(0, np.bool_)
        self._heard: list[tuple[int, bool, bool]] = []

    def prepare(self, reference: Reference) -> None:
        """Listen once with the model run directly."""
        listener = Listener(reference)
        self._expected = np.array([listener.hear(window) for window in self._recording.windows])

    def work(self, client: int, infer: Infer, stop: Stop, note: Callable[[str], None]) -> None:
        """Hear the talk from its beginning, again and again; a first window makes the connection."""
        Listener(infer).hear(self._recording.windows[0])
        spoken_until = time.monotonic() + client * WINDOW_S / self.clients
        while True:
            listener = Listener(infer)
            for number, window in enumerate(self._recording.windows):
                spoken_until += WINDOW_S
                if stop(max(0.0, spoken_until - time.monotonic())):
                    return
                speaks = listener.hear(window)
                in_time = time.monotonic() - spoken_until <= WINDOW_S
                self._heard.append((number, speaks, in_time))
                note(f"{number * WINDOW_S:.1f} s: {'speech' if speaks else 'silence'}")

    def findings(self) -> tuple[Finding, ...]:
        """Compare with the model run directly, and with what a person has marked as speech."""
        count = len(self._heard)
        same = sum(speaks == self._expected[number] for number, speaks, _ in self._heard)
        right = sum(speaks == self._recording.spoken[number] for number, speaks, _ in self._heard)
        in_time = sum(in_time for _, _, in_time in self._heard)
        return (
            Finding(
                "speech in each window, against the model run directly",
                f"{same:,} of {count:,} the same",
                same == count > 0,
            ),
            Finding(
                "speech in each window, against a person's marks",
                f"{right / max(1, count):.1%} alike",
                right >= _ENOUGH * count > 0,
            ),
            Finding(
                f"windows answered before the next one was spoken ({WINDOW_S * 1000:.0f} ms)",
                f"{in_time:,} of {count:,}, {in_time / max(1, count):.1%}",
                None,
            ),
        )
