"""A job gives way, moves, loses its server or its lease; its loop computes the same bits."""

from __future__ import annotations

import signal
import threading
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed: make torch")

import torch
from torch import nn

import polymux.training
from polymux.core.errors import InvalidRequest, LeaseLost, ServerGone
from polymux.training import placement
from polymux.training.checkpoint import read_checkpoint
from tests.unit.training.loops import (
    Fake,
    Loop,
    Mixed,
    Sequences,
    assert_same_bits,
    job_of,
    no_server,
)


@pytest.mark.parametrize("kind", [Mixed, Sequences])
def test_a_job_that_gives_way_at_every_boundary_computes_the_same_bits_as_the_plain_loop(
    kind: type[nn.Module],
) -> None:
    plain = Loop(kind).plain(2)
    lease = Fake()
    lease.on_check = lambda: None  # whoever asks may go on, and is asked to give way again
    loop = Loop(kind)
    with loop.job(lambda: lease) as job:
        loop.under(job, 2)
    assert lease.asked > 100
    assert plain.losses == loop.losses
    assert_same_bits(plain, loop)


def test_a_job_asks_once_and_then_goes_on_until_somebody_wants_the_device() -> None:
    lease, loop = Fake(), Loop()
    with loop.job(lambda: lease) as job:
        loop.under(job, 1)
        assert lease.asked == 1
        lease.gate[0] = 1
        loop.learn(next(iter(loop.loader)))
        assert lease.asked == 2
        assert job.device == "cpu:0"
    assert lease.closed == 1


def test_a_job_of_the_grain_of_steps_asks_between_steps_only() -> None:
    lease, loop = Fake(), Loop()
    lease.on_check = lambda: None
    with loop.job(lambda: lease, grain="step") as job:
        loop.under(job, 1)
        assert lease.asked == 2 * len(loop.loader)  # before the optimizer and after the step


def test_a_job_that_was_idle_asks_again() -> None:
    lease, loop = Fake(), Loop()
    with loop.job(lambda: lease) as job:
        loop.under(job, 1)
        job.idle()
        assert (lease.idles, lease.asked) == (1, 1)
        lease.gate[0] = 1
        loop.evaluate()
        assert lease.asked == 2


def test_a_job_moves_to_the_cores_of_its_device_and_back_and_keeps_its_threads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before, threads = placement.current_cores(), torch.get_num_threads()
    moves: list[tuple[int, ...]] = []
    monkeypatch.setattr(placement, "move_to_cores", moves.append)
    lease, loop = Fake(), Loop()
    elsewhere = iter([(7,), (7,), (8, 9)])

    def grant() -> None:
        lease.cores, lease.threads = next(elsewhere, (8, 9)), threads + 3

    lease.on_check = grant
    with loop.job(lambda: lease) as job:
        loop.under(job, 1)
        assert torch.get_num_threads() == threads
    assert moves == [(7,), (8, 9), before]


def test_a_job_that_may_change_its_threads_does_so_between_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    before = torch.get_num_threads()
    lease, loop = Fake(), Loop()
    lease.threads = before + 1
    seen = []
    with loop.job(lambda: lease, same_threads=False) as job:
        for _ in job.epochs(1):
            for batch in job.batches(loop.loader):
                seen.append(torch.get_num_threads())
                loop.learn(batch)
    assert seen == [before, before + 1, before + 1]
    assert torch.get_num_threads() == before


def test_steps_are_counted_by_the_optimizer_when_the_loop_does_not_tell_them() -> None:
    loop = Loop()
    with loop.job(Fake) as job:
        for batch in loop.loader:
            loop.learn(batch)
        assert job.steps == 3
        assert job.boundary_ns > 0


def test_steps_that_are_told_are_counted_once() -> None:
    loop = Loop()
    with loop.job(Fake) as job:
        for batch in loop.loader:
            loop.learn(batch)
            job.step()
        assert job.steps == 3
    with loop.job(Fake) as job:
        for _ in job.epochs(1):
            for batch in job.batches(loop.loader):
                loop.learn(batch)
                job.step()
        assert job.steps == 3


def test_a_job_reports_how_long_steps_and_ways_between_boundaries_are() -> None:
    lease, loop = Fake(), Loop()
    with loop.job(lambda: lease) as job:
        loop.under(job, 1)
    run_ns, boundary_ns = lease.reports[0]
    assert run_ns >= boundary_ns > 0


def test_a_server_that_goes_away_in_the_middle_of_a_step_lets_the_step_end_and_is_waited_for(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = Loop().plain(1)
    first, second = Fake(), Fake()
    answers = iter([first, None, None, second])

    def open_lease() -> Fake:
        return next(answers) or no_server()

    def vanish() -> None:
        first.on_check = gone
        first.gate[0] = 1

    def gone() -> None:
        raise ServerGone("the server is gone")

    monkeypatch.setattr("polymux.training.lease_keeper._LOOK_S", 0.0)
    monkeypatch.setattr("polymux.training.lease_keeper._FIRST_RETRY_S", 0.0)
    first.on_check = vanish
    loop = Loop()
    with loop.job(open_lease) as job:
        loop.under(job, 1)
    assert first.closed == 1
    assert second.asked == 1
    said = [record.message for record in caplog.records]
    assert "step 1 is done" in said[0]
    assert "waiting for the server to come back" in said[0]
    assert "going on" in said[1]
    assert plain.losses == loop.losses
    assert_same_bits(plain, loop)


def test_a_job_that_may_goes_on_alone_and_shares_again_when_a_server_is_there(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("polymux.training.lease_keeper._FIRST_RETRY_S", 0.0)
    lease, loop = Fake(), Loop()
    answers = iter([None, None, lease])
    with loop.job(lambda: next(answers) or no_server(), alone=True) as job:
        assert job.device is None
        loop.under(job, 1)
    assert lease.asked == 1
    said = [record.message for record in caplog.records]
    assert "going on alone" in said[0]
    assert "shared from now on" in said[1]
    assert len(said) == 2


def test_a_job_without_a_server_that_is_alone_computes_the_same_bits() -> None:
    plain, loop = Loop().plain(2), Loop()
    with loop.job(no_server, alone=True) as job:
        loop.under(job, 2)
    assert plain.losses == loop.losses
    assert_same_bits(plain, loop)


def test_a_job_whose_lease_is_taken_away_writes_its_checkpoint_and_gets_the_error(tmp_path: Path) -> None:
    lease, loop = Fake(), Loop()
    path = tmp_path / "run.pt"

    def refuse() -> None:
        if lease.asked > 30:
            raise LeaseLost("it did not reach a boundary within 2 s")

    lease.on_check = refuse
    with pytest.raises(LeaseLost, match="did not reach a boundary"):
        with loop.job(lambda: lease, checkpoint=path) as job:
            loop.under(job, 2)
    found = read_checkpoint(path)
    assert found is not None
    assert found["steps"] == len(loop.losses) > 0
    loop.evaluate()  # the hooks are gone: nobody asks any more
    assert lease.asked == 31


def test_only_one_job_runs_in_a_process() -> None:
    one, other = Loop(), Loop()
    with one.job(Fake), pytest.raises(InvalidRequest, match="another training job runs"):
        with other.job(Fake):
            pass
    with other.job(Fake):
        pass


def test_a_job_that_the_server_refuses_leaves_nothing_behind() -> None:
    def refuse() -> Fake:
        raise InvalidRequest("it needs 9 GiB, cpu:0 has 1 GiB")

    loop = Loop()
    with pytest.raises(InvalidRequest, match="9 GiB"):
        with loop.job(refuse):
            pass
    with loop.job(Fake):
        pass


def test_several_optimizers_change_the_model_within_one_step(tmp_path: Path) -> None:
    loop = Loop()
    other = torch.optim.SGD(loop.model.last.parameters(), lr=0.1)  # type: ignore[union-attr]
    with job_of(loop.model, [loop.optimizer, other], Fake, checkpoint=tmp_path / "run.pt") as job:
        for batch in loop.loader:
            loop.learn(batch)
            assert job._state.changed
            other.step()
            job.step()
        assert job.steps == 3


def test_outside_the_main_thread_a_job_says_that_sigterm_is_not_for_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    before = signal.getsignal(signal.SIGTERM)

    def work() -> None:
        loop = Loop()
        with loop.job(Fake, checkpoint=tmp_path / "run.pt") as job:
            loop.under(job, 1)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join(60)
    assert "not in the main thread" in caplog.text
    assert (tmp_path / "run.pt").exists()
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"model": 3}, "model=3"),
        ({"optimizer": [3]}, "optimizer=3"),
        ({"priority": 1.5}, "priority=1.5"),
        ({"weight": 0}, "weight=0"),
        ({"weight": True}, "weight=True"),
        ({"weight": 101}, "weight=101"),
        ({"grain": "layer"}, "grain='layer'"),
        ({"memory_nbytes": 5, "peak_nbytes": 4}, "peak_nbytes=4"),
        ({"checkpoint_every_s": 3.0}, "needs checkpoint"),
        ({"checkpoint_every_s": 0.0, "checkpoint": "run.pt"}, "checkpoint_every_s=0.0"),
        ({"state": {"scheduler": 3}}, "state['scheduler']=3"),
    ],
)
def test_a_value_that_cannot_be_is_named(options: dict[str, object], words: str) -> None:
    given: dict[str, object] = {"model": nn.Linear(1, 1), **options}
    with pytest.raises(InvalidRequest) as raised:
        polymux.training.job(**given)  # type: ignore[arg-type]
    assert words in str(raised.value)


def test_what_stays_in_memory_is_weights_gradients_and_the_state_of_the_optimizer() -> None:
    from polymux.training.options import resident_nbytes

    model = nn.Linear(10, 10, bias=False)
    assert resident_nbytes(model, [torch.optim.SGD(model.parameters())]) == 800
    assert resident_nbytes(model, [torch.optim.SGD(model.parameters(), momentum=0.9)]) == 1200
    optimizer = torch.optim.Adam(model.parameters())
    estimated = resident_nbytes(model, [optimizer])
    model(torch.ones(10)).sum().backward()
    optimizer.step()
    assert estimated == 1600
    assert resident_nbytes(model, [optimizer]) == 1600 + 4  # and the count of its steps
