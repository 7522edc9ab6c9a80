"""Reading ``config.pbtxt``, and showing a model's configuration as JSON."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from google.protobuf import text_format
from google.protobuf.message import Message

from polymux.serving.errors import ModelLoadError
from polymux.serving.model_config_pb2 import ModelConfig

__all__ = ["read_config", "to_json"]

#: A configuration is written by hand; anything larger is another file by mistake.
_MAX_NBYTES = 1 << 20


def read_config(path: Path) -> ModelConfig:
    """Read a model configuration in protobuf's text format.

    Raises
    ------
    ModelLoadError
        When the file cannot be read, has a syntax error, or has a field that Polymux does not know; the message has
        the line and column.
    """
    try:
        if path.stat().st_size > _MAX_NBYTES:
            raise ModelLoadError(
                f"{path.name} has more than {_MAX_NBYTES} bytes and is no model configuration"
            )
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ModelLoadError(f"{path.name} cannot be read: {error}") from error
    config = ModelConfig()
    try:
        text_format.Parse(text, config)
    except text_format.ParseError as error:
        raise ModelLoadError(f"{path.name}:{error}{_remedy(str(error))}") from error
    return config


def _remedy(message: str) -> str:
    if "has no field named" in message:
        return " This version of Polymux does not support the field: remove it, or check its spelling."
    return ""


def to_json(message: Message) -> dict[str, Any]:
    """Return a configuration as the protocol's JSON object.

    Every plain field is there with its default, as clients index into it without looking; 64-bit integers are JSON
    numbers, unlike in protobuf's own JSON mapping.
    """
    result: dict[str, Any] = {}
    for field in message.DESCRIPTOR.fields:
        if field.has_presence and not message.HasField(field.name):
            continue
        value = getattr(message, field.name)
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            result[field.name] = {
                str(key): _plain(field.message_type.fields_by_name["value"], value[key]) for key in value
            }
        elif field.is_repeated:
            result[field.name] = [_plain(field, item) for item in value]
        else:
            result[field.name] = _plain(field, value)
    return result


def _plain(field: Any, value: Any) -> Any:
    if field.message_type is not None:
        return to_json(value)
    if field.enum_type is not None:
        return field.enum_type.values_by_number[value].name
    return value
