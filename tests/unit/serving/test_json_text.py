from __future__ import annotations

import json
import math

import numpy as np
import pytest

from polymux.serving.errors import RequestError
from polymux.serving.json_text import dump, dump_array, exceeds_depth, parse


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"{",
        b'{"inputs":[',
        b"{'a':1}",
        b"\xff\xfe",
        b'{"a":NaN',
        b'{"a":nan}',
        b"1e400",
        b'{"id":"\\ud800"}',
        b'{"id":"\\ud800", "a": NaN}',
        b'{"a":' + b"9" * 5000 + b', "b": NaN}',
    ],
)
def test_what_is_not_json_is_refused(text: bytes) -> None:
    with pytest.raises(RequestError, match="JSON") as caught:
        parse(text, 100)
    assert caught.value.status == 400


@pytest.mark.parametrize("prefix", [b"", b'{"x": NaN, "y": '])
@pytest.mark.parametrize("depth", [101, 5000, 100_000])
def test_deep_nesting_is_refused_whichever_parser_reads_it(prefix: bytes, depth: int) -> None:
    text = prefix + b"[" * depth + b"]" * depth + (b"}" if prefix else b"")
    with pytest.raises(RequestError) as caught:
        parse(text, 100)
    assert caught.value.status == 400


def test_nesting_up_to_the_limit_is_read_and_one_more_is_not() -> None:
    deepest = json.loads("[" * 100 + "]" * 100)
    assert parse(b"[" * 100 + b"]" * 100, 100) == deepest
    assert not exceeds_depth(deepest, 100)
    assert exceeds_depth([deepest], 100)
    assert exceeds_depth({"a": deepest}, 100)


def test_brackets_side_by_side_are_not_deep() -> None:
    assert parse(b"[" + b",".join([b"[1]"] * 500) + b"]", 3) == [[1]] * 500


def test_nan_and_infinity_are_read_as_literals() -> None:
    value = parse(b'{"data":[NaN, Infinity, -Infinity, 1.5]}', 100)["data"]
    assert math.isnan(value[0])
    assert value[1:] == [math.inf, -math.inf, 1.5]


def test_the_words_nan_and_infinity_inside_strings_change_nothing() -> None:
    assert parse(b'{"id":"NaN Infinity"}', 100) == {"id": "NaN Infinity"}


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8", "i1", "i8", "u8", "u1", "?"])
def test_arrays_survive_the_way_to_json_and_back(dtype: str) -> None:
    array = np.array([[0, 1], [1, 0]], dtype) if dtype == "?" else np.array([[0, 1], [100, 3]], dtype)
    assert json.loads(dump(dump_array(array))) == array.reshape(-1).tolist()


def test_float32_is_written_as_short_as_it_can_be_read_back_exactly() -> None:
    assert dump(dump_array(np.array([0.1, 1 / 3], "f4"))) == b"[0.1,0.33333334]"


def test_not_finite_numbers_are_written_as_literals_and_never_as_null() -> None:
    assert dump({"data": dump_array(np.array([np.nan, np.inf, -np.inf, 2.5], "f4"))}) == (
        b'{"data":[NaN, Infinity, -Infinity, 2.5]}'
    )


def test_arrays_that_are_not_contiguous_are_written_in_row_major_order() -> None:
    array = np.arange(6, dtype="i4").reshape(2, 3).T
    assert dump(dump_array(array)) == b"[0,3,1,4,2,5]"


def test_empty_and_scalar_arrays_are_lists() -> None:
    assert dump(dump_array(np.zeros((0, 3), "f4"))) == b"[]"
    assert dump(dump_array(np.array(7, "i8"))) == b"[7]"
