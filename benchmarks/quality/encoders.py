"""An encoder in fewer bits: block-quant's formats and fits beside ONNX Runtime's quantisers.

    tamiz export all-mpnet-base-v2 -o mpnet
    tamiz calibrate mpnet -o mpnet.cal --text wikitext2-valid.txt --windows 8
    python -m benchmarks encoders mpnet --calibration mpnet.cal --text wikitext2-test.txt \
        --work work --openvino --json encoders.json

Texts are windows of --length tokens, --batch of them a run. An embedding is the mean of the last
hidden state over the tokens. Every model is compared with float32: by the cosine of embeddings, and
by how many texts have the same nearest other text. ``cos`` is the mean, ``cos_p05`` the 5 %
quantile. With --openvino (needs openvino and nncf) OpenVINO takes part. All models run interleaved;
``speed`` is the median ratio to float32 within a round, above 1 is faster, and ``speed_range`` its
quartiles. ``mixed_ms`` and ``mixed_speed`` are those of --mixed paragraphs of the text: tokenised
one by one, sorted by length, 32 in a run, as sentence-transformers does it. Built models run them
without padding. Finished models in --work are used again.
"""

from __future__ import annotations

import itertools
import logging
import statistics
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click
import numpy as np

from benchmarks.common import record
from benchmarks.engines import openvino_encoder, peers
from benchmarks.engines.openvino_encoder import CALIBRATED, OpenVinoEncoder
from benchmarks.quality.quantisers import Maker, weight_bytes
from tamiz.evaluation.embeddings import Texts, closeness, read_texts
from tamiz.files.bundle import Bundle, Source, write_manifest
from tamiz.files.errors import TamizError
from tamiz.inference.embedding_model import EmbeddingModel
from tamiz.inference.text_batches import TextSpeed, in_batches
from tamiz.runtime.embedding.encoder import Encoder, Float32
from tamiz.runtime.session import load_session

FLOAT32 = "float32"
ONNX_RUNTIME_INT8 = "ONNX Runtime quantize_dynamic int8"
#: Rounds in which every model runs once, and seconds between models: thread pools spin for a while.
ROUNDS, PAUSE = 9, 0.05
#: Rounds of mixed texts, texts of a run of them, and the least characters of a paragraph.
MIXED_ROUNDS, MIXED_BATCH, LEAST_CHARACTERS = 5, 32, 20


@click.command()
@click.argument("reference", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--text", type=click.Path(exists=True, path_type=Path), required=True)
@click.option("--work", type=click.Path(path_type=Path), required=True, help="Keeps models.")
@click.option("--calibration", type=click.Path(exists=True, path_type=Path))
@click.option(
    "--formats",
    default="q4_0,q5_0,q8_0,q8_0:128",
    show_default=True,
    help="q8_0:128 has a scale for 128 inputs, and is fitted by nearest alone.",
)
@click.option("--fits", default="nearest,search,gptq", show_default=True)
@click.option(
    "--cosines", default="0.98,0.99,0.995,0.999", show_default=True, help="Limits of cosine."
)
@click.option("--inputs", default="16,8", show_default=True, help="Bits of activations.")
@click.option("--texts", default=256, show_default=True)
@click.option("--length", default=128, show_default=True, help="Tokens of a text.")
@click.option("--batch", default=8, show_default=True)
@click.option("--threads", default=2, show_default=True)
@click.option("--mixed", default=64, show_default=True, help="Paragraphs; 0 leaves them out.")
@click.option("--openvino", is_flag=True, help="Compare with OpenVINO, too.")
@click.option(
    "--fitted-on",
    type=click.Path(exists=True, path_type=Path),
    help="Text that NNCF reads.  [default: --text]",
)
@click.option("--json", "output", type=click.Path(path_type=Path), help="Also write this file.")
def main(
    reference: Path,
    text: Path,
    work: Path,
    calibration: Path | None,
    formats: str,
    fits: str,
    cosines: str,
    inputs: str,
    texts: int,
    length: int,
    batch: int,
    threads: int,
    mixed: int,
    openvino: bool,
    fitted_on: Path | None,
    output: Path | None,
) -> None:
    """Compares models made of REFERENCE, a dense bundle of an encoder."""
    logging.disable(logging.INFO)
    work.mkdir(exist_ok=True)
    maker = Maker(reference, work, calibration)
    paths = {FLOAT32: reference}
    wanted = (each.split(",") for each in (formats, fits, cosines, inputs))
    paths |= built(maker, *wanted)
    paths |= of_onnx_runtime(reference, work)
    dense = Bundle.open(reference)
    read = read_texts(text, dense, texts, length, texts)
    others = {}
    if openvino:
        fitted = read_texts(fitted_on or text, dense, CALIBRATED, length, CALIBRATED)
        others = openvino_encoder.models(reference, work, fitted)
    found: dict[str, dict[str, Any]] = {
        name: {"mb": round(weight_bytes(path) / 1e6, 1)} for name, path in (paths | others).items()
    }
    models = load(paths, others, threads)
    compare(found, models, read, batch)
    if mixed:
        compare_mixed(found, models, paragraphs(text, mixed))
    click.echo(table(found))
    if output is not None:
        settings = {"model": reference.name, "text": text.name, "texts": texts, "length": length}
        versions = record.versions(openvino_encoder.DISTRIBUTIONS) if openvino else {}
        settings |= {"batch": batch, "mixed": mixed}
        record.write(output, "encoders", found, settings=settings, peers=versions)


def built(
    maker: Maker,
    formats: Sequence[str],
    fits: Sequence[str],
    cosines: Sequence[str],
    inputs: Sequence[str],
) -> dict[str, Path]:
    """Bundles that tamiz makes: by default, every format and fit, and choices within limits of
    cosine."""
    paths = {"tamiz, as by default": maker.by_default()}
    for form, fit, bits in itertools.product(filter(None, formats), filter(None, fits), inputs):
        if ":" in form and fit != "nearest":
            continue
        paths[f"tamiz {form} {fit}, inputs of {bits} bits"] = maker.of_tamiz(form, fit, int(bits))
    limits = filter(None, cosines if maker.calibration else ())
    for cosine, bits in itertools.product(limits, inputs):
        name = f"tamiz chosen, cosine {cosine}, inputs of {bits} bits"
        paths[name] = maker.chosen(cosine, int(bits))
    return paths


def of_onnx_runtime(reference: Path, work: Path) -> dict[str, Path]:
    """What ONNX Runtime's quantisers make of the reference."""
    int4 = work / "ort-int4"
    if not int4.exists():
        peers.quantize(reference, int4)
    paths = {"ONNX Runtime MatMulNBits": int4}
    for per_channel, scales in ((True, "an output"), (False, "a tensor")):
        name = f"{ONNX_RUNTIME_INT8}, one scale {scales}"
        paths[name] = dynamically_quantized(reference, work, per_channel)
    return paths


def dynamically_quantized(reference: Path, work: Path, per_channel: bool) -> Path:
    """The reference by `quantize_dynamic`.

    Args:
        reference: The dense bundle.
        work: Keeps the model.
        per_channel: One scale for each output, as optimum's configurations for AVX-512 VNNI have;
            else one for each tensor, which is the default of the function.
    """
    from onnxruntime.quantization import QuantType, quantize_dynamic

    folder = work / ("ort-int8-channel" if per_channel else "ort-int8")
    if not folder.exists():
        folder.mkdir()
        quantize_dynamic(
            reference / "model.onnx",
            folder / "model.onnx",
            weight_type=QuantType.QInt8,
            per_channel=per_channel,
        )
        write_manifest(
            folder, "dense", Source(f"{reference}, quantize_dynamic, per_channel={per_channel}")
        )
    return folder


def load(paths: Mapping[str, Path], others: Mapping[str, Path], threads: int) -> dict[str, Any]:
    """The models by name.

    Args:
        paths: Bundles.
        others: Folders of models in OpenVINO.
        threads: Threads of a run.
    """
    models: dict[str, Any] = {name: encoder(path, threads) for name, path in paths.items()}
    for name, folder in others.items():
        models[name] = OpenVinoEncoder(folder, models[FLOAT32], threads)
    return models


def compare(
    found: dict[str, dict[str, Any]], models: Mapping[str, Any], texts: Texts, batch: int
) -> None:
    """Adds the quality and the speed of every model to what is known of it.

    Args:
        found: What is known, by name.
        models: The models, by name.
        texts: Token ids.
        batch: Texts of a run.
    """
    reference = embed(models[FLOAT32], texts, batch)
    for name, model in models.items():
        told = closeness(reference, embed(model, texts, batch))
        found[name] |= {key: round(value, 6) for key, value in told.items()}
        click.echo(f"{name:44} {found[name]}", err=True)
    seconds: dict[str, list[float]] = {name: [] for name in models}
    for _ in range(ROUNDS):
        for name, model in models.items():
            time.sleep(PAUSE)
            model.embeddings(texts[:batch])  # the weights come back to the caches
            begin = time.perf_counter()
            model.embeddings(texts[:batch])
            seconds[name].append(time.perf_counter() - begin)
    for name, spent in seconds.items():
        ratios = [a / b for a, b in zip(seconds[FLOAT32], spent, strict=True)]
        low, median, high = statistics.quantiles(ratios, n=4)
        milliseconds = 1e3 * statistics.median(spent)
        found[name] |= {"ms": round(milliseconds, 1), "speed": round(median, 3)}
        found[name]["speed_range"] = [round(low, 3), round(high, 3)]


def paragraphs(path: Path, count: int) -> list[str]:
    """Paragraphs of a file, evenly spread.

    Raises:
        TamizError: The file has too few.
    """
    lines = [line.strip() for line in path.read_text("utf-8").splitlines()]
    known = [line for line in lines if len(line) >= LEAST_CHARACTERS]
    if len(known) < count:
        raise TamizError(f"{path}: found {len(known)} paragraphs, expected {count}; try --mixed=0")
    return known[:: len(known) // count][:count]


def compare_mixed(
    found: dict[str, dict[str, Any]], models: Mapping[str, Any], texts: Sequence[str]
) -> None:
    """Adds the speed with texts of different lengths to what is known of every model.

    Args:
        found: What is known, by name.
        models: The models, by name.
        texts: The texts.
    """
    reader = EmbeddingModel(models[FLOAT32])
    seconds: dict[str, list[float]] = {name: [] for name in models}
    for number in range(MIXED_ROUNDS + 1):  # the first one does not count
        for name, model in models.items():
            time.sleep(PAUSE)
            begin = time.perf_counter()
            embed_mixed(model, reader, texts)
            if number:
                seconds[name].append(time.perf_counter() - begin)
    for name, spent in seconds.items():
        ratios = [a / b for a, b in zip(seconds[FLOAT32], spent, strict=True)]
        found[name] |= {"mixed_ms": round(1e3 * statistics.median(spent), 1)}
        found[name] |= {"mixed_speed": round(statistics.median(ratios), 3)}


def embed_mixed(
    model: Encoder | OpenVinoEncoder, reader: EmbeddingModel, texts: Sequence[str]
) -> None:
    """Embeds texts; `reader` tokenises them for every model."""
    rows = [reader.encode(text) for text in texts]
    for chosen in in_batches([len(row) for row in rows], MIXED_BATCH, None, TextSpeed()):
        model.encode([rows[number] for number in chosen])


def embed(model: Encoder | OpenVinoEncoder, texts: Texts, batch: int) -> Float32:
    """Embeddings of all texts."""
    parts = [model.embeddings(texts[at : at + batch]) for at in range(0, len(texts), batch)]
    return np.concatenate(parts)


def encoder(path: Path, threads: int) -> Encoder:
    """The encoder in a folder."""
    bundle = Bundle.open(path)
    return Encoder(bundle, *load_session(bundle, threads))


def table(found: dict[str, dict[str, Any]]) -> str:
    """Markdown, the smallest first."""
    lines = ["| model | MB | cosine | 5 % | same nearest, % | ms | : float32 |"]
    lines.append("| --- | --- | --- | --- | --- | --- | --- |")
    for name, row in sorted(found.items(), key=lambda item: item[1]["mb"]):
        numbers = f"{row['mb']:.1f} | {row['cos_mean']:.5f} | {row['cos_p05']:.5f}"
        agrees = f"{100 * row['same_nearest']:.1f}"
        lines.append(f"| {name} | {numbers} | {agrees} | {row['ms']:.0f} | {row['speed']:.2f} |")
    return "\n".join(lines)
