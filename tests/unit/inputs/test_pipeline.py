from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from polymux.core.errors import InvalidRequest, KernelFailed
from polymux.inputs import Pipeline, StagePool, input_stage
from tests.unit.inputs.stages import TIMEOUT_S, Doubling, encoded


def test_results_come_in_the_order_of_the_items() -> None:
    doubling = Doubling()
    with Pipeline(doubling.stage, [bytes([index]) for index in range(9)], ahead=3) as results:
        assert [array.tolist() for (array,) in results] == [[2.0 * index] for index in range(9)]


@pytest.mark.parametrize("ahead", [0, 1, 3])
def test_batches_are_stacked_and_the_last_one_may_be_smaller(ahead: int) -> None:
    doubling = Doubling()
    items = [bytes([index, 1]) for index in range(5)]
    with Pipeline(doubling.stage, items, batch=2, ahead=ahead) as batches:
        found = [array.tolist() for (array,) in batches]
    assert found == [[[0, 2], [2, 2]], [[4, 2], [6, 2]], [[8, 2]]]


def test_only_so_many_items_are_taken_ahead_as_asked_for() -> None:
    taken: list[int] = []

    def items() -> Iterator[bytes]:
        for index in range(10):
            taken.append(index)
            yield bytes([index])

    doubling = Doubling()
    with Pipeline(doubling.stage, items(), ahead=2) as results:
        next(results)
        assert taken == [0, 1, 2]
        next(results)
        assert taken == [0, 1, 2, 3]


def test_the_next_item_is_prepared_while_the_job_works_on_this_one() -> None:
    doubling = Doubling()
    with Pipeline(doubling.stage, [b"a", b"b"], ahead=1) as results:
        next(results)
        for _ in range(2):  # the second begins though nobody has asked for it
            assert doubling.begun.acquire(timeout=TIMEOUT_S)


def test_jobs_that_share_a_pool_and_their_inputs_have_the_stage_run_once() -> None:
    doubling = Doubling()
    items = [bytes([index]) for index in range(8)]
    with (
        StagePool(2) as pool,
        Pipeline(doubling.stage, items, pool=pool, share=True) as one,
        Pipeline(doubling.stage, items, pool=pool, share=True, batch=4) as other,
    ):
        singles = [array.tolist() for (array,) in one]
        batches = [array.tolist() for (array,) in other]
    assert singles == [row for batch in batches for row in batch]
    assert len(doubling.runs) == 8


def test_files_arrays_and_images_are_items(tmp_path: Path) -> None:
    file = tmp_path / "a.png"
    file.write_bytes(encoded(np.full((4, 4, 3), 255, np.uint8)))
    content = np.frombuffer(file.read_bytes(), np.uint8)
    with Pipeline(input_stage("image", (3, 4, 4)), [file, content], batch=2) as batches:
        ((images,),) = list(batches)
    assert images.shape == (2, 3, 4, 4)
    assert np.allclose(images, 1)


def test_a_bad_item_is_named_by_its_number() -> None:
    good = encoded(np.zeros((4, 4, 3), np.uint8))
    with Pipeline(input_stage("image", (3, 4, 4)), [good, b"bad", good]) as images:
        next(images)
        with pytest.raises(InvalidRequest, match="item 1: .*no image"):
            next(images)


def test_a_failure_of_the_stage_ends_the_loop_and_the_threads() -> None:
    doubling = Doubling()
    with pytest.raises(KernelFailed), Pipeline(doubling.stage, [b"a", b"", b"c"]) as results:
        list(results)


@pytest.mark.parametrize(
    ("items", "batch", "words"),
    [
        ([b"a", b"bc"], 2, "items 0 to 1 cannot be one batch"),
        ([(b"a", b"b")], None, "takes 1 inputs, an item has 2"),
        ([np.zeros(3, np.float32)], None, "takes 'data' as u1, the item is float32"),
    ],
)
def test_items_that_do_not_fit_are_refused(items: list[bytes], batch: int | None, words: str) -> None:
    with (
        pytest.raises(InvalidRequest, match=words),
        Pipeline(Doubling().stage, items, batch=batch) as results,
    ):
        list(results)


@pytest.mark.parametrize(("batch", "ahead", "words"), [(0, 2, "batch=0"), (None, -1, "ahead=-1")])
def test_what_cannot_be_is_refused_at_once(batch: int | None, ahead: int, words: str) -> None:
    with pytest.raises(InvalidRequest, match=words):
        Pipeline(Doubling().stage, [], batch=batch, ahead=ahead)


def test_closing_early_gives_up_what_has_not_begun() -> None:
    doubling = Doubling()
    with Pipeline(doubling.stage, [bytes([index]) for index in range(100)], ahead=50) as results:
        next(results)
    assert len(doubling.runs) <= 51
    assert list(results) == []
