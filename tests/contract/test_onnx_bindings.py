"""What a model's runs keep: how it was bound to buffers, by where these lie, and nothing of their memory."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from polymux.core.device_spec import Share
from polymux.core.dtype import DType
from polymux.core.implementation import OnnxModel
from polymux.core.status import TaskStatus
from polymux.core.task_view import Access, BufferView
from polymux.device import onnx_run
from polymux.device.cores import allowed_cores
from polymux.device.onnx_model import kernel_spec
from polymux.device.protocol import LaunchError, Operand
from polymux.device.registry import discover
from tests.contract.device_rig import Rig
from tests.contract.test_device_onnx import info, node, save

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")
T = onnx.TensorProto


@pytest.fixture(params=["cpu", f"cpu:{allowed_cores()[0]}"])
def rig(request: pytest.FixtureRequest) -> Iterator[Rig]:
    (device, *_), _ = discover([request.param])
    yield Rig(device, Share())
    device.close()


@pytest.fixture
def double(tmp_path: Path) -> str:
    return save(
        tmp_path / "double.onnx",
        [node("Add", "x x", "y")],
        [info("x", T.FLOAT, ["n", 3])],
        [info("y", T.FLOAT, ["n", 3])],
    )


class Prepared:
    """A model on a stream."""

    def __init__(self, rig: Rig, path: str) -> None:
        self.rig = rig
        self.spec, self.model = kernel_spec(path, "model"), OnnxModel(path)
        self.prepared: Any = rig.stream.prepare(self.spec, self.model)

    def run(self, x: Operand, y: Operand) -> Any:
        return self.rig.stream.launch(self.prepared, [x, y], {})

    @property
    def kept(self) -> int:
        return len(self.prepared._kept)


def rows(count: int, first: float) -> Any:
    return first + np.arange(3 * count, dtype=np.float32).reshape(count, 3)


def test_the_same_buffers_are_bound_once_and_their_new_content_counts(rig: Rig, double: str) -> None:
    model = Prepared(rig, double)
    x, y = rig.put(rows(4, 0)), rig.put(np.zeros((4, 3), np.float32), Access.WRITE)
    for first in (0, 5, 9):
        _write(rig, x, rows(4, first))
        assert model.run(x, y) is None
        np.testing.assert_array_equal(rig.get(y), 2 * rows(4, first))
    assert model.kept == 1


def test_other_buffers_and_other_shapes_in_the_same_place_are_bound_anew(rig: Rig, double: str) -> None:
    model = Prepared(rig, double)
    buffers = [(rig.put(rows(4, at)), rig.put(np.zeros((4, 3), np.float32), Access.WRITE)) for at in range(3)]
    for _ in range(2):
        for at, (x, y) in enumerate(buffers):
            model.run(x, y)
            np.testing.assert_array_equal(rig.get(y), 2 * rows(4, at))
    assert model.kept == 3
    x, y = (_fewer(operand) for operand in buffers[0])
    _write(rig, y, np.zeros((2, 3), np.float32))
    model.run(x, y)
    np.testing.assert_array_equal(rig.get(y), 2 * rows(4, 0)[:2])
    assert model.kept == 4


def test_what_is_kept_is_bounded_and_holds_no_memory(rig: Rig, double: str) -> None:
    model = Prepared(rig, double)
    arrays = []
    for at in range(onnx_run.KEPT + 9):
        x, y = np.full((1, 3), at, np.float32), np.zeros((1, 3), np.float32)
        model.run(_host(x, Access.READ), _host(y, Access.WRITE))
        assert (y == 2 * at).all()
        arrays.append((x, y))
    assert model.kept == onnx_run.KEPT
    held = weakref.ref(x)
    del x, y, arrays
    assert held() is None


def test_a_model_that_gives_other_shapes_for_other_values_is_never_given_an_old_one(
    rig: Rig, tmp_path: Path
) -> None:
    path = save(
        tmp_path / "chosen.onnx",
        [node("Compress", "x c", "y", axis=0)],
        [info("x", T.FLOAT, ["n", 3]), info("c", T.BOOL, ["n"])],
        [info("y", T.FLOAT, ["n", 3])],
    )
    spec, implementation = kernel_spec(path, "chosen"), OnnxModel(path)
    x, y = rig.put(rows(4, 0)), rig.put(np.zeros((4, 3), np.float32), Access.WRITE)
    c = rig.put(np.ones(4, bool))
    for chosen in ([1, 1, 1, 1], [1, 0, 1, 0], [1, 1, 1, 1], [0, 0, 0, 1], [0, 0, 0, 0]):
        _write(rig, c, np.array(chosen, bool))
        shapes = rig.run(spec, implementation, [x, c, y])
        expected = rows(4, 0)[np.array(chosen, bool)]
        assert (shapes or [(4, 3)]) == [expected.shape]
        np.testing.assert_array_equal(rig.get(y)[: len(expected)], expected)


def test_a_kept_binding_that_fails_tells_the_models_own_error(rig: Rig, tmp_path: Path) -> None:
    path = save(
        tmp_path / "gather.onnx",
        [node("Gather", "x i", "y", axis=0)],
        [info("x", T.FLOAT, [4, 3]), info("i", T.INT64, [2])],
        [info("y", T.FLOAT, [2, 3])],
    )
    spec, implementation = kernel_spec(path, "gather"), OnnxModel(path)
    x, y = rig.put(rows(4, 0)), rig.put(np.zeros((2, 3), np.float32), Access.WRITE)
    i = rig.put(np.array([0, 3], np.int64))
    rig.run(spec, implementation, [x, i, y])
    _write(rig, i, np.array([0, 9], np.int64))
    with pytest.raises(LaunchError, match="onnxruntime failed: .*out of .*bounds") as caught:
        rig.run(spec, implementation, [x, i, y])
    assert caught.value.code is TaskStatus.KERNEL_FAILED
    _write(rig, i, np.array([1, 2], np.int64))
    rig.run(spec, implementation, [x, i, y])
    np.testing.assert_array_equal(rig.get(y), rows(4, 0)[1:3])


def test_a_kept_binding_that_fails_is_tried_once_more_and_not_twice(
    rig: Rig, double: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = Prepared(rig, double)
    x, y = rig.put(rows(4, 0)), rig.put(np.zeros((4, 3), np.float32), Access.WRITE)
    model.run(x, y)
    calls: list[Any] = []

    def fail(_: Any, binding: Any) -> None:
        calls.append(binding)
        raise RuntimeError("broken")

    monkeypatch.setattr(onnx_run.PreparedOnnx, "_call", fail)
    with pytest.raises(LaunchError, match="onnxruntime failed: broken"):
        model.run(x, y)
    assert len(calls) == 2
    assert model.kept == 0


def _host(array: Any, access: Access) -> Operand:
    return Operand(BufferView(0, DType.F32, array.shape, array.nbytes, access, 0), array)


def _fewer(operand: Operand) -> Operand:
    """See the first two rows of an operand's buffer."""
    view = operand.view
    fewer = BufferView(view.slot, view.dtype, (2, 3), 24, view.access, 0)
    return Operand(fewer, None if operand.array is None else operand.array[:2], operand.memory)


def _write(rig: Rig, operand: Operand, array: Any) -> None:
    """Give an operand other content in the same place."""
    if operand.array is not None:
        operand.array[...] = array
    else:
        rig.stream.copy_in(operand.memory, array.reshape(-1).view(np.uint8))
