"""Grammars that answers follow: JSON schemas, Lark, GBNF and regular expressions.

llguidance compiles a grammar and says after each token which tokens may follow. A grammar comes
from a request, so it is not trusted: compiling and matching are bounded by `LIMITS`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

import llguidance.numpy as bits
import numpy as np
from llguidance import LLMatcher, LLParserLimits, LLTokenizer
from llguidance.gbnf_to_lark import gbnf_to_lark
from numpy.typing import NDArray

from tamiz.files.errors import TamizError

#: How JSON is written: as `json.dumps` does by default. Free white space lets small models run on.
JSON_STYLE: Any = {
    "whitespace_flexible": False,
    "item_separator": ", ",
    "key_separator": ": ",
}
#: Bytes of a grammar in a request.
MOST_BYTES = 1 << 18
LIMITS = LLParserLimits(
    max_items_in_row=500,
    initial_lexer_fuel=1_000_000,
    step_lexer_fuel=200_000,
    step_max_items=50_000,
    max_lexer_states=250_000,
    max_grammar_size=500_000,
    precompute_large_lexemes=False,
)


def literal(text: str, ids: Mapping[str, int]) -> str:
    """Text in llguidance's form of Lark, in which the tags of a form are tokens.

    llguidance reads the tags of forced text as such tokens, too, but only a token satisfies it.

    Args:
        text: The text.
        ids: Tokens of tags, by name; a tag that is no token is text.
    """
    names = "|".join(map(re.escape, ids)) or "(?!)"
    parts = [part for part in re.split(f"({names})", text) if part]
    return " ".join(f"<[{ids[part]}]>" if part in ids else json.dumps(part) for part in parts)


class Grammars:
    """Compiles grammars for one tokenizer."""

    def __init__(self, tokenizer_json: str, vocabulary: int, ends: list[int]) -> None:
        """Reads the vocabulary.

        Args:
            tokenizer_json: Contents of tokenizer.json.
            vocabulary: Number of logits.
            ends: Tokens that end an answer; at least one.
        """
        self._tokenizer = LLTokenizer(tokenizer_json, n_vocab=vocabulary, eos_token=ends)

    def json_schema(self, schema: dict[str, Any]) -> Matcher:
        """Answers that a JSON schema describes."""
        return self._matcher(
            lambda: LLMatcher.grammar_from_json_schema(json.dumps(schema), overrides=JSON_STYLE)
        )

    def lark(self, text: str) -> Matcher:
        """Answers of a grammar in llguidance's form of Lark."""
        return self._matcher(lambda: LLMatcher.grammar_from_lark(text))

    def gbnf(self, text: str) -> Matcher:
        """Answers of a grammar in llama.cpp's form."""
        return self._matcher(lambda: LLMatcher.grammar_from_lark(gbnf_to_lark(text)))

    def regex(self, text: str) -> Matcher:
        """Answers that match a regular expression as a whole."""
        return self._matcher(lambda: LLMatcher.grammar_from_regex(text))

    def _matcher(self, grammar: Callable[[], str]) -> Matcher:
        try:
            text = grammar()
        except Exception as error:  # the converters raise bare exceptions, too
            raise TamizError(f"the grammar is malformed: {_line(error)}") from error
        if len(text) > MOST_BYTES:
            raise TamizError(
                f"the grammar has {len(text)} bytes, expected at most {MOST_BYTES}; try a"
                " smaller schema"
            )
        return Matcher(self._tokenizer, text)


class Matcher:
    """The place of one answer in its grammar."""

    def __init__(self, tokenizer: LLTokenizer, grammar: str) -> None:
        """Starts at the beginning.

        Raises:
            TamizError: The grammar is malformed, or too large.
        """
        self._matcher = LLMatcher(tokenizer, grammar, log_level=0, limits=LIMITS)
        self._check()
        self._mask = bits.allocate_token_bitmask(1, tokenizer.vocab_size)

    def allow(self, logits: NDArray[np.float32]) -> NDArray[np.float32]:
        """The logits ``[V]``, with −∞ where a token may not follow."""
        bits.fill_next_token_bitmask(self._matcher, self._mask)
        self._check()
        masked = np.array(logits)[None]
        bits.apply_token_bitmask_inplace(masked, self._mask)
        row: NDArray[np.float32] = masked[0]
        return row

    def consume(self, token: int) -> None:
        """Goes on by a token that `allow` left."""
        self._matcher.consume_token(token)
        self._check()

    def forced(self) -> list[int]:
        """Consumes and returns the tokens that are the only ones that may follow."""
        tokens: list[int] = self._matcher.compute_ff_tokens()
        if tokens:
            self._matcher.consume_tokens(tokens)
            self._check()
        return tokens

    @property
    def ended(self) -> bool:
        """Whether nothing more may follow."""
        return bool(self._matcher.is_stopped())

    def _check(self) -> None:
        if self._matcher.is_error():
            raise TamizError(f"the grammar cannot be followed: {_line(self._matcher.get_error())}")


def _line(error: object) -> str:
    """The first line of a message."""
    return next(iter(str(error).strip().splitlines()), "unknown reason")
