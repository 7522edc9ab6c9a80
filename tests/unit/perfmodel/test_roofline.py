"""Operations and bytes of operators, and what bounds them."""

from __future__ import annotations

from math import inf, prod

import pytest

from polymux.core.errors import InvalidRequest
from polymux.perfmodel import tables
from polymux.perfmodel.operations import Node, Tensor
from polymux.perfmodel.roofline import Roofline, arithmetic_intensity, graph_cost

V100 = Roofline.of(tables.device("v100"))


def _t(*shape):
    return Tensor(shape)


def _w(*shape):
    return Tensor(shape, constant=True)


CONV11 = Node("Conv", (_t(1, 512, 28, 28), _w(512, 512, 3, 3)), (_t(1, 512, 28, 28),), {}, "conv11")
LSTM = Node("LSTM", (_t(1, 1, 1024), _w(1, 4096, 1024), _w(1, 4096, 1024)), (_t(1, 1, 1, 1024),))


def test_conv11_of_vgg19_is_compute_bound_at_392_operations_per_byte_of_weights():
    assert CONV11.flops / 1e9 == pytest.approx(3.70, abs=0.005)
    assert CONV11.weight_nbytes / 1e6 == pytest.approx(9.44, abs=0.005)
    intensity = arithmetic_intensity(CONV11.flops, CONV11.weight_nbytes)
    assert intensity == pytest.approx(392)
    assert V100.bound(intensity) == "compute"


def test_an_lstm_of_gnmt_is_memory_bound():
    assert arithmetic_intensity(0.0168e9, 8.39e6) == pytest.approx(2, abs=0.005)
    assert V100.bound(2) == "memory"
    # Of 1024 units it has these operations; the figure of 2 counts its 8.39 million weights as a byte each.
    assert LSTM.flops / 1e9 == pytest.approx(0.0168, abs=0.0001)
    assert LSTM.weight_nbytes / 4 / 1e6 == pytest.approx(8.39, abs=0.005)
    assert graph_cost([LSTM], V100).bound == "memory"


def test_the_ridge_divides_memory_bound_from_compute_bound():
    assert V100.ridge == pytest.approx(138.9, abs=0.05)
    assert (V100.bound(138.8), V100.bound(139)) == ("memory", "compute")
    assert V100.attainable_flops_per_s(V100.ridge) == pytest.approx(125e12)
    assert V100.attainable_flops_per_s(1) == 900e9
    assert Roofline.of(tables.device("v100"), matrix_units=False).ridge == pytest.approx(17.4, abs=0.05)


def test_a_share_has_the_same_ridge_and_takes_longer():
    half = V100.share(0.5)
    assert half.ridge == V100.ridge
    assert half.least_ns(1e9, 1e6) == pytest.approx(2 * V100.least_ns(1e9, 1e6))


@pytest.mark.parametrize(
    ("node", "flops"),
    [
        (Node("Conv", (_t(2, 8, 4, 4), _w(8, 1, 3, 3), _w(8)), (_t(2, 8, 4, 4),)), 2 * 256 * 9 + 256),
        (Node("QLinearConv", (_t(1, 2, 4, 4), None, None, _w(3, 2, 1, 1)), (_t(1, 3, 4, 4),)), 2 * 48 * 2),
        (Node("ConvTranspose", (_t(1, 2, 4, 4), _w(2, 3, 2, 2)), (_t(1, 3, 8, 8),)), 2 * 32 * 12),
        (Node("MatMul", (_t(5, 2, 3), _t(5, 3, 4)), (_t(5, 2, 4),)), 2 * 40 * 3),
        (Node("Gemm", (_t(2, 3), _w(4, 3), _w(4)), (_t(2, 4),), {"transB": 1}), 2 * 8 * 3 + 8),
        (Node("Gemm", (_t(3, 2), _w(3, 4)), (_t(2, 4),), {"transA": 1}), 2 * 8 * 3),
        (Node("GRU", (_t(7, 2, 5), _w(1, 9, 5), _w(1, 9, 3)), (_t(7, 1, 2, 3),)), 14 * (2 * 72 + 9)),
        (Node("MaxPool", (_t(1, 2, 4, 4),), (_t(1, 2, 2, 2),), {"kernel_shape": (3, 3)}), 72),
        (Node("Einsum", (_t(2, 3), _t(3, 4)), (_t(2, 4),), {"equation": "ij, jk -> ik"}), 48),
        (Node("Einsum", (_t(2, 3), _t(3, 4)), (_t(2, 4),), {"equation": "...j,jk->...k"}), 8),
        (Node("Attention", (_t(1, 4, 6), _w(6, 18), _w(18)), (_t(1, 4, 6),)), 2 * 4 * 6 * 18 + 4 * 4 * 4 * 6),
        (Node("Attention", (_t(1, 2, 4, 3), _t(1, 2, 5, 3), _t(1, 2, 5, 3)), (_t(1, 2, 4, 3),)), 4 * 2 * 4 * 5 * 3),
        (Node("MultiHeadAttention", (_t(1, 4, 6), _t(1, 5, 6), _t(1, 5, 6)), (_t(1, 4, 6),)), 4 * 4 * 5 * 6),
        (Node("If", (_t(1),), (_t(2, 3),)), 0),
        (Node("Relu", (_t(2, 3),), (_t(2, 3),)), 6),
        (Node("Softmax", (_t(2, 3),), (_t(2, 3),)), 30),
        (Node("ReduceMean", (_t(2, 3),), (_t(2),)), 6),
        (Node("Transpose", (_t(2, 3),), (_t(3, 2),)), 0),
        (Node("SomethingNew", (_t(2, 3),), (_t(2, 5),)), 10),
        (Node("Relu", (_t(0, 3),), (_t(0, 3),)), 0),
    ],
    ids=lambda value: value.op if isinstance(value, Node) else "",
)  # fmt: skip
def test_operations_follow_from_the_shapes(node, flops):
    assert node.flops == flops
    assert node.is_known == (node.op != "SomethingNew")


def test_bytes_are_those_of_inputs_and_outputs_and_a_view_moves_none():
    node = Node("Add", (Tensor((2, 3), 2), Tensor((3,), 0.5, constant=True), None), (Tensor((2, 3), 2),))
    assert (node.nbytes, node.weight_nbytes) == (12 + 2 + 12, 2)
    assert Node("Reshape", (_t(2, 3),), (_t(6),)).nbytes == 0


def test_operations_grow_with_the_batch_and_the_weights_do_not():
    def at(batch):
        out = _t(batch, 512, 28, 28)
        return Node("Conv", (_t(batch, 512, 28, 28), CONV11.inputs[1]), (out,))

    assert at(16).flops == 16 * at(1).flops
    assert at(16).weight_nbytes == at(1).weight_nbytes
    assert graph_cost([at(16)], V100).intensity > graph_cost([at(1)], V100).intensity


def test_a_graph_is_bound_by_what_most_of_its_time_is_bound_by():
    cost = graph_cost([CONV11, LSTM, Node("Shape", (_t(2),), (_t(1),)), Node("New", (), (_t(1),))], V100)
    assert [node.bound for node in cost.nodes] == ["compute", "memory", "memory", "memory"]
    assert cost.flops == CONV11.flops + LSTM.flops + 1
    assert cost.weight_nbytes == CONV11.weight_nbytes + LSTM.weight_nbytes
    assert cost.least_ns == pytest.approx(CONV11.flops / 125e3 + LSTM.nbytes / 900 + 4 / 900)
    assert cost.memory_bound_part == pytest.approx(0.557, abs=0.01)
    assert (
        cost.bound == "memory"
    )  # although its intensity as a whole is that of a compute-bound one, with these weights
    assert cost.intensity < V100.ridge
    assert cost.unknown_ops == ("New",)


def test_an_empty_graph_costs_nothing():
    cost = graph_cost([], V100)
    assert (cost.flops, cost.nbytes, cost.least_ns, cost.memory_bound_part) == (0, 0, 0, 0)


def test_what_moves_no_byte_is_never_bound_by_memory():
    assert arithmetic_intensity(1, 0) == inf
    assert arithmetic_intensity(0, 0) == 0


@pytest.mark.parametrize(
    ("call", "complaint"),
    [
        (lambda: Roofline(0, 1), "roofline of 0 operations/s"),
        (lambda: Roofline(1, float("nan")), "nan bytes/s"),
        (lambda: V100.share(0), "a share of 0"),
        (lambda: V100.share(1.5), "a share of 1.5"),
        (lambda: arithmetic_intensity(-1, 1), "-1 operations"),
        (lambda: Node("Add", (_t(-1, 3),), ()), r"shape \(-1, 3\) has an unknown dimension"),
        (lambda: Node("Conv", (_t(1), None), (_t(1),), {}, "c1").flops, r"c1: inputs of shapes \(1,\), -"),
        (lambda: Node("Conv", (_t(1), _w()), (_t(1),)).flops, "do not fit the operator Conv"),
        (lambda: Node("LSTM", (_t(1, 1, 1),), ()).flops, "do not fit the operator LSTM"),
        (lambda: Node("MatMul", (_t(), _t(1)), (_t(),)).flops, "do not fit the operator MatMul"),
        (lambda: Node("Attention", (_t(3), _t(3, 9)), (_t(3),)).flops, "do not fit the operator Attention"),
        (lambda: Node("Einsum", (_t(1), _t(1)), (_t(1),), {"equation": "ij,i->j"}).flops, "do not fit"),
    ],
)  # fmt: skip
def test_limits_and_shapes_that_cannot_be_are_refused(call, complaint):
    with pytest.raises(InvalidRequest, match=complaint):
        call()


def test_the_published_operations_of_whole_vgg19_and_resnet_stem_come_out():
    widths = [(3, 64, 224), (64, 64, 224), (64, 128, 112), (128, 128, 112), (128, 256, 56)]
    widths += [(256, 256, 56)] * 3 + [(256, 512, 28)] + [(512, 512, 28)] * 3 + [(512, 512, 14)] * 4
    nodes = [
        Node(
            "Conv",
            (_t(1, cin, side, side), _w(cout, cin, 3, 3), _w(cout)),
            (_t(1, cout, side, side),),
        )
        for cin, cout, side in widths
    ]
    nodes += [
        Node("Gemm", (_t(1, cin), _w(cout, cin), _w(cout)), (_t(1, cout),), {"transB": 1})
        for cin, cout in ((25088, 4096), (4096, 4096), (4096, 1000))
    ]
    cost = graph_cost(nodes, V100)
    assert cost.flops / 1e9 == pytest.approx(39.3, abs=0.1)  # 19.6 billion multiply-adds
    assert cost.weight_nbytes / 4 == sum(prod(t.shape) for n in nodes for t in n.inputs if t.constant)
    assert cost.weight_nbytes / 4e6 == pytest.approx(143.67, abs=0.01)
