from __future__ import annotations

from typing import Any

import pytest

from polymux.core.dtype import DType
from polymux.serving.errors import RequestError
from polymux.serving.infer_request import InferRequest, parse_request, raw_request
from tests.unit.serving.fake_model import signature, tensor

LIMIT = 1 << 20
MODEL = signature(
    [tensor("a", DType.F32, (None, 3)), tensor("sr", DType.I64, ())],
    [tensor("y", DType.F32, (None, 3)), tensor("z", DType.BF16, (1,))],
)
A = {"name": "a", "shape": [1, 3], "datatype": "FP32", "data": [1.0, 2.0, 3.0]}
SR = {"name": "sr", "shape": [], "datatype": "INT64", "data": [16000]}
Y = {"name": "y"}


def parse(document: Any, has_binary: bool = False) -> InferRequest:
    return parse_request(document, MODEL, has_binary, LIMIT)


def good(**changes: Any) -> dict[str, Any]:
    return {"inputs": [A, SR], "outputs": [Y], **changes}


def with_a(**changes: Any) -> dict[str, Any]:
    return good(inputs=[{**A, **changes}, SR])


def test_a_complete_request_becomes_values() -> None:
    request = parse(good(id="42", parameters={"priority": 2, "timeout": 1500, "anything": 1.5}))
    assert (request.id, request.priority, request.timeout_us) == ("42", 2, 1500)
    assert [(i.signature.name, i.shape, i.nbytes, i.is_binary) for i in request.inputs] == [
        ("a", (1, 3), 12, False),
        ("sr", (), 8, False),
    ]
    assert [(o.signature.name, o.is_binary) for o in request.outputs] == [("y", False)]


MALFORMED: dict[str, tuple[Any, str]] = {
    "an array": ([], "JSON object"),
    "null": (None, "JSON object"),
    "a number": (3, "JSON object"),
    "an empty object": ({}, "inputs"),
    "no inputs": (good(inputs=[]), "inputs"),
    "inputs as an object": (good(inputs={"a": 1}), "inputs"),
    "an input that is a number": (good(inputs=[1]), "inputs"),
    "an input without a name": (good(inputs=[{**A, "name": None}]), "name"),
    "a name that is a number": (good(inputs=[{**A, "name": 5}]), "name"),
    "a missing input": (good(inputs=[A]), "sr"),
    "an unknown input": (good(inputs=[A, SR, {**A, "name": "b"}]), "unknown input 'b'"),
    "a duplicate input": (good(inputs=[A, SR, A]), "twice"),
    "another datatype": (with_a(datatype="FP64"), "FP32"),
    "BYTES": (with_a(datatype="BYTES"), "FP32"),
    "an unknown datatype": (with_a(datatype="float"), "FP32"),
    "no datatype": (with_a(datatype=None), "FP32"),
    "no shape": (with_a(shape=None), "shape"),
    "a shape that is a number": (with_a(shape=3), "shape"),
    "a negative extent": (with_a(shape=[-1, 3]), "shape"),
    "a fractional extent": (with_a(shape=[1.0, 3]), "shape"),
    "a boolean extent": (with_a(shape=[True, 3]), "shape"),
    "a string extent": (with_a(shape=["1", 3]), "shape"),
    "another rank": (with_a(shape=[3]), "does not fit"),
    "another fixed extent": (with_a(shape=[1, 4]), "does not fit"),
    "a scalar where a tensor belongs": (with_a(shape=[]), "does not fit"),
    "a shape whose size overflows": (with_a(shape=[2**62, 3]), "bytes"),
    "an extent beyond 64 bits": (with_a(shape=[2**70, 3]), "bytes"),
    "no data": (with_a(data=None), "neither"),
    "binary data without a binary part": (with_a(data=None, parameters={"binary_data_size": 12}), "missing"),
    "shared memory": (with_a(data=None, parameters={"shared_memory_region": "r"}), "shared memory"),
    "parameters as a list": (with_a(parameters=[1]), "object"),
    "a numeric id": (good(id=7), "'id'"),
    "an object as parameter": (good(parameters={"x": {}}), "'x'"),
    "an array as parameter": (good(parameters={"x": [1]}), "'x'"),
    "null as parameter": (good(parameters={"x": None}), "'x'"),
    "a timeout in words": (good(parameters={"timeout": "x"}), "timeout"),
    "a negative timeout": (good(parameters={"timeout": -1}), "timeout"),
    "a fractional timeout": (good(parameters={"timeout": 1.5}), "timeout"),
    "a boolean priority": (good(parameters={"priority": True}), "priority"),
    "a priority beyond 64 bits": (good(parameters={"priority": 2.0**65}), "priority"),
    "binary_data_output in words": (good(parameters={"binary_data_output": "yes"}), "binary_data_output"),
    "a sequence": (good(parameters={"sequence_id": 5}), "sequence_id"),
    "an unknown output": (good(outputs=[{"name": "w"}]), "unknown output 'w'"),
    "a duplicate output": (good(outputs=[Y, Y]), "twice"),
    "outputs as an object": (good(outputs={"name": "y"}), "outputs"),
    "classification": (good(outputs=[{**Y, "parameters": {"classification": 2}}]), "classification"),
    "an output in shared memory": (
        good(outputs=[{**Y, "parameters": {"shared_memory_region": "r"}}]),
        "shared_memory",
    ),
    "binary_data as a number": (good(outputs=[{**Y, "parameters": {"binary_data": 1}}]), "binary_data"),
    "BF16 in JSON": (good(outputs=[{"name": "z"}]), "BF16"),
    "BF16 in JSON by default": (good(outputs=[]), "BF16"),
}


@pytest.mark.parametrize("case", MALFORMED)
def test_a_malformed_request_is_refused_with_its_fault_named(case: str) -> None:
    document, fault = MALFORMED[case]
    with pytest.raises(RequestError, match=fault) as caught:
        parse(document)
    assert caught.value.status == 400


BINARY: dict[str, tuple[dict[str, Any], int, str]] = {
    "less than the shape": ({"binary_data_size": 8}, 400, "needs 12"),
    "more than the shape": ({"binary_data_size": 16}, 400, "needs 12"),
    "negative": ({"binary_data_size": -12}, 400, "binary_data_size"),
    "a string": ({"binary_data_size": "12"}, 400, "binary_data_size"),
    "fractional": ({"binary_data_size": 12.0}, 400, "binary_data_size"),
}


@pytest.mark.parametrize("case", BINARY)
def test_a_wrong_binary_size_is_refused(case: str) -> None:
    parameters, status, fault = BINARY[case]
    with pytest.raises(RequestError, match=fault) as caught:
        parse(good(inputs=[{**A, "data": None, "parameters": parameters}, SR]), has_binary=True)
    assert caught.value.status == status


def test_data_and_binary_data_together_are_refused() -> None:
    with pytest.raises(RequestError, match="both"):
        parse(with_a(parameters={"binary_data_size": 12}), has_binary=True)


def test_a_binary_tensor_beyond_the_limit_is_refused_with_413() -> None:
    shape = [LIMIT, 3]
    big = {**A, "data": None, "shape": shape, "parameters": {"binary_data_size": LIMIT * 12}}
    with pytest.raises(RequestError) as caught:
        parse(good(inputs=[big, SR]), has_binary=True)
    assert caught.value.status == 413


@pytest.mark.parametrize(
    ("default", "own", "expected"),
    [(None, None, False), (True, None, True), (True, False, False), (False, True, True), (None, True, True)],
)
def test_binary_data_output_is_the_default_that_an_output_overrides(
    default: bool | None, own: bool | None, expected: bool
) -> None:
    output: dict[str, Any] = (
        {"name": "y"} if own is None else {"name": "y", "parameters": {"binary_data": own}}
    )
    parameters = {} if default is None else {"binary_data_output": default}
    (requested,) = parse(good(outputs=[output], parameters=parameters)).outputs
    assert requested.is_binary is expected


@pytest.mark.parametrize("outputs", [None, []])
def test_without_outputs_all_are_returned(outputs: Any) -> None:
    request = parse(good(outputs=outputs, parameters={"binary_data_output": True}))
    assert [output.signature.name for output in request.outputs] == ["y", "z"]


@pytest.mark.parametrize("sequence_id", [0, ""])
def test_the_sequence_id_that_means_none_is_accepted(sequence_id: Any) -> None:
    parse(good(parameters={"sequence_id": sequence_id}))


def test_a_zero_extent_is_a_valid_shape() -> None:
    assert parse(with_a(shape=[0, 3], data=[])).inputs[0].nbytes == 0


BATCHED = signature(
    [tensor("a", DType.F32, (None, 2)), tensor("b", DType.I32, (None,))], [tensor("y", DType.F32, (None,))], 4
)


@pytest.mark.parametrize(("a", "b"), [(0, 0), (5, 5), (1, 2)])
def test_a_batch_outside_the_models_bounds_or_uneven_is_refused(a: int, b: int) -> None:
    inputs = [
        {"name": "a", "shape": [a, 2], "datatype": "FP32", "data": []},
        {"name": "b", "shape": [b], "datatype": "INT32", "data": []},
    ]
    with pytest.raises(RequestError, match="batch") as caught:
        parse_request({"inputs": inputs}, BATCHED, False, LIMIT)
    assert caught.value.status == 400


def test_a_raw_request_takes_its_free_extent_from_the_size() -> None:
    model = signature([tensor("a", DType.F32, (None, 3))], [tensor("y", DType.F32, (None,))])
    request = raw_request(model, 24)
    assert request.inputs[0].shape == (2, 3)
    assert all(output.is_binary for output in request.outputs)


def test_a_raw_request_to_a_batching_model_has_one_batch() -> None:
    model = signature([tensor("a", DType.F32, (None, None))], [], 8)
    assert raw_request(model, 20).inputs[0].shape == (1, 5)


@pytest.mark.parametrize(
    ("shape", "nbytes"), [((None, None), 8), (None, 8), ((None, 3), 10), ((2,), 4), ((None, 0), 4)]
)
def test_a_raw_request_that_does_not_tell_the_shape_is_refused(shape: Any, nbytes: int) -> None:
    with pytest.raises(RequestError) as caught:
        raw_request(signature([tensor("a", DType.F32, shape)], []), nbytes)
    assert caught.value.status == 400


def test_a_raw_request_to_a_model_of_two_inputs_is_refused() -> None:
    with pytest.raises(RequestError, match="one input"):
        raw_request(MODEL, 12)
