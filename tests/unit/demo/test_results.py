"""Comparing, counting, and saying what came out."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from polymux.demo.failure import DemoFailed
from polymux.demo.http_models import CheckedModels, LostAnswer
from polymux.demo.inference import Reference, Tensors, difference
from polymux.demo.message import Answer, Answers, Finding, Message, Teller
from polymux.demo.models import MODELS, link_repository
from polymux.demo.operator import Migration
from polymux.demo.outcome import Outcome
from polymux.demo.packages import files_of, package_file
from polymux.demo.tally import Tally

BYTES = {"bytes": np.zeros((1, 2048), np.int32)}


class Wire:
    """Stands for the connection to the process that counts."""

    def __init__(self) -> None:
        self.messages: list[Message] = []

    def send(self, message: Message) -> None:
        self.messages.append(message)


def outcome(tally: Tally | None = None, **changes: object) -> Outcome:
    if tally is None:
        tally = Tally(["speech"])
        tally.take(Answers("voices", ("speech",), (Answer("speech", 0, 1_000_000),), ""))
    fields = {
        "load_s": 2.0,
        "tally": tally,
        "steps": 10,
        "longest_batch_ms": 1.0,
        "migrations": (Migration(0, 1, "cpu:0", "opencl:0"),),
        "copied_nbytes": 0,
        "devices": ("cpu:0", "opencl:0"),
        "findings": (Finding("what", "result", True), Finding("who knows", "something", None)),
    }
    return Outcome(**(fields | changes))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        ({"y": np.ones(3, np.float32)}, ""),
        ({"y": np.ones(3, np.float32) + np.float32(1e-4)}, ""),
        ({"y": np.array([1, 1, 1.01], np.float32)}, "differs by 0.01"),
        ({"y": np.array([1, 1, np.nan], np.float32)}, "differs by nan"),
        ({"y": np.ones((1, 3), np.float32)}, r"float32\[1, 3\] instead of float32\[3\]"),
        ({"y": np.ones(3, np.float64)}, "float64"),
        ({"z": np.ones(3, np.float32)}, r"outputs \['z'\]"),
        ({}, "outputs"),
    ],
)
def test_an_answer_is_wrong_when_its_names_shape_type_or_values_are(answer: Tensors, problem: str) -> None:
    found = difference(answer, {"y": np.ones(3, np.float32)})
    assert re.search(problem, found)
    assert bool(found) == bool(problem)


def test_the_reference_computes_equal_inputs_once() -> None:
    reference = Reference(("name_file_type",))
    assert reference("name_file_type", BYTES) is reference("name_file_type", {"bytes": BYTES["bytes"].copy()})
    assert reference("name_file_type", {"bytes": BYTES["bytes"] + 1}) is not reference(
        "name_file_type", BYTES
    )


def test_a_wrong_answer_and_a_lost_one_are_both_told() -> None:
    reference = Reference(("name_file_type",))
    right = reference("name_file_type", BYTES)
    answers: list[Tensors | Exception] = [
        right,
        {"target_label": right["target_label"][:, ::-1]},
        LostAnswer("the server has gone home"),
    ]

    def models(model: str, inputs: Tensors) -> Tensors:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    wire = Wire()
    teller = Teller("files", wire)  # type: ignore[arg-type]
    checked = CheckedModels(models, reference, teller)  # type: ignore[arg-type]
    checked("name_file_type", BYTES)
    checked("name_file_type", BYTES)
    with pytest.raises(LostAnswer):
        checked("name_file_type", BYTES)
    teller.tell(Answers("files", (), (), ""))
    tally = Tally(["name_file_type"])
    for message in wire.messages:
        assert isinstance(message, Answers)
        tally.take(message)
    counted = tally.models["name_file_type"]
    assert (counted.sent, counted.answered, counted.wrong, counted.failed, counted.lost) == (3, 2, 1, 1, 1)
    assert "the server has gone home" in tally.problems[1]


def test_percentiles_and_throughput_are_of_the_answers() -> None:
    tally = Tally(["speech"])
    answers = tuple(Answer("speech", 0, ms * 1_000_000) for ms in range(1, 101))
    tally.take(Answers("voices", ("speech",) * 100, answers, "note"))
    assert tally.models["speech"].percentile_ms(50) == pytest.approx(50.5)
    assert tally.throughput("speech", 4.0) == 25.0
    assert tally.notes == {"voices": "note"}


def test_a_good_run_says_that_nothing_was_lost() -> None:
    good = outcome()
    assert good.problems == []
    assert good.verdict.startswith("Nothing lost: 1 requests sent = 1 answered = 1 right")


def lost() -> Tally:
    tally = Tally(["speech"])
    tally.take(Answers("voices", ("speech", "speech"), (Answer("speech", 0, 1),), ""))
    return tally


@pytest.mark.parametrize(
    ("bad", "told"),
    [
        (outcome(lost()), "speech: 1 of 2 requests lost, 0 answers wrong"),
        (outcome(Tally(["speech"])), "no request was sent to speech"),
        (outcome(findings=(Finding("heat", "3 cells differ", False),)), "heat: 3 cells differ"),
        (outcome(migrations=()), "the numerical application was never migrated"),
        (outcome(migrations=(Migration(0, 1, "a", "b", "no"),)), "migration from a to b refused: no"),
    ],
)
def test_a_bad_run_says_what_went_wrong(bad: Outcome, told: str) -> None:
    assert told in bad.problems
    assert bad.verdict.startswith("Something went wrong")


def test_a_machine_with_one_device_is_no_failure() -> None:
    assert outcome(migrations=(), devices=("cpu:0",)).problems == []


def test_all_models_are_found_in_their_packages_and_linked(tmp_path: Path) -> None:
    folder = tmp_path / "models"
    link_repository(folder)
    assert sorted(path.parts[-3] for path in folder.glob("*/1/model.onnx")) == sorted(MODELS)
    assert all(path.stat().st_size > 100_000 for path in folder.glob("*/1/model.onnx"))


def test_a_package_that_is_not_there_is_named_with_the_remedy() -> None:
    with pytest.raises(DemoFailed, match="pip install --no-deps no-such-package"):
        package_file("no-such-package", "model.onnx")
    with pytest.raises(DemoFailed, match=r"has no file no/such\.file; install the version that"):
        package_file("magika", "no/such.file")
    assert files_of("no-such-package", ".png") == []
