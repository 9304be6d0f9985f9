"""The pre-tokenizers that llama.cpp knows by name, as steps of the `tokenizers` library.

`tokenizer.ggml.pre` names how text is cut into words before byte pairs merge. Each name stands for
regular expressions. The first cuts the text, the next one cuts its pieces, and so on. What an
expression does not match is a piece, too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tamiz_exporters.tokenizer import LLAMA3_SPLIT, QWEN2_SPLIT

BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}

#: What `tokenizers` has steps of its own for: GPT-2's words at the end, and single digits.
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)"
_DIGITS = r"\p{N}"

_CONTRACTION = r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])"
_SPACES = r"\s+(?!\S)|\s+"
_OTHERS = rf" ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|\s*[\r\n]+|{_SPACES}"
_OTHERS_OF_GPT4 = rf" ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|\s*[\r\n]+|{_SPACES}"
_LEAD = r"[^\r\n\p{L}\p{N}]?"


def _cased(upper: str, lower: str, end: str = "") -> str:
    """Words of capitals and small letters: a capital after a small letter begins a new one."""
    return rf"{_LEAD}{upper}*{lower}+{end}|{_LEAD}{upper}+{lower}*{end}"


def _but(ascii_range: str, letter: str = r"\p{L}") -> str:
    """A letter outside a range of ASCII."""
    return rf"(?:(?={letter})[^{ascii_range}])"


_GPT4 = _cased(_but("a-z"), _but("A-Z"), f"{_CONTRACTION}?")
_GPT4_MARKED = _cased(
    _but("a-z", r"[\p{L}\p{M}]"), _but("A-Z", r"[\p{L}\p{M}]"), f"{_CONTRACTION}?"
)
_HAN = (
    "[\u4e00-\u9fff\u3400-\u4dbf\U00020000-\U0002a6df\U0002a700-\U0002ebef"
    "\uf900-\ufaff\U0002f800-\U0002fa1f]"
)
_NOT_HAN = rf"(?:(?!{_HAN})\p{{L}})"
_DEEPSEEK_WORDS = (
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|"""
    r"[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+"
)
_DEEPSEEK = rf"{_DEEPSEEK_WORDS}[\r\n]*|\s*[\r\n]+|{_SPACES}"
_CHINESE = "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"
#: But white space.
_EAST_ASIAN = "[\u0800-\u9fa5\uac00-\ud7ff&&[^\\s]]+"
#: Letters with case, as DeepSeek lists them.
_DEEPSEEK_LETTERS = (
    "A-Za-z\u00b5\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u01ba\u01bc-\u01bf\u01c4-\u0293\u0295-"
    "\u02af\u0370-\u0373\u0376\u0377\u037b-\u037d\u037f\u0386\u0388-\u038a\u038c\u038e-\u03a1"
    "\u03a3-\u03f5\u03f7-\u0481\u048a-\u052f\u0531-\u0556\u10a0-\u10c5\u13a0-\u13f5\u13f8-"
    "\u13fd\u1c90-\u1cba\u1cbd-\u1cbf\u1d00-\u1d2b\u1d6b-\u1d77\u1d79-\u1d9a\u1e00-\u1f15"
    "\u1f18-\u1f1d\u1f20-\u1f45\u1f48-\u1f4d\u1f50-\u1f57\u1f59\u1f5b\u1f5d\u1f5f-\u1f7d"
    "\u1f80-\u1fb4\u1fb6-\u1fbc\u1fbe\u1fc2-\u1fc4\u1fc6-\u1fcc\u1fd0-\u1fd3\u1fd6-\u1fdb"
    "\u1fe0-\u1fec\u1ff2-\u1ff4\u1ff6-\u1ffc\u2102\u2107\u210a-\u2113\u2115\u2119-\u211d"
    "\u2124\u2126\u2128\u212a-\u212d\u212f-\u2134\u2139\u213c-\u213f\u2145-\u2149\u214e\u2183"
    "\u2184\u2c00-\u2c7b\u2c7e-\u2ce4\u2ceb-\u2cee\u2cf2\u2cf3\ua640-\ua66d\ua680-\ua69b"
    "\ua722-\ua76f\ua771-\ua787\ua78b-\ua78e\uab70-\uabbf\ufb00-\ufb06\ufb13-\ufb17\uff21-"
    "\uff3a\uff41-\uff5a\U00010400-\U0001044f\U000104b0-\U000104d3\U000104d8-\U000104fb"
    "\U00010c80-\U00010cb2\U00010cc0-\U00010cf2\U000118a0-\U000118df\U0001e900-\U0001e943"
)
_DEEPSEEK_LLM = (
    r"[\r\n]",
    rf"\s?[{_DEEPSEEK_LETTERS}]+",
    "\\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3001\u3002]+",
    r"\s+$",
    _EAST_ASIAN,
    r"\p{N}+",
)
_BLOOM = " ?[^(\\s|.,!?\u2026\u3002\uff0c\u3001\u0964\u06d4\u060c)]+"
_ASIAN = (
    "[\u4e00-\u9fff\u3400-\u4dbf\u8c48-\ufaff\u3040-\u309f\u30a0-\u30ff\uff65-\uff9f"
    "\u2f00-\u2fdf\u0e40-\u0e7f\u0e80-\u0eff\u1780-\u17ff\u1000-\u109f\uaa60-\uaa7f"
    "\ua9e0-\ua9ff\uac00-\ud7af\u1100-\u11ff]+"
)
#: Groups of three digits, counted from the last; what stands before them is part of the first.
_THREES = r"\P{N}*\p{N}{1,3}(?=(?:\p{N}{3})*(?!\p{N}))"
_YOUTU = (
    "[\uac00-\ud7a3\u3131-\u318e]+|"
    "[\uff01\u2026\u201c\u201d\u2018\u2019\u2014\uff1a\uff1b\uff0c\u3001-\u303f\ufe30-\ufe4f]+|"
    "[\u3105-\u312f]+|[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"
)


@dataclass(frozen=True)
class PreTokenizer:
    """How a family of byte-level tokenizers cuts text.

    Attributes:
        patterns: Regular expressions, or the names of steps of `tokenizers`, one after the other.
        ignore_merges: Whether a piece that is a token is that token, whatever the merges say.
        adds_bos: Whether a text begins with BOS where the file does not say it.
        composes: Whether characters are composed first (NFC), as the family's own files do and
            llama.cpp does not.
        sentencepiece: Whether merges join characters of text, spaces written as ``▁``, instead of
            bytes.
    """

    patterns: tuple[str, ...]
    ignore_merges: bool = False
    adds_bos: bool = False
    composes: bool = False
    sentencepiece: bool = False

    def steps(self) -> list[dict[str, Any]]:
        """The steps of the pre-tokenizer in ``tokenizer.json``."""
        if self.sentencepiece:
            return [_step(pattern) for pattern in self.patterns]
        *others, last = self.patterns
        cuts_last = last == _GPT2
        steps = [_step(pattern) for pattern in (others if cuts_last else self.patterns)]
        return [*steps, BYTE_LEVEL | {"use_regex": cuts_last}]


def _step(pattern: str) -> dict[str, Any]:
    if pattern == _DIGITS:
        return {"type": "Digits", "individual_digits": True}
    return {
        "type": "Split",
        "pattern": {"Regex": pattern},
        "behavior": "Isolated",
        "invert": False,
    }


def _family(names: str, *patterns: str, **traits: bool) -> dict[str, PreTokenizer]:
    return dict.fromkeys(names.split(), PreTokenizer(patterns, **traits))


_DEFAULT = r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", "[0-9][0-9][0-9]"
_QWEN35 = (
    rf"{_CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}|"
    rf" ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|\s*[\r\n]+|{_SPACES}"
)
_EXAONE = (
    rf"{_CONTRACTION}|{_LEAD}(?:\p{{L}}\p{{M}}*(?: \p{{L}}\p{{M}}*)*)+|\p{{N}}|"
    rf" ?[^\s\p{{L}}\p{{N}}]+[\r\n/]?|\s*[\r\n]|{_SPACES}"
)
_BAILING = (
    rf"'(?:[sSdDmMtT]|[lL][lL]|[vV][eE]|[rR][eE])|{_LEAD}\p{{L}}+|\p{{N}}|"
    rf" ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|\s*[\r\n]|{_SPACES}"
)
_SEED = rf"{_CONTRACTION}|{_LEAD}\p{{L}}+|\p{{N}}| ?[^\s\p{{L}}\p{{N}}\r\n]+|\s*[\r\n]+|{_SPACES}"
_JAIS2 = (
    rf"{_CONTRACTION}|{_LEAD}\p{{L}}+|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|\s*[\r\n]+|"
    + "|".join(rf"\s{{{count}}}(?!\S)" for count in (512, 256, 128, 64, 32, 16, 8, 4, "1,2"))
    + r"|\s"
)
#: Here llama.cpp does not tell capitals from small letters.
_ANY_CASE = rf"{_LEAD}[\p{{L}}\p{{M}}]+{_CONTRACTION}?"

#: By `tokenizer.ggml.pre`.
PRE_TOKENIZERS: dict[str, PreTokenizer] = {
    **_family("default", *_DEFAULT),
    **_family(
        "gpt-2 phi-2 jina-es jina-de gigachat jina-v2-es jina-v2-de a.x-4.0 mellum modern-bert "
        "jina-v1-en jina-v2-code roberta-bpe mpt olmo jais trillion granite-docling exaone4",
        _GPT2,
    ),
    **_family(
        "smollm starcoder refact command-r codeshell exaone minerva-7b mellum2", _DIGITS, _GPT2
    ),
    **_family(
        "llama-bpe llama-v3 llama3 falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano",
        LLAMA3_SPLIT,
        ignore_merges=True,
        adds_bos=True,
    ),
    **_family("dbrx smaug-bpe chatglm-bpe", LLAMA3_SPLIT),
    **_family("glm4 glm5", LLAMA3_SPLIT, ignore_merges=True),
    **_family("jais-2", _JAIS2),
    **_family("qwen2 deepseek-r1-qwen", QWEN2_SPLIT, composes=True),
    **_family("kormo f2llmv2 megrez stablelm2 hunyuan solar-open grok-2", QWEN2_SPLIT),
    **_family("qwen35", _QWEN35),
    **_family("ufakzeka", rf"{_LEAD}\p{{L}}+|\p{{N}}|{_OTHERS}"),
    **_family("seed-coder", _SEED),
    **_family("bailingmoe bailingmoe2 llada-moe", _BAILING),
    **_family("exaone-moe", _EXAONE),
    **_family("laguna", r"[^\n]+|\n+", QWEN2_SPLIT),
    **_family(
        "minicpm5",
        r"\p{N}{1,3}",
        rf"{_CONTRACTION}|{_LEAD}\p{{L}}+|\p{{N}}+|{_OTHERS}",
        ignore_merges=True,
    ),
    **_family(
        "tekken",
        rf"{_cased(_but('a-z'), _but('A-Z'))}|\p{{N}}|{_OTHERS_OF_GPT4}",
        ignore_merges=True,
        adds_bos=True,
    ),
    **_family(
        "gpt-4o llama4 kanana2 talkie minimax-m2", rf"{_GPT4}|\p{{N}}{{1,3}}|{_OTHERS_OF_GPT4}"
    ),
    **_family(
        "granite-embed-multi-97m",
        rf"{_GPT4_MARKED}|\p{{N}}{{1,3}}|{_OTHERS_OF_GPT4}",
        ignore_merges=True,
    ),
    **_family(
        "tiny_aya cohere2moe",
        _THREES,
        rf"{_ANY_CASE}|\p{{N}}{{1,3}}|{_OTHERS_OF_GPT4}",
    ),
    **_family("youtu", _YOUTU, rf"{_ANY_CASE}|\p{{N}}|{_OTHERS_OF_GPT4}", ignore_merges=True),
    **_family(
        "kimi-k2",
        rf"{_HAN}+|{_LEAD}{_NOT_HAN}+{_CONTRACTION}?|\p{{N}}{{1,3}}|{_OTHERS}",
    ),
    **_family("deepseek-llm", *_DEEPSEEK_LLM),
    **_family("deepseek-coder", r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _EAST_ASIAN, _DIGITS),
    **_family("deepseek-v3 hunyuan-dense joyai-llm hy_v4", r"\p{N}{1,3}", _CHINESE, _DEEPSEEK),
    **_family("spark2_5", r"\p{N}{1,3}", _CHINESE, rf"{_DEEPSEEK_WORDS}|[\r\n]|{_SPACES}", _DIGITS),
    **_family("afmoe", _THREES, _ASIAN, _DEEPSEEK),
    **_family("falcon", r"[\p{P}\$\+<=>\^~\|`]+", _GPT2, "[0-9][0-9][0-9]"),
    **_family("poro-chat bloom gpt3-finnish", _BLOOM),
    **_family("viking", _BLOOM, _DIGITS),
    **_family("superbpe", r"\p{N}+", r"(?=(?:[0-9]{3})+(?![0-9]))"),
    **_family(
        "chameleon",
        "<sentinel:[0-9]+>",
        "IMGIMG[A-I]{1,4}Z",
        r"[\t\n]|    |  ",
        _DIGITS,
        r"[\p{P}!-/:-@\[-`{-~]",
        _GPT2,
        adds_bos=True,
    ),
    **_family("gemma4 granite-embed-multi-311m", r"[^\n]+|\n+", sentencepiece=True, adds_bos=True),
    **_family("sarvam-moe", r"[^\n]+|\n+", sentencepiece=True),
}
