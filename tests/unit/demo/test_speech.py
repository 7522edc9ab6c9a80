"""Recorded speech: the recording, and a model whose state goes from window to window."""

from __future__ import annotations

from itertools import count

import numpy as np

from polymux.demo.inference import Reference, Tensors
from polymux.demo.speech import WINDOW, Listener, Recording
from polymux.demo.voices import Voices


def test_the_recording_is_half_a_minute_with_speech_and_silence() -> None:
    recording = Recording.of_package()
    assert recording.windows.shape == (937, WINDOW)
    assert recording.windows.dtype == np.float32
    assert 0.2 < recording.spoken.mean() < 0.95


def test_each_window_is_heard_with_the_end_of_the_one_before_and_the_state_it_left() -> None:
    seen: list[Tensors] = []
    number = count(1)

    def infer(model: str, inputs: Tensors) -> Tensors:
        assert model == "hear_speech"
        seen.append(inputs)
        state = np.full((2, 1, 128), next(number), np.float32)
        return {"output": np.array([[0.9]], np.float32), "stateN": state}

    listener = Listener(infer)
    first, second = np.arange(WINDOW, dtype=np.float32), np.zeros(WINDOW, np.float32)
    assert listener.hear(first)
    assert listener.hear(second)
    assert not seen[0]["state"].any()
    assert (seen[1]["state"] == 1).all()
    assert seen[1]["input"].shape == (1, WINDOW + 64)
    assert (seen[1]["input"][0, :64] == first[-64:]).all()
    assert seen[0]["sr"].shape == ()


def test_what_is_heard_agrees_with_a_persons_marks() -> None:
    voices = Voices()
    reference = Reference(voices.models)
    voices.prepare(reference)
    left = iter(range(len(voices._recording.windows)))
    voices.work(0, reference, lambda _: next(left, None) is None, lambda _: None)
    same, marked, in_time = voices.findings()
    assert same.good
    assert marked.good, marked.result
    assert in_time.good is None
