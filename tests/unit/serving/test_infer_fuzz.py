"""Whatever a client sends, the answer is a status: never another exception, never a buffer left behind."""

from __future__ import annotations

import copy
import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from polymux.core.dtype import DType
from polymux.serving.errors import RequestError
from polymux.serving.infer_body import InferBody
from polymux.serving.limits import Limits
from tests.unit.serving.fake_model import FakeRunner, signature, tensor

LIMITS = Limits(body_nbytes=1 << 16)
MODEL = signature(
    [tensor("a", DType.F32, (None, 2)), tensor("b", DType.I8, None), tensor("c", DType.BOOL, ())],
    [tensor("y", DType.F32, (None,)), tensor("z", DType.F16, (1,))],
)
GOOD: dict[str, Any] = {
    "id": "1",
    "parameters": {"binary_data_output": True, "timeout": 5, "priority": 1},
    "inputs": [
        {"name": "a", "shape": [1, 2], "datatype": "FP32", "data": [[1.0, 2.0]]},
        {"name": "b", "shape": [3], "datatype": "INT8", "parameters": {"binary_data_size": 3}},
        {"name": "c", "shape": [], "datatype": "BOOL", "data": True},
    ],
    "outputs": [{"name": "z", "parameters": {"binary_data": False}}, {"name": "y"}],
}

scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=5)
    | st.sampled_from(["a", "b", "c", "y", "z", "FP32", "INT8", "BOOL", 2**40, 2**62, 2**64, -1, 0, 1, ""])
)
keys = st.sampled_from(
    [
        "id",
        "parameters",
        "inputs",
        "outputs",
        "name",
        "shape",
        "datatype",
        "data",
        "binary_data_size",
        "binary_data",
    ]
) | st.text(max_size=3)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(keys, inner, max_size=4),
    max_leaves=20,
)


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the path of every value inside a document."""
    if isinstance(value, dict):
        inner = [place for key, item in value.items() for place in places(item, (*path, key))]
    elif isinstance(value, list):
        inner = [place for index, item in enumerate(value) for place in places(item, (*path, index))]
    else:
        inner = []
    return [path, *inner]


PLACES = places(GOOD)[1:]


@st.composite
def damaged(draw: st.DrawFn) -> Any:
    """Draw a good request in which some values are replaced or left out."""
    document = copy.deepcopy(GOOD)
    for path in draw(st.lists(st.sampled_from(PLACES), min_size=1, max_size=3)):
        target: Any = document
        try:
            for step in path[:-1]:
                target = target[step]
            if draw(st.booleans()):
                target[path[-1]] = draw(values)
            else:
                del target[path[-1]]
        except (KeyError, IndexError, TypeError):
            continue  # an earlier damage took it away
    return document


def outcome(body: bytes, json_nbytes: int | None, content_nbytes: int | None) -> int:
    """Receive a body and return the status it leads to."""
    runner = FakeRunner(lambda *_: [])
    received = None
    try:
        received = InferBody(MODEL, runner.allocate, json_nbytes, content_nbytes, LIMITS)
        received.feed(body[: len(body) // 2])
        received.feed(body[len(body) // 2 :])
        received.finish()
    except RequestError as error:
        return error.status if error.message else 0
    finally:
        if received is not None:
            received.close()
        assert runner.live == set()
        assert runner.allocated_nbytes <= 8 * len(body) + 64
    return 200


def test_the_request_that_is_damaged_below_is_good() -> None:
    text = json.dumps(GOOD).encode()
    assert outcome(text + b"123", len(text), len(text) + 3) == 200


@settings(max_examples=600)
@given(damaged() | values, st.binary(max_size=8), st.integers(-3, 3), st.booleans())
def test_a_damaged_request_is_answered(document: Any, rest: bytes, shift: int, announced: bool) -> None:
    text = json.dumps(document).encode()
    body = text + rest
    json_nbytes = max(0, len(text) + shift)
    assert outcome(body, json_nbytes, len(body) if announced else None) in (200, 400, 413)
    assert outcome(body, None, None) in (200, 400)


@settings(max_examples=300)
@given(st.binary(max_size=200), st.none() | st.integers(0, 220))
def test_bytes_at_random_are_answered(body: bytes, json_nbytes: int | None) -> None:
    assert outcome(body, json_nbytes, None) in (200, 400)
