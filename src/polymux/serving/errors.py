"""What can go wrong in the front end: a bad request, or a model that does not load."""

from __future__ import annotations

from polymux.core.errors import PolymuxError

__all__ = ["ModelLoadError", "RequestError"]


class RequestError(PolymuxError):
    """A request that is answered with an error.

    Parameters
    ----------
    status : int
        HTTP status code of the answer (400, 404, 413, ...).
    message : str
        What is wrong with the request, with the value and the remedy; the client sees it as ``{"error": message}``.
    headers : tuple of (bytes, bytes), optional
        Further headers of the answer, for example ``allow`` with a 405.
    """

    def __init__(self, status: int, message: str, headers: tuple[tuple[bytes, bytes], ...] = ()) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.headers = headers


class ModelLoadError(PolymuxError):
    """A model version that cannot be served; the message is the reason that the repository index shows."""
