"""The parts of a model as its file has them, for libraries that do not know what onnxruntime optimises it into."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from polymux.core.errors import InvalidRequest
from polymux.onnxgraph.file import load_model, save_model
from polymux.onnxgraph.packages import import_onnx
from polymux.onnxgraph.partition.flow import flow_of
from polymux.onnxgraph.partition.split import empty_like


class PlainModel:
    """A model before it is optimised.

    Parameters
    ----------
    path : pathlib.Path
        Its file.

    Attributes
    ----------
    tensors : frozenset of str
        What its nodes write.
    """

    def __init__(self, path: Path) -> None:
        self._model = load_model(path)
        self._flow = flow_of(self._model)
        self._makers = {name: at for at, step in enumerate(self._flow.steps) for name in step.writes}
        self.tensors = frozenset(self._makers)
        inferred = import_onnx().shape_inference.infer_shapes(self._model).graph
        self._described = {
            tensor.name: tensor for tensor in (*inferred.value_info, *inferred.input, *inferred.output)
        }

    def extract(self, inputs: Sequence[str], outputs: Sequence[str], path: Path) -> None:
        """Write the nodes that lie between tensors as a model of its own, with its weights.

        Raises
        ------
        InvalidRequest
            If the outputs need more than these inputs, or the type of one of them is not known.
        """
        wanted = self._between(inputs, outputs)
        graph = self._model.graph
        made = empty_like(self._model, "between tensors")
        made.graph.node.extend(graph.node[at] for at in sorted(wanted))
        used = {name for at in wanted for name in self._flow.steps[at].reads}
        made.graph.initializer.extend(tensor for tensor in graph.initializer if tensor.name in used)
        made.graph.input.extend(self._description(name) for name in inputs)
        made.graph.output.extend(self._description(name) for name in outputs)
        save_model(made, path)

    def _between(self, inputs: Sequence[str], outputs: Sequence[str]) -> set[int]:
        wanted: set[int] = set()
        open_names = list(outputs)
        while open_names:
            name = open_names.pop()
            if name in inputs or name in self._flow.weights:
                continue
            at = self._makers.get(name)
            if at is None:
                raise InvalidRequest(f"tensor {name!r} is none of the model's file")
            if at not in wanted:
                wanted.add(at)
                open_names += self._flow.steps[at].reads
        return wanted

    def _description(self, name: str) -> Any:
        found = self._described.get(name)
        if found is None or not found.type.tensor_type.elem_type:
            raise InvalidRequest(f"the type of tensor {name!r} is not known")
        return found
