"""ONNX models on the cpu device, made here and run by the real onnxruntime."""

from __future__ import annotations

import gc
import os
import sys
import time
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from polymux.core.device_spec import Share
from polymux.core.dtype import DType
from polymux.core.errors import DeviceUnavailable, InvalidRequest
from polymux.core.implementation import OnnxModel
from polymux.core.kernel_spec import BufferParam, KernelSpec
from polymux.core.status import TaskStatus
from polymux.core.task_view import Access, BufferView
from polymux.device.cores import allowed_cores
from polymux.device.cpu import CpuDevice
from polymux.device.onnx_model import kernel_spec
from polymux.device.protocol import LaunchError, Operand
from polymux.device.registry import discover
from tests.contract.device_rig import Rig

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")
T, info = onnx.TensorProto, onnx.helper.make_tensor_value_info
WEIGHTS = np.random.default_rng(1).standard_normal((64, 32)).astype(np.float32)


def save(
    path: Path, nodes: list[Any], inputs: list[Any], outputs: list[Any], weights: tuple[Any, ...] = ()
) -> str:
    graph = onnx.helper.make_graph(nodes, "graph", inputs, outputs, list(weights))
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=9)
    onnx.save(model, path)
    return str(path)


def node(kind: str, inputs: str, outputs: str, **attributes: Any) -> Any:
    return onnx.helper.make_node(kind, inputs.split(), outputs.split(), **attributes)


@pytest.fixture
def product(tmp_path: Path) -> str:
    """Return a model ``y = x W`` for any batch."""
    return save(
        tmp_path / "product.onnx",
        [node("MatMul", "x W", "y")],
        [info("x", T.FLOAT, ["batch", 64])],
        [info("y", T.FLOAT, ["batch", 32])],
        (onnx.numpy_helper.from_array(WEIGHTS, "W"),),
    )


@pytest.fixture
def places(tmp_path: Path) -> str:
    """Return a model whose output's shape depends on the values of its input."""
    return save(
        tmp_path / "places.onnx",
        [node("NonZero", "x", "y")],
        [info("x", T.FLOAT, ["n"])],
        [info("y", T.INT64, [1, "found"])],
    )


@pytest.fixture(params=["host", "own"])
def rig(request: pytest.FixtureRequest) -> Iterator[Rig]:
    (device, *_), _ = discover([f"cpu,memory={request.param}"])
    yield Rig(device)
    device.close()


def run(rig: Rig, path: str, *arrays: np.ndarray[Any, Any], outputs: list[Any]) -> tuple[Any, list[Operand]]:
    spec = kernel_spec(path, "model")
    operands = [rig.put(array) for array in arrays] + [rig.put(array, Access.WRITE) for array in outputs]
    shapes = rig.run(spec, OnnxModel(path), operands)
    return shapes, operands[len(arrays) :]


def test_the_spec_of_a_model_has_its_names_types_and_free_dimensions(product: str, places: str) -> None:
    spec = kernel_spec(product, "product", doc="A product.")
    assert spec == KernelSpec(
        "product",
        (BufferParam("x", (DType.F32,), (None, 64)),),
        (BufferParam("y", (DType.F32,), (None, 32)),),
        idempotent=True,
        doc="A product.",
    )
    assert kernel_spec(places, "places").outputs == (BufferParam("y", (DType.I64,), (1, None)),)
    assert kernel_spec(places, "places").doc == "ONNX model places.onnx."


@pytest.mark.parametrize("batch", [1, 3, 100])
def test_a_model_writes_its_output_where_the_buffer_is(rig: Rig, product: str, batch: int) -> None:
    x = np.random.default_rng(batch).standard_normal((batch, 64)).astype(np.float32)
    shapes, (y,) = run(rig, product, x, outputs=[np.zeros((batch, 32), np.float32)])
    assert shapes is None
    np.testing.assert_allclose(rig.get(y), x @ WEIGHTS, rtol=1e-5, atol=1e-5)


def test_a_larger_output_buffer_is_filled_from_its_beginning_and_the_shape_is_told(
    rig: Rig, product: str
) -> None:
    x = np.ones((2, 64), np.float32)
    shapes, (y,) = run(rig, product, x, outputs=[np.full((5, 32), -1, np.float32)])
    assert shapes == [(2, 32)]
    np.testing.assert_allclose(rig.get(y)[:2], x @ WEIGHTS, rtol=1e-5)
    assert (rig.get(y)[2:] == -1).all()


def test_an_output_whose_shape_depends_on_the_data_is_copied_and_its_shape_told(
    rig: Rig, places: str
) -> None:
    x = np.array([0, 1, 0, 2, 3], np.float32)
    shapes, (y,) = run(rig, places, x, outputs=[np.zeros((1, 5), np.int64)])
    assert shapes == [(1, 3)]
    assert rig.get(y).ravel()[:3].tolist() == [1, 3, 4]
    shapes, _ = run(rig, places, np.zeros(4, np.float32), outputs=[np.zeros((1, 5), np.int64)])
    assert shapes == [(1, 0)]


def test_an_output_that_does_not_fit_is_refused_with_what_it_needs(
    rig: Rig, product: str, places: str
) -> None:
    cases = (
        (
            product,
            np.ones((3, 64), np.float32),
            np.zeros((2, 32), np.float32),
            r"shape \(3, 32\) and needs 384 bytes",
        ),
        (
            places,
            np.ones(4, np.float32),
            np.zeros((1, 3), np.int64),
            r"shape \(1, 4\) and needs 32 bytes.*has 24",
        ),
    )
    for path, x, y, problem in cases:
        with pytest.raises(LaunchError, match=problem) as failure:
            run(rig, path, x, outputs=[y])
        assert failure.value.code is TaskStatus.OUTPUT_TOO_SMALL


def test_a_model_that_declares_wrong_output_shapes_still_runs(rig: Rig, tmp_path: Path) -> None:
    path = save(
        tmp_path / "wrong.onnx",
        [node("NonZero", "x", "y")],
        [info("x", T.FLOAT, ["n"])],
        [info("y", T.INT64, [1, "n"])],
    )
    spec, model = kernel_spec(path, "model"), OnnxModel(path)
    for values in ([0, 1, 0, 2], [5, 5, 0, 0], [1, 1, 1, 1]):
        x, y = rig.put(np.array(values, np.float32)), rig.put(np.zeros((1, 4), np.int64), Access.WRITE)
        expected = np.flatnonzero(values).tolist()
        shapes = rig.run(spec, model, [x, y])
        assert shapes == (None if len(expected) == 4 else [(1, len(expected))])
        assert rig.get(y).ravel()[: len(expected)].tolist() == expected


@pytest.mark.parametrize(
    ("shape", "takes"),
    [((3, 63), r"\(batch, 64\)"), ((64,), r"\(batch, 64\)"), ((1, 1, 64), r"\(batch, 64\)")],
)
def test_an_input_of_another_shape_is_a_bad_argument(
    rig: Rig, product: str, shape: tuple[int, ...], takes: str
) -> None:
    with pytest.raises(LaunchError, match=rf"input 'x' has shape.*the model takes {takes}") as failure:
        run(rig, product, np.zeros(shape, np.float32), outputs=[np.zeros((3, 32), np.float32)])
    assert failure.value.code is TaskStatus.BAD_ARGUMENT


def test_a_name_that_stands_for_different_dimensions_is_no_name(rig: Rig, tmp_path: Path) -> None:
    path = save(
        tmp_path / "turn.onnx",
        [node("Transpose", "x", "y", perm=[1, 0])],
        [info("x", T.FLOAT, ["?", "?"])],
        [info("y", T.FLOAT, ["?", "?"])],
    )
    for shape in ((2, 3), (4, 4), (3, 2)):
        x = np.random.default_rng(1).random(shape, np.float32)
        shapes, (y,) = run(rig, path, x, outputs=[np.zeros(shape[::-1], np.float32)])
        assert shapes is None
        assert rig.get(y).tolist() == x.T.tolist()


def test_a_name_that_promises_more_than_comes_asks_for_no_larger_buffer(rig: Rig, tmp_path: Path) -> None:
    path = save(
        tmp_path / "sum.onnx",
        [node("ReduceSum", "x", "y", keepdims=1)],
        [info("x", T.FLOAT, ["n", "n"])],
        [info("y", T.FLOAT, ["n", "n"])],
    )
    shapes, (y,) = run(rig, path, np.ones((3, 3), np.float32), outputs=[np.zeros((1, 1), np.float32)])
    assert shapes is None
    assert rig.get(y).tolist() == [[9.0]]


def test_an_element_type_that_the_model_does_not_have_is_a_bad_argument(rig: Rig, product: str) -> None:
    with pytest.raises(LaunchError, match=r"'x'.*type f8; the model's are f4") as failure:
        run(rig, product, np.zeros((1, 64)), outputs=[np.zeros((1, 32), np.float32)])
    assert failure.value.code is TaskStatus.BAD_ARGUMENT


@pytest.mark.parametrize(
    ("kind", "dtype"),
    [
        ("BOOL", "b1"),
        ("INT8", "i1"),
        ("UINT16", "u2"),
        ("INT32", "i4"),
        ("INT64", "i8"),
        ("FLOAT16", "f2"),
        ("DOUBLE", "f8"),
    ],
)
def test_every_type_of_element_goes_through(rig: Rig, tmp_path: Path, kind: str, dtype: str) -> None:
    number = getattr(T, kind)
    path = save(
        tmp_path / "same.onnx",
        [node("Identity", "x", "y")],
        [info("x", number, ["n"])],
        [info("y", number, ["n"])],
    )
    x = np.array([0, 1, 1, 0], dtype)
    shapes, (y,) = run(rig, path, x, outputs=[np.ones(4, dtype)])
    assert shapes is None
    assert rig.get(y).tolist() == x.tolist()


def test_bfloat16_goes_through_although_numpy_does_not_know_it(tmp_path: Path) -> None:
    path = save(
        tmp_path / "half.onnx",
        [node("Cast", "x", "y", to=T.BFLOAT16)],
        [info("x", T.FLOAT, ["n"])],
        [info("y", T.BFLOAT16, ["n"])],
    )
    (device, *_), _ = discover([f"cpu:{allowed_cores()[0]}"])
    rig = Rig(device)
    x, memory = rig.put(np.array([0, 1, 2], np.float32)), device.allocate(6)
    y = Operand(BufferView(1, DType.BF16, (3,), 6, Access.WRITE, 0), memory=memory)
    assert rig.run(kernel_spec(path, "half"), OnnxModel(path), [x, y]) is None
    assert memory.view(np.uint16).tolist() == [0, 0x3F80, 0x4000]
    device.close()


def test_an_empty_batch_has_an_empty_output(rig: Rig, product: str) -> None:
    shapes, _ = run(rig, product, np.zeros((0, 64), np.float32), outputs=[np.zeros((0, 32), np.float32)])
    assert shapes is None


def test_a_model_that_fails_while_it_runs_is_the_tasks_error_and_runs_again(rig: Rig, tmp_path: Path) -> None:
    path = save(
        tmp_path / "pick.onnx",
        [node("Gather", "x i", "y")],
        [info("x", T.FLOAT, ["n"]), info("i", T.INT64, ["k"])],
        [info("y", T.FLOAT, ["k"])],
    )
    x, out = np.arange(3, dtype=np.float32), [np.zeros(1, np.float32)]
    with pytest.raises(LaunchError, match=r"onnxruntime failed: .*indices") as failure:
        run(rig, path, x, np.array([7]), outputs=out)
    assert failure.value.code is TaskStatus.KERNEL_FAILED
    shapes, (y,) = run(rig, path, x, np.array([2]), outputs=out)
    assert shapes is None
    assert rig.get(y).tolist() == [2.0]


def test_strings_and_sequences_are_refused_in_a_sentence(tmp_path: Path) -> None:
    strings = save(
        tmp_path / "strings.onnx",
        [node("Identity", "x", "y")],
        [info("x", T.STRING, ["n"])],
        [info("y", T.STRING, ["n"])],
    )
    sequence = onnx.helper.make_tensor_sequence_value_info("y", T.FLOAT, None)
    sequences = save(
        tmp_path / "sequence.onnx",
        [node("SequenceConstruct", "x", "y")],
        [info("x", T.FLOAT, ["n"])],
        [sequence],
    )
    with pytest.raises(InvalidRequest, match="input 'x' is of strings; buffers hold tensors of numbers only"):
        kernel_spec(strings, "strings")
    with pytest.raises(InvalidRequest, match=r"output 'y' is of type seq\(tensor\(float\)\)"):
        kernel_spec(sequences, "sequences")


def test_a_file_that_is_no_model_is_refused_with_its_path(rig: Rig, tmp_path: Path) -> None:
    garbage = tmp_path / "garbage.onnx"
    garbage.write_bytes(b"no model" * 100)
    for path, problem in ((garbage, "cannot be loaded"), (tmp_path / "missing.onnx", "does not exist")):
        with pytest.raises(InvalidRequest, match=rf"{path}.*{problem}"):
            kernel_spec(str(path), "model")
        with pytest.raises(LaunchError, match=rf"{path}.*{problem}"):
            rig.stream.prepare(KernelSpec("model"), OnnxModel(str(path)))


def test_a_spec_of_other_buffers_than_the_models_is_refused(rig: Rig, product: str) -> None:
    with pytest.raises(LaunchError, match="has 1 inputs and 1 outputs, its spec 2 and 0"):
        rig.stream.prepare(KernelSpec("wrong", (BufferParam("a"), BufferParam("b"))), OnnxModel(product))


def test_without_onnxruntime_the_remedy_is_named(monkeypatch: pytest.MonkeyPatch, product: str) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(DeviceUnavailable, match=r"pip install 'polymux\[onnx\]'"):
        kernel_spec(product, "product")


def test_streams_of_one_share_have_a_session_in_common_until_none_uses_it(product: str) -> None:
    (device, *_), _ = discover(["cpu"])
    assert isinstance(device, CpuDevice)
    spec, model = kernel_spec(product, "product"), OnnxModel(product)
    streams = [device.open_stream(Share()), device.open_stream(Share())]
    first, second = (stream.prepare(spec, model)._session for stream in streams)  # type: ignore[attr-defined]
    assert first is second
    if device.spec.units > 1:
        part = device.open_stream(Share((0,)))
        assert part.prepare(spec, model)._session is not first  # type: ignore[attr-defined]
    alive = weakref.ref(first)
    del first, second
    device.forget(model)
    gc.collect()
    assert alive() is None
    device.close()


@pytest.mark.skipif(len(allowed_cores()) < 2, reason="needs two cores")
def test_a_session_has_one_thread_bound_to_each_core_of_its_share(product: str) -> None:
    cores = allowed_cores()
    (device, *_), _ = discover([f"cpu:{cores[0]},{cores[-1]}"])

    before = set(os.listdir("/proc/self/task"))
    stream = device.open_stream(Share())
    stream.prepare(kernel_spec(product, "product"), OnnxModel(product))
    new = set(os.listdir("/proc/self/task")) - before
    assert len(new) == 1
    deadline_ns = time.monotonic_ns() + 10_000_000_000
    while (bound := os.sched_getaffinity(int(*new))) != {cores[-1]} and time.monotonic_ns() < deadline_ns:
        time.sleep(0.01)  # the new thread binds itself
    assert bound == {cores[-1]}
    device.close()
