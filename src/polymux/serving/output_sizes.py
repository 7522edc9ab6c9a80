"""How large the outputs of a model will be: known, learned, or estimated from what was learned."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from math import ceil, prod

from polymux.core.kernel_spec import BufferParam

__all__ = ["OutputSizes", "Shapes"]

Shapes = tuple[tuple[int, ...], ...]

_REMEMBERED = 1024
#: Below this many bytes an input says little about its outputs' sizes.
_TELLING_NBYTES = 4096
#: An estimate is at most this many times what was seen.
_BOLDNESS = 16


class OutputSizes:
    """Sizes for the outputs of one model whose shapes depend on the inputs.

    An output with a fixed shape has that shape. Of the others the size is remembered for each combination of input
    shapes; for a new combination it is estimated by the greatest ratio of output to input bytes so far.

    Parameters
    ----------
    outputs : sequence of BufferParam
        The model's outputs, each of one dtype.

    Notes
    -----
    Remembers the last 1,024 combinations, so a long run does not grow.
    """

    def __init__(self, outputs: Sequence[BufferParam]) -> None:
        self._outputs = outputs
        self._known: OrderedDict[Shapes, tuple[int, ...]] = OrderedDict()
        self._ratios = [1.0] * len(outputs)
        self._greatest = [_TELLING_NBYTES] * len(outputs)

    def shapes(self, inputs: Shapes, input_nbytes: int) -> Shapes:
        """Return a shape to allocate for each output.

        Parameters
        ----------
        inputs : tuple of shapes
            Shapes of the inputs.
        input_nbytes : int
            Size of all inputs together, in bytes.

        Returns
        -------
        tuple of shapes
            The output's own shape where that is fixed; otherwise one that it may have and that holds the capacity.
        """
        capacities = self._known.get(inputs) or self._estimate(input_nbytes)
        return tuple(
            _shape(param, capacity) for param, capacity in zip(self._outputs, capacities, strict=True)
        )

    def learn(self, inputs: Shapes, input_nbytes: int, needed_nbytes: Sequence[int]) -> None:
        """Remember how many bytes each output took, or would have taken, for these inputs."""
        previous = self._known.get(inputs, needed_nbytes)
        self._known[inputs] = tuple(max(pair) for pair in zip(previous, needed_nbytes, strict=True))
        self._known.move_to_end(inputs)
        if len(self._known) > _REMEMBERED:
            self._known.popitem(last=False)
        for index, nbytes in enumerate(needed_nbytes):
            self._greatest[index] = max(self._greatest[index], nbytes)
            if input_nbytes >= _TELLING_NBYTES:
                self._ratios[index] = max(self._ratios[index], nbytes / input_nbytes)

    def _estimate(self, input_nbytes: int) -> list[int]:
        return [
            min(_BOLDNESS * greatest, max(_TELLING_NBYTES, ceil(ratio * input_nbytes)))
            for ratio, greatest in zip(self._ratios, self._greatest, strict=True)
        ]


def _shape(param: BufferParam, capacity_nbytes: int) -> tuple[int, ...]:
    """Return a shape that the output may have and that holds the capacity: the first free extent takes it all."""
    extents = (None,) if param.shape is None else param.shape
    step_nbytes = prod(extent for extent in extents if extent is not None) * param.dtypes[0].itemsize
    free = iter([-(-capacity_nbytes // step_nbytes) if step_nbytes else 1])
    return tuple(next(free, 1) if extent is None else extent for extent in extents)
