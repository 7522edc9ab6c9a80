from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from polymux.core.dtype import DType
from polymux.serving.errors import RequestError
from polymux.serving.infer_body import InferBody
from polymux.serving.limits import Limits
from tests.unit.serving.fake_model import FakeRunner, signature, tensor

MODEL = signature(
    [tensor("a", DType.F32, (None,)), tensor("b", DType.I16, (None,)), tensor("c", DType.U8, (None,))],
    [tensor("y", DType.F32, (None,))],
)
A = np.array([1.5, -2.0, 3.25], "<f4")
B = np.array([7, -8], "<i2")
C = np.array([1, 2, 3, 4, 5], "u1")
VALUES = {"a": A, "b": B, "c": C}
NAMES = {"a": "FP32", "b": "INT16", "c": "UINT8"}


def encode(order: str = "abc", binary: str = "abc") -> tuple[bytes, int]:
    """Return a body and the length of its JSON; tensors in `order`, those in `binary` after the JSON."""
    inputs: list[dict[str, Any]] = []
    for name in order:
        value = VALUES[name]
        item: dict[str, Any] = {"name": name, "shape": list(value.shape), "datatype": NAMES[name]}
        if name in binary:
            item["parameters"] = {"binary_data_size": value.nbytes}
        else:
            item["data"] = value.tolist()
        inputs.append(item)
    text = json.dumps({"inputs": inputs}).encode()
    return text + b"".join(VALUES[name].tobytes() for name in order if name in binary), len(text)


def receive(
    pieces: list[bytes],
    json_nbytes: int | None,
    content_nbytes: int | None = None,
    limits: Limits | None = None,
) -> dict[str, np.ndarray[Any, Any]]:
    """Feed a body and return its tensors; whatever happens, no buffer may stay behind."""
    runner = FakeRunner(lambda *_: [])
    body = None
    try:
        body = InferBody(MODEL, runner.allocate, json_nbytes, content_nbytes, limits or Limits())
        for piece in pieces:
            body.feed(piece)
        body.finish()
        return {name: buffer.numpy().copy() for name, buffer in body.buffers.items()}
    finally:
        if body is not None:
            body.close()
        assert runner.live == set()


def refusal(*args: Any, **kwargs: Any) -> RequestError:
    with pytest.raises(RequestError) as caught:
        receive(*args, **kwargs)
    return caught.value


@given(st.permutations("abc"), st.sets(st.sampled_from("abc"), min_size=1), st.data(), st.booleans())
def test_any_mix_of_json_and_binary_in_any_pieces_gives_the_same_tensors(
    order: list[str], binary: set[str], data: st.DataObject, announced: bool
) -> None:
    body, json_nbytes = encode("".join(order), "".join(binary))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(body)), max_size=6)))
    pieces = [body[i:j] for i, j in zip([0, *cuts], [*cuts, len(body)], strict=True)]
    tensors = receive(pieces, json_nbytes, len(body) if announced else None)
    for name, value in VALUES.items():
        np.testing.assert_array_equal(tensors[name], value)


def test_a_body_of_json_alone_needs_no_lengths() -> None:
    body, _ = encode(binary="")
    np.testing.assert_array_equal(receive([body[:9], body[9:]], None)["a"], A)


@given(st.data())
def test_a_body_that_ends_anywhere_too_early_is_refused(data: st.DataObject) -> None:
    body, json_nbytes = encode()
    end = data.draw(st.integers(0, len(body) - 1))
    assert refusal([body[:end]], json_nbytes).status == 400


@given(st.binary(min_size=1, max_size=40))
def test_bytes_after_the_last_tensor_are_refused(rest: bytes) -> None:
    body, json_nbytes = encode()
    assert refusal([body + rest], json_nbytes).status == 400
    assert refusal([body + rest], json_nbytes, len(body) + len(rest)).status == 400


def test_a_body_whose_announced_length_contradicts_its_tensors_allocates_nothing() -> None:
    runner = FakeRunner(lambda *_: [])
    text, json_nbytes = encode()
    body = InferBody(MODEL, runner.allocate, json_nbytes, len(text) + 1, Limits())
    with pytest.raises(RequestError, match="binary_data_size"):
        body.feed(text)
    assert runner.allocated_nbytes == 0


@pytest.mark.parametrize("json_nbytes", [99999, 10**17])
def test_a_json_length_beyond_the_body_is_refused(json_nbytes: int) -> None:
    body, _ = encode()
    assert refusal([body], json_nbytes, len(body)).status == 400
    assert refusal([body], json_nbytes).status == 400


def test_a_body_beyond_the_limit_is_refused_with_413_before_it_comes() -> None:
    limits = Limits(body_nbytes=100)
    assert refusal([], 10, 101, limits).status == 413
    assert refusal([], None, 101, limits).status == 413


def test_a_body_in_chunks_is_refused_with_413_as_soon_as_it_passes_the_limit() -> None:
    limits = Limits(body_nbytes=100)
    runner = FakeRunner(lambda *_: [])
    body = InferBody(MODEL, runner.allocate, None, None, limits)
    body.feed(b" " * 100)
    with pytest.raises(RequestError) as caught:
        body.feed(b" ")
    assert caught.value.status == 413


def test_a_shape_that_no_data_backs_allocates_nothing() -> None:
    runner = FakeRunner(lambda *_: [])
    inputs = [{"name": name, "shape": [2**40], "datatype": NAMES[name], "data": [1]} for name in "abc"]
    text = json.dumps({"inputs": inputs}).encode()
    body = InferBody(MODEL, runner.allocate, None, len(text), Limits())
    body.feed(text)
    with pytest.raises(RequestError) as caught:
        body.finish()
    assert caught.value.status == 400
    assert runner.allocated_nbytes == 0


def test_empty_tensors_are_accepted_in_both_forms() -> None:
    inputs = [
        {"name": "a", "shape": [0], "datatype": "FP32", "data": []},
        {"name": "b", "shape": [0], "datatype": "INT16", "parameters": {"binary_data_size": 0}},
        {"name": "c", "shape": [5], "datatype": "UINT8", "parameters": {"binary_data_size": 5}},
    ]
    text = json.dumps({"inputs": inputs}).encode()
    tensors = receive([text + C.tobytes()], len(text), len(text) + 5)
    assert {name: tensor.shape for name, tensor in tensors.items()} == {"a": (0,), "b": (0,), "c": (5,)}


def test_a_raw_body_in_chunks_is_refused_since_its_size_is_unknown() -> None:
    error = refusal([b"1234"], 0, None)
    assert error.status == 400
    assert "Content-Length" in error.message
