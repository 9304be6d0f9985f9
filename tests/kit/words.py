"""How tamiz speaks: words that only its authors understand, and the length of a sentence."""

import re
from collections.abc import Iterator

#: Words in a sentence, at most.
LONGEST = 35
#: Words that are not used, and what to write instead.
BANNED = {
    r"foret(ell|old)\w*": "predict",
    r"asks? (for|of)|asked( for)?": "request, prefetch, set",
    r"who waits|who (fits|gets|has)": "say what does it",
    r"the way back": "the backward pass",
    r"until now|of now|of before": "say what is true now",
    r"the seed('s)?( example)?(?! draws)": "name the document",
    r"stands? (at|for|beside|in|there|where)": "is applied, means",
    r"so (many|much)\b": "name the number",
    r"tells?|told": "report, print, say",
    r"in turn": "alternately",
    r"nought|beside them|thereof": "standard words",
    r"the same\b(?! \w)": "name what is the same",
    r"weigh(s|ed)? (little|much)": "matter",
    r"(?<!\w)what (loses|wins|counts|moved)": "name it",
}


def faults(text: str) -> list[str]:
    """What is wrong with a text: its banned words and its long sentences."""
    flat = " ".join(text.split())
    found = []
    for pattern, instead in BANNED.items():
        for word in re.finditer(rf"\b({pattern})\b", flat, re.IGNORECASE):
            around = flat[max(0, word.start() - 20) : word.end() + 20]
            found.append(f"{word[0]!r} in {around!r}: {instead}")
    return found + [f"too long: {sentence}" for sentence in long_sentences(flat)]


def long_sentences(text: str) -> Iterator[str]:
    """Sentences of more than LONGEST words."""
    for sentence in re.split(r"(?<=[.;:!?])\s", text):
        if len(sentence.split()) > LONGEST:
            yield sentence


def paragraphs(page: str) -> Iterator[str]:
    """The texts of a Markdown page without code: paragraphs, items of lists, cells of tables."""
    page = re.sub(r"^(`{3,}).*?^\1$", "", page, flags=re.MULTILINE | re.DOTALL)
    page = re.sub(r"<!--.*?-->|<[^>]+>", "", page, flags=re.DOTALL)
    page = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", page)
    page = re.sub(r"`[^`]*`", "`code`", page)
    for block in re.split(r"\n\s*\n|^\s*[-*] |^\s*\d+\. |^#+ ", page, flags=re.MULTILINE):
        if block.lstrip().startswith("|"):
            yield from re.split(r"\s*\|\s*", block)
        else:
            yield block
