from __future__ import annotations

from typing import Any

import pytest
from google.protobuf import text_format

from polymux.core.dtype import DType
from polymux.core.kernel_spec import BufferParam, KernelSpec
from polymux.serving.config_check import complete, unused_settings
from polymux.serving.errors import ModelLoadError
from polymux.serving.model_config_pb2 import ModelConfig
from polymux.serving.signature import ModelSignature

VAD = KernelSpec(
    "vad",
    inputs=(
        BufferParam("input", (DType.F32,), (None, None)),
        BufferParam("state", (DType.F32,), (2, None, 128)),
        BufferParam("sr", (DType.I64,), ()),
    ),
    outputs=(BufferParam("output", (DType.F32,), (None, 1)), BufferParam("stateN", (DType.F32,), None)),
)
BATCHED = KernelSpec(
    "net",
    inputs=(BufferParam("x", (DType.F32,), (None, 3, None)),),
    outputs=(BufferParam("y", (DType.F32,), (None, 10)),),
)


def config(text: str) -> ModelConfig:
    return text_format.Parse(text, ModelConfig())


def signature_of(text: str, spec: KernelSpec = BATCHED) -> ModelSignature:
    return complete(config(text), "m", spec)[1]


def shapes(tensors: Any) -> dict[str, Any]:
    return {name: (tensor.shape, tensor.model_shape) for name, tensor in tensors.items()}


def test_without_a_configuration_all_comes_from_the_model() -> None:
    full, signature = complete(ModelConfig(), "vad", VAD)
    assert (full.name, full.platform, full.backend) == ("vad", "onnxruntime_onnx", "onnxruntime")
    assert full.version_policy.latest.num_versions == 1
    assert [list(tensor.dims) for tensor in full.input] == [[-1, -1], [2, -1, 128], []]
    assert {name: t.metadata()["shape"] for name, t in signature.inputs.items()} == {
        "input": [-1, -1],
        "state": [2, -1, 128],
        "sr": [],
    }
    assert signature.outputs["stateN"].shape is None
    assert signature.outputs["stateN"].metadata()["shape"] == [-1]
    assert signature.max_batch_size == 0


def test_the_completed_configuration_completes_to_itself() -> None:
    full, signature = complete(ModelConfig(), "vad", VAD)
    assert complete(full, "vad", VAD) == (full, signature)


def test_with_max_batch_size_dims_leave_the_batch_out_and_shapes_have_it() -> None:
    full, signature = complete(config("max_batch_size: 8"), "m", BATCHED)
    assert list(full.input[0].dims) == [3, -1]
    assert signature.inputs["x"].shape == (None, 3, None)
    assert signature.max_batch_size == 8


def test_a_configuration_may_fix_a_free_extent() -> None:
    text = 'max_batch_size: 4 input { name: "x" data_type: TYPE_FP32 dims: [3, 224] }'
    assert signature_of(text).inputs["x"].shape == (None, 3, 224)


def test_inputs_are_in_the_models_order_whatever_the_configurations() -> None:
    text = """input { name: "sr" data_type: TYPE_INT64 dims: [1] reshape: { } }
              input { name: "state" data_type: TYPE_FP32 dims: [2, -1, 128] }
              input { name: "input" data_type: TYPE_FP32 dims: [-1, -1] }"""
    assert list(signature_of(text, VAD).inputs) == ["input", "state", "sr"]


def test_a_reshape_maps_shapes_both_ways() -> None:
    text = """max_batch_size: 4
              input { name: "x" data_type: TYPE_FP32 dims: [-1] reshape: { shape: [3, -1] } }
              output { name: "y" data_type: TYPE_FP32 dims: [2, 5] reshape: { shape: [10] } }"""
    with pytest.raises(ModelLoadError, match="elements"):
        signature_of(text)
    signature = signature_of(text.replace("dims: [-1]", "dims: [3, -1, 1]"))
    assert signature.inputs["x"].to_model((2, 3, 7, 1)) == (2, 3, 7)
    assert signature.outputs["y"].from_model((2, 10)) == (2, 2, 5)


def test_a_scalar_can_be_written_as_a_reshaped_element() -> None:
    text = """input { name: "input" data_type: TYPE_FP32 dims: [-1, -1] }
              input { name: "state" data_type: TYPE_FP32 dims: [2, -1, 128] }
              input { name: "sr" data_type: TYPE_INT64 dims: [1] reshape: { shape: [] } }"""
    sr = signature_of(text, VAD).inputs["sr"]
    assert sr.shape == (1,)
    assert sr.to_model((1,)) == ()


@pytest.mark.parametrize(
    ("text", "spec", "fault"),
    [
        ("max_batch_size: -1", BATCHED, "max_batch_size is -1"),
        ("max_batch_size: 8", VAD, "'state'.*fixed"),
        ('input { name: "w" data_type: TYPE_FP32 dims: [-1, 3, -1] }', BATCHED, r"'w'.*\['x'\]"),
        ('output { name: "w" data_type: TYPE_FP32 dims: [-1, 10] }', BATCHED, "output 'w'"),
        ('input { name: "input" data_type: TYPE_FP32 dims: [-1, -1] }', VAD, "'state', 'sr'"),
        ('input { name: "x" data_type: TYPE_FP16 dims: [-1, 3, -1] }', BATCHED, "TYPE_FP16.*TYPE_FP32"),
        ('input { name: "x" data_type: TYPE_STRING dims: [-1, 3, -1] }', BATCHED, "TYPE_STRING"),
        ('input { name: "x" dims: [-1, 3, -1] }', BATCHED, "TYPE_INVALID"),
        (
            'input { name: "x" data_type: TYPE_FP32 dims: [-1, 4, -1] }',
            BATCHED,
            r"\[-1, 4, -1\].*\[-1, 3, -1\]",
        ),
        ('input { name: "x" data_type: TYPE_FP32 dims: [3, -1] }', BATCHED, "3, -1"),
        ('input { name: "x" data_type: TYPE_FP32 dims: [-1, -1, -1] }', BATCHED, r"\[-1, -1, -1\]"),
        ('input { name: "x" data_type: TYPE_FP32 dims: [-2] }', BATCHED, "extent -2"),
        (
            'input { name: "x" data_type: TYPE_FP32 dims: [-1, 3, -1] }'
            'input { name: "x" data_type: TYPE_FP32 dims: [-1, 3, -1] }',
            BATCHED,
            "twice",
        ),
        (
            'input { name: "x" data_type: TYPE_FP32 dims: [-1, 3, -1] is_shape_tensor: true }',
            BATCHED,
            "shape tensors",
        ),
    ],
)
def test_a_configuration_that_contradicts_the_model_is_a_load_error(
    text: str, spec: KernelSpec, fault: str
) -> None:
    with pytest.raises(ModelLoadError, match=fault):
        signature_of(text, spec)


@pytest.mark.parametrize("dtypes", [(), (DType.C64,), (DType.F32, DType.F64)])
def test_a_model_with_tensors_that_no_request_can_carry_is_a_load_error(dtypes: tuple[DType, ...]) -> None:
    spec = KernelSpec("m", (BufferParam("x", dtypes, (1,)),), ())
    with pytest.raises(ModelLoadError, match="'x'"):
        signature_of("", spec)


def test_settings_without_effect_are_named() -> None:
    text = "instance_group { count: 2 } dynamic_batching { } max_batch_size: 8"
    assert unused_settings(config(text)) == ["dynamic_batching", "instance_group"]
