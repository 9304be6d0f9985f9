"""A small SentencePiece vocabulary in a GGUF file, with control tokens of Phi 3."""

from __future__ import annotations

from pathlib import Path

import gguf

_PIECES = ("▁", "▁▁", "h", "e", "l", "o", "he", "ll", "hell", "hello", "▁hello", "▁h", "u", "s")
_BYTES = tuple(f"<0x{byte:02X}>" for byte in range(256))
_CONTROLS = ("<|endoftext|>", "<|user|>", "<|assistant|>", "<|end|>")
TOKENS = ("<unk>", "<s>", "</s>", *_BYTES, *_PIECES, *_CONTROLS)
_UNKNOWN, _NORMAL, _CONTROL, _USER_DEFINED, _BYTE = 2, 1, 3, 4, 6


def write(path: Path, name: str) -> None:
    """Writes a file that holds only the vocabulary.

    Args:
        path: The file.
        name: ``general.name``, by which llama.cpp knows Phi 3.
    """
    writer = gguf.GGUFWriter(path, "phi3")
    writer.add_name(name)
    writer.add_tokenizer_model("llama")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(list(TOKENS))
    scores = [0.0] * (3 + len(_BYTES)) + [-float(n) for n in range(len(_PIECES))]
    writer.add_token_scores(scores + [0.0] * len(_CONTROLS))
    types = [_UNKNOWN, _CONTROL, _USER_DEFINED, *[_BYTE] * 256, *[_NORMAL] * len(_PIECES)]
    writer.add_token_types(types + [_CONTROL] * len(_CONTROLS))
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(TOKENS.index("<|endoftext|>"))
    writer.add_unk_token_id(0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
