"""The Open Inference Protocol over HTTP, as an ASGI application.

References
----------
Open Inference Protocol, REST (kserve/open-inference-protocol, ``inference_rest.md``), with the binary tensor data,
model configuration and model repository extensions.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from importlib.metadata import version as package_version
from typing import Any
from urllib.parse import unquote

from polymux.metrics.exposition import Metrics
from polymux.serving.config_file import to_json
from polymux.serving.errors import RequestError
from polymux.serving.http_message import (
    Disconnected,
    HttpRequest,
    Receive,
    Reply,
    Scope,
    Send,
    error_reply,
    json_reply,
)
from polymux.serving.infer import Inference
from polymux.serving.json_text import parse
from polymux.serving.limits import Limits
from polymux.serving.models import Models, ModelState

__all__ = ["EXTENSIONS", "HttpApp"]

_log = logging.getLogger(__name__)

#: Extensions of the protocol that this front end has.
EXTENSIONS = (
    "binary_tensor_data",
    "model_configuration",
    "model_repository",
    "parameters",
    "schedule_policy",
)

_METRICS_S = 10

_Handler = Callable[[HttpRequest], Awaitable[Reply]]


@dataclass(frozen=True, slots=True)
class _Route:
    methods: tuple[str, ...]
    handler: _Handler


class HttpApp:
    """The ASGI application.

    Parameters
    ----------
    models : Models
        The models, kept up to date by their owner.
    limits : Limits
        Bounds of a request.
    metrics : Metrics
        Those of the Polymux server, served at ``/metrics``.
    """

    def __init__(self, models: Models, limits: Limits, metrics: Metrics) -> None:
        self._models = models
        self._metrics = metrics
        self._scraping = asyncio.Lock()
        self._limits = limits
        self._inference = Inference(models, limits)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            raise NotImplementedError(f"no support for ASGI scope {scope['type']!r}")
        request = HttpRequest(scope, receive, self._limits)
        try:
            reply = await self._answer(request)
        except Disconnected:
            return
        await reply.send(send)

    async def _answer(self, request: HttpRequest) -> Reply:
        try:
            route = self._route(request.raw_path)
            if request.method not in route.methods:
                allowed = ", ".join(route.methods)
                raise RequestError(
                    405,
                    f"{request.method} is not allowed here; use {allowed}",
                    ((b"allow", allowed.encode()),),
                )
            return await route.handler(request)
        except RequestError as error:
            return error_reply(request.unread_closes(error))
        except Disconnected:
            raise
        except Exception:
            _log.exception("%s %s failed", request.method, request.raw_path)
            return error_reply(RequestError(500, "internal error; the server's log has the details"))

    def _route(self, raw_path: bytes) -> _Route:
        segments = [unquote(part) for part in raw_path.decode("ascii").rstrip("/").split("/")[1:]]
        match segments:
            case ["metrics"]:
                return _get(self._server_metrics)
            case ["v2"]:
                return _get(self._server_metadata)
            case ["v2", "health", "live"]:
                return _get(self._server_live)
            case ["v2", "health", "ready"]:
                return _get(self._server_ready)
            case ["v2", "repository", "index"]:
                return _Route(("POST",), self._repository_index)
            case ["v2", "models", name, "versions", number, *rest] if number.isascii() and number.isdigit():
                if len(number) <= 18:
                    return self._model_route(name, int(number), rest)
            case ["v2", "models", name, *rest]:
                return self._model_route(name, None, rest)
        raise _unknown_path()

    def _model_route(self, name: str, version: int | None, rest: list[str]) -> _Route:
        match rest:
            case []:
                return _get(lambda _: self._model_metadata(name, version))
            case ["ready"]:
                return _get(lambda _: self._model_ready(name, version))
            case ["config"]:
                return _get(lambda _: self._model_config(name, version))
            case ["infer"]:
                return _Route(("POST",), lambda request: self._inference.answer(request, name, version))
        raise _unknown_path()

    async def _server_metadata(self, _: HttpRequest) -> Reply:
        return json_reply(
            {"name": "polymux", "version": package_version("polymux"), "extensions": EXTENSIONS}
        )

    async def _server_live(self, _: HttpRequest) -> Reply:
        return json_reply({"live": True})

    async def _server_ready(self, _: HttpRequest) -> Reply:
        # "live" is what the protocol's text (by a slip) names the field; clients read either.
        ready = self._models.are_ready()
        return json_reply({"ready": ready, "live": True}, 200 if ready else 400)

    async def _server_metrics(self, request: HttpRequest) -> Reply:
        try:
            async with (
                asyncio.timeout(_METRICS_S),
                self._scraping,
            ):  # one thread waits for the server, not one a scrape
                found = await asyncio.to_thread(self._metrics.expose, request.header(b"accept"))
        except TimeoutError:
            raise RequestError(503, f"the Polymux server did not tell its status in {_METRICS_S} s") from None
        return Reply(200, ((b"content-type", found.content_type.encode()),), [found.text])

    async def _repository_index(self, request: HttpRequest) -> Reply:
        body = await request.small_body()
        document: Any = parse(body, self._limits.json_depth) if body else {}
        ready_only = document.get("ready", False) if isinstance(document, dict) else None
        if not isinstance(ready_only, bool):
            raise RequestError(400, 'the body must be empty or a JSON object such as {"ready": true}')
        return json_reply(self._models.index(ready_only))

    async def _model_metadata(self, name: str, version: int | None) -> Reply:
        number, loaded = self._models.find_loaded(name, version)
        versions = self._models.ready_versions(name) if version is None else [number]
        signature = loaded.signature
        return json_reply(
            {
                "name": name,
                "versions": [str(ready) for ready in versions],
                "platform": loaded.config.platform,
                "inputs": [tensor.metadata() for tensor in signature.inputs.values()],
                "outputs": [tensor.metadata() for tensor in signature.outputs.values()],
            }
        )

    async def _model_ready(self, name: str, version: int | None) -> Reply:
        ready = self._models.find(name, version).state is ModelState.READY
        return json_reply({"name": name, "ready": ready}, 200 if ready else 503)

    async def _model_config(self, name: str, version: int | None) -> Reply:
        _, loaded = self._models.find_loaded(name, version)
        return json_reply(to_json(loaded.config))


def _get(handler: _Handler) -> _Route:
    return _Route(("GET", "HEAD"), handler)


def _unknown_path() -> RequestError:
    return RequestError(
        404, "no such path; GET /v2, /v2/models/NAME and /metrics, POST /v2/models/NAME/infer"
    )
