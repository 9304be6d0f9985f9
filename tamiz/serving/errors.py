"""Errors as OpenAI's API writes them: ``{"error": {message, type, param, code}}``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


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
