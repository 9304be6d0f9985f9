"""The application: routes, keys, limits, errors."""

from __future__ import annotations

import hmac
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.openapi.utils import get_openapi
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

import tamiz
from tamiz.serving.api import chat, completions, embeddings, models, rerank, responses
from tamiz.serving.api.served import State, error_reply
from tamiz.serving.errors import REPLIES, ApiError, bad_request

#: Routes that need no key: probes of a cluster have none.
_OPEN = {"/", "/health", "/version", "/docs", "/openapi.json"}


def make_app(state: State) -> FastAPI:
    """The ASGI application of a server."""
    app = FastAPI(title="tamiz", version=tamiz.__version__, redoc_url=None)
    app.state.tamiz = state
    state.metrics.watch(state.catalog)
    for part in (chat, completions, responses, embeddings, rerank, models):
        app.include_router(part.router, responses=REPLIES)
    app.openapi = lambda: _described(app)  # type: ignore[method-assign]
    app.add_exception_handler(ApiError, _api_error)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(Exception, _failed)
    app.add_middleware(_BodyLimit, most=state.settings.most_bytes)
    app.add_middleware(_Guard, state=state)
    return app


def _described(app: FastAPI) -> dict[str, Any]:
    """The description of the API: malformed requests get status 400, not FastAPI's 422."""
    if app.openapi_schema is None:
        schema = get_openapi(title=app.title, version=app.version, routes=app.routes)
        for path in schema["paths"].values():
            for operation in path.values():
                operation["responses"].pop("422", None)
        app.openapi_schema = schema
    return app.openapi_schema


class _Guard:
    """Checks the key and whether the models are loaded, and counts the request."""

    def __init__(self, app: ASGIApp, state: State) -> None:
        self._app, self._state = app, state

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def counted(message: Message) -> None:
            if message["type"] == "http.response.start":
                route = getattr(scope.get("route"), "path", "other")
                self._state.metrics.requests.labels(route, message["status"]).inc()
            await send(message)

        app = self._refusal(scope) or self._app
        await app(scope, receive, counted)

    def _refusal(self, scope: Scope) -> ASGIApp | None:
        path = scope["path"]
        given = Headers(scope=scope).get("authorization", "")
        if path not in _OPEN and not _allowed(given, self._state.settings.keys):
            error = ApiError(401, "the API key is missing or wrong", code="invalid_api_key")
        elif path.startswith("/v1/") and not self._state.ready:
            error = ApiError(503, "the models are being loaded", headers={"Retry-After": "5"})
        else:
            return None
        return error_reply(error)


def _allowed(authorization: str, keys: tuple[str, ...]) -> bool:
    """Whether a request has one of the keys; all are compared, in constant time."""
    if not keys:
        return True
    scheme, _, given = authorization.partition(" ")
    right = [hmac.compare_digest(given.encode(), key.encode()) for key in keys]
    return scheme.lower() == "bearer" and any(right)


async def _api_error(_: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    return error_reply(error)


async def _invalid(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    first, kind = error.errors()[0], request.headers.get("content-type", "missing")
    if first["loc"] == ("body",) and "json" not in kind:
        return error_reply(bad_request(f"Content-Type is {kind}, expected application/json"))
    if first["type"] == "json_invalid":
        return error_reply(bad_request(f"the body is no JSON: {first['ctx']['error']}"))
    place = ".".join(str(part) for part in first["loc"] if part != "body")
    return error_reply(bad_request(f"{place or 'body'}: {first['msg']}", place or None))


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    headers = dict(error.headers or {})
    path = getattr(request.scope.get("route"), "path", None)
    if error.status_code == 405 and (methods := request.app.openapi()["paths"].get(path)):
        # Starlette names the methods of the path's first handler only.
        headers["Allow"] = ", ".join(sorted(method.upper() for method in methods))
    return error_reply(ApiError(error.status_code, str(error.detail), headers=headers))


async def _failed(_: Request, error: Exception) -> Response:
    """What nobody has foreseen; the log has its traceback."""
    return error_reply(ApiError(500, f"the server failed: {type(error).__name__}"))


class _BodyLimit:
    """Refuses bodies that are too large, before and while they are read."""

    def __init__(self, app: ASGIApp, most: int) -> None:
        self._app, self._most = app, most

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        too_large = f"the body is too large, expected at most {self._most} bytes"
        length = Headers(scope=scope).get("content-length", "0")
        if not length.isdigit() or int(length) > self._most:
            await error_reply(ApiError(413, too_large))(scope, receive, send)
            return
        read = 0

        async def limited() -> Message:
            nonlocal read
            message = await receive()
            read += len(message.get("body", b""))
            if read > self._most:
                raise HTTPException(413, too_large)
            return message

        await self._app(scope, limited, send)
