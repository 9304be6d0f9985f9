from typing import Any

from tamiz.files.errors import TamizError as TamizError
from tamiz.inference.completion_stream import CompletionStream as CompletionStream
from tamiz.inference.conversation import Conversation as Conversation
from tamiz.inference.embedding_model import EmbeddingModel as EmbeddingModel
from tamiz.inference.language_model import LanguageModel as LanguageModel
from tamiz.inference.results import Completion as Completion
from tamiz.loading import load as load

__version__: str

def __getattr__(name: str) -> Any: ...
