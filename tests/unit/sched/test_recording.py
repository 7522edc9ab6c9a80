"""Events and decisions survive a trip through text; text that is none is refused by name."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polymux.core.decision import DECISIONS, Answer, Bind, Decision
from polymux.core.device_spec import DeviceSpec, Share, StreamSpec
from polymux.core.errors import InvalidRequest
from polymux.core.event import (
    EVENTS,
    DeviceAdded,
    DeviceLoad,
    Event,
    LoadReported,
    QueueLoad,
    QueueOpened,
    StreamLoad,
    Tick,
)
from polymux.core.ids import DeviceId, QueueId, SessionId, StreamId
from polymux.core.status import TaskStatus
from polymux.sched.recording import QUEUES, REQUESTS, Format, Step, read_header, write_step

texts = st.text(max_size=8)
specs = st.builds(
    DeviceSpec,
    *(texts, texts, texts, st.integers(0), st.sampled_from(["host", "own"])),
    *(st.integers(0), st.integers(1), st.lists(texts, max_size=2).map(tuple), st.booleans(), texts),
)
shares = st.builds(Share, st.none() | st.lists(st.integers(0, 99), max_size=3).map(tuple))
fields: dict[Any, st.SearchStrategy[Any]] = {
    DeviceSpec: specs,
    tuple[StreamSpec, ...]: st.lists(st.builds(StreamSpec, texts, texts, shares), max_size=3).map(tuple),
    TaskStatus: st.sampled_from(TaskStatus),
}
for kind, strategy in fields.items():
    if isinstance(kind, type):
        st.register_type_strategy(kind, strategy)
st.register_type_strategy(StreamSpec, st.builds(StreamSpec, texts, texts, shares))
events = st.one_of(*(st.from_type(event) for event in EVENTS))
decisions = st.one_of(*(st.from_type(decision) for decision in DECISIONS))


@given(st.integers(0), events, st.lists(decisions, max_size=3))
def test_any_step_is_the_same_after_a_trip_through_one_line(
    at_ns: int, event: Event, made: list[Decision]
) -> None:
    step = Step(at_ns, event, tuple(made))
    line = write_step(step)
    assert len(line.splitlines()) == 1
    assert QUEUES.read_step(line) == step
    assert write_step(QUEUES.read_step(line)) == line


def test_a_line_can_be_read_by_people() -> None:
    step = Step(
        5,
        QueueOpened(QueueId("3.0"), SessionId(3), "heat"),
        (Bind(QueueId("3.0"), StreamId("cpu:0/0"), "x"),),
    )
    assert json.loads(write_step(step)) == {
        "at_ns": 5,
        "event": {
            "type": "QueueOpened",
            "queue": "3.0",
            "session": 3,
            "application": "heat",
            "priority": 0,
            "pinned": None,
            "weight": 100,
            "memory_nbytes": 0,
            "pinned_stream": None,
        },
        "decisions": [{"type": "Bind", "queue": "3.0", "stream": "cpu:0/0", "reason": "x", "weight": 100}],
    }


def test_nested_values_come_back_as_what_they_were() -> None:
    spec = DeviceSpec(DeviceId("cpu:0"), "cpu", "EPYC", 1 << 34, "host", 2, 1, ("cpu", "onnx"))
    streams = (StreamSpec(StreamId("cpu:0/0"), DeviceId("cpu:0"), Share((0, 1))),)
    loads = LoadReported(
        {StreamId("cpu:0/0"): StreamLoad(1, 2, 3)},
        {QueueId("1.0"): QueueLoad(1, 2, 3, {"host": 4})},
        {DeviceId("cpu:0"): DeviceLoad(5, 6, None)},
    )
    for event in (DeviceAdded(spec, streams), loads):
        assert QUEUES.read_step(write_step(Step(0, event))).event == event


def test_fields_with_defaults_may_be_left_out() -> None:
    event = {"type": "QueueOpened", "queue": "1.0", "session": 1, "application": ""}
    text = json.dumps({"at_ns": 1, "event": event, "decisions": []})
    assert QUEUES.read_step(text) == Step(1, QueueOpened(QueueId("1.0"), SessionId(1), ""))


@pytest.mark.parametrize("recorded", [QUEUES, REQUESTS])
def test_the_header_names_the_engine_and_the_policy(recorded: Format) -> None:
    assert read_header(recorded.write_header("pinned=cpu:0")) == (recorded, "pinned=cpu:0")


@pytest.mark.parametrize(
    "line", ["", "{}", "[]", "{", "\x00", '{"polymux_recording": 2}', write_step(Step(0, Tick()))]
)
def test_a_file_that_is_no_recording_is_refused(line: str) -> None:
    with pytest.raises(InvalidRequest):
        read_header(line)


def test_a_recording_of_another_version_is_refused_with_the_remedy() -> None:
    with pytest.raises(InvalidRequest, match="format version 1, this program reads 2; make a new recording"):
        read_header('{"polymux_recording": 1, "policy": "round_robin"}')


GOOD = json.loads(
    write_step(Step(1, QueueOpened(QueueId("1.0"), SessionId(1), "a"), (Answer(1, True, "m"),)))
)


def broken(path: str, value: Any = None, *, remove: bool = False) -> str:
    copy = json.loads(json.dumps(GOOD))
    *outer, last = path.split(".")
    place = copy
    for key in outer:
        place = place[int(key)] if key.isdigit() else place[key]
    if remove:
        del place[last]
    else:
        place[last] = value
    return json.dumps(copy)


@pytest.mark.parametrize(
    ("line", "named"),
    [
        (broken("at_ns", "soon"), "at_ns: 'soon'"),
        (broken("at_ns", 1.5), "at_ns: 1.5"),
        (broken("at_ns", True), "at_ns: True"),
        (broken("at_ns", remove=True), "step lacks at_ns"),
        (broken("more", 1), "step has the unknown more"),
        (broken("event", 3), "event type 3"),
        (broken("event.type", "Exploded"), "event type 'Exploded' is unknown; there are DeviceAdded"),
        (broken("event.type", "Bind"), "event type 'Bind'"),
        (broken("event.session", "x"), "QueueOpened.session: 'x'"),
        (broken("event.queue", remove=True), "QueueOpened lacks queue"),
        (broken("event.colour", "red"), "QueueOpened has the unknown colour"),
        (broken("decisions", {}), "decisions: {}"),
        (broken("decisions.0.ok", 1), "Answer.ok: 1"),
        (broken("decisions.0.type", None), "decision type None"),
        ("nothing", "is no JSON"),
        ("[" * 100_000, "is no JSON"),
        ("7", "no JSON object"),
    ],
)
def test_a_line_that_is_no_step_is_refused_by_the_field(line: str, named: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        QUEUES.read_step(line)
    assert named in str(caught.value)
