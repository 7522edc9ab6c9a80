"""Runs a model once inside this process, on one thread: to see what comes out, never to measure."""

from __future__ import annotations

from typing import Any

from polymux.core.errors import InvalidRequest
from polymux.onnxgraph.inputs import Arrays
from polymux.onnxgraph.packages import import_onnxruntime


def plain_options() -> Any:
    """Options of a session on one thread that says nothing."""
    options = import_onnxruntime().SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    return options


def session_of(model: Any, options: Any) -> Any:
    """Load a model.

    Raises
    ------
    InvalidRequest
        With onnxruntime's text.
    """
    runtime = import_onnxruntime()
    try:
        return runtime.InferenceSession(
            model.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
    except Exception as error:  # onnxruntime's errors have no common class but this
        raise InvalidRequest(f"the model cannot be loaded: {_text(error)}") from error


def run(model: Any, arrays: Arrays) -> Arrays:
    """Run a model.

    Parameters
    ----------
    model : onnx.ModelProto
    arrays : dict of str to ndarray
        Its inputs.

    Returns
    -------
    dict of str to ndarray
        Its outputs, in their order.

    Raises
    ------
    InvalidRequest
        If it cannot be loaded or does not run on them.
    """
    session = session_of(model, plain_options())
    return run_session(session, arrays)


def run_session(session: Any, arrays: Arrays) -> Arrays:
    """Run a loaded model; see `run`."""
    names = [output.name for output in session.get_outputs()]
    try:
        return dict(zip(names, session.run(names, arrays), strict=True))
    except Exception as error:  # onnxruntime's errors have no common class but this
        raise InvalidRequest(f"the model does not run: {_text(error)}") from error


def _text(error: Exception) -> str:
    return " ".join(str(error).split())[:300]
