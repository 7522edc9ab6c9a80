"""The stage ``tokenise``: a text to the token numbers that a language model takes.

The tokenizer is a ``tokenizer.json`` of the library ``tokenizers``, as models are published with.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polymux.core.dtype import DType
from polymux.core.errors import InvalidRequest
from polymux.core.kernel_spec import BufferParam
from polymux.inputs.options import Options
from polymux.inputs.stage import InputStage

__all__ = ["make"]

Array = NDArray[Any]

OPTIONS = ("into", "file", "max_length", "pad_id")
FIELDS = {"input_ids": "ids", "attention_mask": "attention_mask", "token_type_ids": "type_ids"}
"""Input of a model -> attribute of an encoding."""
MAX_LENGTH = 512


class _Tokenise:
    """The kernel: one text in UTF-8 in, its tokens out."""

    def __init__(self, tokenizer: Any, fields: tuple[str, ...], length: int | None, pad_id: int) -> None:
        self._tokenizer = tokenizer
        self._fields = fields
        self._length = length
        self._pad_id = pad_id

    def __call__(self, data: Array, *outputs: Array) -> list[tuple[int, ...]]:
        try:
            text = data.tobytes().decode("utf-8")
        except UnicodeDecodeError as error:
            raise InvalidRequest(f"the text is not UTF-8: {error}; send it in that encoding") from None
        encoding = self._tokenizer.encode(text)
        shapes = []
        for output, field in zip(outputs, self._fields, strict=True):
            tokens = np.array(getattr(encoding, field), output.dtype)
            length = len(tokens) if self._length is None else self._length
            room = output.reshape(-1)
            room[: len(tokens)] = tokens
            room[len(tokens) : length] = self._pad_id if field == "ids" else 0
            shapes.append((*output.shape[:-1], length))
        return shapes


def make(options: Options) -> InputStage:
    """Make the stage; see `polymux.inputs.registry.make_stage`."""
    options.check_known(OPTIONS)
    targets, fields = _targets(options)
    extents = {param.shape[-1] for param in targets if param.shape}
    fixed = {extent for extent in extents if extent is not None}
    if len(fixed) > 1:
        raise options.error(f"the inputs have different lengths: {sorted(fixed)}")
    length = fixed.pop() if fixed else None
    most = options.whole("max_length", length or MAX_LENGTH, 1, length or 1 << 20)
    tokenizer, content = _read(options, most)
    padding = tokenizer.padding or {}
    pad_id = options.whole("pad_id", int(padding.get("pad_id", 0)), 0, (1 << 31) - 1)
    tokenizer.no_padding()
    outputs = tuple(
        BufferParam(param.name, param.dtypes, (*[1] * (len(param.shape or ()) - 1), length or most))
        for param in targets
    )
    shown = [(param.dtypes[0].name, param.shape, field) for param, field in zip(outputs, fields, strict=True)]
    return InputStage(
        name="tokenise",
        identity=f"tokenise {content} {most} {length} {pad_id} {shown}",
        inputs=(BufferParam("text", (DType.U8,), (None,)),),
        outputs=outputs,
        function=_Tokenise(tokenizer, fields, length, pad_id),
    )


def _targets(options: Options) -> tuple[tuple[BufferParam, ...], tuple[str, ...]]:
    """Return the inputs that it makes, and the field of an encoding that each one is."""
    candidates = [param for param in options.targets if _can_hold(param)]
    if "into" in options.values:
        return (options.target("tokens", candidates),), ("ids",)
    found = tuple(param for param in candidates if param.name in FIELDS)
    if any(param.name == "input_ids" for param in found):
        return found, tuple(FIELDS[param.name] for param in found)
    return (options.target("tokens", candidates),), ("ids",)


def _can_hold(param: BufferParam) -> bool:
    shape = param.shape or ()
    return (
        len(shape) in (1, 2)
        and all(extent in (None, 1) for extent in shape[:-1])
        and param.dtypes[0] in (DType.I32, DType.I64)
    )


def _read(options: Options, max_length: int) -> tuple[Any, str]:
    if "file" not in options.values:
        raise options.error("which tokenizer? give file=tokenizer.json, beside config.pbtxt")
    path: Path = options.folder / options.values["file"]
    try:
        from tokenizers import Tokenizer
    except ImportError as error:
        raise options.error(
            f"it needs the package tokenizers ({error}); install it: pip install 'polymux[inputs]'"
        ) from error
    try:
        content = path.read_bytes()
        tokenizer = Tokenizer.from_buffer(content)
    except Exception as error:  # the library raises plain Exception
        raise options.error(f"{path} is no tokenizer.json: {error}") from error
    tokenizer.enable_truncation(max_length)
    return tokenizer, hashlib.sha256(content).hexdigest()
