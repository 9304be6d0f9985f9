"""The standard tests of LangChain for embeddings, through langchain-openai."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("langchain_tests", reason="pip install langchain-tests langchain-openai")
pytest.importorskip("langchain_openai", reason="pip install langchain-openai")

import numpy as np
from langchain_core.embeddings import Embeddings
from langchain_openai import OpenAIEmbeddings
from langchain_tests.integration_tests import EmbeddingsIntegrationTests

import tamiz
from kit.encoders import write_encoder
from kit.served import served

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """An encoder's bundle."""
    return write_encoder(tmp_path_factory.mktemp("encoder") / "encoder")


@pytest.fixture(scope="module", autouse=True)
def address(encoder: Any) -> Iterator[None]:
    """A server of the encoder, whose address clients read from their environment."""
    with served({"encoder": encoder}) as url, pytest.MonkeyPatch.context() as patch:
        patch.setenv("OPENAI_BASE_URL", f"{url}/v1")
        patch.setenv("OPENAI_API_BASE", f"{url}/v1")
        patch.setenv("OPENAI_API_KEY", "none")
        yield


class TestEmbeddings(EmbeddingsIntegrationTests):
    """Lengths and types, synchronous and asynchronous."""

    @property
    def embeddings_class(self) -> type[Embeddings]:
        return OpenAIEmbeddings

    @property
    def embedding_model_params(self) -> dict[str, Any]:
        # Otherwise the client sends tokens of OpenAI's vocabulary.
        return {"model": "encoder", "check_embedding_ctx_length": False}

    def test_numbers_are_those_of_the_model(self, model: Embeddings, encoder: Any) -> None:
        texts = ["w5", "w6 w7 w8 w9"]
        with tamiz.EmbeddingModel.load(encoder, threads=1) as own:
            expected = own.embed(texts)
        found = np.array(model.embed_documents(texts))
        expected /= np.linalg.norm(expected, axis=1, keepdims=True)
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6)
