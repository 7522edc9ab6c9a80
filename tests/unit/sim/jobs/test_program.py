"""Programs of kernels, and where a job is in them."""

from __future__ import annotations

from typing import Any

import pytest

from polymux.core.errors import InvalidRequest
from polymux.core.jobs.event import YieldReason
from polymux.core.jobs.model import PreemptionLevel
from polymux.sim.jobs import Program
from polymux.sim.jobs.slices import Sharer, Slices
from polymux.sim.jobs.stream import Launcher, Stream
from polymux.sim.jobs.training import Training

STEP, BOUNDARY, LAUNCHES, IDLE, STOP = PreemptionLevel
FOUR = Program((100, 200, 300, 400), (1, 3))


def test_kernels_follow_each_other_as_fast_as_the_host_launches_them():
    assert FOUR.ends_ns == (100, 300, 600, 1000)
    assert Program((10, 10, 10), launch_ns=50).ends_ns == (60, 110, 160)
    assert Program((100, 10, 10), launch_ns=50).ends_ns == (150, 160, 170)
    assert Program((100, 10, 10), launch_ns=50, syncs=(2,)).ends_ns == (150, 160, 220)


def test_the_longest_time_between_boundaries_counts_the_beginning_and_the_end():
    assert (FOUR.longest_boundary_ns, FOUR.longest_kernel_ns) == (500, 400)
    assert Program((5, 5)).longest_boundary_ns == 10


def test_on_a_slower_device_kernels_take_longer_and_launches_do_not():
    slow = Program((100, 200), launch_ns=10).scaled(0.5)
    assert (slow.kernels_ns, slow.launch_ns) == ((200, 400), 10)
    assert FOUR.scaled(1.0) is FOUR


@pytest.mark.parametrize(
    "wrong", [{"kernels_ns": ()}, {"kernels_ns": (0,)}, {"kernels_ns": (1, 1), "boundaries": (2,)},
              {"kernels_ns": (1, 1), "syncs": (0,)}, {"kernels_ns": (1,), "launch_ns": -1}],
)  # fmt: skip
def test_a_program_that_cannot_be_is_refused(wrong: dict[str, Any]):
    with pytest.raises(InvalidRequest, match="program: "):
        Program(**wrong)


@pytest.mark.parametrize(
    ("level", "after", "at", "reason"),
    [
        (BOUNDARY, 50, 100, YieldReason.BOUNDARY),
        (BOUNDARY, 100, 100, YieldReason.BOUNDARY),
        (BOUNDARY, 101, 600, YieldReason.BOUNDARY),
        (BOUNDARY, 601, 1000, YieldReason.STEP),
        (LAUNCHES, 101, 300, YieldReason.BOUNDARY),
        (LAUNCHES, 300, 300, YieldReason.BOUNDARY),
        (STEP, 101, 1000, YieldReason.STEP),
        (STEP, 1000, 1000, YieldReason.STEP),
        (BOUNDARY, 2150, 2300 + 300, YieldReason.BOUNDARY),
    ],
)
def test_a_job_gives_way_at_the_next_place_of_its_level(
    level: PreemptionLevel, after: int, at: int, reason: YieldReason
):
    training = Training(FOUR, 1)
    training.begin(7000, 1.0)
    assert training.leave(level, 7000 + after) == (7000 + at, reason)


def test_more_launches_in_flight_end_first():
    training = Training(FOUR, 2)
    training.begin(0, 1.0)
    assert training.leave(LAUNCHES, 50) == (300, YieldReason.BOUNDARY)


def test_a_job_goes_on_where_it_was_on_a_device_of_another_speed():
    training = Training(FOUR, 1)
    training.begin(0, 1.0)
    training.pause(1450)  # in the middle of the third kernel of the second run
    training.begin(2000, 0.5)
    assert training.runs(2000) == pytest.approx(1.45)
    assert training.end_ns(2) == 2000 + 2 * 550
    training.pause(2000 + 2 * 550)
    assert training.is_between_runs(5000)
    assert training.runs(5000) == 2


def test_a_job_whose_state_is_still_on_its_way_gives_way_at_once():
    training = Training(FOUR, 1)
    training.begin(500, 1.0)
    assert training.leave(STEP, 100) == (100, YieldReason.STEP)
    assert training.runs(400) == 0


def test_kernels_in_one_stream_run_in_the_order_of_their_launches():
    stream = Stream()
    first, second = (Launcher(Program((100, 100), launch_ns=10), stream) for _ in range(2))
    assert first.launch(0) == (10, False)
    assert second.launch(5) == (15, False)
    assert first.launch(10) == (300, True)
    assert second.launch(15) == (400, True)
    assert first.done() == 1.0
    first.begin_again()
    assert (first.runs, first.index) == (1, 0)


def test_a_launcher_that_waits_for_the_device_goes_on_after_everything_before_it():
    stream = Stream(1000)
    launcher = Launcher(Program((100, 100), launch_ns=10, syncs=(1,)), stream)
    assert launcher.launch(0) == (1110, False)


def test_processes_get_equal_parts_of_a_device_that_nobody_manages():
    slices, ended = Slices(), []
    long, short = Sharer(Program((1000,))), Sharer(Program((100,)))
    slices.add(long, lambda: ended.append("long"), 0)
    assert slices.next_end_ns(0) == 1000
    slices.add(short, lambda: ended.append("short"), 500)
    assert slices.next_end_ns(500) == 700
    for call in slices.take_ended(700):
        call()
    assert ended == ["short"]
    assert slices.next_end_ns(700) == 1100
    assert long.done() == pytest.approx(0.6)


def test_a_process_that_is_stopped_leaves_its_part_to_the_others():
    slices = Slices()
    first, second = Sharer(Program((1000,))), Sharer(Program((1000,)))
    slices.add(first, list, 0)
    slices.add(second, list, 0)
    slices.advance(1000)
    first.stopped = True
    assert slices.next_end_ns(1000) == 1500
    second.stopped = True
    assert slices.next_end_ns(1200) is None
