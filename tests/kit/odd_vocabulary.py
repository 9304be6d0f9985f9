"""A vocabulary that shows where a tokenizer splits: its merges join whole odd strings.

``odd_merges.json`` is from `tokenizers` 0.23.3, trained without a split on what lies between the
control tokens of the odd strings:

    trainer = trainers.BpeTrainer(vocab_size=8000, min_frequency=1,
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    between = re.compile("|".join(map(re.escape, CONTROLS)))
    texts = [text for odd in ODD_STRINGS for text in between.split(odd)]
    tokenizer.train_from_iterator(texts, trainer)
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path

import gguf

from kit.odd_strings import CONTROLS
from kit.tiny_gguf import byte_level_tokens

MERGES = Path(__file__).with_name("odd_merges.json")
NORMAL, CONTROL, USER_DEFINED = 1, 3, 4


def write(
    path: Path, pre: str | None, more: Mapping[str, int] = {}, **metadata: str | int | bool
) -> list[str]:
    """Writes a GGUF file that holds only this vocabulary; returns its tokens.

    Args:
        path: The file.
        pre: ``tokenizer.ggml.pre``; None for no such key.
        more: Tokens at the end, and their types.
        metadata: Other keys, ``__`` for a dot.
    """
    merges = json.loads(MERGES.read_text("utf-8"))
    letters = [token for token in byte_level_tokens() if len(token) == 1]
    tokens = [*CONTROLS, *letters, *("".join(merge) for merge in merges)]
    types = [CONTROL] * len(CONTROLS) + [NORMAL] * (len(tokens) - len(CONTROLS))
    tokens += more
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tokenizer_model("gpt2")
    if pre is not None:
        writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens)
    writer.add_token_types([*types, *more.values()])
    writer.add_token_merges([" ".join(merge) for merge in merges])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(2)
    for key, value in metadata.items():
        writer.add_key_value(key.replace("__", "."), value, gguf.GGUFValueType.get_type(value))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return tokens


def digest(ids: list[int]) -> str:
    """Four digits that stand for token ids."""
    return hashlib.sha256(json.dumps(ids).encode()).hexdigest()[:4]
