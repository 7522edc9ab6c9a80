"""needleman_wunsch against the recurrence, cell by cell."""

from __future__ import annotations

import numpy as np
import pytest

from polymux.device.protocol import LaunchError
from polymux.kernel.builtin.needleman_wunsch import diagonals
from tests.contract.kernels.kernel_device import KernelDevice

Array = np.ndarray


def recurrence(first: Array, second: Array, table: Array, top: Array, left: Array, gap: int) -> Array:
    scores = np.zeros((len(first) + 1, len(second) + 1), "i4")
    scores[0], scores[:, 0] = top, left
    scores[0, 0] = top[0]
    for i, a in enumerate(first, 1):
        for j, b in enumerate(second, 1):
            scores[i, j] = max(
                scores[i - 1, j - 1] + table[a, b], scores[i - 1, j] - gap, scores[i, j - 1] - gap
            )
    return scores


def problem(n: int, m: int, letters: int, seed: int = 0) -> list[Array]:
    random = np.random.default_rng(seed)
    first, second = (random.integers(0, letters, size).astype("u1") for size in (n, m))
    table = random.integers(-9, 12, (letters, letters)).astype("i4")
    top, left = (random.integers(-50, 50, size + 1).astype("i4") for size in (m, n))
    left[0] = top[0]
    return [first, second, table, top, left]


def filled(device: KernelDevice, arrays: list[Array], block: int, gap: int) -> Array:
    n, m = len(arrays[0]), len(arrays[1])
    scores = np.full((n + 1, m + 1), 123456, "i4")
    for diagonal in range(diagonals(n, m, block)):
        device.run("needleman_wunsch", [*arrays, scores], [scores], diagonal=diagonal, block=block, gap=gap)
    return scores


@pytest.mark.parametrize(
    ("n", "m", "block"),
    [
        *((1, 1, 16), (16, 16, 16), (17, 33, 16), (100, 5, 16), (3, 90, 32), (64, 64, 64), (65, 130, 64)),
        *((0, 0, 64), (0, 40, 16), (40, 0, 16), (150, 149, 48), (256, 257, 256)),
    ],
)
@pytest.mark.parametrize(("gap", "letters"), [(10, 20), (0, 4), (-3, 1), (2, 256)])
def test_scores_are_those_of_the_recurrence(
    device: KernelDevice, n: int, m: int, block: int, gap: int, letters: int
) -> None:
    arrays = problem(n, m, letters)
    np.testing.assert_array_equal(filled(device, arrays, block, gap), recurrence(*arrays, gap))


def test_blocks_that_are_divided_over_the_cores_give_the_same_scores(device: KernelDevice) -> None:
    arrays = problem(2500, 2300, 20)
    scores = filled(device, arrays, 256, 3)
    first, second, table, top, left = arrays
    expected = top.astype("i8")
    steps = 3 * np.arange(len(second) + 1)
    for i, a in enumerate(first, 1):
        best = np.maximum(expected[:-1] + table[a, second], expected[1:] - 3)
        expected = np.maximum.accumulate(np.concatenate([[left[i]], best]) + steps) - steps
        np.testing.assert_array_equal(scores[i], expected)


def test_a_diagonal_writes_its_blocks_alone(device: KernelDevice) -> None:
    arrays = problem(50, 70, 5)
    scores = np.full((51, 71), 7, "i4")
    for diagonal in range(2):
        device.run("needleman_wunsch", [*arrays, scores], [scores], diagonal=diagonal, block=16)
    expected = recurrence(*arrays, 1)
    expected[1 + 16 :, 1 + 16 :] = 7
    expected[1 + 32 :] = 7
    expected[:, 1 + 32 :] = 7
    np.testing.assert_array_equal(scores, expected)


def test_letters_that_the_table_lacks_are_an_error_or_the_last_letter(device: KernelDevice) -> None:
    arrays = problem(20, 20, 4)
    arrays[0][7], arrays[1][3] = 4, 255
    if device.device.spec.api == "cpu":
        with pytest.raises(LaunchError, match=r"first\[7\] is 4, expected less than 4, the letters that"):
            filled(device, arrays, 16, 1)
    else:
        scores = filled(device, arrays, 16, 1)
        arrays[:2] = [np.minimum(sequence, 3) for sequence in arrays[:2]]
        np.testing.assert_array_equal(scores, recurrence(*arrays, 1))


def test_numbers_beyond_32_bits_do_not_stop_the_server(device: KernelDevice) -> None:
    arrays = problem(40, 40, 2)
    arrays[2][:], arrays[3][:], arrays[4][:] = 2**31 - 1, -(2**31), 2**31 - 1
    filled(device, arrays, 16, 1_000_000)


@pytest.mark.parametrize(
    ("changes", "scalars", "message"),
    [
        ({0: (5, 1)}, {}, r"first has shape \(5, 1\), expected 1 dimensions"),
        ({2: (4, 5)}, {}, r"substitution has shape \(4, 5\), expected a square of 1 to 256 letters"),
        ({2: (0, 0)}, {}, r"substitution has shape \(0, 0\)"),
        ({2: (257, 257)}, {}, r"substitution has shape \(257, 257\)"),
        ({3: (6,)}, {}, r"top has shape \(6,\), expected \(8,\)"),
        ({4: (8,)}, {}, r"left has shape \(8,\), expected \(6,\)"),
        ({5: (5, 7)}, {}, r"scores has shape \(5, 7\), expected \(6, 8\)"),
        ({}, {"diagonal": 1}, "diagonal is 1, expected 0 to 0"),
        ({}, {"diagonal": -1}, "diagonal is -1"),
        ({}, {"block": 24}, "block is 24, expected a multiple of 16 from 16 to 256"),
        ({}, {"block": 272}, "block is 272"),
        ({}, {"gap": 1_000_001}, "gap is 1000001, expected -1000000 to 1000000"),
    ],
)
def test_problems_that_do_not_fit_are_named(
    device: KernelDevice, changes: dict[int, tuple[int, ...]], scalars: dict[str, int], message: str
) -> None:
    shapes = dict(enumerate([(5,), (7,), (4, 4), (8,), (6,), (6, 8)])) | changes
    arrays = [np.zeros(shape, "u1" if index < 2 else "i4") for index, shape in shapes.items()]
    with pytest.raises(LaunchError, match=message):
        device.run("needleman_wunsch", arrays, arrays[-1:], **({"diagonal": 0} | scalars))


def test_the_matrix_is_filled_in_place_only(device: KernelDevice) -> None:
    arrays = [*problem(5, 7, 4), np.zeros((6, 8), "i4")]
    with pytest.raises(LaunchError, match="scores_out must be the buffer scores"):
        device.run("needleman_wunsch", arrays, [np.zeros((6, 8), "i4")], diagonal=0)
