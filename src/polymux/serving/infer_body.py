"""An inference request's body, taken piece by piece: the JSON first, then bytes straight into the input buffers."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from polymux.core.dtype import DType
from polymux.serving.errors import RequestError
from polymux.serving.infer_request import InferRequest, parse_request, raw_request
from polymux.serving.json_tensor import to_array
from polymux.serving.json_text import parse
from polymux.serving.limits import Limits
from polymux.serving.runner import TensorBuffer
from polymux.serving.signature import ModelSignature

__all__ = ["InferBody"]


class InferBody:
    """Receives one request's body.

    Parameters
    ----------
    signature : ModelSignature
        The model's tensors.
    allocate : callable
        Returns a buffer for an input of a shape and dtype.
    json_nbytes : int or None
        Value of Inference-Header-Content-Length; None: the whole body is JSON; 0: raw binary, the whole body is one
        tensor.
    content_nbytes : int or None
        Value of Content-Length; None when the body comes in chunks.
    limits : Limits
        Bounds of a request.

    Raises
    ------
    RequestError
        413 when the body is announced too large, 400 when the two lengths contradict.

    Notes
    -----
    `close` must be called in the end, whatever happened: it gives the buffers back.
    """

    def __init__(
        self,
        signature: ModelSignature,
        allocate: Callable[[tuple[int, ...], DType], TensorBuffer],
        json_nbytes: int | None,
        content_nbytes: int | None,
        limits: Limits,
    ) -> None:
        self._signature = signature
        self._allocate = allocate
        self._json_nbytes = json_nbytes
        self._content_nbytes = content_nbytes
        self._limits = limits
        self._json = bytearray()
        self._received_nbytes = 0
        self._request: InferRequest | None = None
        self._unfilled: list[memoryview] = []
        self.buffers: dict[str, TensorBuffer] = {}
        self._check_size(content_nbytes or 0)
        if json_nbytes is not None and content_nbytes is not None and json_nbytes > content_nbytes:
            raise RequestError(
                400,
                f"Inference-Header-Content-Length is {json_nbytes}, more than the body's {content_nbytes} bytes",
            )
        if json_nbytes == 0:
            if content_nbytes is None:
                raise RequestError(
                    400, "a raw binary request needs a Content-Length; do not send it in chunks"
                )
            self._begin(raw_request(signature, content_nbytes))

    def feed(self, chunk: bytes) -> None:
        """Take the next piece of the body.

        Raises
        ------
        RequestError
            When what has come so far cannot become a valid request.
        """
        self._received_nbytes += len(chunk)
        self._check_size(self._received_nbytes)
        if self._request is not None:
            self._fill(memoryview(chunk))
            return
        self._json += chunk
        if self._json_nbytes is not None and len(self._json) >= self._json_nbytes:
            rest = memoryview(bytes(self._json[self._json_nbytes :]))
            del self._json[self._json_nbytes :]
            self._parse(has_binary=True)
            self._fill(rest)

    def finish(self) -> InferRequest:
        """Return the complete request after the last piece.

        Raises
        ------
        RequestError
            400 when the body ends early or is not valid.
        """
        if self._request is None:
            if self._json_nbytes is not None:
                raise RequestError(
                    400,
                    f"the body ends after {self._received_nbytes} bytes, within the JSON of {self._json_nbytes} "
                    "that Inference-Header-Content-Length announces",
                )
            self._parse(has_binary=False)
        if self._unfilled:
            missing = sum(view.nbytes for view in self._unfilled)
            raise RequestError(400, f"the body ends {missing} bytes before the end of its binary tensors")
        assert self._request is not None
        return self._request

    def close(self) -> None:
        """Give all input buffers back."""
        self._unfilled.clear()
        for buffer in self.buffers.values():
            buffer.close()
        self.buffers.clear()

    def _check_size(self, nbytes: int) -> None:
        if nbytes > self._limits.body_nbytes:
            raise RequestError(
                413, f"the body has more than the {self._limits.body_nbytes} bytes that a request may have"
            )

    def _parse(self, has_binary: bool) -> None:
        document = parse(self._json, self._limits.json_depth)
        self._json = bytearray()
        self._begin(parse_request(document, self._signature, has_binary, self._limits.body_nbytes))

    def _begin(self, request: InferRequest) -> None:
        binary_nbytes = sum(tensor.nbytes for tensor in request.inputs if tensor.is_binary)
        expected = (self._json_nbytes or 0) + binary_nbytes
        if self._json_nbytes is not None and self._content_nbytes not in (None, expected):
            raise RequestError(
                400,
                f"the body has {self._content_nbytes} bytes, but its JSON and binary tensors have {expected}; "
                "check binary_data_size and Inference-Header-Content-Length",
            )
        for tensor in request.inputs:
            signature = tensor.signature
            array = None
            if not tensor.is_binary:
                array = to_array(signature.name, tensor.data, signature.dtype, tensor.shape)
            buffer = self._allocate(signature.to_model(tensor.shape), signature.dtype)
            self.buffers[signature.name] = buffer
            target = buffer.numpy().reshape(-1)
            if array is not None:
                target[:] = array
            elif tensor.nbytes:
                self._unfilled.append(target.view(np.uint8).data)
        self._request = request

    def _fill(self, piece: memoryview) -> None:
        while piece.nbytes and self._unfilled:
            target = self._unfilled[0]
            count = min(piece.nbytes, target.nbytes)
            target[:count] = piece[:count]
            piece = piece[count:]
            if count == target.nbytes:
                del self._unfilled[0]
            else:
                self._unfilled[0] = target[count:]
        if piece.nbytes:
            raise RequestError(400, "bytes follow the last binary tensor; check the sum of binary_data_size")
