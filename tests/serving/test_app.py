"""Keys, limits and errors of the server."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from tamiz.runtime.model import Model
from tamiz.serving.api.served import State
from tamiz.serving.app import make_app
from tamiz.serving.catalog import Catalog, ServedDecoder
from tamiz.serving.engine import Limits
from tamiz.serving.settings import Settings

CHAT = "/v1/chat/completions"
ASK: dict[str, Any] = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 3}


def app_with(settings: Settings, ready: bool = True) -> TestClient:
    """A client of a server without models."""
    return TestClient(make_app(State(Catalog(), settings, ready=ready)))


def test_a_key_is_demanded_but_for_probes() -> None:
    client = app_with(Settings(keys=("one", "two")))
    assert client.get("/health").status_code == 200
    for headers in ({}, {"Authorization": "Bearer three"}, {"Authorization": "one"}):
        reply = client.get("/v1/models", headers=headers)
        assert reply.status_code == 401
        assert reply.json()["error"]["code"] == "invalid_api_key"
    assert client.get("/v1/models", headers={"Authorization": "Bearer two"}).status_code == 200
    assert client.get("/metrics").status_code == 401


def test_a_server_that_loads_says_so() -> None:
    client = app_with(Settings(), ready=False)
    assert client.get("/health").status_code == 503
    reply = client.post(CHAT, json=ASK)
    assert reply.status_code == 503
    assert reply.headers["retry-after"]


@pytest.mark.parametrize("chunked", [False, True])
def test_a_large_body_is_refused(chunked: bool) -> None:
    client = app_with(Settings(most_bytes=1000))
    content = b"x" * 2000
    body: Any = iter([content[:700], content[700:]]) if chunked else content
    assert client.post(CHAT, content=body).status_code == 413


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"{", "the body is no JSON"),
        (b"", "body: Field required"),
        (b"[]", "body"),
        (b'{"messages": []}', "messages: List should have at least 1 item"),
        (b'{"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}', "'image_url'"),
        (b'{"messages": [{"role": "user"}], "tool_choice": "required"}', "there are no tools"),
        (b'{"messages": [{"role": "user"}], "stop": [""]}', "at most 16 strings"),
        (b'{"messages": [{"role": "user"}], "grammar": "root ::= ("}', "grammar"),
        (b'{"messages": [{"role": "user"}], "grammar": ""}', "grammar is malformed"),
        (b'{"messages": [{"role": "user"}], "logit_bias": {"x": 1}}', "x"),
        (b'{"messages": [{"role": "user"}], "n": 1000}', "n: Input should be less than"),
        (b'{"messages": [{"role": "user"}], "n": 1.5}', "n: Input should be a valid integer"),
        (b'{"messages": [{"role": "user"}], "stream": 1}', "stream: Input should be a valid bool"),
        (
            b'{"messages": [{"role": "user"}], "top_p": "1"}',
            "top_p: Input should be a valid number",
        ),
    ],
)
def test_a_bad_request_is_said_in_one_sentence(
    client: TestClient, body: bytes, message: str
) -> None:
    reply = client.post(CHAT, content=body, headers={"Content-Type": "application/json"})
    assert reply.status_code == 400
    error = reply.json()["error"]
    assert message in error["message"]
    assert error["type"] == "invalid_request_error"


def test_a_body_of_another_type_is_named(client: TestClient) -> None:
    headers = {"Content-Type": "application/x-www-form-urlencoded"}
    for content, kind in ((b"{}", headers), (b"{}", {})):
        reply = client.post(CHAT, content=content, headers=kind)
        assert reply.status_code == 400
        found = kind.get("Content-Type", "missing")
        message = f"Content-Type is {found}, expected application/json"
        assert reply.json()["error"]["message"] == message


def test_a_method_that_a_route_has_not_is_refused_with_those_that_it_has(
    client: TestClient,
) -> None:
    reply = client.put(CHAT, json=ASK)
    assert reply.status_code == 405
    assert reply.headers["allow"] == "POST"
    assert reply.json()["error"]["message"] == "Method Not Allowed"
    assert client.put("/v1/responses/one").headers["allow"] == "DELETE, GET"
    assert client.put("/", json={}).headers["allow"] == "GET"


def test_a_schema_may_stand_beside_json_object_as_in_llama_cpp(client: TestClient) -> None:
    form = {"type": "json_object", "schema": {"enum": ["Rome", "Oslo"]}}
    reply = client.post(CHAT, json={**ASK, "max_tokens": 20, "response_format": form})
    assert reply.json()["choices"][0]["message"]["content"] in ('"Rome"', '"Oslo"')
    form["schema"] = {"type": "hiccup"}
    assert client.post(CHAT, json={**ASK, "response_format": form}).status_code == 400


def test_unknown_fields_are_ignored_or_refused(tiny: Path, client: TestClient) -> None:
    assert client.post(CHAT, json={**ASK, "wrong": 1}).status_code == 200
    catalog = Catalog()
    catalog.add(ServedDecoder.start("tiny", Model.load(tiny), Limits(512)))
    strict = TestClient(make_app(State(catalog, Settings(strict=True))))
    reply = strict.post(CHAT, json={**ASK, "wrong": 1})
    assert reply.status_code == 400
    assert "unknown fields: 'wrong'" in reply.json()["error"]["message"]
    catalog.close(0)


def test_prefixes_are_shared_within_a_key_only(client: TestClient) -> None:
    ask = {**ASK, "messages": [{"role": "user", "content": "hello sieve " * 20}]}

    def cached(key: str) -> int:
        reply = client.post(CHAT, json=ask, headers={"Authorization": f"Bearer {key}"})
        count: int = reply.json()["usage"]["prompt_tokens_details"]["cached_tokens"]
        return count

    assert cached("one") == 0
    assert cached("two") == 0
    assert cached("one") >= 64


def test_a_template_gets_tools_and_variables(tiny: Path) -> None:
    catalog = Catalog()
    served = ServedDecoder.start("tiny", Model.load(tiny), Limits(512))
    served.tokenizer.settings["chat_template"] = (
        "{{ tools[0].function.name if tools else 'none' }} {{ mood }} {{ messages[0].content }}"
    )
    catalog.add(served)
    client = TestClient(make_app(State(catalog, Settings())))
    tool = {"type": "function", "function": {"name": "weather"}}
    counts = []
    for more in ({}, {"tools": [tool]}, {"chat_template_kwargs": {"mood": "good"}}):
        reply = client.post(CHAT, json={**ASK, **more})
        counts.append(reply.json()["usage"]["prompt_tokens"])
    plain = len(served.tokenizer.encode("none  hello"))
    named = len(served.tokenizer.encode("weather  hello"))
    assert counts == [plain, named, plain + len("good")]
    catalog.close(0)


def test_metrics_count_and_hold_no_text(client: TestClient) -> None:
    client.post(CHAT, json={**ASK, "messages": [{"role": "user", "content": "secret words"}]})
    text = client.get("/metrics").text
    assert 'tamiz_requests_total{route="/v1/chat/completions",status="200"}' in text
    assert "tamiz_completion_tokens_total" in text
    assert "tamiz_time_to_first_token_seconds_count" in text
    assert "secret" not in text


def test_a_number_without_a_fraction_is_whole(client: TestClient) -> None:
    body, headers = b'{"prompt": "hello", "max_tokens": 2.0}', {"Content-Type": "application/json"}
    reply = client.post("/v1/completions", content=body, headers=headers)
    assert reply.json()["usage"]["completion_tokens"] <= 2


def test_a_prompt_of_tokens_that_are_not_there_is_refused(client: TestClient) -> None:
    reply = client.post("/v1/completions", json={"prompt": [[2, 3], [2**31 - 1]]})
    assert reply.status_code == 400
    assert "token 2147483647 is unknown to the model" in reply.json()["error"]["message"]


def test_tokens_of_a_text_and_back(client: TestClient) -> None:
    tokens = client.post("/tokenize", json={"content": "hello sieve"}).json()["tokens"]
    assert client.post("/detokenize", json={"tokens": tokens}).json() == {"content": "hello sieve"}
    assert client.post("/detokenize", json={"tokens": [100_000]}).status_code == 400


@pytest.mark.parametrize("name", [None, "other"])
def test_tokens_of_a_model_that_is_not_there(name: str | None) -> None:
    reply = app_with(Settings()).post("/tokenize", json={"content": "hello", "model": name})
    assert reply.status_code == 404
    assert "there are: none" in reply.json()["error"]["message"]


def test_the_page_needs_nothing_from_elsewhere(client: TestClient) -> None:
    page = client.get("/").text
    assert "http://" not in page
    assert "https://" not in page


def test_embeddings_are_not_made_by_a_decoder(client: TestClient) -> None:
    reply = client.post("/v1/embeddings", json={"model": "tiny", "input": "hello"})
    assert reply.status_code == 400
    assert "makes text, not embeddings" in reply.json()["error"]["message"]
