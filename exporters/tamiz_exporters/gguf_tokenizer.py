"""tokenizer.json and its companions, from the tokenizer metadata of a GGUF file.

Two families: ``gpt2`` and ``gemma4``, BPE with listed merges, and ``llama``, SentencePiece's BPE,
whose merges follow from the scores.
"""

from __future__ import annotations

import logging
from typing import Any

from tamiz_exporters.gguf_file import GgufFile
from tamiz_exporters.gguf_vocabulary import CONTROL, NORMAL, UNKNOWN, USER_DEFINED, Vocabulary
from tamiz_exporters.pre_tokenizers import BYTE_LEVEL, PRE_TOKENIZERS, PreTokenizer
from tamiz_exporters.tokenizer import TOKENIZER_DEFAULTS

_SENTENCEPIECE = "llama"
#: Kinds with listed merges: the pre-tokenizer where the file names none; "": a warning.
_BYTE_PAIRS = {"gpt2": "", "gemma4": "gemma4"}
#: Ids of SentencePiece's special tokens where a file names none, as llama.cpp assumes.
_SENTENCEPIECE_IDS = {"unknown_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
#: Control tokens of Phi 3 after which white space stays.
_KEEP_SPACE = ("<unk>", "<s>", "<|endoftext|>")
_UNDERLINE = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
_PIECES: tuple[dict[str, Any], ...] = (
    {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
    {"type": "ByteFallback"},
    {"type": "Fuse"},
)
_log = logging.getLogger(__name__)


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
        model = file.get("tokenizer.ggml.model", str)
        if model not in (*_BYTE_PAIRS, _SENTENCEPIECE):
            file.fail("tokenizer.ggml.model", model, "gpt2, gemma4 or llama")
        scored = model == _SENTENCEPIECE
        self._pre = None if scored else self._pre_tokenizer(_BYTE_PAIRS[model])
        self._vocabulary = Vocabulary(file, vocabulary, _SENTENCEPIECE_IDS if scored else {})
        adds = scored or (self._pre is not None and self._pre.adds_bos)
        self._begin = self._always("bos", self._vocabulary.bos, adds)
        self._end = self._always("eos", self._vocabulary.eos, False)

    def generation_config(self) -> dict[str, Any]:
        """Returns the special ids; ``eos_token_id`` is a list where several tokens end a turn."""
        vocabulary = self._vocabulary
        ends = vocabulary.ends
        ids = {
            "bos_token_id": vocabulary.bos,
            "eos_token_id": ends[0] if len(ends) == 1 else ends or None,
            "pad_token_id": vocabulary.padding,
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
            "add_bos_token": self._begin is not None,
            **({"add_eos_token": True} if self._end is not None else {}),
            **TOKENIZER_DEFAULTS,
        }
        of = self._vocabulary
        special = {"bos": of.bos, "eos": of.eos, "unk": of.unknown, "pad": of.padding}
        for name, number in special.items():
            if number is not None:
                out[f"{name}_token"] = of.tokens[number]
        if template := self.file.get("tokenizer.chat_template", str, ""):
            out["chat_template"] = template
        return out

    def tokenizer_json(self) -> dict[str, Any]:
        """Returns what ``tokenizer.json`` holds.

        Raises:
            TamizError: If a merge or a score is missing or malformed.
        """
        parts = self._sentencepiece() if self._pre is None else self._byte_pairs(self._pre)
        model = {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": self._vocabulary.ids,
        }
        return {
            "version": "1.0",
            "truncation": None,
            "padding": None,
            "added_tokens": self._added_tokens(),
            **parts,
            "post_processor": self._post_processor(),
            "model": model | parts["model"],
        }

    def _pre_tokenizer(self, default: str) -> PreTokenizer:
        name = self.file.get("tokenizer.ggml.pre", str, default)
        if not name:
            _log.warning(
                "%s: tokenizer.ggml.pre is missing; the default split of llama.cpp is used, which "
                "may give other tokens than the model was trained with",
                self.file.path,
            )
            name = "default"
        if name not in PRE_TOKENIZERS:
            self.file.fail(
                "tokenizer.ggml.pre", name, f"one of {', '.join(PRE_TOKENIZERS)}, as in llama.cpp"
            )
        return PRE_TOKENIZERS[name]

    def _added_tokens(self) -> list[dict[str, Any]]:
        """The tokens that are cut out of a text before anything else."""
        of = self._vocabulary
        flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
        strips = self._strips_space()
        added = []
        for number in of.special(CONTROL, USER_DEFINED, UNKNOWN):
            token = of.tokens[number]
            rstrip = strips and token not in _KEEP_SPACE
            special = of.types[number] != USER_DEFINED
            added.append(
                {"id": number, "content": token, **flags, "rstrip": rstrip, "special": special}
            )
        return added

    def _strips_space(self) -> bool:
        """Whether control tokens take the white space after them, as those of Phi 3 do.

        The file does not say it, so llama.cpp looks at the model's name.
        """
        name = self.file.get("general.name", str, "").lower()
        return "phi-3" in name or "phi3" in name

    def _byte_pairs(self, pre: PreTokenizer) -> dict[str, Any]:
        steps = pre.steps()
        parts: dict[str, Any] = {
            "normalizer": {"type": "NFC"} if pre.composes else None,
            "pre_tokenizer": (
                steps[0] if len(steps) == 1 else {"type": "Sequence", "pretokenizers": steps}
            ),
            "decoder": BYTE_LEVEL | {"use_regex": True},
            "model": {"merges": self._merges(), "ignore_merges": pre.ignore_merges},
        }
        if pre.sentencepiece:
            parts["normalizer"] = _UNDERLINE
            parts["decoder"] = {"type": "Sequence", "decoders": list(_PIECES)}
            parts["model"]["byte_fallback"] = True
        return parts

    def _merges(self) -> list[str]:
        ids = self._vocabulary.ids
        merges: list[str] = self.file.get("tokenizer.ggml.merges", list)
        for number, merge in enumerate(merges):
            left, _, right = str(merge).partition(" ")
            if left not in ids or right not in ids or left + right not in ids:
                self._vocabulary.fail(
                    f"merges[{number}]", repr(merge), "two tokens whose union is one"
                )
        return merges

    def _sentencepiece(self) -> dict[str, Any]:
        of = self._vocabulary
        steps: list[dict[str, Any]] = [_UNDERLINE]
        decoders = list(_PIECES)
        if self.file.get("tokenizer.ggml.add_space_prefix", bool, True):
            steps.insert(0, {"type": "Prepend", "prepend": "▁"})
            decoders.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
        unknown = None if of.unknown is None else of.tokens[of.unknown]
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
        of = self._vocabulary
        scores = of.scores()
        ranked = []
        for number in of.special(NORMAL):
            piece = of.tokens[number]
            for cut in range(1, len(piece)):
                left, right = of.ids.get(piece[:cut]), of.ids.get(piece[cut:])
                if left is not None and right is not None:
                    ranked.append((-scores[number], left, right))
        ranked.sort()
        return [f"{of.tokens[left]} {of.tokens[right]}" for _, left, right in ranked]

    def _always(self, name: str, number: int | None, default: bool) -> int | None:
        """The token that is put at an end of every text; None for none."""
        if not self.file.get(f"tokenizer.ggml.add_{name}_token", bool, default):
            return None
        if number is None:
            self._vocabulary.fail(
                f"{name}_token_id", "nothing", f"a token id, since add_{name}_token holds"
            )
        return number

    def _post_processor(self) -> dict[str, Any] | None:
        tokens = self._vocabulary.tokens
        ends = [number for number in (self._begin, self._end) if number is not None]
        if not ends:
            return None

        def piece(number: int | None) -> list[dict[str, Any]]:
            if number is None:
                return []
            return [{"SpecialToken": {"id": tokens[number], "type_id": 0}}]

        texts = [
            [*piece(self._begin), {"Sequence": {"id": name, "type_id": 0}}, *piece(self._end)]
            for name in "AB"
        ]
        return {
            "type": "TemplateProcessing",
            "single": texts[0],
            "pair": texts[0] + texts[1],
            "special_tokens": {
                tokens[number]: {"id": tokens[number], "ids": [number], "tokens": [tokens[number]]}
                for number in ends
            },
        }
