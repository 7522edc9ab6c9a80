"""What an operator says about input stages: for all models by flags, for one in its ``config.pbtxt``."""

from __future__ import annotations

from dataclasses import dataclass

from polymux.serving.errors import ModelLoadError
from polymux.serving.model_config_pb2 import ModelConfig

__all__ = ["STAGE_PARAMETERS", "StageOptions", "StageSettings", "stage_settings"]

STAGE_PARAMETERS = ("input_stage", "share_input")
"""Keys of ``parameters`` in ``config.pbtxt``."""


@dataclass(frozen=True, slots=True)
class StageOptions:
    """For all models of a front end.

    Attributes
    ----------
    threads : int or None
        Threads for input stages; None: half of the cores.
    share : bool
        Whether models share results where their configuration does not say.
    """

    threads: int | None = None
    share: bool = False


@dataclass(frozen=True, slots=True)
class StageSettings:
    """For one model.

    Attributes
    ----------
    text : str
        The stage, as `polymux.inputs.make_stage` takes it.
    share : bool
        Whether its results are shared with other requests of the same stage and bytes.
    """

    text: str
    share: bool


def stage_settings(config: ModelConfig, options: StageOptions) -> StageSettings | None:
    """Read a model's configuration; None when it has no input stage.

    Raises
    ------
    ModelLoadError
        For an empty stage, a ``share_input`` that is neither ``true`` nor ``false``, or one without a stage.
    """
    share = options.share
    if "share_input" in config.parameters:
        text = config.parameters["share_input"].string_value
        if text not in ("true", "false"):
            raise ModelLoadError(f"parameter 'share_input' in config.pbtxt is {text!r}; give true or false")
        share = text == "true"
    if "input_stage" not in config.parameters:
        if "share_input" in config.parameters:
            raise ModelLoadError(
                "parameter 'share_input' in config.pbtxt: there is no input stage to share; name it, such as"
                ' parameters { key: "input_stage" value { string_value: "image" } }'
            )
        return None
    text = config.parameters["input_stage"].string_value
    if not text:
        raise ModelLoadError(
            "parameter 'input_stage' in config.pbtxt is empty; give a stage, such as image,normalise=imagenet"
        )
    return StageSettings(text, share)
