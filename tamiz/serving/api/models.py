"""What a server has and how it is: models, tokenizers, health, metrics, version, page."""

from __future__ import annotations

from importlib import resources
from typing import Annotated, Any

from fastapi import APIRouter, Request
from pydantic import Field
from starlette.responses import HTMLResponse, PlainTextResponse, Response

import tamiz
from tamiz.files.errors import TamizError
from tamiz.serving.api.bodies import Body, Whole
from tamiz.serving.api.served import reply, state_of
from tamiz.serving.catalog import Served
from tamiz.serving.errors import bad_request

router = APIRouter()


def _model(served: Served) -> dict[str, Any]:
    return {
        "id": served.name,
        "object": "model",
        "created": served.created,
        "owned_by": "tamiz",
    }


@router.get("/v1/models")
async def models(request: Request) -> Response:
    """The models that can be named in requests."""
    served = state_of(request).catalog.served.values()
    return reply({"object": "list", "data": [_model(one) for one in served]})


@router.get("/v1/models/{name:path}")
async def model(name: str, request: Request) -> Response:
    """One model."""
    return reply(_model(state_of(request).catalog.find(name)))


class TokenizeBody(Body):
    """A request of ``/tokenize``."""

    content: str
    model: str | None = None
    add_special: bool = False


class DetokenizeBody(Body):
    """A request of ``/detokenize``."""

    tokens: list[Annotated[Whole, Field(ge=0, lt=2**31)]]
    model: str | None = None


@router.post("/tokenize")
async def tokenize(body: TokenizeBody, request: Request) -> Response:
    """Token ids of a text."""
    tokenizer = state_of(request).catalog.find(body.model).tokenizer
    try:
        return reply({"tokens": tokenizer.encode(body.content, bos=body.add_special)})
    except TamizError as error:
        raise bad_request(str(error), "content") from error


@router.post("/detokenize")
async def detokenize(body: DetokenizeBody, request: Request) -> Response:
    """The text of token ids."""
    tokenizer = state_of(request).catalog.find(body.model).tokenizer
    try:
        return reply({"content": tokenizer.decode(body.tokens, special=True)})
    except TamizError as error:
        raise bad_request(str(error), "tokens") from error


@router.get("/health")
async def health(request: Request) -> Response:
    """200 where requests can be served, 503 while models are loaded."""
    if state_of(request).ready:
        return reply({"status": "ok"})
    return reply({"status": "loading"}, 503)


@router.get("/metrics", response_class=PlainTextResponse)
async def metrics(request: Request) -> Response:
    """Metrics in Prometheus' text format."""
    return Response(state_of(request).metrics.text(), media_type="text/plain; version=0.0.4")


@router.get("/version")
async def version() -> Response:
    """The version of tamiz."""
    return reply({"version": tamiz.__version__})


@router.get("/", include_in_schema=False)
async def page() -> Response:
    """A page to try the server."""
    text = resources.files("tamiz.serving").joinpath("page.html").read_text("utf-8")
    return HTMLResponse(text)
