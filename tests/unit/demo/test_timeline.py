"""The timeline: what is read from a trace, and the pictures and the page that are made of it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from polymux.demo.failure import DemoFailed
from polymux.demo.heat_picture import draw_heat
from polymux.demo.message import Answer, Answers, Finding
from polymux.demo.outcome import Outcome
from polymux.demo.page import write_page
from polymux.demo.picture import DARK, LIGHT, draw
from polymux.demo.report import prepare_folder
from polymux.demo.tally import Tally
from polymux.demo.timeline import COPIES, Arrow, Timeline, read_timeline

BEGIN_NS = 5_000_000_000
APPLICATIONS = {"1.0": "heat", "2.0": "polymux serve", "2.1": "polymux serve"}


def name(what: str, process: int, thread: int, text: str) -> dict[str, Any]:
    return {"ph": "M", "name": what, "pid": process, "tid": thread, "args": {"name": text}}


def task(kernel: str, queue: str, at: tuple[int, int], start_s: float, length_s: float) -> dict[str, Any]:
    place = {"pid": at[0], "tid": at[1], "ts": BEGIN_NS / 1e3 + start_s * 1e6, "dur": length_s * 1e6}
    return {"ph": "X", "name": kernel, "cat": "task", "args": {"queue": queue, "task": 1}, **place}


def move(queue: str, source: str, target: str, at_s: float) -> dict[str, Any]:
    """A migration that ends at a time, on its device's track of migrations."""
    place = {"pid": 1 if target.startswith("cpu") else 2, "tid": 3000, "dur": 1e5}
    args = {"queue": "1.0", "name": queue, "from": source, "to": target, "nbytes": 1}
    return {
        "ph": "X",
        "name": f"{queue} moves from {source} to {target}",
        "cat": "migration",
        "args": args,
        "ts": BEGIN_NS / 1e3 + at_s * 1e6 - 1e5,
        **place,
    }


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    cpu, opencl, copies_out, copies_in = (1, 1), (2, 1), (2, 1000), (2, 2000)
    events = [
        name("process_name", 1, 0, "cpu:0"),
        name("process_name", 2, 0, "opencl:0"),
        name("thread_name", *cpu, "stream cpu:0/0"),
        name("thread_name", 1, 2, "stream cpu:0/1"),
        name("thread_name", *opencl, "stream opencl:0/0"),
        name("thread_name", *copies_out, "copies out"),
        name("thread_name", *copies_in, "copies in"),
        task("stencil", "1.0", cpu, 1.0, 0.1),
        task("to_host", "1.0", cpu, 1.2, 0.1),
        task("stencil", "1.0", opencl, 2.0, 0.1),
        task("hear_speech/1", "2.0", cpu, 2.5, 0.1),
        task("noop", "9.0", cpu, 2.6, 0.1),
        task("stencil", "1.0", cpu, -3.0, 0.1),
        task("stencil", "1.0", cpu, 40.0, 0.1),
        *(
            task(f"copy {way}", "1.0", at, 1.9, 0.01) | {"cat": "transfer"}
            for way, at in (("in", copies_in), ("out", copies_out))
        ),
        name("thread_name", 2, 3000, "migrations"),
        move("heat", "cpu:0/0", "opencl:0/0", 1.9),
        move("hear_speech/1", "opencl:0/0", "cpu:0/0", 2.4),
        move("heat", "opencl:0/0", "cpu:0/0", 77.0),
        {"ph": "M", "name": "trace_end", "pid": 0, "tid": 0},
    ]
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"traceEvents": events}))
    return path


@pytest.fixture
def timeline(trace: Path) -> Timeline:
    answers = [
        Answer("hear_speech", BEGIN_NS + 2_400_000_000, BEGIN_NS + 2_700_000_000),
        Answer("hear_speech", BEGIN_NS, BEGIN_NS + 1, "lost", failed=True),
    ]
    return read_timeline(trace, BEGIN_NS, BEGIN_NS + 10_000_000_000, APPLICATIONS, answers)


def outcome(verdict_breaks: str = "") -> Outcome:
    findings = (Finding(f"what <b>{verdict_breaks}</b>", "result", not verdict_breaks),)
    tally = Tally(["hear_speech"])
    tally.take(Answers("voices", ("hear_speech",), (Answer("hear_speech", 0, 1),), ""))
    return Outcome(10.0, tally, 2, 1.0, (), 1024, ("cpu:0",), findings)


def test_lanes_are_the_streams_and_copies_that_were_used_in_order(timeline: Timeline) -> None:
    assert [(lane.device, lane.name) for lane in timeline.lanes] == [
        ("cpu:0", "stream cpu:0/0"),
        ("opencl:0", "stream opencl:0/0"),
        ("opencl:0", COPIES),
    ]


def test_tasks_belong_to_their_application_or_model_and_to_the_load(timeline: Timeline) -> None:
    found = [(piece.lane, round(piece.start_s, 3), piece.owner) for piece in timeline.slices]
    assert found == [
        (0, 1.0, "heat"),
        (0, 1.2, "heat"),
        (1, 2.0, "heat"),
        (0, 2.5, "hear_speech"),
        (0, 2.6, "other"),
        (2, 1.9, "copies"),
        (2, 1.9, "copies"),
    ]
    assert timeline.places("stencil") == {"cpu:0": 1, "opencl:0": 1}
    assert timeline.owners() == ["heat", "hear_speech", "copies", "other"]


def test_arrows_tell_migrations_on_command_from_queues_that_look_for_their_kernel(timeline: Timeline) -> None:
    assert [(arrow.source, arrow.target, arrow.owner) for arrow in timeline.arrows] == [
        (0, 1, "heat"),
        (1, 0, "hear_speech"),
    ]
    assert timeline.migrations == [Arrow(pytest.approx(1.9), 0, 1, "heat")]  # type: ignore[arg-type]


def test_requests_have_the_time_of_their_answer_and_their_latency(timeline: Timeline) -> None:
    (request,) = timeline.requests
    assert (request.model, request.end_s, request.latency_ms) == (
        "hear_speech",
        pytest.approx(2.7),
        pytest.approx(300),
    )


@pytest.mark.parametrize("content", ["", "{", "[]", '{"traceEvents": [{"ph"'])
def test_a_damaged_trace_is_named(tmp_path: Path, content: str) -> None:
    path = tmp_path / "trace.json"
    path.write_text(content)
    with pytest.raises(DemoFailed, match=r"trace\.json cannot be read"):
        read_timeline(path, 0, 1, {}, [])


@pytest.mark.parametrize("theme", [LIGHT, DARK], ids=["light", "dark"])
def test_the_picture_shows_every_owner_in_its_colour(tmp_path: Path, timeline: Timeline, theme: Any) -> None:
    path = tmp_path / "picture.png"
    draw(timeline, theme, path, "Nothing lost")
    picture = Image.open(path).convert("RGB")
    assert picture.size == (1400, 900)
    colours = {colour for _, colour in picture.getcolors(1 << 24) or []}
    for owner in timeline.owners():
        red, green, blue = bytes.fromhex(theme.owners[owner][1:])
        assert (red, green, blue) in colours, owner


def test_a_run_without_tasks_or_requests_is_drawn_too(tmp_path: Path) -> None:
    draw(Timeline((), (), (), (), 1.0), LIGHT, tmp_path / "picture.svg")
    assert (tmp_path / "picture.svg").stat().st_size > 0


@pytest.mark.parametrize("broken", ["", "<script>alert(1)</script>"])
def test_the_page_needs_nothing_else_and_shows_texts_as_texts(
    tmp_path: Path, timeline: Timeline, broken: str
) -> None:
    svg, heat = tmp_path / "timeline.svg", tmp_path / "heat.npy"
    np.save(heat, np.linspace(80, 90, 64, dtype=np.float32).reshape(8, 8))
    draw(timeline, LIGHT, svg)
    draw_heat(heat, LIGHT, tmp_path / "heat.svg")
    page = tmp_path / "demo.html"
    write_page(page, outcome(broken), (svg, svg), (tmp_path / "heat.svg",) * 2, "trace.json")
    text = page.read_text()
    assert "<script" not in text
    assert set(re.findall(r'(?:src|href|srcset)="([^":]*):', text)) == {"data"}
    assert ("Something went wrong" in text) == bool(broken)
    assert "prefers-color-scheme: dark" in text


def test_a_folder_that_cannot_be_written_to_is_named_with_the_remedy(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(
        DemoFailed, match=r"nothing can be written to .*file/demo: .*; name another folder with --out"
    ):
        prepare_folder(tmp_path / "file" / "demo")
