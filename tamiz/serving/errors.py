"""Errors as OpenAI's API writes them: ``{"error": {message, type, param, code}}``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel


class ErrorBody(BaseModel):
    """What went wrong."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorReply(BaseModel):
    """The reply to a request that is not served."""

    error: ErrorBody


#: The replies that every route may give beside its own, for the description of the API.
REPLIES: dict[int | str, dict[str, Any]] = {
    status: {"model": ErrorReply, "description": text}
    for status, text in {
        400: "The request is malformed, or asks for what the model cannot do.",
        401: "The API key is missing or wrong.",
        404: "There is no such model or response.",
        408: "The answer was not complete within its time limit.",
        413: "The body is too large.",
        429: "Too many requests wait; try again after the seconds of Retry-After.",
        500: "The server failed.",
        503: "The models are being loaded.",
    }.items()
}


class ApiError(Exception):
    """An error that a client gets.

    Attributes:
        status: Status code of HTTP.
        headers: Headers of the reply.
    """

    def __init__(
        self,
        status: int,
        message: str,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """Describes it.

        Args:
            status: Status code of HTTP.
            message: One sentence for a person.
            param: The field of the request that is at fault.
            code: A word for programs.
            headers: Headers of the reply.
        """
        super().__init__(message)
        self.status, self.headers = status, dict(headers or {})
        self._param, self._code = param, code

    @property
    def body(self) -> dict[str, Any]:
        """The reply's JSON."""
        kind = _TYPES.get(self.status, "api_error" if self.status >= 500 else _INVALID)
        error = {"message": str(self), "type": kind, "param": self._param, "code": self._code}
        return {"error": error}


_INVALID = "invalid_request_error"
_TYPES = {401: "authentication_error", 404: "not_found_error", 429: "rate_limit_error"}


def bad_request(message: str, param: str | None = None) -> ApiError:
    """The request cannot be served as it is."""
    return ApiError(400, message, param, "invalid_value")


def overloaded(message: str) -> ApiError:
    """Too many requests wait."""
    return ApiError(429, f"{message}; try again later", None, "overloaded", {"Retry-After": "1"})
