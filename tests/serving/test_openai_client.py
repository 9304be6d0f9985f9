"""OpenAI's own client, as its users call it."""

from __future__ import annotations

import json
import re
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI, OpenAI
from pydantic import BaseModel, ConfigDict

ASK: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "hello"}]}
TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"enum": ["Rome", "Oslo"]}},
            "required": ["city"],
        },
    },
}


class Pair(BaseModel):
    """What an answer has to be."""

    model_config = ConfigDict(extra="forbid")

    first: bool
    second: bool


@pytest.fixture(scope="module")
def client(url: str) -> OpenAI:
    return OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)


def test_a_stream_has_the_text_of_the_answer(client: OpenAI) -> None:
    whole = client.chat.completions.create(**ASK, max_tokens=20, seed=1)
    stream = client.chat.completions.create(
        **ASK, max_tokens=20, seed=1, stream=True, stream_options={"include_usage": True}
    )
    chunks = list(stream)
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == whole.choices[0].message.content
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[-2].choices[0].finish_reason == whole.choices[0].finish_reason == "length"
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 20


def test_choices_draw_with_seeds_of_their_own(client: OpenAI) -> None:
    one = client.chat.completions.create(**ASK, max_tokens=10, seed=1, n=3)
    two = client.chat.completions.create(**ASK, max_tokens=10, seed=1, n=3)
    texts = [choice.message.content for choice in one.choices]
    assert texts == [choice.message.content for choice in two.choices]
    assert len(set(texts)) == 3
    assert one.usage is not None
    assert one.usage.completion_tokens == 30


def test_models_have_what_lists_of_models_show(client: OpenAI) -> None:
    """Open WebUI fills its menu with the ids."""
    (model,) = client.models.list().data
    assert (model.id, model.object, model.owned_by) == ("tiny", "model", "tamiz")
    assert model.created > 0
    assert client.models.retrieve("tiny") == model


def test_logprobs(client: OpenAI) -> None:
    answer = client.chat.completions.create(
        **ASK, max_tokens=3, temperature=0, logprobs=True, top_logprobs=2
    )
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.content is not None
    assert [token.logprob for token in logprobs.content] == [
        token.top_logprobs[0].logprob for token in logprobs.content
    ]
    assert all(len(token.top_logprobs) == 2 for token in logprobs.content)


def test_an_answer_of_a_schema_is_parsed(client: OpenAI) -> None:
    answer = client.chat.completions.parse(**ASK, response_format=Pair, max_tokens=200, seed=3)
    assert isinstance(answer.choices[0].message.parsed, Pair)
    assert answer.choices[0].finish_reason == "stop"


@pytest.mark.parametrize(
    "choice", ["required", {"type": "function", "function": {"name": "weather"}}]
)
@pytest.mark.parametrize("stream", [False, True])
def test_a_required_call_is_valid(client: OpenAI, choice: Any, stream: bool) -> None:
    ask: dict[str, Any] = {**ASK, "tools": [TOOL], "tool_choice": choice, "max_tokens": 300}
    if stream:
        chunks = list(client.chat.completions.create(**ask, seed=2, stream=True))
        calls = [c for chunk in chunks for c in chunk.choices[0].delta.tool_calls or ()]
        reason = chunks[-1].choices[0].finish_reason
    else:
        answer = client.chat.completions.create(**ask, seed=2)
        calls, reason = answer.choices[0].message.tool_calls, answer.choices[0].finish_reason
    assert reason == "tool_calls"
    (call,) = calls
    assert call.function.name == "weather"
    arguments = json.loads(call.function.arguments)
    assert arguments.keys() == {"city"}
    assert arguments["city"] in ("Rome", "Oslo")


CALLED = '<tool_call>\n{"name": "weather", "arguments": {"city": "%s"}}\n</tool_call>'
TWO_CALLS = CALLED % "Rome" + "\n" + CALLED % "Oslo"


@pytest.mark.parametrize("logprobs", [False, True], ids=["forced tokens together", "one by one"])
@pytest.mark.parametrize("parallel", [None, True, False])
def test_an_answer_has_one_call_where_calls_are_not_parallel(
    client: OpenAI, parallel: bool | None, logprobs: bool
) -> None:
    """A grammar makes the model write two calls by itself: no call is required."""
    ask: dict[str, Any] = {**ASK, "tools": [TOOL], "max_tokens": 400, "seed": 1}
    ask["logprobs"] = logprobs
    written: Any = {"grammar": {"type": "regex", "value": re.escape(TWO_CALLS)}}
    more: dict[str, Any] = {} if parallel is None else {"parallel_tool_calls": parallel}
    answer = client.chat.completions.create(**ask, **more, extra_body=written)
    expected = ["Rome"] if parallel is False else ["Rome", "Oslo"]
    choice, usage = answer.choices[0], answer.usage
    assert _cities(choice.message.tool_calls) == expected
    assert choice.finish_reason == "tool_calls"
    assert not choice.message.content
    assert usage is not None
    # At most a token a byte: the answer ends with its last call.
    most = len("\n".join(CALLED % city for city in expected))
    assert most // 2 < usage.completion_tokens <= most
    chunks = list(
        client.chat.completions.create(
            **ask,
            **more,
            extra_body=written,
            stream=True,
            stream_options={"include_usage": True},
        )
    )
    calls = [c for chunk in chunks for o in chunk.choices for c in o.delta.tool_calls or ()]
    assert _cities(calls) == expected
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == usage.completion_tokens
    tool: Any = {"type": "function", "strict": False, **TOOL["function"]}
    response = client.responses.create(
        model="tiny",
        input="hello",
        tools=[tool],
        max_output_tokens=400,
        extra_body=written,
        **more,
    )
    cities = [json.loads(o.arguments)["city"] for o in response.output if o.type == "function_call"]
    assert cities == expected
    assert response.status == "completed"
    assert (
        client.chat.completions.create(**ASK, max_tokens=2, temperature=0).choices[0].finish_reason
        == "length"
    )


def _cities(calls: Any) -> list[str]:
    return [json.loads(call.function.arguments)["city"] for call in calls]


def test_a_response_is_continued(client: OpenAI) -> None:
    first = client.responses.create(model="tiny", input="hello", max_output_tokens=5)
    assert first.status == "incomplete"
    second = client.responses.create(
        model="tiny", input="more", previous_response_id=first.id, max_output_tokens=5
    )
    assert first.usage is not None
    assert second.usage is not None
    assert second.usage.input_tokens > first.usage.input_tokens
    assert client.responses.retrieve(first.id).output_text == first.output_text
    client.responses.delete(first.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(first.id)


def test_events_of_a_response(client: OpenAI) -> None:
    pair: Any = {"type": "json_schema", "name": "pair", "schema": Pair.model_json_schema()}
    with client.responses.stream(
        model="tiny", input="hello", max_output_tokens=200, text={"format": pair}
    ) as stream:
        events = list(stream)
        response = stream.get_final_response()
    deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
    assert "".join(deltas) == response.output_text
    assert isinstance(Pair.model_validate_json(response.output_text), Pair)
    assert [event.sequence_number for event in events] == list(range(len(events)))


def test_completions_of_several_prompts(client: OpenAI) -> None:
    answer = client.completions.create(
        model="tiny", prompt=["hello", "hell"], max_tokens=4, temperature=0, logprobs=1
    )
    single = client.completions.create(model="tiny", prompt="hell", max_tokens=4, temperature=0)
    assert answer.choices[1].text == single.choices[0].text
    assert answer.choices[0].logprobs is not None
    assert len(answer.choices[0].logprobs.tokens or ()) == 4


def test_an_asynchronous_client_that_leaves_frees_the_engine(url: str, client: OpenAI) -> None:
    import asyncio

    async def leave() -> None:
        async with AsyncOpenAI(base_url=f"{url}/v1", api_key="none") as session:
            stream = await session.chat.completions.create(**ASK, max_tokens=400, stream=True)
            async for _ in stream:
                break
            await stream.close()

    asyncio.run(leave())
    answer = client.chat.completions.create(**ASK, max_tokens=2, temperature=0)
    assert answer.choices[0].finish_reason == "length"


def test_errors_have_the_classes_of_the_client(client: OpenAI) -> None:
    with pytest.raises(openai.NotFoundError, match="there is no model other; there are: tiny"):
        client.chat.completions.create(**{**ASK, "model": "other"})
    with pytest.raises(openai.BadRequestError, match="temperature: Input should be"):
        client.chat.completions.create(**ASK, temperature=-1)
    long = [{"role": "user", "content": "hello " * 600}]
    with pytest.raises(openai.BadRequestError) as error:
        client.chat.completions.create(**{**ASK, "messages": long})
    assert error.value.code == "context_length_exceeded"
