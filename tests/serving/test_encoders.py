"""Encoders and cross-encoders beside a decoder: embeddings and scores over HTTP."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fastapi.testclient import TestClient

import tamiz
from kit.encoders import write_classifier, write_encoder
from tamiz.serving.api.served import State
from tamiz.serving.app import make_app
from tamiz.serving.catalog import Catalog, load
from tamiz.serving.engine import Limits
from tamiz.serving.settings import Settings

DOCUMENTS = ["w5", "w6 w7 w8 w9", "w10 w11"]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("encoders")
    return {"embed": write_encoder(root / "e"), "rank": write_classifier(root / "c")}


@pytest.fixture(scope="module")
def client(folders: dict[str, Path], tiny: Path) -> Iterator[TestClient]:
    catalog = Catalog()
    for name, path in {"chat": tiny, **folders}.items():
        catalog.add(load(str(path), name, 1, Limits(1024)))
    with TestClient(make_app(State(catalog, Settings()))) as client:
        yield client
    catalog.close(0)


def ask(client: TestClient, route: str, **body: object) -> dict[str, Any]:
    reply = client.post(route, json=body)
    assert reply.status_code == 200, reply.text
    found: dict[str, Any] = reply.json()
    return found


@pytest.mark.parametrize("route", ["/v1/rerank", "/rerank"])
def test_documents_come_by_their_score(
    client: TestClient, folders: dict[str, Path], route: str
) -> None:
    with tamiz.CrossEncoder.load(folders["rank"], threads=1) as model:
        expected = model.rerank("w3 w4", DOCUMENTS)
        tokens = sum(len(model.encode(("w3 w4", text))[0]) for text in DOCUMENTS)
    found = ask(client, route, query="w3 w4", documents=DOCUMENTS)
    assert found["model"] == "rank"
    assert found["usage"] == {"prompt_tokens": tokens, "total_tokens": tokens}
    order = np.argsort(-expected, kind="stable").tolist()
    assert [one["index"] for one in found["results"]] == order
    for one in found["results"]:
        assert one["relevance_score"] == pytest.approx(expected[one["index"]], rel=1e-6)
        assert "document" not in one


def test_the_best_documents_with_their_texts(client: TestClient) -> None:
    objects = [{"text": text} for text in DOCUMENTS]
    whole = ask(client, "/v1/rerank", query="w3", documents=DOCUMENTS)
    found = ask(client, "/v1/rerank", query="w3", documents=objects, top_n=2, return_documents=True)
    best = whole["results"][:2]
    assert found["results"] == [
        one | {"document": {"text": DOCUMENTS[one["index"]]}} for one in best
    ]
    many = ask(client, "/v1/rerank", query="w3", documents=DOCUMENTS, top_n=99)
    assert many["results"] == whole["results"]


@pytest.mark.parametrize("documents", [[], None, 123, [1, 2], ["a"] * 3000])
def test_bad_documents_are_refused(client: TestClient, documents: object) -> None:
    reply = client.post("/v1/rerank", json={"query": "w3", "documents": documents})
    assert reply.status_code == 400
    assert "documents" in reply.json()["error"]["message"]


@pytest.mark.parametrize(
    ("route", "model", "message"),
    [
        ("/v1/rerank", "embed", "makes embeddings, not scores"),
        ("/v1/rerank", "chat", "makes text, not scores"),
        ("/v1/embeddings", "rank", "makes scores, not embeddings"),
        ("/v1/completions", "rank", "makes scores, not text"),
    ],
)
def test_a_model_of_another_kind_says_what_it_makes(
    client: TestClient, route: str, model: str, message: str
) -> None:
    body = {"model": model, "query": "w3", "documents": ["w4"], "input": "w4", "prompt": "w4"}
    reply = client.post(route, json=body)
    assert reply.status_code == 400
    assert message in reply.json()["error"]["message"]


def test_embeddings_with_dimensions_and_as_base64(
    client: TestClient, folders: dict[str, Path]
) -> None:
    with tamiz.EmbeddingModel.load(folders["embed"], threads=1) as model:
        rows = model.embed(DOCUMENTS)[:, :3]
        tokens = sum(len(model.encode(text)) for text in DOCUMENTS)
    expected = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    for form in ("float", "base64"):
        found = ask(client, "/v1/embeddings", input=DOCUMENTS, dimensions=3, encoding_format=form)
        assert found["usage"]["prompt_tokens"] == tokens
        for row, wanted in zip(found["data"], expected, strict=True):
            numbers = row["embedding"]
            if form == "base64":
                numbers = np.frombuffer(base64.b64decode(numbers), "<f4")
            np.testing.assert_allclose(numbers, wanted, rtol=0, atol=1e-6)


def test_the_first_model_of_a_kind_is_taken(client: TestClient) -> None:
    assert ask(client, "/v1/embeddings", input="w4")["model"] == "embed"
    names = [one["id"] for one in ask_models(client)]
    assert names == ["chat", "embed", "rank"]


def ask_models(client: TestClient) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = client.get("/v1/models").json()["data"]
    return found
