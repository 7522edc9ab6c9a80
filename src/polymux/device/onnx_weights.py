"""A model's weights once in memory, for all sessions of it: files that onnxruntime maps.

onnxruntime can write a model as it computes it: optimized, its weights in the layout that the processor's kernels want.
Loaded from there, the weights are pages of the file, the same ones in every session; what a session has of its own is
what it computes with. The files lie in a folder of this process under the system's folder for temporary files
(``TMPDIR``), and go with the last session. Those of a process that was killed go when the next one starts.
"""

from __future__ import annotations

import ctypes
import functools
import os
import shutil
import sys
import weakref
from typing import Any

from polymux.core.implementation import OnnxModel
from polymux.device.onnx_model import load
from polymux.device.protocol import LaunchError
from polymux.process_folder import ProcessFolder

_MODEL, _WEIGHTS = "model.onnx", "weights"


class MappedModel:
    """A model written for sessions to map, while anybody holds this.

    Parameters
    ----------
    runtime : module
        onnxruntime.
    model : OnnxModel

    Attributes
    ----------
    problem : str
        Why the weights are not shared; empty: they are.

    Raises
    ------
    LaunchError
        If the model cannot be loaded.

    Notes
    -----
    Takes the time to load the model, and to write it.
    """

    def __init__(self, runtime: Any, model: OnnxModel) -> None:
        self.problem = ""
        self._model = model.path
        try:
            folder = str(_folder_of_process().new())
        except OSError as error:
            self._give_up(f"there is no folder for them: {error}")
            return
        weakref.finalize(self, _remove, folder, os.getpid())
        path = os.path.join(folder, _MODEL)
        try:
            written = load(runtime, model.path, _writing(runtime, model, path))
        except LaunchError as error:
            load(runtime, model.path, _plain(runtime, model))  # raises if that is what is wrong
            self._give_up(error.message)
        else:
            self._path = path
            self._inputs, self._outputs = _nodes(written.get_inputs()), _nodes(written.get_outputs())
            del written
        give_back_memory()

    def load(self, runtime: Any, options: Any) -> tuple[Any, frozenset[str]] | None:
        """Load what was written.

        Returns
        -------
        session : onnxruntime.InferenceSession
        unused : frozenset of str
            Inputs that the model does not have: weights that an application could have given instead (models of IR
            version 3 list all of them), which are in the optimized ones by now. They want a value that nobody reads.

        None if it cannot be used, as `problem` says from then on.
        """
        if self.problem:
            return None
        options.graph_optimization_level = runtime.GraphOptimizationLevel.ORT_DISABLE_ALL  # it is optimized
        try:
            session = load(runtime, self._path, options)
        except LaunchError as error:
            self._give_up(error.message)
            return None
        inputs = _nodes(session.get_inputs())
        own = [node for node in inputs if node in self._inputs]
        if own != self._inputs or _nodes(session.get_outputs()) != self._outputs:
            self._give_up("onnxruntime wrote it with other inputs and outputs than it has")
            return None
        return session, frozenset(name for name, _, _ in inputs) - {name for name, _, _ in own}

    def _give_up(self, problem: str) -> None:
        self.problem = problem
        text = f"polymux: every share has the weights of {self._model} for itself, more than once in memory: {problem}"
        print(text, file=sys.stderr)


def give_back_memory() -> None:
    """Return to the system what was freed: packing weights leaves holes as large as the weights."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # only the GNU library has it
    if trim is not None:
        trim(0)


@functools.cache
def _folder_of_process() -> ProcessFolder:
    """Make the folder of this process, which goes at its end."""
    return ProcessFolder()


def _remove(path: str, pid: int) -> None:
    if os.getpid() == pid:  # not in a fork of the process that uses it
        shutil.rmtree(path, ignore_errors=True)


def _nodes(nodes: Any) -> list[tuple[str, str, list[Any]]]:
    return [(node.name, node.type, node.shape) for node in nodes]


def _plain(runtime: Any, model: OnnxModel) -> Any:
    options = runtime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 4
    for key, value in model.options:
        options.add_session_config_entry(key, value)
    return options


def _writing(runtime: Any, model: OnnxModel, path: str) -> Any:
    options = _plain(runtime, model)
    options.optimized_model_filepath = path
    options.add_session_config_entry("session.optimized_model_external_initializers_file_name", _WEIGHTS)
    options.add_session_config_entry(
        "session.optimized_model_external_initializers_min_size_in_bytes", "1024"
    )
    options.add_session_config_entry("session.save_external_prepacked_constant_initializers", "1")
    return options
