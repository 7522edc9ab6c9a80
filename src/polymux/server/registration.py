"""Kernels that applications bring: for a worker process of theirs or, with the server's own rights, for the server."""

from __future__ import annotations

import base64
import binascii
import json
import os
import subprocess
import sys
from collections.abc import Mapping

import cloudpickle

from polymux.core.errors import InvalidRequest, PermissionDenied
from polymux.core.implementation import Implementation, OnnxModel
from polymux.core.kernel_spec import KernelSpec
from polymux.server.kernels import Isolated, Kernel, Registration
from polymux.server.parts import Parts
from polymux.server.reactor import Client
from polymux.server.request import Operation, Request
from polymux.server.session import Session
from polymux.server.worker_process import environment, identity

MAX_CODE_CHARACTERS = 64 << 20
SIGNATURE_TIMEOUT_S = 120.0


def registration_operations(parts: Parts) -> dict[str, Operation]:
    """Build the table of operations."""
    operations = _Registrations(parts)
    return {"register": operations.register, "unregister": operations.unregister}


class _Registrations:
    def __init__(self, parts: Parts) -> None:
        self._parts = parts

    def register(self, request: Request) -> None:
        """Register a kernel for the session that asks."""
        if request.number("isolate", 0, 1, 1):
            self._register_isolated(request)
            return
        uid = _client(request).peer.uid
        if uid != os.getuid():
            raise PermissionDenied(
                f"only user {os.getuid()}, whose server this is, may run kernels inside it; register with"
                " isolate=True"
            )
        self._parts.later(request, lambda: self._register_inside(request))

    def unregister(self, request: Request) -> None:
        """Forget a kernel of the session that asks."""
        kernel = request.session.kernels.remove(request.text("name"))
        forget_kernel(self._parts, kernel)
        request.answer()

    def _register_isolated(self, request: Request) -> None:
        session = request.session
        api = request.text("api")
        sys_path = _sys_path(request)
        cwd = request.text("cwd", "")
        spec = _spec(request)
        model = _model(request) if api == OnnxModel.api else None
        pickled = b"" if model is not None else _pickled(request)

        def enter() -> None:
            found = spec
            if found is None:
                assert model is not None
                found = _signature(session, request.text("name"), model)
            registration = Registration(found, pickled, model, sys_path, cwd)
            _answer(request, self._enter(session, found, {}, {api: registration}))

        if spec is None:
            _model(request)  # without a spec only a model makes sense
            self._parts.later(request, enter)
        else:
            enter()

    def _register_inside(self, request: Request) -> None:
        spec = _spec(request)
        implementation: Implementation
        if request.text("api") == OnnxModel.api:
            implementation = _model(request)
            if spec is None:
                from polymux.device.onnx_model import (
                    kernel_spec,
                )  # loads onnxruntime only when there is a model

                spec = kernel_spec(implementation.path, request.text("name"))
        else:
            implementation = _unpickled(request)
        if spec is None:
            raise InvalidRequest("only a model can be registered without a spec")
        _answer(request, self._enter(request.session, spec, {implementation.api: implementation}, {}))

    def _enter(
        self,
        session: Session,
        spec: KernelSpec,
        implementations: Mapping[str, Implementation],
        isolated: Mapping[str, Isolated],
    ) -> Kernel:
        replaced = next((kernel for kernel in session.kernels.own() if kernel.spec.name == spec.name), None)
        kernel = session.kernels.register(spec, implementations, isolated)
        if replaced is not None:
            _forget(self._parts, replaced, kernel)
        return kernel


def forget_kernel(parts: Parts, kernel: Kernel) -> None:
    """Drop what is kept for a kernel that nobody can name any more."""
    parts.measurements.forget(kernel.id)
    _forget(parts, kernel)


def _forget(parts: Parts, kernel: Kernel, successor: Kernel | None = None) -> None:
    """Have the devices drop a kernel's implementations, but for those that its successor has as well."""
    kept = [] if successor is None else list(successor.implementations.values())
    for implementation in kernel.implementations.values():
        if not any(implementation is other for other in kept):
            for device in parts.devices:
                device.forget(implementation)


def _answer(request: Request, kernel: Kernel) -> None:
    request.answer({"kernel_id": kernel.id, "spec": kernel.spec.to_text()})


def _client(request: Request) -> Client:
    client = request.caller
    assert isinstance(client, Client)
    return client


def _spec(request: Request) -> KernelSpec | None:
    text = request.text("spec", "", limit=1 << 20)
    return KernelSpec.from_text(text) if text else None


def _sys_path(request: Request) -> tuple[str, ...]:
    text = request.text("sys_path", "[]", limit=1 << 20)
    try:
        paths = json.loads(text)
    except (ValueError, RecursionError):
        paths = None
    if not isinstance(paths, list) or not all(isinstance(path, str) for path in paths):
        raise InvalidRequest(f"sys_path {text[:80]!r} is no JSON list of texts")
    return tuple(paths)


def _model(request: Request) -> OnnxModel:
    try:
        options = json.loads(request.text("options", "[]", limit=1 << 20))
        pairs = tuple((str(key), str(value)) for key, value in options)
    except (ValueError, TypeError, RecursionError):
        raise InvalidRequest("options is no JSON list of pairs of texts") from None
    return OnnxModel(request.text("path"), pairs, request.number("optimized", 0, 1, 0) == 1)


def _pickled(request: Request) -> bytes:
    text = request.text("implementation", limit=MAX_CODE_CHARACTERS)
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error as error:
        raise InvalidRequest(f"implementation is no base64: {error}") from None


def _unpickled(request: Request) -> Implementation:
    """Load an implementation into the server, whose user the client is."""
    try:
        implementation = cloudpickle.loads(_pickled(request))
    except Exception as error:  # whatever unpickling or importing somebody's code raises
        text = f"the implementation cannot be loaded in the server: {type(error).__name__}: {error}"
        raise InvalidRequest(
            f"{text}; with isolate=True it is looked for in this program's sys.path"
        ) from error
    if not isinstance(implementation, Implementation):
        raise InvalidRequest(f"{type(implementation).__name__} is no implementation of a kernel")
    return implementation


def _signature(session: Session, name: str, model: OnnxModel) -> KernelSpec:
    """Read a model's inputs and outputs in a process with the client's rights, which ends with the session."""
    process = subprocess.Popen(
        [sys.executable, "-m", "polymux.server.model_signature", model.path, name],
        env=environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **identity(session.peer),
    )
    session.add_reader(process)
    try:
        output, complaint = process.communicate(timeout=SIGNATURE_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        raise InvalidRequest(f"{model.path} could not be read within {SIGNATURE_TIMEOUT_S:.0f} s") from None
    finally:
        session.remove_reader(process)
    if process.returncode != 0:
        reason = complaint.strip().splitlines()[-1:] or [f"exit code {process.returncode}"]
        raise InvalidRequest(f"{model.path} cannot be read as a model: {reason[0]}")
    return KernelSpec.from_text(output)
