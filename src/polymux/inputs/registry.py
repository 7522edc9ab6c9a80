"""Finds an input stage: in a table of strings, in entry points of installed packages, in a kernels file.

A new stage is one file and one line in `STAGES`, an entry point in the group ``polymux.input_stages``, or a kernel in a
Python file that the text names: ``FILE.py:KERNEL``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import cast

from numpy.typing import DTypeLike

from polymux.core.dtype import DType
from polymux.core.errors import InvalidRequest
from polymux.core.kernel_spec import BufferParam
from polymux.inputs.file_stage import file_stage
from polymux.inputs.options import Options, parse
from polymux.inputs.stage import InputStage

__all__ = ["GROUP", "STAGES", "input_stage", "make_stage", "names"]

STAGES = {
    "image": "polymux.inputs.image:make",
    "tokenise": "polymux.inputs.tokenise:make",
}
"""Name -> ``module:function``, which takes `Options` and returns an `InputStage`."""

GROUP = "polymux.input_stages"

Maker = Callable[[Options], InputStage]


def names() -> list[str]:
    """List the names of all stages: the built-in ones, then those of installed packages."""
    return [*STAGES, *(point.name for point in _installed())]


def make_stage(text: str, targets: Sequence[BufferParam], folder: Path = Path()) -> InputStage:
    """Make the stage that a text describes, for the tensors that are wanted.

    Parameters
    ----------
    text : str
        ``NAME`` or ``NAME,KEY=VALUE,...``; instead of a name ``FILE.py:KERNEL``.
    targets : sequence of BufferParam
        The inputs of a model, each with one dtype; extents that are None may be anything.
    folder : pathlib.Path
        Where files with a relative path are.

    Raises
    ------
    InvalidRequest
        If there is no such stage or option, a package is missing, or it cannot make such tensors.
    ConfigError
        If a kernels file cannot be loaded.
    """
    name, values = parse(text)
    options = Options(text, name, values, tuple(targets), folder)
    if ".py:" in name:
        return file_stage(options)
    return _maker(options)(options)


def input_stage(
    text: str, shape: tuple[int, ...], dtype: DTypeLike = "f4", folder: Path = Path()
) -> InputStage:
    """Make a stage for one tensor, such as an image of a training job.

    Parameters
    ----------
    text : str
        As `make_stage` takes it.
    shape : tuple of int
        Of one item's tensor.
    dtype : dtype
        Its element type.
    folder : pathlib.Path
        Where files with a relative path are.

    Raises
    ------
    InvalidRequest, ConfigError
        As `make_stage`.

    Examples
    --------
    >>> stage = input_stage("image,normalise=imagenet", (3, 224, 224))  # doctest: +SKIP
    """
    return make_stage(text, [BufferParam("input", (DType.from_numpy(dtype),), shape)], folder)


def _maker(options: Options) -> Maker:
    found = [STAGES[options.stage]] if options.stage in STAGES else []
    found += [point.value for point in _installed() if point.name == options.stage]
    if not found:
        raise options.error(
            f"no stage is called '{options.stage}'; there are {', '.join(names())}, and kernels of a file:"
            " FILE.py:KERNEL"
        )
    if len(found) > 1:
        raise options.error(f"it is defined twice, by {' and '.join(found)}; uninstall one of them")
    module, _, attribute = found[0].partition(":")
    try:
        return cast(Maker, getattr(import_module(module), attribute))
    except (ImportError, AttributeError) as error:
        raise InvalidRequest(
            f"input stage '{options.text}' cannot be loaded from {found[0]}: {error}"
        ) from error


def _installed() -> Iterator[EntryPoint]:
    return iter(sorted(entry_points(group=GROUP), key=lambda point: (point.name, point.value)))
