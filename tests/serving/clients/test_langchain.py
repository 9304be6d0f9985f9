"""The standard tests of LangChain for chat models, through langchain-openai."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("langchain_tests", reason="pip install langchain-tests langchain-openai")
pytest.importorskip("langchain_openai", reason="pip install langchain-openai")

from langchain_core.language_models import BaseChatModel
from langchain_openai import ChatOpenAI
from langchain_tests.integration_tests import ChatModelIntegrationTests

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", autouse=True)
def address(smol: str) -> Any:
    """The clients read the server's address from their environment."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OPENAI_BASE_URL", f"{smol}/v1")
        patch.setenv("OPENAI_API_BASE", f"{smol}/v1")
        patch.setenv("OPENAI_API_KEY", "none")
        yield


class TestChat(ChatModelIntegrationTests):
    """A model of 135 million parameters: form is tested, not sense."""

    @property
    def chat_model_class(self) -> type[BaseChatModel]:
        return ChatOpenAI

    @property
    def chat_model_params(self) -> dict[str, Any]:
        return {"model": "smol", "temperature": 0, "max_tokens": 1500, "stream_usage": True}

    @property
    def supports_json_mode(self) -> bool:
        return True

    @pytest.mark.xfail(reason="a model of this size calls no tool that it need not call")
    def test_agent_loop(self, model: BaseChatModel) -> None:
        super().test_agent_loop(model)
