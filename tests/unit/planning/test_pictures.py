"""The picture and the trace of batches: nothing overlaps, and everything that ran is there."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polymux.core.errors import InvalidRequest
from polymux.core.ids import DeviceId
from polymux.core.serving.model import BatchId, ModelName
from polymux.planning import gantt, perfetto
from polymux.planning.run import PolicyRun, run_policy
from polymux.planning.workload import Workload, read_workload
from polymux.sim.serving import BatchSpan

ROOT = Path(__file__).resolve().parents[3]


def span(
    number: int, start_ns: int, end_ns: int, units: int, block: frozenset[int] | None = None
) -> BatchSpan:
    return BatchSpan(BatchId(number), ModelName("a"), DeviceId("gpu:0"), units, block, start_ns, end_ns, 1, 1)


@pytest.fixture(scope="module")
def four_models() -> tuple[Workload, list[PolicyRun]]:
    workload = read_workload(ROOT / "examples/workloads/four-models.toml")
    return workload, [run_policy(workload, policy) for policy in ("unscheduled", "dstack")]


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(1, 20), st.integers(1, 4)), max_size=30))
def test_batches_laid_out_never_overlap_and_have_all_their_units(drawn: list[tuple[int, int, int]]) -> None:
    spans: list[BatchSpan] = []
    for number, (start, length, units) in enumerate(sorted(drawn)):
        used = sum(s.units for s in spans if s.end_ns > start)
        if used + units <= 8:
            spans.append(span(number, start, start + length, units))
    taken: set[tuple[int, int]] = set()
    placed = gantt.lay_out(spans, 8)
    assert len(placed) == len(spans)
    for at, pieces in placed:
        assert sum(count for _, count in pieces) == at.units
        for first, count in pieces:
            cells = {(u, t) for u in range(first, first + count) for t in range(at.start_ns, at.end_ns)}
            assert not cells & taken
            taken |= cells


def test_a_batch_on_a_block_is_drawn_on_the_units_of_its_block() -> None:
    ((_, pieces),) = gantt.lay_out([span(1, 0, 5, 3, frozenset({0, 2, 3}))], 4)
    assert pieces == [(0, 1), (2, 2)]


@pytest.mark.parametrize("ending", ["png", "svg", "pdf"])
def test_a_picture_is_written_in_the_format_that_its_name_says(
    tmp_path: Path, four_models: tuple[Workload, list[PolicyRun]], ending: str
) -> None:
    path = tmp_path / f"batches.{ending}"
    gantt.draw(path, *four_models, start_s=2.0, seconds=0.1)
    beginnings = {"png": b"\x89PNG", "svg": b"<?xml", "pdf": b"%PDF"}
    assert path.read_bytes().startswith(beginnings[ending])


def test_an_unknown_format_is_refused() -> None:
    with pytest.raises(InvalidRequest, match=r"name it \*\.png"):
        gantt.check_picture(Path("batches.txt"))


def test_a_trace_holds_every_batch_and_ends_with_nothing_in_use(
    tmp_path: Path, four_models: tuple[Workload, list[PolicyRun]]
) -> None:
    _, runs = four_models
    path = tmp_path / "batches.json"
    assert perfetto.write_trace(path, runs) == sum(len(run.outcome.spans) for run in runs)
    events = json.loads(path.read_text())["traceEvents"]
    last: dict[tuple[int, int], float] = {}
    used: dict[int, list[int]] = {}
    for event in events:
        if event["ph"] == "X":
            track = (event["pid"], event["tid"])
            assert event["ts"] >= last.get(track, 0) - 1e-6, "two batches of a track overlap"
            last[track] = event["ts"] + event["dur"]
        elif event["ph"] == "C":
            used.setdefault(event["pid"], []).append(event["args"]["units"])
    assert all(min(units) >= 0 and max(units) <= 100 and units[-1] == 0 for units in used.values())
    assert {e["args"]["name"] for e in events if e["name"] == "process_name"} == {
        "unscheduled on v100:0",
        "dstack on v100:0",
    }
