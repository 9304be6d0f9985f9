"""Greedy answers of two models to the same prompts, token by token.

A model answers each prompt with its likeliest tokens. Another model reads the same prompt and the
same answer; where it prefers another token for the first time, the answers diverge. The margin says
how sure that model is: the logit of its own token minus the logit of the answer's.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable
from collections.abc import Sequence as Ids
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from tamiz.files.errors import TamizError
from tamiz.files.text_file import read_text

if TYPE_CHECKING:
    from tamiz.files.bundle import Bundle
    from tamiz.runtime.model import Model


class AnswerDivergence(NamedTuple):
    """Where a model leaves an answer.

    Attributes:
        equal: Tokens of the answer before, which the model prefers as well.
        own: The token that the model prefers.
        other: The answer's token.
        margin: Logit of `own` minus logit of `other`.
    """

    equal: int
    own: int
    other: int
    margin: float


def read_prompts(path: Path, count: int | None = None) -> list[str]:
    """The first prompts of a text file, one a line; empty lines are none.

    Raises:
        TamizError: The file cannot be read, or has no prompt.
    """
    lines = [line for line in read_text(path).splitlines() if line.strip()][:count]
    if not lines:
        raise TamizError(f"{path}: found no prompt, expected one a line")
    return lines


def encode_prompts(bundle: Bundle, prompts: Iterable[str]) -> list[list[int]]:
    """Token ids of prompts, in the bundle's chat template if it has one.

    Raises:
        TamizError: The bundle has no tokenizer that can be read, or cannot encode a prompt.
    """
    from tamiz.runtime.text.chat_template import ChatTemplate, encode_chat
    from tamiz.runtime.text.tokenizer import Tokenizer

    tokenizer = Tokenizer(bundle)
    if "chat_template" not in tokenizer.settings:
        return [tokenizer.encode(text) for text in prompts]
    template = ChatTemplate(tokenizer.settings)
    return [encode_chat(tokenizer, template, [{"role": "user", "content": t}]) for t in prompts]


def answer(model: Model, prompt: Ids[int], tokens: int) -> list[int]:
    """The likeliest tokens after a prompt, up to and with the first stop token.

    Args:
        model: The model.
        prompt: Token ids.
        tokens: Largest number of tokens.

    Raises:
        TamizError: Prompt and tokens do not fit in the model's limit.
    """
    if len(prompt) + tokens > model.limit:
        raise TamizError(
            f"{model.bundle.path}: found a prompt of {len(prompt)} tokens, expected at most "
            f"{model.limit - tokens}, so that {tokens} more fit in the limit of {model.limit}"
        )
    sequence = model.sequence(len(prompt) + tokens)
    logits, found = sequence.read(prompt), list[int]()
    while len(found) < tokens:
        found.append(int(logits.argmax()))
        if found[-1] in model.stop_ids:
            break
        if len(found) < tokens:
            logits = sequence.step(found[-1])
    return found


def until_stop(answer: Ids[int], stops: Iterable[int]) -> list[int]:
    """An answer up to and with its first stop token; what follows is no answer."""
    last = frozenset(stops)
    ends = [place for place, token in enumerate(answer) if token in last]
    return list(answer[: ends[0] + 1] if ends else answer)


def divergence(model: Model, prompt: Ids[int], answer: Ids[int]) -> AnswerDivergence | None:
    """Where a model, which reads an answer of another one, first prefers another token.

    Args:
        model: The model.
        prompt: Token ids.
        answer: Token ids of the answer.

    Returns:
        None if the model prefers every token of the answer.
    """
    sequence = model.sequence(len(prompt) + len(answer))
    logits = sequence.read(prompt)
    for place, token in enumerate(answer):
        if (best := int(logits.argmax())) != token:
            return AnswerDivergence(place, best, token, float(logits[best] - logits[token]))
        if place + 1 < len(answer):
            logits = sequence.step(token)
    return None


def summary(found: Ids[AnswerDivergence | None]) -> dict[str, Any]:
    """Equal answers, and where the others diverge; for JSON.

    Args:
        found: Of each prompt.
    """
    margins = [each.margin for each in found if each]
    return {
        "prompts": len(found),
        "equal": sum(each is None for each in found),
        "median_margin": statistics.median(margins) if margins else None,
        "largest_margin": max(margins, default=None),
        "divergences": [
            {
                "prompt": index,
                "equal_tokens": each.equal,
                "own_token": each.own,
                "other_token": each.other,
                "margin": round(each.margin, 4),
            }
            for index, each in enumerate(found)
            if each
        ],
    }


def compare_answers(
    model: Model,
    other: Model,
    prompts: Ids[Ids[int]],
    tokens: int,
    at_once: int = 1,
    progress: Callable[[int], None] = lambda _: None,
) -> dict[str, Any]:
    """Where a model leaves the answers of another one.

    Args:
        model: The model.
        other: The model that answers; the same vocabulary.
        prompts: Token ids of each.
        tokens: Largest number of tokens of an answer.
        at_once: Prompts to answer side by side; for models of one thread each.
        progress: Takes the number of prompts so far.

    Returns:
        `summary`, and ``tokens``, the number of tokens in the other model's answers.

    Raises:
        TamizError: The vocabularies differ, or a prompt does not fit.
    """
    if model.vocabulary != other.vocabulary:
        raise TamizError(
            f"{model.bundle.path}: has {model.vocabulary} logits, but {other.bundle.path} has"
            f" {other.vocabulary}, so their answers cannot be compared"
        )

    def both(prompt: Ids[int]) -> tuple[int, AnswerDivergence | None]:
        said = answer(other, prompt, tokens)
        return len(said), divergence(model, prompt, said)

    found = []
    with ThreadPoolExecutor(at_once) as pool:
        for each in pool.map(both, prompts):
            found.append(each)
            progress(len(found))
    total = sum(length for length, _ in found)
    return {**summary([each for _, each in found]), "tokens": total}
