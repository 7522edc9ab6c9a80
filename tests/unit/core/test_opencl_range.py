from __future__ import annotations

import pytest

from polymux.core.dtype import DType
from polymux.core.errors import InvalidRequest
from polymux.core.kernel_spec import BufferParam, KernelSpec, ScalarParam
from polymux.core.opencl_plan import BufferArgument, OpenCLPlan, ScalarArgument
from polymux.core.opencl_range import OpenCLRange, Term
from polymux.core.task_view import Access, BufferView

SPEC = KernelSpec(
    "k",
    inputs=(BufferParam("x"),),
    outputs=(BufferParam("y"),),
    scalars=(ScalarParam("a", DType.F32), ScalarParam("n", DType.I32, 3)),
)
X = BufferView(0, DType.F32, (5, 7), 140, Access.READ, 0)
Y = BufferView(1, DType.F32, (7,), 28, Access.WRITE, 256)


def planned(plan: OpenCLRange) -> OpenCLPlan:
    return plan(SPEC, (X, Y), {"a": 0.5, "n": 3})


def test_terms_are_integers_scalars_and_properties_of_buffers() -> None:
    terms: list[tuple[Term, int]] = [
        (9, 9), ("n", 3), ("x.size", 35), ("x.nbytes", 140), ("x.ndim", 2), ("x.shape[1]", 7), ("y.shape[-1]", 7),
    ]  # fmt: skip
    for term, expected in terms:
        (launch,) = planned(OpenCLRange("f", (term,))).launches
        assert launch.global_size == (expected,)


def test_buffers_come_first_and_then_the_arguments_in_their_types() -> None:
    (launch,) = planned(OpenCLRange("f", (1,), arguments=("x.size", "a", 5))).launches
    assert launch.arguments == (
        BufferArgument(0),
        BufferArgument(1),
        ScalarArgument(DType.I64, 35),
        ScalarArgument(DType.F32, 0.5),
        ScalarArgument(DType.I32, 5),
    )


def test_the_scalars_are_the_arguments_by_default() -> None:
    (launch,) = planned(OpenCLRange("f", (1,))).launches
    assert launch.arguments[2:] == (ScalarArgument(DType.F32, 0.5), ScalarArgument(DType.I32, 3))


def test_sizes_are_rounded_up_to_whole_work_groups() -> None:
    (launch,) = planned(OpenCLRange("f", ("x.shape[1]", "x.shape[0]"), (4, 5))).launches
    assert launch.global_size == (8, 5)
    assert launch.local_size == (4, 5)


def test_an_empty_range_launches_nothing() -> None:
    empty = BufferView(0, DType.F32, (0,), 0, Access.READ, 0)
    assert OpenCLRange("f", ("x.size",), (64,))(SPEC, (empty, Y), {"a": 1.0, "n": 1}) == OpenCLPlan()


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        (OpenCLRange("f", ()), "has 0 dimensions; give 1 to 3"),
        (OpenCLRange("f", (1, 1, 1, 1)), "has 4 dimensions"),
        (OpenCLRange("f", (1,), (1, 1)), "local_size has 2 dimensions and global_size 1"),
        (OpenCLRange("f", (1,), (0,)), "give positive numbers"),
        (OpenCLRange("f", ("z.size",)), "term 'z.size' is unknown; give an integer, a scalar"),
        (OpenCLRange("f", ("x.sizes",)), "term 'x.sizes' is unknown"),
        (OpenCLRange("f", ("x.shape[a]",)), "unknown"),
        (OpenCLRange("f", (1,), arguments=("b",)), "term 'b' is unknown"),
        (OpenCLRange("f", ("__import__('os')",)), "is unknown"),
    ],
)
def test_terms_that_name_nothing_are_refused_beforehand(plan: OpenCLRange, message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        plan.check(SPEC)


def test_what_only_a_task_can_show_is_refused_then() -> None:
    with pytest.raises(InvalidRequest, match=r"y has shape \(7,\), y.shape\[1\] needs more dimensions"):
        planned(OpenCLRange("f", ("y.shape[1]",)))
    with pytest.raises(InvalidRequest, match="is negative"):
        OpenCLRange("f", ("n",))(SPEC, (X, Y), {"a": 1.0, "n": -1})
    with pytest.raises(InvalidRequest, match=r"term 'z\.size' is unknown"):
        planned(OpenCLRange("f", ("z.size",)))
