"""Search and similarity of an encoder in fewer bits: NDCG@10 of titles, Spearman of pairs.

    tamiz export all-mpnet-base-v2 -o mpnet
    tamiz build mpnet -o mpnet-q8
    python -m benchmarks retrieval mpnet mpnet-q8 --text wikitext2-test.txt \
        --work work --openvino --json retrieval.json

The text has articles with headings, as WikiText has them (``= Title =``, ``= = Section = =``). A
query is the title of an article and that of one of its sections. The passages are the bodies of all
sections, and the one below the titles is relevant: NDCG@10 is the mean of 1 / log2(1 + rank), of
ranks beyond 10 it is 0. Pairs of sentences are of four kinds: side by side, of one section, of one
article, of two articles. Spearman's ρ is that of their cosines and of this order; it stands for the
scores of people in STS, and is not comparable with them. The interval is that of the difference to
the first model: 5 % to 95 % of 1,000 samples of the queries or pairs with replacement. All models
see the same tokens.

With --work int8 of ONNX Runtime takes part, one scale an output, and with --openvino as well (needs
openvino and nncf) OpenVINO in its default precision and in int8. Both make their models of the
first bundle; those in --work are used again. Peers pad the texts of a run.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import numpy as np
from numpy.typing import NDArray

from benchmarks.common import record
from benchmarks.engines import openvino_encoder
from benchmarks.engines.openvino_encoder import CALIBRATED, OpenVinoEncoder
from benchmarks.quality.encoders import ONNX_RUNTIME_INT8, dynamically_quantized, encoder
from benchmarks.quality.quantisers import weight_bytes
from tamiz.evaluation.embeddings import read_texts
from tamiz.files.bundle import Bundle
from tamiz.inference.embedding_model import EmbeddingModel
from tamiz.inference.text_batches import TextSpeed, in_batches
from tamiz.runtime.embedding.encoder import Encoder

Floats = NDArray[np.float64]
#: Embeddings of texts, each of length 1.
Embed = Callable[[list[str]], NDArray[np.float32]]
_HEADING = re.compile(r"^ ?((?:= )+)(.*?)((?: =)+) ?$")
#: Words of a section that a search can find, and of a sentence of a pair.
_FEWEST, _SENTENCE = 40, (8, 40)
#: Texts of a run of a peer.
_BATCH = 32
#: NDCG looks at as many passages.
_DEPTH = 10
_SAMPLES = 1000


@dataclass(frozen=True)
class Section:
    """A section of an article.

    Attributes:
        article: Title of the article.
        title: Title of the section.
        body: Its text.
    """

    article: str
    title: str
    body: str


@click.command()
@click.argument(
    "bundles",
    nargs=-1,
    required=True,
    type=click.Path(exists=True, file_okay=False, path_type=Path),
)
@click.option("--text", type=click.Path(exists=True, path_type=Path), required=True)
@click.option("--pairs", default=250, show_default=True, help="Pairs of each of the four kinds.")
@click.option("--length", default=128, show_default=True, help="Tokens of a text at most.")
@click.option("--threads", default=2, show_default=True)
@click.option("--work", type=click.Path(path_type=Path), help="Keeps models of peers.")
@click.option("--openvino", is_flag=True, help="Compare with OpenVINO, too; needs --work.")
@click.option(
    "--fitted-on",
    type=click.Path(exists=True, path_type=Path),
    help="Text that NNCF reads.  [default: --text]",
)
@click.option("--json", "output", type=click.Path(path_type=Path), help="Also write this file.")
def main(
    bundles: tuple[Path, ...],
    text: Path,
    pairs: int,
    length: int,
    threads: int,
    work: Path | None,
    openvino: bool,
    fitted_on: Path | None,
    output: Path | None,
) -> None:
    """Compares BUNDLES of encoders; the first is the reference."""
    if openvino and work is None:
        raise click.UsageError("--openvino needs --work, a folder for its models")
    load = Embedders(bundles[0], threads, length)
    models = {bundle.name: (bundle, load.of_bundle) for bundle in bundles}
    if work is not None:
        work.mkdir(exist_ok=True)
        folder = dynamically_quantized(bundles[0], work, per_channel=True)
        models[f"{ONNX_RUNTIME_INT8}, one scale an output"] = (folder, load.of_onnx_runtime)
    if openvino and work is not None:
        dense = Bundle.open(bundles[0])
        fitted = read_texts(fitted_on or text, dense, CALIBRATED, length, CALIBRATED)
        made = openvino_encoder.models(bundles[0], work, fitted)
        models |= {name: (folder, load.of_openvino) for name, folder in made.items()}
    sections = read_sections(text.read_text("utf-8"))
    first, second, kinds = sentence_pairs(sections, pairs)
    found: dict[str, dict[str, Any]] = {}
    reference: tuple[Floats, Floats] | None = None
    for name, (folder, embedder) in models.items():
        embed = embedder(folder)
        gains = search_gains(embed, sections)
        cosines = np.vecdot(*map(embed, (first, second)))
        reference = reference or (gains, cosines)
        found[name] = {
            "mb": round(weight_bytes(folder) / 1e6, 1),
            "ndcg_10": round(float(gains.mean()), 4),
            "ndcg_10_difference": _interval(gains - reference[0], np.mean),
            "spearman": round(spearman(cosines, kinds), 4),
            "spearman_difference": _interval(
                np.stack([cosines, reference[1], kinds], axis=1), _difference_of_spearman
            ),
        }
        click.echo(f"{name:24} {found[name]}", err=True)
    if output is not None:
        counts = {"queries": len(sections), "pairs": len(kinds), "length": length}
        record.write(
            output,
            "retrieval",
            found,
            settings={"model": bundles[0].name, "text": text.name, **counts},
            peers=record.versions(openvino_encoder.DISTRIBUTIONS) if openvino else {},
        )


def read_sections(text: str) -> list[Section]:
    """The sections of articles that are long enough and whose titles occur once."""
    found: dict[tuple[str, str], list[str]] = {}
    article = title = ""
    for line in text.splitlines():
        heading = _HEADING.match(line)
        if heading is None:
            found.setdefault((article, title), []).append(line.strip())
        elif len(heading[1].split()) == 1:
            article, title = heading[2].strip(), ""
        else:
            title = heading[2].strip()
    sections = [Section(*titles, " ".join(filter(None, lines))) for titles, lines in found.items()]
    return [s for s in sections if s.title and len(s.body.split()) >= _FEWEST]


def sentence_pairs(
    sections: list[Section], count: int
) -> tuple[list[str], list[str], NDArray[np.int64]]:
    """Pairs of sentences and how near they are: 3 side by side, 2, 1, and 0 of two articles.

    Args:
        sections: The sections.
        count: Pairs of each kind.
    """
    low, high = _SENTENCE
    sentences = [
        (section, place, words)
        for section in sections
        for place, words in enumerate(section.body.split(" . "))
        if low <= len(words.split()) <= high
    ]
    random = np.random.default_rng(0)
    first, second, kinds = list[str](), list[str](), list[int]()
    while len(kinds) < 4 * count:
        kind = len(kinds) % 4
        one, place, words = sentences[random.integers(len(sentences))]
        near = [s for s in sentences if _kind((one, place), s) == kind]
        if near:
            first.append(words)
            second.append(near[random.integers(len(near))][2])
            kinds.append(kind)
    return first, second, np.array(kinds)


def _kind(one: tuple[Section, int], other: tuple[Section, int, str]) -> int:
    """How near two sentences are; -1 for a sentence and itself."""
    (a, place), (b, further, _) = one, other
    if a.article != b.article:
        return 0
    if a is not b:
        return 1
    apart = abs(place - further)
    return {0: -1, 1: 3}.get(apart, 2)


@dataclass(frozen=True)
class Embedders:
    """Loads models, which all embed the tokens that the tokenizer of a dense bundle gives.

    Attributes:
        reference: The dense bundle.
        threads: Threads of a run.
        length: Tokens of a text at most.
    """

    reference: Path
    threads: int
    length: int

    def of_bundle(self, folder: Path) -> Embed:
        """A bundle with a tokenizer."""
        model = EmbeddingModel.load(folder, threads=self.threads, context=self.length)
        return lambda texts: model.embed(texts, normalize=True)

    def of_onnx_runtime(self, folder: Path) -> Embed:
        """A model of a quantiser of ONNX Runtime."""
        dense, peer = (encoder(path, self.threads) for path in (self.reference, folder))
        peer.modules = dense.modules
        return self._padded(dense, peer.encode)

    def of_openvino(self, folder: Path) -> Embed:
        """A model of OpenVINO."""
        dense = encoder(self.reference, self.threads)
        return self._padded(dense, OpenVinoEncoder(folder, dense, self.threads).encode)

    def _padded(
        self, dense: Encoder, run: Callable[[list[list[int]]], NDArray[np.float32]]
    ) -> Embed:
        """Runs texts of similar lengths together."""
        tokens = EmbeddingModel(dense, self.length)

        def embed(texts: list[str]) -> NDArray[np.float32]:
            rows = [tokens.encode(text) for text in texts]
            found = np.zeros((len(rows), dense.width), np.float32)
            for chosen in in_batches([len(row) for row in rows], _BATCH, None, TextSpeed()):
                found[chosen] = run([rows[number] for number in chosen])
            unit: NDArray[np.float32] = found / np.linalg.norm(found, axis=1, keepdims=True)
            return unit

        return embed


def search_gains(embed: Embed, sections: list[Section]) -> Floats:
    """What each query adds to NDCG@10."""
    passages = embed([section.body for section in sections])
    queries = embed([f"{section.article}: {section.title}" for section in sections])
    scores = queries @ passages.T
    rank = 1 + (scores > np.diag(scores)[:, None]).sum(axis=1)
    return np.where(rank <= _DEPTH, 1 / np.log2(1 + rank), 0.0)


def spearman(x: Floats, y: NDArray[Any]) -> float:
    """Spearman's ρ: the correlation of ranks, of equal numbers their mean."""
    return float(np.corrcoef(_ranks(x), _ranks(y))[0, 1])


def _ranks(x: NDArray[Any]) -> Floats:
    _, place, counts = np.unique(x, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    found: Floats = (ends - (counts - 1) / 2)[place]
    return found


def _difference_of_spearman(rows: NDArray[Any]) -> float:
    """How much ρ of a model's cosines is above that of the reference; rows of both and kinds."""
    return spearman(rows[:, 0], rows[:, 2]) - spearman(rows[:, 1], rows[:, 2])


def _interval(rows: NDArray[Any], of: Callable[[NDArray[Any]], Any]) -> list[float]:
    """5 % to 95 % of a number over samples of rows with replacement."""
    random, count = np.random.default_rng(0), len(rows)
    found = [of(rows[random.integers(count, size=count)]) for _ in range(_SAMPLES)]
    return [round(float(value), 4) for value in np.quantile(found, (0.05, 0.95))]


if __name__ == "__main__":
    main()
