"""``/v1/embeddings``."""

from __future__ import annotations

import base64
from typing import Annotated, Any, Literal

import numpy as np
from fastapi import APIRouter, Request
from pydantic import Field
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from tamiz.files.errors import TamizError
from tamiz.serving.api.bodies import Body, Whole
from tamiz.serving.api.served import reply, state_of
from tamiz.serving.errors import bad_request

router = APIRouter()
#: Texts of one request.
MOST_TEXTS = 2048


class EmbeddingBody(Body):
    """A request of ``/v1/embeddings``."""

    model: str | None = None
    input: str | list[str]
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: Annotated[Whole, Field(ge=1)] | None = None
    user: str | None = None


@router.post("/v1/embeddings")
async def embeddings(body: EmbeddingBody, request: Request) -> Response:
    """An embedding of each text."""
    state = state_of(request)
    served = state.catalog.encoder(body.model)
    state.check_fields(body)
    texts = [body.input] if isinstance(body.input, str) else body.input
    if not 0 < len(texts) <= MOST_TEXTS or "" in texts:
        raise bad_request(f"expected 1 to {MOST_TEXTS} texts that are not empty", "input")
    if body.dimensions is not None and body.dimensions > served.model.width:
        raise bad_request(
            f"found {body.dimensions}, expected at most {served.model.width}", "dimensions"
        )
    try:
        # Not in this thread: other requests would wait for many texts.
        vectors, tokens = await run_in_threadpool(served.embed, texts, body.dimensions)
    except TamizError as error:
        raise bad_request(str(error), "input") from error
    data = [
        {"object": "embedding", "index": index, "embedding": _written(row, body.encoding_format)}
        for index, row in enumerate(vectors)
    ]
    counts = {"prompt_tokens": tokens, "total_tokens": tokens}
    return reply({"object": "list", "model": served.name, "data": data, "usage": counts})


def _written(row: np.ndarray[Any, np.dtype[np.float32]], form: str) -> Any:
    if form == "base64":
        return base64.b64encode(row.astype("<f4").tobytes()).decode()
    return row.tolist()
