"""``/v1/responses``: OpenAI's newer API of text, with responses that later ones continue."""

from __future__ import annotations

from collections.abc import AsyncIterator

import orjson
from fastapi import APIRouter, Request
from starlette.responses import Response, StreamingResponse

from tamiz.serving.api.replies import STREAMED
from tamiz.serving.api.response_bodies import ResponseBody
from tamiz.serving.api.response_writer import Event, Writer
from tamiz.serving.api.served import State, reply, started, state_of
from tamiz.serving.chat import answer, read_turn
from tamiz.serving.errors import ApiError
from tamiz.serving.kept_responses import Kept

router = APIRouter()


@router.post("/v1/responses", responses=STREAMED)
async def respond(body: ResponseBody, request: Request) -> Response:
    """A response to an input, which may continue an earlier one."""
    state = state_of(request)
    state.check_fields(body)
    served = state.catalog.decoder(body.model)
    writer = Writer(body, served.name, served.tokenizer, state.settings.mark)
    events = await started(_events(state, writer, request))
    if body.stream:
        return StreamingResponse(_lines(writer, events), media_type="text/event-stream")
    async for _ in events:
        pass
    return reply(writer.response)


@router.get("/v1/responses/{name}")
async def kept(name: str, request: Request) -> Response:
    """A response that was made before."""
    state = state_of(request)
    return reply(state.kept.find(name, state.scope(request)).response)


@router.delete("/v1/responses/{name}")
async def forget(name: str, request: Request) -> Response:
    """Forgets a response."""
    state = state_of(request)
    state.kept.remove(name, state.scope(request))
    return reply({"id": name, "object": "response", "deleted": True})


async def _events(state: State, writer: Writer, request: Request) -> AsyncIterator[Event]:
    """The events of a response, which is kept at its end."""
    body, scope = writer.body, state.scope(request)
    served = state.catalog.decoder(body.model)
    messages = body.messages()
    if body.previous_response_id is not None:
        messages = state.kept.find(body.previous_response_id, scope).messages + messages
    prompt = messages
    if body.instructions:
        prompt = [{"role": "system", "content": body.instructions}, *messages]
    tools, parallel = body.chosen_tools(), body.parallel_tool_calls
    turn = read_turn(served, prompt, tools, parallel, body.variables())
    wish = state.complete(body.response_wish(), request)
    # The first event waits for the answer's first token: until then, errors have a status code.
    parts = await started(state.metrics.follow(answer(served, turn, wish)))
    for event in writer.begin():
        yield event
    async for part in parts:
        for event in writer.write(part):
            yield event
    if body.store:
        state.kept.add(Kept(scope, [*messages, writer.message()], writer.response))


async def _lines(writer: Writer, events: AsyncIterator[Event]) -> AsyncIterator[bytes]:
    try:
        async for event in events:
            yield _line(event)
    except ApiError as error:
        for event in writer.fail(error):
            yield _line(event)
    yield b"data: [DONE]\n\n"


def _line(event: Event) -> bytes:
    return f"event: {event['type']}\ndata: ".encode() + orjson.dumps(event) + b"\n\n"
