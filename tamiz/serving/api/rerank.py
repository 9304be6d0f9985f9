"""``/v1/rerank``: how well documents answer a query, in the form of Jina's and Cohere's API."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Request
from pydantic import BaseModel, Field
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from tamiz.files.errors import TamizError
from tamiz.serving.api.bodies import Body, Whole
from tamiz.serving.api.served import reply, state_of
from tamiz.serving.errors import bad_request

router = APIRouter()
#: Documents of one request.
MOST_DOCUMENTS = 2048


class Document(BaseModel):
    """A document with its text."""

    text: str


class RerankBody(Body):
    """A request of ``/v1/rerank``."""

    model: str | None = None
    query: Annotated[str, Field(min_length=1)]
    documents: Annotated[list[str | Document], Field(min_length=1, max_length=MOST_DOCUMENTS)]
    top_n: Annotated[Whole, Field(ge=1)] | None = None
    return_documents: bool = False


@router.post("/v1/rerank")
@router.post("/v2/rerank", include_in_schema=False)
@router.post("/rerank", include_in_schema=False)
async def rerank(body: RerankBody, request: Request) -> Response:
    """The documents with their scores, the best first."""
    state = state_of(request)
    served = state.catalog.reranker(body.model)
    state.check_fields(body)
    texts = [one if isinstance(one, str) else one.text for one in body.documents]
    try:
        # Not in this thread: other requests would wait for many documents.
        scores, tokens = await run_in_threadpool(served.rerank, body.query, texts)
    except TamizError as error:
        raise bad_request(str(error), "documents") from error
    order = sorted(range(len(texts)), key=lambda index: (-scores[index], index))
    results = []
    for index in order[: body.top_n]:
        result: dict[str, Any] = {"index": index, "relevance_score": float(scores[index])}
        if body.return_documents:
            result["document"] = {"text": texts[index]}
        results.append(result)
    counts = {"prompt_tokens": tokens, "total_tokens": tokens}
    return reply({"model": served.name, "results": results, "usage": counts})
