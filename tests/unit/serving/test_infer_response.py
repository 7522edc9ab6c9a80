from __future__ import annotations

import json
from typing import Any

import numpy as np

from polymux.core.dtype import DType
from polymux.serving.infer_response import encode_response
from polymux.serving.request_tensors import RequestedOutput
from polymux.serving.signature import TensorSignature
from tests.unit.serving.fake_model import tensor

F = RequestedOutput(tensor("f", DType.F32, (None,)), False)
B = RequestedOutput(tensor("b", DType.I16, (None,)), True)
FLOATS = np.array([1.5, 2.5], "f4")
SHORTS = np.array([[1, -2, 3]], "i2")


def test_json_outputs_keep_rank_datatype_and_order() -> None:
    length, pieces = encode_response("m", 3, "id-1", [(F, FLOATS)])
    assert length is None
    assert json.loads(b"".join(pieces)) == {
        "model_name": "m",
        "model_version": "3",
        "id": "id-1",
        "outputs": [{"name": "f", "datatype": "FP32", "shape": [2], "data": [1.5, 2.5]}],
    }


def test_binary_outputs_follow_the_json_in_order() -> None:
    length, pieces = encode_response("m", 1, None, [(B, SHORTS), (F, FLOATS), (B, SHORTS)])
    assert length is not None
    body = b"".join(pieces)
    document: dict[str, Any] = json.loads(body[:length])
    assert "id" not in document
    assert document["outputs"][0] == {
        "name": "b",
        "datatype": "INT16",
        "shape": [1, 3],
        "parameters": {"binary_data_size": 6},
    }
    assert body[length:] == SHORTS.tobytes() * 2


def test_an_empty_id_is_repeated() -> None:
    _, pieces = encode_response("m", 1, "", [(F, FLOATS)])
    assert json.loads(pieces[0])["id"] == ""


def test_an_output_is_reshaped_as_the_configuration_says() -> None:
    reshaped = RequestedOutput(TensorSignature("f", DType.F32, (None, 1), (None,)), False)
    _, pieces = encode_response("m", 1, None, [(reshaped, FLOATS)])
    assert json.loads(pieces[0])["outputs"][0]["shape"] == [2, 1]
