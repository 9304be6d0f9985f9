"""Calls of tools where the tags of a form are tokens, as in the vocabularies of Qwen and Phi."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from kit.tagged import ids_of, tagged
from tamiz.runtime.model import Model
from tamiz.serving.api.served import State
from tamiz.serving.app import make_app
from tamiz.serving.catalog import Catalog, ServedDecoder
from tamiz.serving.engine import Limits
from tamiz.serving.grammar import literal
from tamiz.serving.settings import Settings
from tamiz.serving.tool_calls import FORMS, ToolForm

SCHEMA = {"type": "object", "properties": {"city": {"enum": ["Rome"]}}, "required": ["city"]}
ROME = '{"city": "Rome"}'
ASK: dict[str, Any] = {
    "model": "tiny",
    "messages": [{"role": "user", "content": "Weather?"}],
    "tools": [{"type": "function", "function": {"name": "weather", "parameters": SCHEMA}}],
    "max_tokens": 200,
    "seed": 1,
}


@pytest.fixture(scope="module", params=[form for form in FORMS if form.tags], ids=lambda f: f.name)
def form(request: pytest.FixtureRequest) -> ToolForm:
    form: ToolForm = request.param
    return form


@pytest.fixture(scope="module", params=[True, False], ids=["control tokens", "shown tokens"])
def client(
    request: pytest.FixtureRequest,
    form: ToolForm,
    tiny: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[TestClient]:
    """A server of a tiny model that has tokens of the form."""
    template = f"{{{{ messages[0]['content'] }}}}{{% if false %}}{form.shown_by}{{% endif %}}"
    place = tmp_path_factory.mktemp("tagged") / "tiny"
    folder = tagged(tiny, place, form.tags, request.param, template)
    catalog = Catalog()
    catalog.add(ServedDecoder.start("tiny", Model.load(folder, 2), Limits(2048)))
    with TestClient(make_app(State(catalog, Settings()))) as served:
        yield served
    catalog.close(0)


def call(client: TestClient, **more: Any) -> dict[str, Any]:
    """The choice of an answer, which is one call and nothing else."""
    reply = client.post("/v1/chat/completions", json={**ASK, **more}).json()
    (choice,) = reply["choices"]
    (made,) = choice["message"]["tool_calls"]
    assert made["function"] == {"name": "weather", "arguments": ROME}
    assert not choice["message"]["content"]
    found: dict[str, Any] = choice
    return found


@pytest.mark.parametrize("logprobs", [False, True], ids=["forced tokens together", "one by one"])
def test_a_required_call_has_the_tokens(client: TestClient, form: ToolForm, logprobs: bool) -> None:
    choice = call(client, tool_choice="required", logprobs=logprobs)
    if logprobs:
        tokens = [token["token"] for token in choice["logprobs"]["content"]]
        assert form.tags <= set(tokens)
        assert tokens[0] == form.begin.strip()


def test_a_call_that_the_model_writes_by_itself_is_read(client: TestClient, form: ToolForm) -> None:
    """A grammar makes the model write it: no call is required."""
    written = json.dumps({"name": "weather", "arguments": json.loads(ROME)})
    text = f"{form.begin}{f'[{written}]' if form.is_list else written}{form.end}"
    grammar = f"start: {literal(text, ids_of(form.tags))}"
    call(client, grammar={"type": "lark", "value": grammar})
