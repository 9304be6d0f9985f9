"""What sentence-transformers says of the texts that an encoder takes: prompts, length, letters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tamiz.files.bundle import Bundle
from tamiz.files.errors import TamizError, did_you_mean

TOKENIZER = "tokenizer_config.json"
#: transformers writes 10^30 where a tokenizer has no limit.
_ENDLESS = 1 << 31
PROMPTS = "config_sentence_transformers.json"
#: Names of one file; models of other kinds than BERT had their own once.
TEXTS = tuple(
    f"sentence_{kind}_config.json"
    for kind in ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
)
#: Model types whose positions begin after the id of the padding token.
_AFTER_PADDING = {"camembert", "mpnet", "roberta", "xlm-roberta"}


@dataclass(frozen=True)
class TextSettings:
    """How texts become tokens of an encoder.

    Attributes:
        limit: Tokens of a text at most, with those that begin and end it; None where no file says.
        lower_case: Whether letters become small ones first.
        prompts: What may be put before a text, by name.
        default_prompt: Name of the one that is put before a text where none is requested.
        truncate_dim: First numbers of an embedding that are kept; None for all.
        chat: Variables of the chat template that writes a pair as messages of the roles query and
            document; None where pairs are no messages.
        token_types: Whether tokens of the second text of a pair are of another kind.
    """

    limit: int | None = None
    lower_case: bool = False
    prompts: Mapping[str, str] = field(default_factory=dict)
    default_prompt: str | None = None
    truncate_dim: int | None = None
    chat: Mapping[str, Any] | None = None
    token_types: bool = True

    def context(self, given: int | None, least: int) -> int | None:
        """Tokens to which a text is cut; None for no limit.

        Args:
            given: What a caller sets; None for `limit`.
            least: Fewest tokens of a text.

        Raises:
            TamizError: `given` is fewer, or more than `limit`.
        """
        if given is not None and not least <= given <= (self.limit or given):
            most = "" if self.limit is None else f" to {self.limit}"
            raise TamizError(f"context is {given}, expected {least}{most} tokens")
        return given or self.limit

    def prompt(self, name: str | None) -> str:
        """What is put before a text.

        Args:
            name: Name of the prompt; None for the default one.

        Raises:
            TamizError: There is none of this name.
        """
        name = self.default_prompt if name is None else name
        if name is None:
            return ""
        if name not in self.prompts:
            raise TamizError(
                f"the model has no prompt {name!r}{did_you_mean(name, self.prompts)}; it has:"
                f" {', '.join(self.prompts) or 'none'}"
            )
        return self.prompts[name]


def read_settings(bundle: Bundle) -> TextSettings:
    """The settings of an encoder.

    Raises:
        TamizError: A value is not of the expected type.
    """
    texts = _first(bundle, TEXTS)
    given = _first(bundle, (PROMPTS,))
    length = _value(bundle, texts, "max_seq_length", int)
    if length is None:  # as sentence-transformers
        length = _first(bundle, (TOKENIZER,))[1].get("model_max_length")
        length = length if isinstance(length, int) and 0 < length < _ENDLESS else None
    limits = [most for most in (length, most_tokens(bundle)) if most is not None]
    prompts = _value(bundle, given, "prompts", dict) or {}
    if bad := [name for name, text in prompts.items() if not isinstance(text, str)]:
        raise TamizError(f"{bundle.path / PROMPTS}: the prompt {bad[0]!r} is no text")
    default = _value(bundle, given, "default_prompt_name", str)
    if default is not None and default not in prompts:
        raise TamizError(
            f"{bundle.path / PROMPTS}: default_prompt_name is {default!r}, expected one of"
            f" {', '.join(prompts) or 'no prompts'}"
        )
    lower = bool(_value(bundle, texts, "do_lower_case", bool))
    kept = _value(bundle, given, "truncate_dim", int)
    return TextSettings(
        min(limits, default=None),
        lower,
        prompts,
        default,
        kept,
        chat=_chat(bundle, texts),
        token_types=_has_token_types(bundle),
    )


def _has_token_types(bundle: Bundle) -> bool:
    """Whether the tokenizer gives types of tokens: the general class of transformers 5 does not."""
    settings = _first(bundle, (TOKENIZER,))[1]
    if settings.get("tokenizer_class") != "TokenizersBackend":
        return True
    return "token_type_ids" in (settings.get("model_input_names") or ())


def _chat(bundle: Bundle, texts: tuple[str, dict[str, Any]]) -> Mapping[str, Any] | None:
    """Variables of the chat template, where the model takes messages; see `TextSettings`."""
    if "message" not in (_value(bundle, texts, "modality_config", dict) or {}):
        return None
    given = (_value(bundle, texts, "processing_kwargs", dict) or {}).get("chat_template")
    return {key: given[key] for key in given if key != "restore_suffix"} if given else {}


def most_tokens(bundle: Bundle) -> int | None:
    """Tokens that a sequence can have; None where config.json does not say."""
    config = bundle.json("config.json")
    limit, padding = (config.get(name) for name in ("max_position_embeddings", "pad_token_id"))
    if not isinstance(limit, int) or limit <= 0:
        return None
    if config.get("model_type") in _AFTER_PADDING and isinstance(padding, int):
        limit -= padding + 1
    return max(limit, 1)


def _first(bundle: Bundle, names: tuple[str, ...]) -> tuple[str, dict[str, Any]]:
    """The first of some files that the bundle has, and its contents."""
    name = next((name for name in names if name in bundle.manifest.files), None)
    return ("", {}) if name is None else (name, bundle.json(name))


def _value(bundle: Bundle, file: tuple[str, dict[str, Any]], key: str, kind: type) -> Any:
    name, values = file
    value = values.get(key)
    if value is not None and type(value) is not kind:
        raise TamizError(f"{bundle.path / name}: {key} is {value!r}, expected {kind.__name__}")
    return value
