"""The allocator hands out offsets that never overlap, counts exactly, and gives everything back."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from polymux.segment._core import Allocator

PAGE = 4096
LARGE = 64 * 1024
MAX_ALIGNMENT = 2 * 1024 * 1024

sizes = st.one_of(
    st.integers(0, 300),
    st.integers(0, 3 * LARGE),
    st.sampled_from([64, 128, 4096, LARGE - 64, LARGE - 1, LARGE, LARGE + 1, 128 * 1024]),
    st.integers(0, 4 * 1024 * 1024),
)
alignments = st.sampled_from([1, 8, 64, 64, 64, 128, PAGE, LARGE, MAX_ALIGNMENT])


def rounded(nbytes: int) -> int:
    granules = -(-max(nbytes, 1) // 64) * 64
    return granules if granules < LARGE else -(-granules // PAGE) * PAGE


class AllocatorMachine(RuleBasedStateMachine):
    """Compares the allocator with a dictionary of live blocks."""

    @initialize(pages=st.integers(0, 5), nbytes=st.integers(0, 3 * 1024 * 1024))
    def start(self, pages: int, nbytes: int) -> None:
        self.base = pages * PAGE
        self.nbytes = nbytes // 64 * 64
        self.allocator = Allocator(self.base, nbytes)
        self.live: dict[int, int] = {}
        self.order: list[int] = []
        self.peak = 0

    @rule(nbytes=sizes, alignment=alignments)
    def allocate(self, nbytes: int, alignment: int) -> None:
        offset = self.allocator.allocate(nbytes, alignment)
        size = rounded(nbytes)
        need = max(alignment, PAGE if size >= LARGE else 64)
        if offset is None:
            for start, run in self.allocator.free_runs():
                aligned = -(-start // need) * need
                assert aligned + size > start + run, "refused although it fits"
            return
        assert offset % need == 0
        assert self.base <= offset
        assert offset + size <= self.base + self.nbytes
        assert self.allocator.usable_nbytes(offset) == size
        for other, other_size in self.live.items():
            assert offset + size <= other or other + other_size <= offset, "overlaps a live block"
        self.live[offset] = size
        self.order.append(offset)
        self.peak = max(self.peak, sum(self.live.values()))

    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        if not self.order:
            return
        offset = self.order.pop(data.draw(st.integers(0, len(self.order) - 1)))
        assert self.allocator.release(offset)
        assert not self.allocator.release(offset), "released twice"
        del self.live[offset]

    @rule(offset=st.integers(0, 2**64 - 1))
    def release_of_a_wrong_offset_is_refused(self, offset: int) -> None:
        if offset not in self.live:
            assert not self.allocator.release(offset)

    @rule(data=st.data())
    def the_inside_of_a_block_is_no_block(self, data: st.DataObject) -> None:
        if self.order:
            offset = data.draw(st.sampled_from(self.order))
            inside = offset + data.draw(st.integers(1, self.live[offset] - 1))
            assert not self.allocator.release(inside)
            assert self.allocator.usable_nbytes(inside) == 0

    @rule(data=st.data())
    def a_just_freed_block_is_the_next_of_its_size(self, data: st.DataObject) -> None:
        if not self.order:
            return
        offset = data.draw(st.sampled_from(self.order))
        assert self.allocator.release(offset)
        assert self.allocator.allocate(self.live[offset]) == offset

    @invariant()
    def counters_equal_the_sum_of_the_live_blocks(self) -> None:
        assert self.allocator.check()
        stats = self.allocator.stats()
        total = sum(self.live.values())
        runs = self.allocator.free_runs()
        assert stats == {
            "live_nbytes": total,
            "live_blocks": len(self.live),
            "free_nbytes": self.nbytes - total,
            "largest_free_nbytes": max((nbytes for _, nbytes in runs), default=0),
            "peak_nbytes": self.peak,
        }
        assert sum(nbytes for _, nbytes in runs) == self.nbytes - total

    def teardown(self) -> None:
        if not hasattr(self, "live"):
            return
        for offset in self.live:
            assert self.allocator.release(offset)
        assert self.allocator.check()
        assert self.allocator.free_runs() == ([(self.base, self.nbytes)] if self.nbytes else [])
        if self.nbytes >= LARGE:
            assert self.allocator.allocate(self.nbytes // PAGE * PAGE) == self.base


AllocatorMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=60, deadline=None)
TestAllocator = AllocatorMachine.TestCase


def test_zero_bytes_take_one_granule() -> None:
    allocator = Allocator(0, 4096)
    first, second = allocator.allocate(0), allocator.allocate(0)
    assert (first, second) == (0, 64)


@pytest.mark.parametrize("nbytes", [1024 * 1024 + 1, 2**48, 2**63, 2**64 - 1, 2**64 - 64])
def test_a_request_larger_than_the_range_does_not_fit_whatever_its_size(nbytes: int) -> None:
    allocator = Allocator(PAGE, 1024 * 1024)
    assert allocator.allocate(nbytes) is None
    assert allocator.allocate(nbytes, MAX_ALIGNMENT) is None
    assert allocator.check()
    assert allocator.stats()["live_blocks"] == 0


@pytest.mark.parametrize("alignment", [0, 3, 96, 4 * 1024 * 1024, 2**63, 2**64 - 1])
def test_an_alignment_that_is_no_power_of_two_up_to_2_mib_is_an_error(alignment: int) -> None:
    with pytest.raises(ValueError, match=str(alignment)):
        Allocator(0, 1024 * 1024).allocate(64, alignment)


@pytest.mark.parametrize(
    ("base", "nbytes"), [(64, 4096), (4095, 4096), (0, 2**48), (2**48, 64), (4096, 2**64 - 1)]
)
def test_a_range_that_is_unaligned_or_beyond_2_to_the_48_is_an_error(base: int, nbytes: int) -> None:
    with pytest.raises(ValueError, match=str(base)):
        Allocator(base, nbytes)


def test_a_full_range_refuses_and_takes_again_what_was_released() -> None:
    allocator = Allocator(0, 16 * LARGE)
    offsets = [allocator.allocate(LARGE) for _ in range(16)]
    assert None not in offsets
    assert allocator.allocate(1) is None
    assert allocator.release(5 * LARGE)
    assert allocator.allocate(LARGE) == 5 * LARGE


def test_large_blocks_share_no_page_with_small_ones() -> None:
    allocator = Allocator(0, 4 * 1024 * 1024)
    small = [allocator.allocate(100) for _ in range(3)]
    large = [allocator.allocate(LARGE + 1) for _ in range(3)]
    small += [allocator.allocate(100) for _ in range(3)]
    pages = [range(offset // PAGE, (offset + LARGE + PAGE) // PAGE) for offset in large if offset is not None]
    assert not any(offset // PAGE in taken for offset in small if offset is not None for taken in pages)


def test_the_wilderness_is_used_last() -> None:
    allocator = Allocator(0, 64 * 1024 * 1024)
    blocks = [allocator.allocate(1024 * 1024) for _ in range(8)]
    for offset in blocks[1:4]:
        assert offset is not None
        assert allocator.release(offset)
    assert allocator.allocate(2 * 1024 * 1024) == blocks[1], "untouched pages were taken before used ones"


def test_best_fit_takes_the_smallest_hole_that_is_large_enough() -> None:
    allocator = Allocator(0, 64 * 1024 * 1024)
    holes = []
    for pages in (40, 20, 30, 25):
        holes.append(allocator.allocate(pages * PAGE))
        allocator.allocate(LARGE)  # keeps the holes apart
    for offset in holes:
        assert offset is not None
        assert allocator.release(offset)
    assert allocator.allocate(22 * PAGE) == holes[3]
    assert allocator.allocate(26 * PAGE) == holes[2]


def test_a_million_cycles_leave_nothing_behind() -> None:
    allocator = Allocator(0, 8 * 1024 * 1024)
    for step in range(1_000_000):
        offset = allocator.allocate(1 + step % 5000)
        assert offset is not None
        allocator.release(offset)
    assert allocator.check()
    assert allocator.free_runs() == [(0, 8 * 1024 * 1024)]
