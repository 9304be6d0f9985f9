"""`tamiz serve` on a cluster: replicas of the server behind one door, as a Ray Serve application.

The door reads a request and sends it to the replica that its beginning belongs to, so that a
conversation, or prompts that begin alike, meet the prefixes that this replica has read:

    replica = argmax_r hash(beginning, r)

A replica that is full passes a request on to the next in this order. When a replica ends, others
keep their beginnings, and the requests that it was answering fail. Nothing else imports this
module, and it alone needs `ray`.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Literal

import orjson
from pydantic import BaseModel, Field, field_validator
from ray import serve
from ray.exceptions import RayError
from ray.serve.config import RequestRouterConfig
from ray.serve.exceptions import BackPressureError, RayServeException
from ray.serve.handle import DeploymentHandle
from ray.serve.request_router import PendingRequest, RequestRouter, RunningReplica
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Message

from tamiz.building.of_source import bundle_of
from tamiz.serving.api.served import State, error_reply
from tamiz.serving.app import make_app
from tamiz.serving.catalog import Catalog, load
from tamiz.serving.engine import Limits
from tamiz.serving.errors import ApiError, overloaded
from tamiz.serving.settings import Settings
from tamiz.serving.sources import names_of_sources, read_keys

#: Characters of a text that are its beginning.
_BEGINNING = 2000
#: Requests at the door; those that no replica takes and that may not wait are refused there.
_AT_THE_DOOR = 10_000


class Options(BaseModel):
    """Options of an application; those of `tamiz serve` have the same meaning here.

    Attributes:
        models: Sources of the models, each with or without ``NAME=``. Every node has the files.
        replicas: Processes that each have all models.
        threads: Threads of a replica, and the processors that Ray reserves for it.
        context: Tokens that the KV cache of a model holds.
        concurrent: Requests that a replica works on at once.
        max_queue: Requests that wait at the door; further ones get status 429.
        api_key_file: File with one API key per line; every node has it.
        cache_scope: Requests that share cached prefixes: those of one API key, or all.
        timeout: Time limit of an answer, in seconds.
        precise: Build sources with 16-bit inputs of products.
        strict: Refuse requests with unknown fields.
    """

    models: list[str] = Field(min_length=1)
    replicas: int = Field(1, ge=1)
    threads: int = Field(2, ge=1)
    context: int = Field(16384, ge=64)
    concurrent: int = Field(16, ge=1)
    max_queue: int = Field(256, ge=1)
    api_key_file: str = ""
    cache_scope: Literal["key", "all"] = "key"
    timeout: float = Field(600.0, gt=0)
    precise: bool = False
    strict: bool = False

    @field_validator("models", mode="before")
    @classmethod
    def _listed(cls, models: Any) -> Any:
        """`serve run` gives all values as text."""
        return models.split(",") if isinstance(models, str) else models


@dataclass(frozen=True)
class Call:
    """A request on its way to a replica.

    Attributes:
        scope: What ASGI says of it.
        body: Its body.
        beginning: A hash of how its prompt begins, and of who sent it.
        keeper: Mark of the replica that keeps the response that it continues; empty for none.
    """

    scope: dict[str, Any]
    body: bytes
    beginning: bytes
    keeper: str


@dataclass(frozen=True)
class Head:
    """Status and headers of a reply."""

    status: int
    headers: list[tuple[bytes, bytes]]


def app(options: Options | dict[str, Any]) -> serve.Application:
    """The application, for `serve.run` and for `serve run tamiz.serving.ray:app models=…`.

    Args:
        options: Options, or their values by name, as `serve run` gives them.
    """
    options = Options.model_validate(options)
    router = RequestRouterConfig(request_router_class=PrefixRouter)
    replica = serve.deployment(
        Replica,
        name="Models",
        num_replicas=options.replicas,
        ray_actor_options={"num_cpus": options.threads},
        max_ongoing_requests=options.concurrent,
        max_queued_requests=options.max_queue,
        request_router_config=router,
    )
    door = serve.deployment(
        Door, name="Door", ray_actor_options={"num_cpus": 0}, max_ongoing_requests=_AT_THE_DOOR
    )
    return door.bind(replica.bind(options))


class PrefixRouter(RequestRouter):  # type: ignore[misc]  # ray is installed in few environments
    """Ranks replicas by what a request continues, then by the hash of its beginning."""

    async def choose_replicas(
        self,
        candidate_replicas: list[RunningReplica],
        pending_request: PendingRequest | None = None,
    ) -> list[list[RunningReplica]]:
        """All replicas, the best one first; Ray takes the first that is not full."""
        if pending_request is None:
            return [candidate_replicas]
        pending_request.routing_context.should_backoff = True
        call = pending_request.args[0]

        def rank(replica: RunningReplica) -> tuple[bool, bytes]:
            mark = _mark(replica.replica_id.unique_id)
            return mark == call.keeper, blake2b(call.beginning + mark.encode()).digest()

        return [[replica] for replica in sorted(candidate_replicas, key=rank, reverse=True)]


def _mark(replica: str) -> str:
    """Eight characters that stand for a replica."""
    return blake2b(replica.encode(), digest_size=4).hexdigest()


class Replica:
    """The server, without a socket of its own."""

    def __init__(self, options: Options) -> None:
        """Builds and loads the models.

        Raises:
            TamizError: One cannot be loaded.
        """
        self._mark = _mark(serve.get_replica_context().replica_id.unique_id)
        limits = Limits(options.context, options.concurrent, options.max_queue)
        catalog = Catalog()
        for name, source in names_of_sources(options.models).items():
            bundle = bundle_of(source, print, options.precise)
            catalog.add(load(str(bundle), name, options.threads, limits))
        settings = Settings(
            tuple(read_keys(options.api_key_file)) if options.api_key_file else (),
            options.strict,
            options.cache_scope,
            seconds=options.timeout,
            mark=self._mark,
        )
        self._app = make_app(State(catalog, settings))

    async def answer(self, call: Call) -> AsyncIterator[Head | bytes]:
        """The reply to a request: its head, then its body in pieces."""
        messages: asyncio.Queue[Message | None] = asyncio.Queue()
        bodies = [{"type": "http.request", "body": call.body, "more_body": False}]

        async def receive() -> Message:
            if bodies:
                return bodies.pop()
            await asyncio.Event().wait()  # the client is there until this task is cancelled
            raise AssertionError

        async def respond() -> None:
            try:
                await self._app(call.scope, receive, messages.put)
            finally:
                messages.put_nowait(None)

        task = asyncio.create_task(respond())
        try:
            while (message := await messages.get()) is not None:
                if message["type"] == "http.response.start":
                    mark = (b"x-tamiz-replica", self._mark.encode())
                    yield Head(message["status"], [*message["headers"], mark])
                elif message.get("body"):
                    yield message["body"]
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


class Door:
    """Sends requests to replicas, and their replies to clients."""

    def __init__(self, replicas: DeploymentHandle) -> None:
        """Stands before replicas."""
        self._replicas = replicas.options(method_name="answer", stream=True)

    async def __call__(self, request: Request) -> Response:
        """The reply of a replica, or why there is none."""
        try:
            call = call_of(request, await _body(request, Settings().most_bytes))
            pieces = self._replicas.remote(call)
            head = await anext(pieces)
        except ApiError as error:
            return error_reply(error)
        except BackPressureError:
            return error_reply(overloaded("all replicas are full"))
        except (RayError, RayServeException) as error:
            return error_reply(_ended(error))
        response = StreamingResponse(_rest(pieces, head), head.status)
        response.raw_headers = head.headers
        return response


def _ended(error: Exception) -> ApiError:
    message = "the replica that was making the answer has ended; try again"
    return ApiError(503, message, None, type(error).__name__, {"Retry-After": "1"})


async def _body(request: Request, most: int) -> bytes:
    """The body of a request.

    Raises:
        ApiError: It is too large.
    """
    body = bytearray()
    async for piece in request.stream():
        body += piece
        if len(body) > most:
            raise ApiError(413, f"the body is too large, expected at most {most} bytes")
    return bytes(body)


async def _rest(pieces: Any, head: Head) -> AsyncIterator[bytes]:
    """The body of a reply; a stream whose replica ends gets an event that says so."""
    streamed = any(
        name == b"content-type" and value.startswith(b"text/event-stream")
        for name, value in head.headers
    )
    try:
        async for piece in pieces:
            yield piece
    except (RayError, RayServeException) as error:
        if not streamed:  # the client sees that the body is not complete
            raise
        event = {"type": "error", **_ended(error).body}
        yield b"event: error\ndata: " + orjson.dumps(event) + b"\n\ndata: [DONE]\n\n"
    finally:
        pieces.cancel()


def call_of(request: Request, body: bytes) -> Call:
    """What a request is for the router and for a replica."""
    fields: Any = None
    with contextlib.suppress(orjson.JSONDecodeError):  # the replica says what is wrong
        fields = orjson.loads(body)
    fields = fields if isinstance(fields, dict) else {}
    name = str(fields.get("previous_response_id") or request.url.path.rpartition("/")[2])
    keeper = name.removeprefix("resp_")[:8] if name.startswith("resp_") else ""
    key = request.headers.get("authorization", "")
    text = json.dumps([key, fields.get("model"), _beginning(fields)], default=str)
    scope = {
        name: value
        for name, value in request.scope.items()
        if name in ("type", "http_version", "method", "scheme", "path", "query_string", "headers")
    }
    return Call(scope, body, blake2b(text.encode()).digest(), keeper)


def _beginning(fields: dict[str, Any]) -> str:
    """How the prompt of a request begins: what the system says, and the first message of a user."""
    messages = fields.get("messages") or fields.get("input") or fields.get("prompt") or ""
    said = messages
    if isinstance(messages, list):
        others = [
            number
            for number, message in enumerate(messages)
            if not isinstance(message, dict) or message.get("role") not in ("system", "developer")
        ]
        said = messages[: others[0] + 1] if others else messages
    text = json.dumps([fields.get("instructions"), fields.get("tools"), said], default=str)
    return text[:_BEGINNING]
