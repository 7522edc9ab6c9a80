"""Alignments: known ones, any lengths, any number of lanes, and whether a way is worth its score."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from polymux.apps.blosum import AMINO_ACIDS, BLOSUM62
from polymux.apps.native_lane import native_lanes
from polymux.apps.needleman_wunsch import NeedlemanWunsch, aligned_text, related_sequences
from polymux.core.errors import InvalidRequest


def protein(text: str) -> np.ndarray:
    return np.array([AMINO_ACIDS.index(letter) for letter in text], np.uint8)


def run(application: NeedlemanWunsch, lanes: int = 1) -> dict[str, np.ndarray]:
    return application.run(native_lanes("cpu", lanes))


def worth(application: NeedlemanWunsch, alignment: np.ndarray) -> int:
    """Add what the steps of an alignment score."""
    first, second, table = (application.inputs[name] for name in ("first", "second", "substitution"))
    score = 0
    for (i, j), (next_i, next_j) in pairwise(alignment.tolist()):
        assert (next_i - i, next_j - j) in ((1, 1), (1, 0), (0, 1))
        score += table[first[i], second[j]] if (next_i > i and next_j > j) else -application.gap
    return int(score)


def test_the_example_of_the_textbook() -> None:
    """HEAGAWGHEE and PAWHEAE with BLOSUM and a gap of 8 (Durbin et al., Biological Sequence Analysis, 2.3)."""
    first, second = protein("HEAGAWGHEE"), protein("PAWHEAE")
    result = run(NeedlemanWunsch(first, second, gap=8))
    assert result["scores"][-1] == worth(NeedlemanWunsch(first, second, gap=8), result["alignment"])
    upper, _, lower = aligned_text(result, first, second, 0, 20).split("\n")
    assert upper.replace("-", "") == "HEAGAWGHEE"
    assert lower.replace("-", "") == "PAWHEAE"


def test_equal_and_shortened_sequences_are_aligned_as_one_expects() -> None:
    whole = protein("MKTAYIAKQRQISFVKSHFSRQ")
    short = protein("MKTAYIAKSFVKSHFSRQ")
    result = run(NeedlemanWunsch(whole, whole))
    assert result["scores"][-1] == BLOSUM62[whole, whole].sum()
    assert (result["alignment"][:, 0] == result["alignment"][:, 1]).all()
    text = aligned_text(run(NeedlemanWunsch(whole, short)), whole, short, 0, 99)
    assert text.split("\n") == [
        "MKTAYIAKQRQISFVKSHFSRQ",
        "||||||||    ||||||||||",
        "MKTAYIAK----SFVKSHFSRQ",
    ]


@pytest.mark.parametrize(
    ("n", "m"), [(0, 0), (0, 5), (7, 0), (1, 300), (300, 1), (63, 65), (129, 400), (777, 500)]
)
@pytest.mark.parametrize("lanes", [1, 2, 5])
def test_sequences_of_any_length_over_any_number_of_lanes(n: int, m: int, lanes: int) -> None:
    random = np.random.default_rng(n)
    first, second = (random.integers(0, 20, size, np.uint8) for size in (n, m))
    application = NeedlemanWunsch(first, second)
    result = run(application, lanes)
    application.check(result)
    assert worth(application, result["alignment"]) == result["scores"][-1]
    assert result["alignment"][0].tolist() == [0, 0]
    assert result["alignment"][-1].tolist() == [n, m]


def test_related_sequences_are_better_aligned_than_strangers() -> None:
    first, second = related_sequences(600, seed=3)
    _, stranger = related_sequences(600, seed=4)
    assert abs(len(second) - len(first)) < 60
    related, unrelated = (run(NeedlemanWunsch(first, other))["scores"][-1] for other in (second, stranger))
    assert related > 1000 > unrelated


def test_blosum62_is_symmetric_and_has_known_scores() -> None:
    assert (BLOSUM62 == BLOSUM62.T).all()
    assert BLOSUM62[AMINO_ACIDS.index("W"), AMINO_ACIDS.index("W")] == 11
    assert BLOSUM62[AMINO_ACIDS.index("I"), AMINO_ACIDS.index("V")] == 3
    assert np.trace(BLOSUM62) == 116


@pytest.mark.parametrize(
    ("first", "message"),
    [
        (np.zeros((2, 2), "u1"), r"first is of uint8 and shape \(2, 2\); give a sequence of uint8"),
        (np.zeros(3, "i4"), "first is of int32"),
        (np.array([1, 20], "u1"), "first has the letter 20, expected less than 20"),
    ],
)
def test_sequences_that_are_none_are_refused(first: np.ndarray, message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        NeedlemanWunsch(first, np.zeros(3, "u1"))
