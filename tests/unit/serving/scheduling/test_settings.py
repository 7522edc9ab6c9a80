"""What a model is due, from flags and its configuration."""

from __future__ import annotations

from pathlib import Path

import pytest
from google.protobuf import text_format

from polymux.core.errors import InvalidRequest
from polymux.serving.errors import ModelLoadError
from polymux.serving.model_config_pb2 import ModelConfig
from polymux.serving.scheduling.settings import (
    MAX_WAITING,
    Choice,
    SchedulingOptions,
    parse_choice,
    settings_of,
)


def config(text: str = "", **parameters: str) -> ModelConfig:
    made: ModelConfig = text_format.Parse(text, ModelConfig())
    for key, value in parameters.items():
        made.parameters[key].string_value = value
    return made


def options(*flags: tuple[str, str]) -> SchedulingOptions:
    found: dict[str, list[Choice]] = {"slo_ms": [], "priority": [], "weight": []}
    for name, text in flags:
        found[name].append(parse_choice(text))
    return SchedulingOptions("unscheduled", Path("none"), **found)


def test_without_a_word_a_model_has_a_second_and_the_normal_weight() -> None:
    found = settings_of("m", config(), options())
    assert (found.slo_ns, found.priority, found.weight) == (1_000_000_000, 0, 100)
    assert (found.max_batch, found.max_waiting) == (1, MAX_WAITING)


def test_the_flag_for_a_model_wins_over_its_file_and_the_flag_for_all_loses() -> None:
    flags = options(("slo_ms", "10"), ("slo_ms", "m=2.5"), ("weight", "200"), ("priority", "3"))
    file = config(slo_ms="70", weight="50")
    assert settings_of("m", file, flags).slo_ns == 2_500_000
    other = settings_of("other", file, flags)
    assert (other.slo_ns, other.weight, other.priority) == (70_000_000, 50, 3)
    assert settings_of("third", config(), flags).weight == 200


def test_batch_and_queue_come_from_the_file() -> None:
    text = "max_batch_size: 16 dynamic_batching { default_queue_policy { max_queue_size: 9 } }"
    found = settings_of("m", config(text), options())
    assert (found.max_batch, found.max_waiting) == (16, 9)


@pytest.mark.parametrize(
    ("key", "value", "says"),
    [
        ("slo_ms", "soon", "parameter 'slo_ms' in config.pbtxt is 'soon'; give a number"),
        ("slo_ms", "nan", "is 'nan'; give a number"),
        ("slo_ms", "0", "slo_ms is 0; give milliseconds, more than 0"),
        ("slo_ms", "1e12", "slo_ms is 1e\\+12"),
        ("weight", "0", "weight is 0; give a whole number from 1 to 10000"),
        ("weight", "1.5", "weight is 1.5; give a whole number"),
        ("priority", "inf", "is 'inf'; give a number"),
        ("priority", "9999", "priority is 9999; give a whole number from -1000 to 1000"),
    ],
)
def test_a_wrong_value_is_told_with_its_key_and_the_remedy(key: str, value: str, says: str) -> None:
    with pytest.raises(ModelLoadError, match=says):
        settings_of("m", config(**{key: value}), options())


@pytest.mark.parametrize("text", ["", "m=", "=5", "m=fast", "5 ms"])
def test_a_flag_that_is_no_number_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest, match="VALUE or MODEL=VALUE"):
        parse_choice(text)


def test_a_flag_for_a_model_may_have_an_equals_sign_in_its_name() -> None:
    assert parse_choice("a=b=7") == Choice("a=b", 7.0)


def test_a_flag_for_a_model_that_nobody_serves_is_refused() -> None:
    flags = options(("slo_ms", "a=1"), ("weight", "b=2"), ("priority", "3"))
    flags.check_models(["a", "b"])
    with pytest.raises(InvalidRequest, match="is for b, which is not in the repository; its models are a, c"):
        flags.check_models(["a", "c"])
