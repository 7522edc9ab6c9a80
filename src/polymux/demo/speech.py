"""Telling speech from silence while it is spoken: a model with state, one window of sound after the other."""

from __future__ import annotations

import wave
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from polymux.demo.failure import DemoFailed
from polymux.demo.inference import Infer
from polymux.demo.packages import package_file

__all__ = ["SAMPLES_PER_S", "WINDOW", "WINDOW_S", "Listener", "Recording"]

SAMPLES_PER_S = 16_000
WINDOW = 512
"""Samples of sound that the model takes at a time."""
WINDOW_S = WINDOW / SAMPLES_PER_S
_CONTEXT = 64  # samples of the window before that it sees again
_SPEECH_PROBABILITY = 0.5


@dataclass(frozen=True, slots=True)
class Recording:
    """Recorded speech.

    Attributes
    ----------
    windows : ndarray, float32 (n, WINDOW)
        Sound from -1 to 1 at `SAMPLES_PER_S`.
    spoken : ndarray, bool (n,)
        Whether somebody speaks in most of a window, as a person has marked it.
    """

    windows: NDArray[np.float32]
    spoken: NDArray[np.bool_]

    @classmethod
    def of_package(cls) -> Recording:
        """Read the half minute of a telephone talk that pyannote-audio carries; raises `DemoFailed` without it."""
        folder = "pyannote/audio/sample"
        sound = _samples(package_file("pyannote-audio", f"{folder}/sample.wav"))
        marked = np.zeros(len(sound), np.bool_)
        for start_s, length_s in _turns(package_file("pyannote-audio", f"{folder}/sample.rttm")):
            marked[int(start_s * SAMPLES_PER_S) : int((start_s + length_s) * SAMPLES_PER_S)] = True
        count = len(sound) // WINDOW
        windows = sound[: count * WINDOW].reshape(count, WINDOW)
        return cls(windows, marked[: count * WINDOW].reshape(count, WINDOW).mean(axis=1) > 0.5)


class Listener:
    """One listener to one voice: hears windows in order and keeps the model's state between them.

    Parameters
    ----------
    infer : Infer
        Runs ``hear_speech``.
    """

    def __init__(self, infer: Infer) -> None:
        self._infer = infer
        self._state = np.zeros((2, 1, 128), np.float32)
        self._context = np.zeros(_CONTEXT, np.float32)

    def hear(self, window: NDArray[np.float32]) -> bool:
        """Return whether a window, float32 (WINDOW,), has speech in it; one inference."""
        outputs = self._infer(
            "hear_speech",
            {
                "input": np.concatenate([self._context, window])[np.newaxis],
                "state": self._state,
                "sr": np.array(SAMPLES_PER_S, np.int64),
            },
        )
        self._state = outputs["stateN"]
        self._context = window[-_CONTEXT:]
        return bool(outputs["output"][0, 0] > _SPEECH_PROBABILITY)


def _samples(file: Path) -> NDArray[np.float32]:
    with wave.open(str(file), "rb") as sound:
        if (sound.getframerate(), sound.getnchannels(), sound.getsampwidth()) != (SAMPLES_PER_S, 1, 2):
            raise DemoFailed(f"{file} is not mono at {SAMPLES_PER_S} samples of 16 bits a second")
        return np.frombuffer(sound.readframes(sound.getnframes()), "<i2").astype(np.float32) / np.float32(
            32768
        )


def _turns(file: Path) -> Iterator[tuple[float, float]]:
    """Yield start and length, in s, of each turn in a file of Rich Transcription Time Marks."""
    for line in file.read_text().splitlines():
        fields = line.split()
        yield float(fields[3]), float(fields[4])
