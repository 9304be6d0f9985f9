"""`tokenizer.onnx` beside the library's tokenizer, over texts that are hard to split."""

import random
from pathlib import Path

import numpy as np
import onnxruntime as ort
import tokenizers
from onnxruntime_extensions import get_library_path

from kit import tiny_gguf
from kit.odd_strings import ODD_STRINGS

CORPUS = """The quick brown fox jumps over the lazy dog; don't
you think she'll say 'tis 1234 or 3.14?
def fibonacci(n):
    if n < 2:
        return n  # base case
    return fibonacci(n - 1) + fibonacci(n - 2)
El pingüino Wenceslao hizo kilómetros bajo exhaustiva lluvia y frío, añoraba a su querido cachorro.
Съешь же ещё этих мягких французских булок. いろはにほへと ちりぬるを. 我能吞下玻璃而不伤身体。
"""


BATTERY = (
    "",
    " ",
    "Hello world",
    "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n",
    "<|im_start|><|im_end|><|endoftext|>",
    "a<|im_start|> b <|im_end|>c",
    "  two  spaces\n\n\tTabs  1234567 3.14 \n 4",
    "x  \n   y;\n\n\n  z\r\n\r\n  w \n",
    "don't I'll WE'VE it'S 'tis",
    "for (int i = 0; i < 10; ++i) { a[i] += b[i] << 2; } // ok\n",
    "日本語のテキスト、한국어 문장. Ελληνικά русский العربية हिन्दी ไทย",
    "😀 👩‍👩‍👧‍👦 🇲🇽 🏳️‍🌈",
    "½ ² x² Ⅷ １２３ ٣ 12  3",
    "\u3000\n  b\u00a0c\u200bd\ufeff",
    "Ünïcödé ﬁ ﬀ ß ẞ İ ı",
    "a" * 70 + " " * 40 + "\n" * 9 + "!?" * 20,
)


#: Where the operator gives other ids than the library: its strings end at a NUL, and it drops the
#: noncharacter that the graph separates text with. Where the tokenizer composes characters (NFC),
#: it also differs on every text that is not composed.
OPERATOR_DIFFERS = {"a\0b", "\ufdd0"}
LETTERS = "abXY  \n\t\r013'sdmt,.!?-_é漢字かな한عर्😀👩‍½²Ⅷ１٣\u00a0\u3000\u200b"


def texts() -> list[str]:
    choice = random.Random(0)
    pieces = [*LETTERS, *tiny_gguf.SPECIAL, "  \n  ", "the", "return"]
    fuzz = ["".join(choice.choices(pieces, k=choice.randint(1, 14))) for _ in range(1500)]
    return [*BATTERY, *ODD_STRINGS, *CORPUS.splitlines(keepends=True), CORPUS, *fuzz]


def session(folder: Path) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.register_custom_ops_library(get_library_path())
    return ort.InferenceSession(folder / "tokenizer.onnx", options)


def encode(model: ort.InferenceSession, text: str) -> list[int]:
    (ids,) = model.run(None, {"text": np.array([text])})
    assert ids.dtype == np.int64
    assert ids.ndim == 1
    return ids.tolist()


def differing(model: ort.InferenceSession, reference: tokenizers.Tokenizer) -> set[str]:
    def expected(text: str) -> list[int]:
        return reference.encode(text, add_special_tokens=False).ids

    return {text for text in texts() if encode(model, text) != expected(text)}
