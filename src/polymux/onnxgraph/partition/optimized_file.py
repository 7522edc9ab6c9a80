"""A model as onnxruntime computes it on this processor, in a file: optimised, its weights beside it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from polymux.core.errors import InvalidRequest
from polymux.onnxgraph.packages import import_onnx, import_onnxruntime
from polymux.onnxgraph.running import plain_options

MODEL, WEIGHTS = "whole.onnx", "weights"
_SMALL_NBYTES = "1024"
"""Weights below this stay in the model's file."""


def write_optimized(path: Path, folder: Path, portable: bool = False) -> Any:
    """Write a model as it is computed, and read its graph back.

    Parameters
    ----------
    path : pathlib.Path
        The model's file.
    folder : pathlib.Path
        Gets `MODEL`, and `WEIGHTS` in the layout that the processor's kernels want: a file that sessions map, so that
        all of them have the same pages.
    portable : bool
        Leave out what depends on the processor: tensors and weights keep their layout.

    Returns
    -------
    onnx.ModelProto
        Without the weights: it says where in the file they are, and so may every model in that folder.

    Raises
    ------
    InvalidRequest
        If onnxruntime cannot load or write it.

    Notes
    -----
    Operators of ``com.microsoft.nchwc`` are for this processor only. Operators were fused before anybody cuts: a fusion
    across a cut would change the last bits of results.
    """
    problem = ""
    for prepacked in (False,) if portable else (True, False):
        try:
            session = load_session(path, _writing(folder, portable, prepacked))
        except InvalidRequest as error:
            problem = problem or str(error)
        else:
            model = import_onnx().load(str(folder / MODEL), load_external_data=False)
            _keep_inputs(model, {node.name for node in session.get_inputs()})
            return model
    raise InvalidRequest(problem)


def load_session(path: Path, options: Any) -> Any:
    """Load a model's file, for the host's processor.

    Raises
    ------
    InvalidRequest
        With onnxruntime's text.
    """
    try:
        return import_onnxruntime().InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime's errors have no common class but this
        text = " ".join(str(error).split())[:300]
        raise InvalidRequest(f"the model cannot be loaded: {text}") from error


def by_default(threads: int = 1) -> Any:
    """Options of a session that optimises what it loads."""
    options = plain_options()
    options.intra_op_num_threads = threads
    return options


def as_written(threads: int = 1) -> Any:
    """Options of a session that computes an optimised file as it is."""
    options = by_default(threads)
    options.graph_optimization_level = import_onnxruntime().GraphOptimizationLevel.ORT_DISABLE_ALL
    return options


def _keep_inputs(model: Any, names: set[str]) -> None:
    """Leave out what only models of IR version 3 have: weights as inputs, some of them read by nobody any more."""
    kept = [tensor for tensor in model.graph.input if tensor.name in names]
    del model.graph.input[:]
    model.graph.input.extend(kept)
    model.ir_version = max(model.ir_version, 4)


def _writing(folder: Path, portable: bool, prepacked: bool) -> Any:
    options = plain_options()
    if portable:
        options.graph_optimization_level = import_onnxruntime().GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    options.optimized_model_filepath = str(folder / MODEL)
    entry = options.add_session_config_entry
    entry("session.optimized_model_external_initializers_file_name", WEIGHTS)
    entry("session.optimized_model_external_initializers_min_size_in_bytes", _SMALL_NBYTES)
    if prepacked:
        entry("session.save_external_prepacked_constant_initializers", "1")
    return options
