"""tokenizer.json and its companions, from the tokenizer metadata of a GGUF file.

Two families: ``gpt2``, byte-level BPE with listed merges, and ``llama``, SentencePiece's BPE, whose
merges follow from the scores.
"""

from __future__ import annotations

from typing import Any, NoReturn

from tamiz_exporters.gguf_file import GgufFile
from tamiz_exporters.tokenizer import LLAMA3_SPLIT, QWEN2_SPLIT, TOKENIZER_DEFAULTS

_NORMAL, _CONTROL, _USER_DEFINED = 1, 3, 4
#: `tokenizer.ggml.pre` → the split that comes before the byte level; None is GPT-2's own.
_SPLITS: dict[str, str | None] = {
    "default": None,
    "gpt-2": None,
    "smollm": "digits",
    "qwen2": QWEN2_SPLIT,
    "deepseek-r1-qwen": QWEN2_SPLIT,
    "llama-bpe": LLAMA3_SPLIT,
    "llama-v3": LLAMA3_SPLIT,
    "llama3": LLAMA3_SPLIT,
}


class GgufTokenizer:
    """The tokenizer of a GGUF file, as Hugging Face's files describe it."""

    def __init__(self, file: GgufFile, vocabulary: int) -> None:
        """Reads and checks the metadata.

        Args:
            file: The checked file.
            vocabulary: Number of tokens that the model knows.

        Raises:
            TamizError: If a list has another length or the kind of tokenizer is unknown.
        """
        self.file = file
        self.model = file.get("tokenizer.ggml.model", str)
        if self.model not in ("gpt2", "llama"):
            self._fail("model", self.model, "gpt2 or llama")
        self.pre = file.get("tokenizer.ggml.pre", str, "default")
        if self.model == "gpt2" and self.pre not in _SPLITS:
            self._fail("pre", self.pre, f"one of {', '.join(_SPLITS)}")
        self.tokens: list[str] = file.get("tokenizer.ggml.tokens", list)
        types = [_NORMAL] * vocabulary
        self.types: list[int] = file.get("tokenizer.ggml.token_type", list, types)
        for field, values in (("tokens", self.tokens), ("token_type", self.types)):
            if len(values) != vocabulary:
                expected = f"{vocabulary}, as many as token_embd.weight has rows"
                self._fail(field, f"{len(values)} entries", expected)
        if not all(isinstance(token, str) for token in self.tokens):
            self._fail("tokens", "numbers", "strings")
        self.ids = {token: number for number, token in enumerate(self.tokens)}
        if len(self.ids) != vocabulary:
            twice = next(t for number, t in enumerate(self.tokens) if self.ids[t] != number)
            self._fail("tokens", f"{twice!r} twice", "every token once")
        self.bos, self.eos = self._id("bos_token_id"), self._id("eos_token_id")
        self.unknown, self.padding = self._id("unknown_token_id"), self._id("padding_token_id")
        adds = self.model == "llama" or _SPLITS.get(self.pre) == LLAMA3_SPLIT
        self.adds_bos = file.get("tokenizer.ggml.add_bos_token", bool, adds)
        if self.adds_bos and self.bos is None:
            self._fail("bos_token_id", "nothing", "a token id, since add_bos_token holds")

    def generation_config(self) -> dict[str, Any]:
        """Returns the special ids; ``eos_token_id`` is a list where several tokens end a turn."""
        ends = [self.eos, self._id("eot_token_id"), self._id("eom_token_id")]
        ends = list(dict.fromkeys(end for end in ends if end is not None))
        ids = {
            "bos_token_id": self.bos,
            "eos_token_id": ends[0] if len(ends) == 1 else ends or None,
            "pad_token_id": self.padding,
        }
        return {key: value for key, value in ids.items() if value is not None}

    def tokenizer_config(self, context: int) -> dict[str, Any]:
        """Returns what ``tokenizer_config.json`` holds.

        Args:
            context: Longest sequence, in tokens.
        """
        out: dict[str, Any] = {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "model_max_length": context,
            "clean_up_tokenization_spaces": False,
            "add_bos_token": self.adds_bos,
            **TOKENIZER_DEFAULTS,
        }
        special = {"bos": self.bos, "eos": self.eos, "unk": self.unknown, "pad": self.padding}
        for name, number in special.items():
            if number is not None:
                out[f"{name}_token"] = self.tokens[number]
        if template := self.file.get("tokenizer.chat_template", str, ""):
            out["chat_template"] = template
        return out

    def tokenizer_json(self) -> dict[str, Any]:
        """Returns what ``tokenizer.json`` holds.

        Raises:
            TamizError: If a merge or a score is missing or malformed.
        """
        flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
        added = [
            {"id": number, "content": token, **flags, "special": kind == _CONTROL}
            for number, (token, kind) in enumerate(zip(self.tokens, self.types, strict=True))
            if kind in (_CONTROL, _USER_DEFINED)
        ]
        parts = self._byte_level() if self.model == "gpt2" else self._sentencepiece()
        model = {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": self.ids,
        }
        return {
            "version": "1.0",
            "truncation": None,
            "padding": None,
            "added_tokens": added,
            **parts,
            "post_processor": self._post_processor(),
            "model": model | parts["model"],
        }

    def _byte_level(self) -> dict[str, Any]:
        level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
        split = _SPLITS[self.pre]
        if split is None:
            pre_tokenizer: dict[str, Any] = level | {"use_regex": True}
        elif split == "digits":
            digits = {"type": "Digits", "individual_digits": True}
            steps = [digits, level | {"use_regex": True}]
            pre_tokenizer = {"type": "Sequence", "pretokenizers": steps}
        else:
            pattern = {"pattern": {"Regex": split}, "behavior": "Isolated", "invert": False}
            steps = [{"type": "Split", **pattern}, level | {"use_regex": False}]
            pre_tokenizer = {"type": "Sequence", "pretokenizers": steps}
        return {
            "normalizer": {"type": "NFC"} if split == QWEN2_SPLIT else None,
            "pre_tokenizer": pre_tokenizer,
            "decoder": level | {"use_regex": True},
            "model": {"merges": self._merges(), "ignore_merges": split == LLAMA3_SPLIT},
        }

    def _merges(self) -> list[str]:
        merges: list[str] = self.file.get("tokenizer.ggml.merges", list)
        for number, merge in enumerate(merges):
            left, _, right = str(merge).partition(" ")
            if left not in self.ids or right not in self.ids or left + right not in self.ids:
                self._fail(f"merges[{number}]", repr(merge), "two tokens whose union is one")
        return merges

    def _sentencepiece(self) -> dict[str, Any]:
        underline = {"pattern": {"String": " "}, "content": "▁"}
        steps: list[dict[str, Any]] = [{"type": "Replace", **underline}]
        decoders: list[dict[str, Any]] = [
            {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
            {"type": "ByteFallback"},
            {"type": "Fuse"},
        ]
        if self.file.get("tokenizer.ggml.add_space_prefix", bool, True):
            steps.insert(0, {"type": "Prepend", "prepend": "▁"})
            decoders.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
        unknown = None if self.unknown is None else self.tokens[self.unknown]
        return {
            "normalizer": {"type": "Sequence", "normalizers": steps},
            "pre_tokenizer": None,
            "decoder": {"type": "Sequence", "decoders": decoders},
            "model": {
                "unk_token": unknown,
                "fuse_unk": True,
                "byte_fallback": True,
                "merges": self._merges_from_scores(),
            },
        }

    def _merges_from_scores(self) -> list[str]:
        """Returns every way to join two pieces into one, the best-scored piece first."""
        scores: list[float] = self.file.get("tokenizer.ggml.scores", list)
        if len(scores) != len(self.tokens):
            self._fail("scores", f"{len(scores)} entries", f"{len(self.tokens)}")
        ranked = []
        for number, (piece, kind) in enumerate(zip(self.tokens, self.types, strict=True)):
            if kind != _NORMAL:
                continue
            for cut in range(1, len(piece)):
                left, right = self.ids.get(piece[:cut]), self.ids.get(piece[cut:])
                if left is not None and right is not None:
                    ranked.append((-scores[number], left, right))
        ranked.sort()
        return [f"{self.tokens[left]} {self.tokens[right]}" for _, left, right in ranked]

    def _post_processor(self) -> dict[str, Any] | None:
        if not self.adds_bos or self.bos is None:
            return None
        token = self.tokens[self.bos]
        bos = {"SpecialToken": {"id": token, "type_id": 0}}
        first, second = ({"Sequence": {"id": name, "type_id": 0}} for name in "AB")
        return {
            "type": "TemplateProcessing",
            "single": [bos, first],
            "pair": [bos, first, bos, second],
            "special_tokens": {token: {"id": token, "ids": [self.bos], "tokens": [token]}},
        }

    def _id(self, key: str) -> int | None:
        value = self.file.get(f"tokenizer.ggml.{key}", int, -1)
        if value >= len(self.tokens):
            self._fail(key, value, f"a token id below {len(self.tokens)}")
        return None if value < 0 else int(value)

    def _fail(self, key: str, found: Any, expected: str) -> NoReturn:
        self.file.fail(f"tokenizer.ggml.{key}", found, expected)
