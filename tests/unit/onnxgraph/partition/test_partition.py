"""Models that are cut give what they gave; those that cannot be cut say why."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

from polymux.core.errors import InvalidRequest
from polymux.onnxgraph.inputs import Arrays, batch_of
from polymux.onnxgraph.partition.choose import Wish
from polymux.onnxgraph.partition.comparison import InParts, Whole, compare_cost, difference
from polymux.onnxgraph.partition.partition import Partition, partition
from polymux.profiling.samples import SAMPLES, write_sample
from tests.unit.onnxgraph.partition.networks import convolutions, inputs_of, node, save, weights


def cut(path: Path, parts: int = 3) -> Partition:
    folder = path.parent / "parts"
    folder.mkdir()
    return partition(path, inputs_of(path), Wish(parts=parts), folder, estimate=True)


def in_parts(found: Partition, arrays: Arrays) -> Arrays:
    return InParts([part.path for part in found.parts], found.flow.outputs).run(arrays)


def test_a_chain_in_parts_gives_the_same_bits_for_any_batch(tmp_path: Path) -> None:
    path = convolutions(tmp_path / "model.onnx")
    found = cut(path)
    assert len(found.parts) == 3
    assert found.difference == 0
    assert not found.why_whole
    for batch in (1, 4):
        arrays = batch_of(inputs_of(path), batch, np.random.default_rng(batch))
        assert difference(Whole(path).run(arrays), in_parts(found, arrays)) == 0


def test_parts_follow_each_other_and_take_what_the_ones_before_them_give(tmp_path: Path) -> None:
    found = cut(convolutions(tmp_path / "model.onnx"))
    assert [part.first for part in found.parts] == [0, *(cut.before for cut in found.cuts)]
    assert found.parts[-1].end == len(found.flow.steps)
    known = {"x"}
    for part in found.parts:
        assert set(part.inputs) <= known
        known |= set(part.outputs)
        session = onnxruntime.InferenceSession(str(part.path), providers=["CPUExecutionProvider"])
        assert tuple(its.name for its in session.get_inputs()) == part.inputs
        assert tuple(its.name for its in session.get_outputs()) == part.outputs
    assert known >= {"y"}


def test_weights_are_in_one_file_for_all_parts(tmp_path: Path) -> None:
    path = write_sample("squeezenet", tmp_path / "model.onnx")
    model = onnx.load(path)
    folder = tmp_path / "parts"
    folder.mkdir()
    found = partition(path, SAMPLES["squeezenet"].inputs(model), Wish(parts=4), folder, estimate=True)
    assert len(found.parts) == 4
    assert found.difference == 0
    assert sum(part.path.stat().st_size for part in found.parts) < path.stat().st_size / 20
    assert (folder / "weights").stat().st_size > path.stat().st_size / 2
    assert sorted(file.name for file in folder.iterdir()) == [
        *(f"part-{number:02}.onnx" for number in range(4)), "weights", "whole.onnx",
    ]  # fmt: skip
    assert max(part.time_ns for part in found.parts) < 0.4 * found.total_ns


def test_a_tensor_that_is_used_far_behind_is_carried_through_the_cuts(tmp_path: Path) -> None:
    nodes = [node("Sigmoid", "x", "s0")]
    nodes += [node("Tanh" if at % 2 else "Sigmoid", f"s{at}", f"s{at + 1}") for at in range(8)]
    nodes.append(node("Add", "s0 s8", "y"))
    found = cut(save(tmp_path / "model.onnx", nodes))
    assert len(found.parts) == 3
    assert all("s0" in cut.tensors for cut in found.cuts)
    assert found.difference == 0


def test_an_output_may_come_out_of_any_part(tmp_path: Path) -> None:
    nodes = [node("Sigmoid" if at % 2 else "Tanh", f"s{at}" if at else "x", f"s{at + 1}") for at in range(6)]
    found = cut(save(tmp_path / "model.onnx", nodes, outputs=("s6", "s1", "s3")))
    assert len(found.parts) == 3
    assert "s1" in found.parts[0].outputs
    arrays = {"x": np.ones((2, 8, 16, 16), np.float32)}
    assert list(in_parts(found, arrays)) == ["s6", "s1", "s3"]
    assert difference(Whole(tmp_path / "model.onnx").run(arrays), in_parts(found, arrays)) == 0


def test_branches_that_use_tensors_from_outside_get_them_over_a_cut(tmp_path: Path) -> None:
    then = helper.make_graph(
        [node("Add", "s1 s2", "t")], "then", [], [helper.make_tensor_value_info("t", TensorProto.FLOAT, None)]
    )
    other = helper.make_graph(
        [node("Sub", "s1 s2", "e")], "else", [], [helper.make_tensor_value_info("e", TensorProto.FLOAT, None)]
    )
    zero = onnx.numpy_helper.from_array(np.array(0, np.float32), "zero")
    nodes = [
        node("Sigmoid", "x", "s1"),
        node("Tanh", "s1", "s2"),
        node("Sigmoid", "s2", "s3"),
        node("ReduceMean", "s3", "m", keepdims=0),
        node("Greater", "m zero", "positive"),
        node("If", "positive", "i", then_branch=then, else_branch=other),
        node("Tanh", "i", "y"),
    ]
    found = cut(save(tmp_path / "model.onnx", nodes, [zero]), parts=6)
    assert len(found.parts) > 3
    assert found.difference == 0


def test_constants_of_each_kind_go_with_the_parts_that_use_them(tmp_path: Path) -> None:
    """Small ones stay in the files; a large one is used by two parts."""
    nodes, at = [], "x"
    for number in range(4):
        nodes += [node("MatMul", f"{at} w", f"m{number}"), node("Add", f"m{number} b{number}", f"a{number}")]
        at = f"a{number}"
    nodes.append(node("Sigmoid", at, "y"))
    constants = [weights("w", 64, 64), *(weights(f"b{number}", 64) for number in range(4))]
    found = cut(save(tmp_path / "model.onnx", nodes, constants, shape=("n", 64)), parts=4)
    assert len(found.parts) == 4
    assert found.difference == 0


def test_a_single_node_runs_whole(tmp_path: Path) -> None:
    found = cut(save(tmp_path / "model.onnx", [node("Sigmoid", "x", "y")]))
    assert found.parts == ()
    assert found.why_whole == "it is a single node, Sigmoid"


def test_a_model_in_a_loop_runs_whole(tmp_path: Path) -> None:
    body = helper.make_graph(
        [node("Sigmoid", "before", "after"), node("Identity", "go", "on")],
        "body",
        [
            helper.make_tensor_value_info("i", TensorProto.INT64, []),
            helper.make_tensor_value_info("go", TensorProto.BOOL, []),
            helper.make_tensor_value_info("before", TensorProto.FLOAT, None),
        ],
        [
            helper.make_tensor_value_info("on", TensorProto.BOOL, []),
            helper.make_tensor_value_info("after", TensorProto.FLOAT, None),
        ],
    )
    constants = [
        onnx.numpy_helper.from_array(np.array(5, np.int64), "count"),
        onnx.numpy_helper.from_array(np.array(True), "yes"),
    ]
    found = cut(save(tmp_path / "model.onnx", [node("Loop", "count yes x", "y", body=body)], constants))
    assert found.parts == ()
    assert "single node, Loop" in found.why_whole


def test_a_model_that_is_too_short_runs_whole_by_default_and_is_cut_when_told_so(tmp_path: Path) -> None:
    path = convolutions(tmp_path / "model.onnx", 2)
    folder = tmp_path / "default"
    folder.mkdir()
    found = partition(path, inputs_of(path), Wish(), folder, estimate=True)
    assert found.parts == ()
    assert "cheapest cut would cost more than 2%" in found.why_whole
    assert len(cut(path, 2).parts) == 2


def test_more_parts_than_there_are_places_for_are_noted(tmp_path: Path) -> None:
    found = cut(convolutions(tmp_path / "model.onnx", 2), 60)
    assert 1 < len(found.parts) < 60
    assert found.note == f"60 parts were asked for; there are places for {len(found.parts)}"


def test_a_bound_below_the_longest_node_is_noted(tmp_path: Path) -> None:
    path = convolutions(tmp_path / "model.onnx")
    folder = tmp_path / "parts"
    folder.mkdir()
    found = partition(path, inputs_of(path), Wish(longest_ns=1.0), folder, estimate=True)
    assert "no place for a cut" in found.note
    assert found.difference == 0


def test_a_model_that_does_not_run_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="does not run: .*channels"):
        cut(save(tmp_path / "model.onnx", [node("Conv", "x w", "y")], [weights("w", 4, 5, 3, 3)]))


def test_the_cost_is_measured_by_turns(tmp_path: Path) -> None:
    path = convolutions(tmp_path / "model.onnx")
    found = cut(path)
    arrays = batch_of(inputs_of(path), 1, np.random.default_rng(0))
    cost = compare_cost(Whole(path), InParts([part.path for part in found.parts], found.flow.outputs), arrays)
    assert len(cost.each_ns) == 3
    assert cost.whole_ns > 0
    assert cost.added > -1


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [([1.0, 2.0], [1.0, 2.0], 0), ([1.0, 2.0], [1.0, 2.5], 0.2), ([np.nan], [np.nan], 0), ([0.0], [1e-9], 1)],
)
def test_differences_are_relative_to_the_largest_value(
    one: list[float], other: list[float], expected: float
) -> None:
    assert difference({"y": np.array(one)}, {"y": np.array(other)}) == pytest.approx(expected)


def test_another_shape_is_the_largest_difference() -> None:
    assert difference({"y": np.zeros(2)}, {"y": np.zeros(3)}) == float("inf")


def test_weights_that_are_inputs_in_old_models_stay_weights(tmp_path: Path) -> None:
    nodes = [
        node("Neg", "w", "v"),
        node("MatMul", "x v", "m"),
        node("Sigmoid", "m", "s"),
        node("MatMul", "s w", "y"),
    ]
    path = save(tmp_path / "model.onnx", nodes, [weights("w", 64, 64)], shape=("n", 64), ir_version=3)
    found = cut(path, 2)
    assert len(found.parts) == 2
    assert found.difference == 0
    assert {name for part in found.parts for name in part.inputs} <= {"x", *found.cuts[0].tensors}


def test_portable_cuts_have_a_part_for_other_libraries_with_the_same_ends(tmp_path: Path) -> None:
    path = convolutions(tmp_path / "model.onnx")
    folder = tmp_path / "parts"
    folder.mkdir()
    found = partition(path, inputs_of(path), Wish(parts=3), folder, estimate=True, portable=True)
    assert len(found.parts) == 3
    assert found.portable
    arrays = batch_of(inputs_of(path), 2, np.random.default_rng(0))
    values = dict(arrays)
    for part in found.parts:
        assert part.plain is not None
        assert {its.op_type for its in onnx.load(part.plain).graph.node} == {"Conv", "Relu"}
        session = onnxruntime.InferenceSession(str(part.plain), providers=["CPUExecutionProvider"])
        assert tuple(its.name for its in session.get_inputs()) == part.inputs
        assert tuple(its.name for its in session.get_outputs()) == part.outputs
        results = session.run(list(part.outputs), {name: values[name] for name in part.inputs})
        values.update(zip(part.outputs, results, strict=True))
    assert difference(Whole(path).run(arrays), {"y": values["y"]}) < 1e-5
