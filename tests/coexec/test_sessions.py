"""What sessions make of calls at the edges: edited operations, empty inputs, units that fail, servers that go."""

from __future__ import annotations

import os
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from polymux import conv2d, matmul
from polymux.client import Client
from polymux.coexec import ChunkKernel, Operation, Session, functions
from polymux.coexec import session as sessions
from polymux.coexec.matrix_product import MATMUL
from polymux.core.dtype import DType
from polymux.core.errors import InvalidRequest, PolymuxError, ServerGone, TaskFailed
from polymux.kernel import BufferParam, KernelSpec, PythonFunction, ScalarParam
from polymux.perfmodel.coexec.compute import ComputeModel

FLOAT = (DType.F32,)
ONE = np.ones(1, np.float32)


def scaling(name: str, factor: float, fails: type[Exception] | None = None) -> type[Operation]:
    """An operation `out = factor * x` whose kernel is a function of its own, as after editing a notebook's cell."""

    def compute(x: Any, extra: Any, out: Any, first: int, count: int) -> None:
        del extra
        if fails is not None:
            raise fails("it cannot")
        out[first : first + count] = factor * x[first : first + count]

    spec = KernelSpec(
        f"{name}_rows",
        inputs=(BufferParam("x", FLOAT), BufferParam("extra", FLOAT)),
        outputs=(BufferParam("out", FLOAT),),
        scalars=(ScalarParam("first", DType.I64), ScalarParam("count", DType.I64)),
        idempotent=True,
    )

    class Scale(Operation):
        kernels = (ChunkKernel(f"{name}_rows", spec=spec, implementations=(PythonFunction(compute),)),)

        def outputs(self, *inputs: Any, **parameters: Any) -> Any:
            del parameters
            return [(inputs[0].shape, inputs[0].dtype)]

        def ways(self, *inputs: Any, **parameters: Any) -> Any:
            del parameters
            x, extra = inputs
            return [self.along(x, extra, sizes=(len(x),), axis=0, work=len(x), input_axes=(0, None))]

    Scale.name = name
    return Scale


def test_an_edited_operation_under_the_same_name_is_refused_rather_than_computed_as_before(
    session: Session,
) -> None:
    x = np.arange(8, dtype=np.float32)
    (twice,) = session.run(scaling("scale_edited", 2)(), x, ONE)
    np.testing.assert_array_equal(twice, 2 * x)
    with pytest.raises(InvalidRequest, match="scale_edited.*names of their own"):
        session.run(scaling("scale_edited", 3)(), x, ONE)
    (thrice,) = session.run(scaling("scale_edited_again", 3)(), x, ONE)
    np.testing.assert_array_equal(thrice, 3 * x)


def test_other_ways_of_the_same_kernels_are_asked_for(session: Session) -> None:
    first = scaling("scale_ways", 2)
    asked: list[str] = []

    class Other(first):  # type: ignore[valid-type, misc]
        def ways(self, *inputs: Any, **parameters: Any) -> Any:
            asked.append("other")
            return super().ways(*inputs, **parameters)

    x = np.arange(8, dtype=np.float32)
    for operation in (first(), Other()):
        np.testing.assert_array_equal(session.run(operation, x, ONE)[0], 2 * x)
    assert asked


def test_an_empty_input_gives_zeros_only_where_sums_over_nothing_are_meant(session: Session) -> None:
    nothing = np.empty(0, np.float32)
    with pytest.raises(InvalidRequest, match="of_nothing"):
        session.run(scaling("scale_nothing", 2)(), np.ones(4, np.float32), nothing)
    (empty,) = session.run(scaling("scale_nothing", 2)(), nothing, ONE)
    assert empty.shape == (0,)
    zeros = matmul(np.empty((3, 0), np.float32), np.empty((0, 4), np.float32), session=session)
    np.testing.assert_array_equal(zeros, np.zeros((3, 4)))


@pytest.mark.parametrize("window", [[3, 3], np.array([3, 3]), {"rows": [3]}])
def test_lists_and_arrays_are_parameters_too(session: Session, window: Any) -> None:
    x = np.arange(8, dtype=np.float32)
    (twice,) = session.run(scaling(f"scale_{type(window).__name__}", 2)(), x, ONE, window=window)
    np.testing.assert_array_equal(twice, 2 * x)


def test_a_parameter_that_cannot_be_compared_is_named(session: Session) -> None:
    with pytest.raises(InvalidRequest, match="window="):
        session.run(scaling("scale_set", 2)(), np.ones(4, np.float32), ONE, window={1, 2})


def test_an_unknown_device_among_known_ones_is_named(session: Session) -> None:
    a = np.ones((8, 8), np.float32)
    with pytest.raises(InvalidRequest, match=r"gpu:9.*cpu:0"):
        matmul(a, a, devices=["cpu:0", "gpu:9"], session=session)


@pytest.mark.parametrize(
    "wrong", [{"stride": 1.5}, {"stride": None}, {"padding": (1, 2, 3)}, {"groups": 1.9}, {"groups": None}]
)
def test_parameters_of_a_convolution_that_are_no_integers_are_named(session: Session, wrong: Any) -> None:
    with pytest.raises(InvalidRequest, match=next(iter(wrong))):
        conv2d(np.ones((1, 1, 5, 5)), np.ones((1, 1, 3, 3)), session=session, **wrong)


def test_a_bias_that_does_not_fit_is_told_before_anything_is_computed(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "run", lambda *_, **__: pytest.fail("it computed"))
    with pytest.raises(InvalidRequest, match="bias"):
        conv2d(np.ones((1, 1, 5, 5)), np.ones((2, 1, 3, 3)), np.ones(3), session=session)


def test_a_finished_call_is_no_failure_when_the_server_goes_away(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    a = np.ones((40, 40), np.float32)
    with Session(client, store=False) as session:
        matmul(a, a, session=session)
        asked: list[bool] = []

        def status() -> Any:
            asked.append(session._lock._is_owned())  # type: ignore[attr-defined]
            raise ServerGone("the server is gone")

        monkeypatch.setattr(session._loads, "wants_sample", lambda _: True)
        monkeypatch.setattr(client, "status", status)
        np.testing.assert_array_equal(matmul(a, a, session=session), a @ a)
        assert asked == [False]
        monkeypatch.undo()


def failing(unit: str, after: Callable[[], None]) -> Any:
    from polymux.coexec.call import Call

    submit = Call.submit

    def refuse(self: Any, queue: Any, its: Any, chunk: Any) -> Any:
        if its.id.endswith(unit):
            after()
            raise TaskFailed(8, 1, 1, its.kernel.name, "fails")
        return submit(self, queue, its, chunk)

    return refuse


def known(session: Session) -> None:
    """Give every unit a model, those of lower precision the faster one."""
    shelf = session._shelf(MATMUL, np.dtype(np.float32))
    a = np.ones((64, 64), np.float32)
    matmul(a, a, session=session)
    slow: ComputeModel = shelf._computes["cpu:0/0/coexec_gemm"]
    for unit in shelf.units:
        shelf.learn(unit, slow)


def test_a_failing_unit_leaves_its_stream_to_the_other_kernel(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    a = np.ones((64, 64), np.float32)
    with Session(client, store=False) as session:
        known(session)
        matmul(a, a, devices=["cpu:0"], precision="bf16", session=session)
        assert session.last is not None
        chosen = session.last.runs[0].unit.partition("/")[2]
        monkeypatch.setattr("polymux.coexec.knowledge.HELPED_S", 0.0)
        monkeypatch.setattr("polymux.coexec.call.Call.submit", failing(chosen, lambda: None))
        for _ in range(2):
            result = matmul(a, a, devices=["cpu:0"], precision="bf16", session=session)
            np.testing.assert_array_equal(result, a @ a)
            assert session.last.runs[0].unit.partition("/")[2] != chosen
        assert session._calls, "what is planned without the failed unit is kept for a while"


def test_when_every_unit_fails_each_is_tried_once_and_the_last_failure_told(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    a = np.ones((64, 64), np.float32)
    tried: list[None] = []
    with Session(client, store=False) as session:
        known(session)
        monkeypatch.setattr("polymux.coexec.call.Call.submit", failing("", lambda: tried.append(None)))
        for _ in range(2):
            tried.clear()
            with pytest.raises(TaskFailed, match="fails"):
                matmul(a, a, devices=["cpu:0", "cpu:1"], session=session)
            assert 1 <= len(tried) <= 2


def test_measuring_that_fails_for_the_callers_fault_does_not_blame_the_unit(client: Client) -> None:
    with Session(client, store=False) as session:
        operation = scaling("scale_refusing", 2, InvalidRequest)()
        with pytest.raises(PolymuxError, match="it cannot"):
            session.run(operation, np.ones(4, np.float32), ONE)
        assert session._failed.until_s() == float("inf")


def test_plans_that_are_kept_are_bounded(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("polymux.coexec.knowledge._REMEMBERED", 4)
    monkeypatch.setattr(sessions, "_REMEMBERED", 4)
    with Session(client, store=False) as session:
        for rows in range(1, 12):
            matmul(np.ones((rows, 4), np.float32), np.ones((4, 4), np.float32), session=session)
        shelf = session._shelf(MATMUL, np.dtype(np.float32))
        assert len(shelf._kept) <= 4
        assert len(session._calls) <= 4


def test_a_new_default_session_closes_the_connection_to_a_server_that_is_gone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    closed: list[bool] = []
    old = SimpleNamespace(closed=False, server_gone=True, close=lambda: closed.append(True))
    monkeypatch.setattr(functions, "_session", SimpleNamespace(client=old))
    monkeypatch.setattr(functions, "_owner", os.getpid())
    monkeypatch.setattr(functions, "Session", lambda client: client)
    monkeypatch.setattr("polymux.connect", lambda name: name)
    assert functions.default_session() == "coexec"
    assert closed == [True]
