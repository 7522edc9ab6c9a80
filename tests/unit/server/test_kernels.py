"""Kernels by name and number, everybody's and one session's."""

from __future__ import annotations

import pytest

from polymux.core.errors import InvalidRequest
from polymux.core.implementation import NativeFunction, PythonFunction
from polymux.core.kernel_spec import BufferParam, KernelSpec
from polymux.server.kernels import (
    FIRST_ID,
    MAX_PRIVATE,
    Kernel,
    KernelDirectory,
    Registration,
    SessionKernels,
)


def spec(name: str, *inputs: str) -> KernelSpec:
    return KernelSpec(name, tuple(BufferParam(item) for item in inputs))


def directory(*names: str) -> KernelDirectory:
    made = KernelDirectory()
    for name in names:
        made.add(Kernel(made.new_id(), spec(name), {"cpu": NativeFunction("x.so", name)}))
    return made


def test_numbers_begin_after_the_reserved_ones_and_are_never_reused() -> None:
    shared = directory("a", "b")
    assert [kernel.id for kernel in shared.all()] == [FIRST_ID, FIRST_ID + 1]
    session = SessionKernels(shared)
    first = session.register(spec("mine"), {}, {"cpu": Registration(spec("mine"))})
    session.remove("mine")
    second = session.register(spec("mine"), {}, {"cpu": Registration(spec("mine"))})
    assert first.id != second.id


def test_a_session_sees_its_own_kernels_and_everybodys_but_no_other_sessions() -> None:
    shared = directory("a")
    one, two = SessionKernels(shared), SessionKernels(shared)
    mine = one.register(spec("mine"), {}, {"cpu": Registration(spec("mine"))})
    assert one.by_name("mine") is one.by_id(mine.id) is mine
    assert two.by_name("mine") is two.by_id(mine.id) is None
    assert two.by_name("a") is one.by_name("a") is not None


def test_a_name_of_its_own_hides_everybodys_for_that_session_only() -> None:
    shared = directory("a")
    one, two = SessionKernels(shared), SessionKernels(shared)
    own = one.register(spec("a"), {}, {"cpu": Registration(spec("a"))})
    assert one.by_name("a") is own
    assert two.by_name("a") is shared.by_name("a")
    one.remove("a")
    assert one.by_name("a") is shared.by_name("a")


def test_registering_again_replaces_one_implementation_and_keeps_number_and_others() -> None:
    session = SessionKernels(directory())
    first = session.register(spec("k"), {"cpu": PythonFunction(print)}, {})
    second = session.register(spec("k"), {}, {"opencl": Registration(spec("k"))})
    third = session.register(spec("k"), {}, {"cpu": Registration(spec("k"))})
    assert first.id == second.id == third.id
    assert second.apis == third.apis == {"cpu", "opencl"}
    assert (list(third.implementations), sorted(third.isolated)) == ([], ["cpu", "opencl"])
    assert session.by_id(first.id) is third
    assert third.serial != first.serial


def test_registering_other_parameters_under_a_name_is_refused() -> None:
    session = SessionKernels(directory())
    session.register(spec("k", "x"), {}, {"cpu": Registration(spec("k", "x"))})
    with pytest.raises(InvalidRequest, match="other parameters"):
        session.register(spec("k", "x", "y"), {}, {"opencl": Registration(spec("k", "x", "y"))})


def test_every_change_is_a_new_version() -> None:
    session = SessionKernels(directory())
    versions = [session.version]
    session.register(spec("k"), {}, {"cpu": Registration(spec("k"))})
    versions.append(session.version)
    session.remove("k")
    versions.append(session.version)
    assert len(set(versions)) == 3


def test_a_session_cannot_register_without_end() -> None:
    session = SessionKernels(directory())
    for number in range(MAX_PRIVATE):
        session.register(spec(f"k{number}"), {}, {"cpu": Registration(spec(f"k{number}"))})
    with pytest.raises(InvalidRequest, match="unregister one"):
        session.register(spec("more"), {}, {"cpu": Registration(spec("more"))})


def test_unregistering_what_is_not_ones_own_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="'a'; its own are: none"):
        SessionKernels(directory("a")).remove("a")


def test_the_api_is_the_first_of_the_device_that_has_an_implementation() -> None:
    kernel = Kernel(20, spec("k"), {"onnx": PythonFunction(print)}, {"cpu": Registration(spec("k"))})
    assert kernel.api_for(("cpu", "onnx")) == "cpu"
    assert kernel.api_for(("onnx",)) == "onnx"
    assert kernel.api_for(("opencl",)) is None


def test_names_that_were_perhaps_meant_are_found() -> None:
    session = SessionKernels(directory("saxpy", "gemm", "gemv"))
    assert session.names_like("sax") == ["saxpy"]
    assert session.names_like("gem") == ["gemm", "gemv"]
    assert session.names_like("zzz") == []
