"""How the threads of a model's session wait: spinning while it runs, never between runs, nor beside their equals."""

from __future__ import annotations

from typing import Any

import pytest

from polymux.core.implementation import OnnxModel
from polymux.device import onnx_session
from polymux.device.onnx_session import OnnxSessions

MODEL = OnnxModel("model.onnx")


class FakeMapped:
    def __init__(self, *_: object) -> None:
        self.problem = ""


class FakeSession:
    def __init__(self, model: OnnxModel, cores: Any, *, spins: bool, mapped: Any = None) -> None:
        self.spins = spins


@pytest.fixture
def sessions(monkeypatch: pytest.MonkeyPatch) -> OnnxSessions:
    monkeypatch.setattr(onnx_session, "OnnxSession", FakeSession)
    monkeypatch.setattr(onnx_session, "MappedModel", FakeMapped)
    return OnnxSessions()


def test_threads_spin_where_one_stream_has_the_cores(sessions: OnnxSessions) -> None:
    sessions.expect((0, 1))
    assert sessions.get(MODEL, (0, 1)).spins


def test_threads_spin_on_shares_that_are_parts_of_each_other(sessions: OnnxSessions) -> None:
    for cores in ((0, 1, 2, 3), (0, 1), (2, 3)):
        sessions.expect(cores)
    assert sessions.get(MODEL, (0, 1)).spins
    assert sessions.get(MODEL, (0, 1, 2, 3)).spins


def test_threads_sleep_where_two_streams_have_the_same_cores(sessions: OnnxSessions) -> None:
    sessions.expect((0, 1))
    sessions.expect((0, 1))
    assert not sessions.get(MODEL, (0, 1)).spins


@pytest.mark.parametrize(("spins", "value"), [(True, "1"), (False, "0")])
def test_no_thread_spins_when_the_run_is_over(spins: bool, value: str) -> None:
    runtime = pytest.importorskip("onnxruntime")
    options = onnx_session._options(runtime, MODEL, (2, 3), spins=spins)
    assert options.get_session_config_entry("session.intra_op.allow_spinning") == value
    assert options.get_session_config_entry("session.force_spinning_stop") == "1"


def test_options_of_the_model_have_the_last_word() -> None:
    runtime = pytest.importorskip("onnxruntime")
    model = OnnxModel("model.onnx", (("session.intra_op.allow_spinning", "0"),))
    options = onnx_session._options(runtime, model, (2, 3), spins=True)
    assert options.get_session_config_entry("session.intra_op.allow_spinning") == "0"
