"""What the routes share: the server's state, and replies in JSON."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from typing import Any, TypeVar

import orjson
from starlette.requests import Request
from starlette.responses import Response

from tamiz.serving.api.bodies import Body
from tamiz.serving.catalog import Catalog
from tamiz.serving.chat import Wish
from tamiz.serving.errors import ApiError, bad_request
from tamiz.serving.kept_responses import Kepts
from tamiz.serving.metrics import Metrics
from tamiz.serving.settings import Settings

T = TypeVar("T")
_log = logging.getLogger("tamiz.serving")


@dataclass
class State:
    """The state of a server.

    Attributes:
        catalog: Its models.
        settings: How it treats requests.
        metrics: What it counts.
        kept: Responses that later ones may continue.
        ready: Whether the models are loaded.
    """

    catalog: Catalog
    settings: Settings
    metrics: Metrics = field(default_factory=Metrics)
    kept: Kepts = field(default_factory=Kepts)
    ready: bool = True

    def check_fields(self, body: Body) -> None:
        """Refuses or logs fields that have no effect.

        Raises:
            ApiError: There is one, and the server is strict.
        """
        if not body.unknown:
            return
        names = ", ".join(ascii(name)[:40] for name in body.unknown[:10])
        if self.settings.strict:
            raise bad_request(f"unknown fields: {names}", body.unknown[0])
        _log.warning("ignored unknown fields of a request: %s", names)

    def complete(self, wish: Wish, request: Request) -> Wish:
        """Adds what the server decides: time limit, and who shares cached prefixes."""
        scope = self.scope(request) if self.settings.cache_scope == "key" else b""
        return replace(wish, seconds=self.settings.seconds, scope=scope)

    def scope(self, request: Request) -> bytes:
        """Who sent a request, by its key."""
        key = request.headers.get("authorization", "")
        return blake2b(key.encode(), digest_size=16).digest()


def state_of(request: Request) -> State:
    """The state of the server that got a request."""
    state: State = request.app.state.tamiz
    return state


def reply(value: Any, status: int = 200) -> Response:
    """A reply in JSON."""
    return Response(orjson.dumps(value), status, media_type="application/json")


def error_reply(error: ApiError) -> Response:
    """A reply that says an error."""
    response = reply(error.body, error.status)
    response.headers.update(error.headers)
    return response


async def started(parts: AsyncIterator[T]) -> AsyncIterator[T]:
    """Waits for the first item, so that an error that comes before it has a status code."""
    first = await anext(parts, None)

    async def again() -> AsyncIterator[T]:
        if first is not None:
            yield first
            async for part in parts:
                yield part

    return again()
