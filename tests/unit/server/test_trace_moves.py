"""Migrations in the timeline: what came before and after each, however late and in whatever batches it is heard of."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from polymux.server.trace_file import Lanes, Span, TraceFile, Track
from polymux.server.trace_moves import CLOCKS_NS, MAX_QUEUES, Copied, Move, Moves, Ran
from polymux.server.transfer import Transfer
from tests.segment.timeline import Timeline

US = 1_000
A, B, C = "cpu:0/0", "opencl:0/0", "opencl:0/1"
TRACKS = {A: Track(1, 1), B: Track(2, 1), C: Track(2, 2)}


def ran(stream: str, start_us: int, end_us: int) -> Ran:
    return Ran(stream, Span(TRACKS[stream], start_us * US, end_us * US))


def move(old: str, new: str, left_us: int, queue: str = "1.0") -> Move:
    return Move(queue, "heat", old, new, left_us * US, left_us * US + US)


def copied(source: str, target: str, start_us: int, end_us: int, nbytes: int = 10) -> Copied:
    ends = (int(source != "host"), 2 * int(target != "host"))
    transfer = Transfer(*ends, source, target, "1.0", "app", nbytes, start_us * US, end_us * US)
    return Copied(transfer, Span(Track(2, 2000), start_us * US, end_us * US))


def test_a_migration_lasts_from_letting_go_to_the_first_task_and_knows_both_tasks_and_its_copies() -> None:
    moves = Moves()
    moves.begin([move(A, B, 200)])
    moves.copied(
        [
            copied("host", "opencl:0", 110, 190, 1),
            copied("host", "cpu:1", 150, 160, 100),
            copied("host", "opencl:0", 305, 390, 2),
            copied("host", "opencl:0", 500, 510, 200),
        ]
    )
    (found,) = moves.ran({"1.0": [ran(B, 300, 400), ran(A, 0, 50), ran(A, 100, 199), ran(B, 400, 600)]})
    assert (found.last, found.first) == (ran(A, 100, 199).span, ran(B, 300, 400).span)
    assert (found.start_ns, found.ended_ns) == (200 * US, 300 * US)
    assert [item.transfer.nbytes for item in found.ahead] == [1]
    assert [item.transfer.nbytes for item in found.after] == [2]
    assert found.nbytes == 3
    assert list(moves.end()) == []


def test_what_comes_in_several_batches_is_put_together() -> None:
    moves = Moves()
    assert list(moves.ran({"1.0": [ran(A, 100, 199)]})) == []
    moves.begin([move(A, B, 200)])
    assert list(moves.ran({})) == []
    assert list(moves.ran({"2.0": [ran(B, 250, 260)]})) == []
    (found,) = moves.ran({"1.0": [ran(B, 300, 400)]})
    assert (found.last, found.first) == (ran(A, 100, 199).span, ran(B, 300, 400).span)


def test_a_queue_that_moves_on_without_a_task_ends_its_migration_then() -> None:
    moves = Moves()
    moves.begin([move(A, B, 200), move(B, A, 250)])
    first, second = moves.ran({"1.0": [ran(A, 100, 199), ran(A, 300, 310)]})
    assert (first.first, first.ended_ns) == (None, 250 * US)
    assert first.last == ran(A, 100, 199).span
    assert (second.last, second.first) == (None, ran(A, 300, 310).span)


def test_a_queue_that_runs_nothing_any_more_ends_its_migration_with_the_trace() -> None:
    moves = Moves()
    moves.begin([move(A, B, 200)])
    assert list(moves.ran({})) == []
    (found,) = moves.end()
    assert (found.last, found.first, found.ended_ns) == (None, None, 201 * US)


def test_clocks_that_differ_a_little_do_not_turn_the_order_round() -> None:
    moves = Moves()
    skew_us = CLOCKS_NS // US - 1
    moves.begin([move(A, B, 200)])
    (found,) = moves.ran({"1.0": [ran(A, 150, 200 + skew_us), ran(B, 201 + skew_us, 300)]})
    assert found.last is not None
    assert found.first is not None
    assert found.last.end_ns <= found.start_ns < found.ended_ns <= found.first.start_ns + 1


def test_what_is_remembered_is_bounded() -> None:
    moves = Moves()
    for number in range(3 * MAX_QUEUES):
        list(moves.ran({f"{number}.0": [ran(A, number, number + 1)]}))
    assert len(moves._last) == MAX_QUEUES


@pytest.mark.parametrize("seed", range(3))
def test_random_moves_are_all_found_whatever_the_batches(seed: int) -> None:
    rng = random.Random(seed)
    moves, now, stream = Moves(), 0, A
    tasks: list[Ran] = []
    found: list[Move] = []
    begun: list[tuple[Move, Span | None, list[Span]]] = []
    for _ in range(500):
        stayed: list[Span] = []
        for _ in range(rng.randrange(4)):
            now += rng.randrange(20, 50)
            task = ran(stream, now, now + 10)
            tasks.append(task)
            stayed.append(task.span)
            now += 10
        if begun:
            begun[-1][2].extend(stayed)
        now += 20
        new = rng.choice([other for other in TRACKS if other != stream])
        one = move(stream, new, now)
        now += 20
        moves.begin([one])
        begun.append((one, stayed[-1] if stayed else None, []))
        stream = new
        if rng.random() < 0.3:
            found += moves.ran({"1.0": tasks} if tasks else {})
            tasks = []
    found += moves.ran({"1.0": tasks} if tasks else {})
    found += moves.end()
    assert found == [one for one, _, _ in begun]
    for one, last, following in begun:
        assert one.last == last
        assert one.first == (following[0] if following else None)


def test_things_that_overlap_lie_on_several_tracks_of_one_name(tmp_path: Path) -> None:
    file = TraceFile(tmp_path / "trace.json")
    lanes = Lanes(file, Track(1, 1000), "copies in")
    rng = random.Random(1)
    for batch in range(20):
        for _ in range(20):
            start = batch * 1000 + rng.randrange(1500)
            span = lanes.place(start, start + rng.randrange(300))
            file.slice(span, "copy", "transfer", {})
    file.close()
    timeline = Timeline(tmp_path / "trace.json")
    timeline.check()
    names = [timeline.tracks[track] for track in sorted(timeline.tracks)]
    assert names == ["copies in", *(f"copies in {number}" for number in range(2, len(names) + 1))]
    assert sum(len(slices) for slices in timeline.slices.values()) == 400
