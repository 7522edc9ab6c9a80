"""An input stage that is a kernel of a Python file, beside a model or anywhere: ``FILE.py:KERNEL,SCALAR=NUMBER``."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from polymux.core.dtype import DType
from polymux.core.implementation import PythonFunction
from polymux.core.kernel_spec import BufferParam, KernelSpec, ScalarParam
from polymux.inputs.options import Options
from polymux.inputs.stage import InputStage
from polymux.kernel.definition import Definition
from polymux.kernel.python_file import read_python_file

__all__ = ["file_stage"]

Extents = tuple[int | None, ...] | None


def file_stage(options: Options) -> InputStage:
    """Make a stage of a kernel; see `polymux.inputs.registry.make_stage`.

    The kernel's outputs are the wanted tensors of the same names; one output and one tensor belong together whatever
    their names. Options are the kernel's scalars.
    """
    file, _, name = options.stage.rpartition(":")
    path = options.folder / file
    if not path.is_file():
        raise options.error(f"there is no file {path}")
    definition = _find(options, read_python_file(path), name)
    function = _function(options, definition)
    spec = definition.spec
    scalars = _scalars(options, spec)
    made = [_output(options, param, spec) for param in spec.outputs]
    outputs = tuple(param for param, _ in made)
    content = hashlib.sha256(path.read_bytes()).hexdigest()
    shown = sorted(scalars.items())
    return InputStage(
        name=name,
        identity=f"{content}:{name} {shown} {[(param.dtypes, param.shape) for param in outputs]}",
        inputs=spec.inputs,
        outputs=outputs,
        function=_Call(function, scalars, tuple(batch for _, batch in made)),
    )


@dataclass(frozen=True, slots=True)
class _Call:
    """The function of a kernel with its scalars; it sees its outputs without the batch.

    Attributes
    ----------
    function : callable
    scalars : mapping of str to number
    batches : tuple of int
        For each output, 1 when the tensor has the batch as its first dimension.
    """

    function: Callable[..., Any]
    scalars: Mapping[str, float | int | bool]
    batches: tuple[int, ...]

    def __call__(self, *arrays: NDArray[Any]) -> list[tuple[int, ...]] | None:
        inputs, outputs = arrays[: -len(self.batches)], arrays[-len(self.batches) :]
        views = [out.reshape(out.shape[batch:]) for out, batch in zip(outputs, self.batches, strict=True)]
        shapes = self.function(*inputs, *views, **self.scalars)
        if shapes is None or len(shapes) != len(views):
            return shapes  # type: ignore[no-any-return]
        return [(*[1] * batch, *shape) for shape, batch in zip(shapes, self.batches, strict=True)]


def _find(options: Options, definitions: tuple[Definition, ...], name: str) -> Definition:
    for definition in definitions:
        if definition.spec.name == name:
            return definition
    known = ", ".join(definition.spec.name for definition in definitions)
    raise options.error(f"the file has no kernel '{name}'; it has {known}")


def _function(options: Options, definition: Definition) -> Callable[..., Any]:
    for implementation in definition.implementations:
        if isinstance(implementation, PythonFunction) and not implementation.parallel:
            break
    else:
        raise options.error("an input stage is a kernel in Python without parallel=True")
    spec = definition.spec
    if not spec.inputs or not spec.outputs or spec.variadic:
        raise options.error("an input stage takes inputs and makes outputs; the kernel lacks one of them")
    if odd := [param.name for param in spec.inputs if len(param.dtypes) != 1]:
        raise options.error(f"the inputs {odd} of the kernel need one dtype each, such as dtypes='u1'")
    return implementation.function


def _scalars(options: Options, spec: KernelSpec) -> Mapping[str, float | int | bool]:
    options.check_known([param.name for param in spec.scalars])
    values: dict[str, float | int | bool] = {}
    for param in spec.scalars:
        text = options.values.get(param.name)
        if text is not None:
            values[param.name] = _number(options, param, text)
        elif param.default is None:
            raise options.error(f"the kernel needs {param.name}={param.dtype.name_short}")
    spec.pack(values)  # refuses what the types cannot hold
    return values


def _number(options: Options, param: ScalarParam, text: str) -> float | int | bool:
    try:
        if param.dtype is DType.BOOL:
            return {"true": True, "false": False}[text]
        return int(text) if param.dtype.is_integer else float(text)
    except (KeyError, ValueError):
        raise options.error(f"{param.name}={text}: give a value of type {param.dtype.name_short}") from None


def _output(options: Options, param: BufferParam, spec: KernelSpec) -> tuple[BufferParam, int]:
    """Put together what the kernel says of an output and what is wanted: each extent has to be known from one of them.

    The number is 1 where the tensor has a first dimension, the batch, that the kernel does not know of.
    """
    wanted = {target.name: target for target in options.targets}
    target = wanted.get(param.name)
    if target is None and len(spec.outputs) == 1 and len(options.targets) == 1:
        target = options.targets[0]
    if target is None:
        raise options.error(f"it makes '{param.name}', which is not wanted; wanted are {sorted(wanted)}")
    (dtype,) = target.dtypes
    if param.dtypes and dtype not in param.dtypes:
        names = [known.name_short for known in param.dtypes]
        raise options.error(f"'{target.name}' is {dtype.name_short}, the kernel makes {names}")
    shape = _joined(param.shape, target.shape)
    if shape is None:
        raise options.error(
            f"'{target.name}' is {_shown(target.shape)} and the kernel makes {_shown(param.shape)}: the extents have to"
            " agree, and each has to be fixed in one of them (the first may be a batch of any size, which is 1)"
        )
    batch = 0 if param.shape is None else len(shape) - len(param.shape)
    return BufferParam(target.name, (dtype,), shape), batch


def _joined(made: Extents, wanted: Extents) -> tuple[int, ...] | None:
    if made is None or wanted is None:
        known = made if wanted is None else wanted
        made = wanted = known
    if made is None or wanted is None:
        return None
    if len(made) == len(wanted) - 1:
        made = (1, *made)  # the stage makes one item of a batch
    if len(made) != len(wanted):
        return None
    joined: list[int] = []
    for own, other in zip(made, wanted, strict=True):
        extent = other if own is None else own
        if extent is None or other not in (None, extent):
            return None
        joined.append(extent)
    return tuple(joined)


def _shown(shape: Extents) -> str:
    return "of any shape" if shape is None else str([-1 if extent is None else extent for extent in shape])
