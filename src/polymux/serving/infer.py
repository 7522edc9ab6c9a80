"""One inference from request to answer: body into buffers, task, outputs into the answer."""

from __future__ import annotations

import asyncio
import logging
import time

from polymux.core.errors import (
    BadArgument,
    Cancelled,
    Closed,
    DeviceFailed,
    InvalidRequest,
    NoDevice,
    OutOfDeviceMemory,
    PolymuxError,
    QueueFull,
    Rejected,
    SegmentFull,
    ServerGone,
    TaskFailed,
)
from polymux.serving.errors import RequestError
from polymux.serving.http_message import HttpRequest, Reply
from polymux.serving.infer_body import InferBody
from polymux.serving.infer_request import InferRequest
from polymux.serving.infer_response import encode_response
from polymux.serving.limits import Limits
from polymux.serving.models import LoadedModel, Models

__all__ = ["Inference"]

_log = logging.getLogger(__name__)

_RETRY = ((b"retry-after", b"1"),)
#: The core has no room or no device now; the same request can succeed later.
_UNAVAILABLE = (
    QueueFull, SegmentFull, ServerGone, Closed, Cancelled, Rejected, NoDevice, OutOfDeviceMemory, DeviceFailed,
)  # fmt: skip
_INVALID = (InvalidRequest, BadArgument)


class Inference:
    """Answers inference requests.

    Parameters
    ----------
    models : Models
        The models to run.
    limits : Limits
        Bounds of a request.
    """

    def __init__(self, models: Models, limits: Limits) -> None:
        self._models = models
        self._limits = limits
        # A running task uses its buffers until it ends, even when nobody waits for the answer any more.
        self._running: set[asyncio.Task[Reply]] = set()

    async def answer(self, request: HttpRequest, name: str, version: int | None) -> Reply:
        """Answer ``POST /v2/models/NAME[/versions/VERSION]/infer``.

        Raises
        ------
        RequestError
            With the protocol's status for what went wrong.
        Disconnected
            When the client goes away before its request is complete.
        """
        arrival_ns = time.monotonic_ns()
        number, model = self._models.find_loaded(name, version)
        encoding = request.header(b"content-encoding")
        if encoding not in (None, "", "identity"):
            raise RequestError(
                415, f"Content-Encoding '{encoding:.40}' is not supported; send the body uncompressed"
            )
        try:
            model.runner.check_room()
            body = InferBody(
                model.signature,
                model.runner.allocate,
                request.length_header(b"inference-header-content-length"),
                request.length_header(b"content-length"),
                self._limits,
            )
            try:
                async for piece in request.pieces():
                    body.feed(piece)
                checked = body.finish()
            except BaseException:
                body.close()
                raise
            task = asyncio.create_task(self._run(name, number, model, body, checked, arrival_ns))
            self._running.add(task)
            task.add_done_callback(self._running.discard)
            return await _within(task, checked, arrival_ns)
        except PolymuxError as error:
            raise _as_request_error(error, name) from error

    async def _run(
        self,
        name: str,
        version: int,
        model: LoadedModel,
        body: InferBody,
        request: InferRequest,
        arrival_ns: int,
    ) -> Reply:
        deadline_ns = arrival_ns + request.timeout_us * 1000 if request.timeout_us else None
        try:
            inputs = [body.buffers[tensor] for tensor in model.signature.inputs]
            results = await model.runner.run(
                inputs, priority=request.priority, arrival_ns=arrival_ns, deadline_ns=deadline_ns
            )
        finally:
            body.close()
        try:
            by_name = dict(zip(model.output_names, results, strict=True))
            arrays = [(output, by_name[output.signature.name].numpy()) for output in request.outputs]
            json_nbytes, pieces = encode_response(name, version, request.id, arrays)
        finally:
            arrays = []
            for buffer in results:
                buffer.close()
        if json_nbytes is None:
            return Reply(200, ((b"content-type", b"application/json"),), pieces)
        header = (b"inference-header-content-length", str(json_nbytes).encode())
        return Reply(200, ((b"content-type", b"application/octet-stream"), header), pieces)


async def _within(task: asyncio.Task[Reply], request: InferRequest, arrival_ns: int) -> Reply:
    """Return the task's answer if it comes before the request's timeout; else leave the task to itself."""
    remaining_s = None
    if request.timeout_us:
        remaining_s = max(0.0, request.timeout_us / 1e6 - (time.monotonic_ns() - arrival_ns) / 1e9)
    done, _ = await asyncio.wait({task}, timeout=remaining_s)
    if not done:
        task.add_done_callback(_report_late)
        raise RequestError(503, f"the request's timeout of {request.timeout_us} us expired", _RETRY)
    return task.result()


def _report_late(task: asyncio.Task[Reply]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        _log.warning("a request failed after its timeout: %s", error)


def _as_request_error(error: PolymuxError, name: str) -> RequestError:
    if isinstance(error, RequestError):
        return error
    text = error.message if isinstance(error, TaskFailed) else str(error)
    message = f"model '{name}': {text}"
    if isinstance(error, _UNAVAILABLE):
        return RequestError(503, message, _RETRY)
    return RequestError(400 if isinstance(error, _INVALID) else 500, message)
