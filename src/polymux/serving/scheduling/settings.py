"""What the operator wants of each model: deadline, priority, weight; from flags and from ``config.pbtxt``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from polymux.core.errors import InvalidRequest
from polymux.serving.errors import ModelLoadError
from polymux.serving.model_config_pb2 import ModelConfig

__all__ = ["DEFAULT_SLO_MS", "Choice", "ModelSettings", "SchedulingOptions", "parse_choice", "settings_of"]

DEFAULT_SLO_MS = 1000.0
"""Deadline of a model for which nobody gives one."""

MAX_WAITING = 4096
"""Requests of a model that may wait, where ``max_queue_size`` does not say; more are refused at once."""

_MS_NS = 1_000_000
_MAX_MS = 86_400_000.0


@dataclass(frozen=True, slots=True)
class Choice:
    """One value given on the command line: for a model, or for all of which nothing else is said.

    Attributes
    ----------
    model : str or None
        None: all models.
    value : float
    """

    model: str | None
    value: float


@dataclass(frozen=True, slots=True)
class SchedulingOptions:
    """How requests are scheduled.

    Attributes
    ----------
    policy : str
        ``NAME`` or ``NAME=OPTION`` of a serving policy.
    profiles : pathlib.Path
        The profile store; need not exist.
    slo_ms, priority, weight : sequence of Choice
        From flags; those for one model win over its ``config.pbtxt``, those for all lose against it.
    """

    policy: str
    profiles: Path
    slo_ms: Sequence[Choice] = ()
    priority: Sequence[Choice] = ()
    weight: Sequence[Choice] = ()

    def check_models(self, known: Sequence[str]) -> None:
        """Refuse flags for models that nobody serves.

        Raises
        ------
        InvalidRequest
            With their names, and those of the models that there are.
        """
        named = [choice.model for choice in (*self.slo_ms, *self.priority, *self.weight)]
        unknown = sorted({model for model in named if model is not None and model not in known})
        if unknown:
            raise InvalidRequest(
                f"--slo-ms, --priority or --weight is for {', '.join(unknown)}, which is not in the repository; its"
                f" models are {', '.join(known) or 'none'}"
            )


@dataclass(frozen=True, slots=True)
class ModelSettings:
    """What a model gets.

    Attributes
    ----------
    slo_ns : int
        Time from a request's arrival within which it is to be answered.
    priority : int
        Larger is served first.
    weight : int
        Part of the device time when there is not enough; 100 is normal.
    max_batch : int
        Most items of one batch; 1 for models without a batch dimension.
    max_waiting : int
        Requests that may wait at a time.
    """

    slo_ns: int
    priority: int = 0
    weight: int = 100
    max_batch: int = 1
    max_waiting: int = MAX_WAITING


def settings_of(name: str, config: ModelConfig, options: SchedulingOptions) -> ModelSettings:
    """Put together what is said about a model.

    Parameters
    ----------
    name : str
        The model, without its version.
    config : ModelConfig
        Its configuration.
    options : SchedulingOptions
        The flags.

    Raises
    ------
    ModelLoadError
        For a parameter that is no number, or out of range; the message names it.
    """
    slo_ms = _value(name, config, options.slo_ms, "slo_ms", DEFAULT_SLO_MS)
    if not 0 < slo_ms <= _MAX_MS:
        raise ModelLoadError(f"slo_ms is {slo_ms:g}; give milliseconds, more than 0 and at most {_MAX_MS:g}")
    priority = _whole(name, config, options.priority, "priority", 0, -1000, 1000)
    weight = _whole(name, config, options.weight, "weight", 100, 1, 10_000)
    return ModelSettings(
        round(slo_ms * _MS_NS),
        priority,
        weight,
        max(1, config.max_batch_size),
        config.dynamic_batching.default_queue_policy.max_queue_size or MAX_WAITING,
    )


def parse_choice(text: str) -> Choice:
    """Read ``VALUE`` or ``MODEL=VALUE``.

    Raises
    ------
    InvalidRequest
        If the value is no number.
    """
    model, equals, value = text.rpartition("=")
    try:
        number = float(value)
    except ValueError:
        raise InvalidRequest(f"{text!r}: {value!r} is no number; write VALUE or MODEL=VALUE") from None
    if equals and not model:
        raise InvalidRequest(f"{text!r}: no model before the '='; write VALUE or MODEL=VALUE")
    return Choice(model or None, number)


def _whole(
    name: str, config: ModelConfig, choices: Sequence[Choice], key: str, default: int, least: int, most: int
) -> int:
    value = _value(name, config, choices, key, default)
    if value != int(value) or not least <= value <= most:
        raise ModelLoadError(f"{key} is {value:g}; give a whole number from {least} to {most}")
    return int(value)


def _value(name: str, config: ModelConfig, choices: Sequence[Choice], key: str, default: float) -> float:
    given: Mapping[str | None, float] = {choice.model: choice.value for choice in choices}
    if name in given:
        return given[name]
    if key in config.parameters:
        text = config.parameters[key].string_value
        try:
            value = float(text)
        except ValueError:
            value = float("nan")
        if value != value or value in (float("inf"), float("-inf")):
            raise ModelLoadError(
                f"parameter {key!r} in config.pbtxt is {text!r}; give a number, such as "
                f'parameters {{ key: "{key}" value {{ string_value: "{default:g}" }} }}'
            )
        return value
    return given.get(None, default)
