"""LlamaIndex' classes for servers of OpenAI's API, with the settings that the guide gives."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip(
    "llama_index.llms.openai_like", reason="pip install llama-index-llms-openai-like"
)
pytest.importorskip(
    "llama_index.embeddings.openai_like", reason="pip install llama-index-embeddings-openai-like"
)

import numpy as np
from llama_index.core.llms import ChatMessage
from llama_index.core.tools import FunctionTool
from llama_index.embeddings.openai_like import OpenAILikeEmbedding
from llama_index.llms.openai_like import OpenAILike
from pydantic import BaseModel

import tamiz
from kit.encoders import write_encoder
from kit.served import served

pytestmark = pytest.mark.slow
HELLO = [ChatMessage(role="user", content="hello")]


class Pair(BaseModel):
    """What an answer has to be."""

    first: bool
    second: bool


def weather(hot: bool) -> str:
    """Says how the weather is."""
    return "hot" if hot else "cold"


@pytest.fixture(scope="module")
def llm(url: str) -> Any:
    return OpenAILike(
        api_base=f"{url}/v1",
        api_key="none",
        model="tiny",
        is_chat_model=True,
        is_function_calling_model=True,
        temperature=0,
        max_tokens=100,
        max_retries=0,
    )


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An encoder's bundle."""
    return Path(write_encoder(tmp_path_factory.mktemp("encoder") / "encoder"))


@pytest.fixture(scope="module")
def embeddings(encoder: Path) -> Iterator[Any]:
    with served({"encoder": encoder}) as url:
        yield OpenAILikeEmbedding(model_name="encoder", api_base=f"{url}/v1", api_key="none")


def test_a_stream_has_the_text_of_the_chat(llm: Any) -> None:
    whole = llm.chat(HELLO)
    assert whole.message.content
    assert "".join(chunk.delta for chunk in llm.stream_chat(HELLO)) == whole.message.content
    assert llm.complete("hello").text == whole.message.content


async def test_asynchronous_answers_are_the_same(llm: Any) -> None:
    answer = await llm.achat(HELLO)
    assert answer.message.content == llm.chat(HELLO).message.content
    chunks = [chunk.delta async for chunk in await llm.astream_chat(HELLO)]
    assert "".join(chunks) == answer.message.content


def test_texts_are_completed_without_a_template(url: str, llm: Any) -> None:
    plain = OpenAILike(**(llm.model_dump() | {"is_chat_model": False, "api_key": "none"}))
    answer = plain.complete("hello")
    assert answer.text
    assert "".join(chunk.delta for chunk in plain.stream_complete("hello")) == answer.text


def test_a_tool_that_has_to_be_called_is_called(llm: Any) -> None:
    tool = FunctionTool.from_defaults(fn=weather)
    answer = llm.chat_with_tools([tool], user_msg="How is the weather?", tool_required=True)
    (call,) = llm.get_tool_calls_from_response(answer)
    assert call.tool_name == "weather"
    assert isinstance(call.tool_kwargs["hot"], bool)
    result = llm.predict_and_call([tool], user_msg="Weather?", tool_required=True)
    assert result.response in ("hot", "cold")


def test_an_answer_of_a_class_is_parsed(llm: Any) -> None:
    assert isinstance(llm.as_structured_llm(Pair).complete("hello").raw, Pair)


def test_embeddings_are_those_of_the_model(embeddings: Any, encoder: Path) -> None:
    texts = ["w5", "w6 w7 w8 w9"]
    with tamiz.EmbeddingModel.load(encoder, threads=1) as own:
        expected = own.embed(texts)
    expected /= np.linalg.norm(expected, axis=1, keepdims=True)
    found = np.array(embeddings.get_text_embedding_batch(texts))
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6)
    one = np.array(embeddings.get_query_embedding(texts[0]))
    np.testing.assert_allclose(one, expected[0], rtol=0, atol=1e-6)
