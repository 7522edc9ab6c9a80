from __future__ import annotations

import pytest

from polymux.core.dtype import DType
from polymux.core.kernel_spec import BufferParam
from polymux.serving.output_sizes import OutputSizes

FIXED = BufferParam("f", (DType.F32,), (2, 3))
SCALAR = BufferParam("s", (DType.I64,), ())
FREE = BufferParam("d", (DType.F32,), (None, 5))
ANY = BufferParam("a", (DType.U8,), None)


def test_fixed_outputs_have_their_own_shape_and_free_ones_hold_at_least_the_inputs_size() -> None:
    sizes = OutputSizes([FIXED, SCALAR, FREE, ANY])
    assert sizes.shapes(((1,),), 40_000) == ((2, 3), (), (2000, 5), (40_000,))


def test_small_inputs_still_get_a_page() -> None:
    assert OutputSizes([FREE]).shapes(((1,),), 4) == ((205, 5),)


def test_a_combination_of_shapes_that_was_seen_gets_exactly_what_it_took() -> None:
    sizes = OutputSizes([FREE, ANY])
    sizes.learn(((7,),), 28, (1000, 3))
    assert sizes.shapes(((7,),), 28) == ((50, 5), (3,))


@pytest.mark.parametrize(
    ("shape", "expected"),
    [((3, None, None), (3, 9, 1)), ((None, 0), (1, 0)), ((None, None, 4), (7, 1, 4)), ((0, None), (0, 1))],
)
def test_a_shape_fits_the_models_pattern_and_holds_the_capacity(
    shape: tuple[int | None, ...], expected: tuple[int, ...]
) -> None:
    sizes = OutputSizes([BufferParam("p", (DType.F32,), shape)])
    sizes.learn(((1,),), 4, (107,))
    assert sizes.shapes(((1,),), 4) == (expected,)


def test_the_greatest_size_of_a_combination_is_kept() -> None:
    sizes = OutputSizes([ANY])
    for nbytes in (5, 9, 2):
        sizes.learn(((7,),), 28, (nbytes,))
    assert sizes.shapes(((7,),), 28) == ((9,),)


def test_a_new_combination_is_estimated_from_the_ratio_of_others() -> None:
    sizes = OutputSizes([ANY])
    sizes.learn(((1,),), 10_000, (60_000,))
    assert sizes.shapes(((2,),), 20_000) == ((120_000,),)


@pytest.mark.parametrize("input_nbytes", [0, 8])
def test_a_tiny_input_with_a_large_output_does_not_make_huge_estimates(input_nbytes: int) -> None:
    sizes = OutputSizes([ANY])
    sizes.learn(((1,),), input_nbytes, (1 << 20,))
    assert sizes.shapes(((2,),), 1 << 20) == ((1 << 20,),)


def test_an_estimate_stays_within_sixteen_times_what_was_seen() -> None:
    sizes = OutputSizes([ANY])
    sizes.learn(((1,),), 4096, (1 << 20,))
    assert sizes.shapes(((2,),), 64 << 20) == ((16 << 20,),)


def test_memory_is_bounded_and_the_oldest_combination_goes_first() -> None:
    sizes = OutputSizes([ANY])
    for size in range(2000):
        sizes.learn(((size,),), 0, (size + 1,))
    assert sizes.shapes(((1999,),), 0) == ((2000,),)
    assert sizes.shapes(((0,),), 0) == ((4096,),)
