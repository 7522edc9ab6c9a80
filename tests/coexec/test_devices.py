"""Several devices at once: memories of their own, failures in the middle, several calls, what is learned."""

from __future__ import annotations

import threading
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from polymux import matmul
from polymux.client import Client
from polymux.coexec import Session, error_bound
from polymux.core.errors import InvalidRequest, TaskFailed
from polymux.perfmodel.energy import PowerModel
from polymux.profiles import ProfileStore
from tests.coexec.conftest import SIMULATED, connect, host_devices

FAULTS = """
[faults]
kernel = "coexec_gemm"
launches_after = {after}
"""


def random(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


def check(got: Any, a: Any, b: Any, precision: str = "fp32") -> None:
    exact = a.astype(np.float64) @ b.astype(np.float64)
    bound = error_bound(precision, a.shape[1]) * (np.abs(a).astype(np.float64) @ np.abs(b).astype(np.float64))
    assert (np.abs(got - exact) <= bound).all()


@pytest.mark.parametrize("unit", ["cpu:0", "cpu:1", "simulated:0"])
def test_each_device_alone(session: Session, unit: str) -> None:
    a, b = random(150, 70), random(70, 90)
    check(matmul(a, b, devices=[unit], session=session), a, b)
    assert session.last is not None
    assert {run.unit.partition("/")[0] for run in session.last.runs} == {unit}


def test_a_device_with_memory_of_its_own_beside_one_on_the_hosts(session: Session) -> None:
    a, b = random(600, 400), random(400, 500)
    for _ in range(6):
        check(matmul(a, b, devices=["cpu:0", "simulated:0"], session=session), a, b)


def test_opencl_on_the_hosts_memory_takes_part(session: Session) -> None:
    units = [unit.id for unit in session.units(_operation()) if unit.place.device == "opencl:0"]
    if not units:
        pytest.skip("there is no OpenCL driver")
    a, b = random(300, 200), random(200, 250)
    check(matmul(a, b, devices=units, session=session), a, b)
    status = session.client.status()
    opencl = next(device for device in status["devices"] if device["id"] == "opencl:0")
    assert opencl["memory"] == "host"


@pytest.mark.parametrize("after", [0, 4, 9])
def test_a_device_that_fails_in_the_middle_costs_nothing_but_time(tmp_path: Path, after: int) -> None:
    file = tmp_path / "faulty.toml"
    file.write_text(SIMULATED + FAULTS.format(after=after))
    a, b = random(800, 200), random(200, 300)
    with connect(*host_devices()[:1], f"simulated={file}") as client, Session(client, store=False) as session:
        for _ in range(4):
            check(matmul(a, b, session=session), a, b)


def test_a_device_that_had_everything_and_fails_is_replaced(tmp_path: Path) -> None:
    file = tmp_path / "faulty.toml"
    file.write_text(SIMULATED + FAULTS.format(after=12))
    power = {"cpu:0": PowerModel(0, 1e4), "simulated:0": PowerModel(0, 0.1)}
    a, b = random(300, 100), random(100, 120)
    with connect(*host_devices()[:1], f"simulated={file}") as client:
        with Session(client, store=False, power=power) as session:
            for _ in range(8):  # all of it on the thrifty device, until that fails
                check(matmul(a, b, objective="energy", session=session), a, b)
            assert session.last is not None
            assert {run.unit.partition("/")[0] for run in session.last.runs} == {"cpu:0"}


def test_when_every_device_fails_the_failure_is_told(tmp_path: Path) -> None:
    file = tmp_path / "faulty.toml"
    file.write_text(SIMULATED + FAULTS.format(after=0))
    with connect(f"simulated={file}") as client, Session(client, store=False) as session:
        with pytest.raises(TaskFailed):
            matmul(random(30, 30), random(30, 30), session=session)


def test_calls_of_several_threads_at_once(session: Session) -> None:
    a, b = random(300, 200), random(200, 260)
    failures: list[BaseException] = []

    def call(seed: int) -> None:
        try:
            mine = random(300, 200, seed=seed)
            for _ in range(4):
                check(matmul(mine, b, session=session), mine, b)
        except BaseException as failure:
            failures.append(failure)

    threads = [threading.Thread(target=call, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not failures
    check(matmul(a, b, session=session), a, b)


def test_what_is_learned_is_kept_and_found_again(client: Client, tmp_path: Path) -> None:
    store = tmp_path / "profiles.db"
    a, b = random(200, 150), random(150, 100)
    with Session(client, store=store) as session:
        matmul(a, b, devices=["cpu:0"], session=session)
    with ProfileStore(store) as opened:
        kept = [unit for key in opened.devices() for unit in opened.coexec(key)]
    assert [(unit.kernel, unit.dtype) for unit in kept] == [("coexec_gemm", "f4")]
    with Session(client, store=store) as session:
        units = {unit.id: unit for unit in session.units(_operation())}
        assert units["cpu:0/0/coexec_gemm"].stored is not None
        check(matmul(a, b, session=session), a, b)


def test_a_damaged_store_does_not_matter(client: Client, tmp_path: Path) -> None:
    store = tmp_path / "profiles.db"
    store.write_bytes(b"no store at all" * 100)
    a = random(60, 60)
    with pytest.warns(RuntimeWarning, match="lasts for this session"):
        session = Session(client, store=store)
    with session, warnings.catch_warnings():
        warnings.simplefilter("error")  # it was told once
        check(matmul(a, a, session=session), a, a)
        assert session.last is not None
        assert session.last.trouble
        session.save()
    assert store.read_bytes().startswith(b"no store")


def test_what_could_not_be_written_is_written_the_next_time(client: Client, tmp_path: Path) -> None:
    there = tmp_path / "there"
    there.write_text("a file where a folder is wanted")
    a = random(60, 60)
    with Session(client, store=there / "profiles.db") as session:
        matmul(a, a, devices=["cpu:0"], session=session)
        with pytest.warns(RuntimeWarning, match="lasts for this session"):
            session.save()
        there.unlink()
    with ProfileStore(there / "profiles.db") as opened:
        assert [unit.kernel for key in opened.devices() for unit in opened.coexec(key)] == ["coexec_gemm"]


def test_an_old_session_leaves_a_newer_calibration_as_it_is(client: Client, tmp_path: Path) -> None:
    store = tmp_path / "profiles.db"
    a = random(60, 60)
    with Session(client, store=store) as session:
        matmul(a, a, devices=["cpu:0"], session=session)
    with Session(client, store=store) as session:
        matmul(a, a, devices=["cpu:0"], session=session)
        with ProfileStore(store, write=True) as opened:
            ((key, learned),) = [(key, unit) for key in opened.devices() for unit in opened.coexec(key)]
            assert not learned.is_calibrated
            newer = replace(learned, library="BLAS", measured_at=learned.measured_at + 100, notes=())
            opened.put_coexec(key, newer)
    with ProfileStore(store) as opened:
        (kept,) = opened.coexec(key)
    assert kept.library == "BLAS"
    assert kept.is_calibrated


def test_energy_goes_to_the_thrifty_device(client: Client) -> None:
    power = {"cpu:0": PowerModel(0, 1e4), "cpu:1": PowerModel(0, 0.1), "simulated:0": PowerModel(0, 1e4)}
    a, b = random(200, 200), random(200, 200)
    with Session(client, store=False, power=power | {"opencl:0": PowerModel(0, 1e4)}) as session:
        for _ in range(3):
            check(matmul(a, b, objective="energy", session=session), a, b)
        assert session.last is not None
        assert {run.unit.partition("/")[0] for run in session.last.runs} == {"cpu:1"}
        with pytest.raises(InvalidRequest):
            matmul(a, b, objective={"time": 0, "energy": 0}, session=session)


def test_lower_precision_only_when_it_is_allowed(session: Session) -> None:
    low = [unit.id for unit in session.units(_operation()) if unit.precision == "bf16"]
    a, b = random(256, 256), random(256, 256)
    for _ in range(3):
        matmul(a, b, session=session)
        assert session.last is not None
        assert not {run.unit for run in session.last.runs} & set(low)
    if low:
        check(matmul(a, b, devices=low, precision="bf16", session=session), a, b, "bf16")


def test_the_picture_of_a_call_is_drawn(session: Session, tmp_path: Path) -> None:
    a = random(300, 300)
    matmul(a, a, session=session)
    assert session.last is not None
    session.last.draw(tmp_path / "split.svg")
    assert (
        "predicted" in (tmp_path / "split.svg").read_text() or (tmp_path / "split.svg").stat().st_size > 1000
    )


def _operation() -> Any:
    from polymux.coexec.matrix_product import MATMUL

    return MATMUL
