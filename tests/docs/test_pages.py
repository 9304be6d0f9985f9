"""Pages: plain sentences, links that lead somewhere, results that are current, short ways."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from kit.rooms import ROOT
from kit.words import faults, paragraphs

DOCS = ROOT / "docs"
README = ROOT / "README.md"
GENERATED = DOCS / "reference"
#: Pages that are written by hand. Generated ones are made from texts that have their tests.
PAGES = [
    README,
    *(ROOT / name for name in ("CONTRIBUTING.md", "SECURITY.md", "CODE_OF_CONDUCT.md")),
    *(
        path
        for path in sorted(DOCS.rglob("*.md"))
        if GENERATED not in path.parents and path.parent.name not in ("results", "background")
    ),
    GENERATED / "python.md",
]
#: Questions of a reader, and the page that answers each: at most two clicks from the README.
QUESTIONS = {
    "How do I run a GGUF?": ("docs/quickstart.md", "tamiz run"),
    "Why is my layer dense?": ("docs/guides/why-was-my-layer-refused.md", "stays dense"),
    "How do I bound the loss?": ("docs/guides/choose-a-budget.md", "--max-dppl"),
    "What does a flag do?": ("docs/reference/cli.md", "--on-conflict"),
    "How fast is it on my machine?": ("docs/faq.md", "tamiz bench"),
    "How do I deploy in C++?": ("docs/guides/embed-in-cpp.md", "RegisterCustomOpsLibrary"),
    "How do I write a technique?": ("docs/guides/write-a-technique.md", "replace_weight"),
    "What is event-driven?": ("docs/faq.md", "What is event-driven?"),
    "Can I trust the file?": ("docs/security.md", "What is checked"),
    "How do I report a bug?": ("docs/faq.md", "How do I report a bug?"),
    "How do I serve a GGUF?": ("docs/guides/serve.md", "tamiz serve model.gguf"),
    "How do I embed 1,000 texts?": ("docs/guides/embeddings.md", "tamiz embed"),
    "How do I use my folder of onnxruntime-genai?": ("docs/guides/from-onnx.md", "genai_config"),
    "Is my model supported?": ("docs/reference/models.md", "GGUF and safetensors are read"),
    "Is my laptop fast?": ("docs/guides/processors.md", "Intel's laptops since Alder Lake"),
    "How do I serve on two machines?": ("docs/guides/serve-in-production.md", "cluster"),
}


def links(page: Path) -> Iterator[tuple[str, Path, str]]:
    """The relative links of a page: as written, the file, and the anchor."""
    text = re.sub(r"^(`{3,}).*?^\1$", "", page.read_text("utf-8"), flags=re.M | re.S)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if not re.match(r"[a-z]+:", target):
            path, _, anchor = target.partition("#")
            yield target, (page.parent / path).resolve() if path else page, anchor


def anchors(page: Path) -> set[str]:
    """Anchors of a page: its headings as repository browsers name them, and explicit ids."""
    text = page.read_text("utf-8")
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    plain = [re.sub(r"[^\w\- ]", "", heading).lower().replace(" ", "-") for heading in headings]
    return {*plain, *re.findall(r'id="([^"]+)"', text)}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_a_page_is_plain(page: Path) -> None:
    wrong = [fault for text in paragraphs(page.read_text("utf-8")) for fault in faults(text)]
    assert wrong == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_lead_to_files(page: Path) -> None:
    for target, path, anchor in links(page):
        assert path.exists(), target
        assert not anchor or anchor in anchors(path), target


def test_the_readme_is_short() -> None:
    assert len(README.read_text("utf-8").splitlines()) < 120


@pytest.mark.parametrize("question", QUESTIONS)
def test_an_answer_is_two_clicks_away(question: str) -> None:
    name, answer = QUESTIONS[question]
    page = ROOT / name
    assert answer in page.read_text("utf-8")
    first = {path for _, path, _ in links(README) if path.suffix == ".md"}
    second = {path for one in first if one.exists() for _, path, _ in links(one)}
    assert page in first | second
