"""An encoder in fewer bits: block-quant's formats and fits beside ONNX Runtime's quantisers.

    tamiz export all-mpnet-base-v2 -o mpnet
    tamiz calibrate mpnet -o mpnet.cal --text wikitext2-valid.txt --windows 8
    python benchmarks/encoders.py mpnet --calibration mpnet.cal --text wikitext2-test.txt \
        --work work --json encoders.json

Texts are windows of --length tokens, --batch of them a run. An embedding is the mean of the last
hidden state over the tokens. Every model is compared with float32: by the cosine of embeddings, and
by how many texts have the same nearest other text. ``cos`` is the mean, ``cos_p05`` the 5 %
quantile. All models run interleaved; ``speed`` is the median ratio to float32 within a round, above
1 is faster, and ``speed_range`` its quartiles. Finished models in --work are used again.
"""

from __future__ import annotations

import logging
import statistics
import time
from pathlib import Path
from typing import Any

import click
import numpy as np
import onnxruntime
import peers
import record
from numpy.typing import NDArray
from quantisers import Maker, weight_bytes

import tamiz_ops
from tamiz.files.bundle import Bundle
from tamiz.files.text_file import read_text
from tamiz.runtime.tokenizer import Tokenizer

FLOAT32 = "float32"
#: Rounds in which every model runs once, and seconds between models: thread pools spin for a while.
ROUNDS, PAUSE = 9, 0.05

Batches = list[NDArray[np.int64]]
Embeddings = NDArray[np.float32]


@click.command()
@click.argument("reference", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--text", type=click.Path(exists=True, path_type=Path), required=True)
@click.option("--work", type=click.Path(path_type=Path), required=True, help="Keeps models.")
@click.option("--calibration", type=click.Path(exists=True, path_type=Path))
@click.option("--formats", default="q4_0,q5_0,q8_0", show_default=True)
@click.option("--fits", default="nearest,search,gptq", show_default=True)
@click.option("--inputs", default="16,8", show_default=True, help="Bits of activations.")
@click.option("--texts", default=256, show_default=True)
@click.option("--length", default=128, show_default=True, help="Tokens of a text.")
@click.option("--batch", default=8, show_default=True)
@click.option("--threads", default=2, show_default=True)
@click.option("--json", "output", type=click.Path(path_type=Path), help="Also write this file.")
def main(
    reference: Path,
    text: Path,
    work: Path,
    calibration: Path | None,
    formats: str,
    fits: str,
    inputs: str,
    texts: int,
    length: int,
    batch: int,
    threads: int,
    output: Path | None,
) -> None:
    """Compares models made of REFERENCE, a dense bundle of an encoder."""
    logging.disable(logging.INFO)
    work.mkdir(exist_ok=True)
    paths = {FLOAT32: reference}
    maker = Maker(reference, work, calibration)
    for form in filter(None, formats.split(",")):
        for fit in filter(None, fits.split(",")):
            for bits in inputs.split(","):
                name = f"tamiz {form} {fit}, inputs of {bits} bits"
                paths[name] = maker.of_tamiz(form, fit, int(bits))
    paths["ONNX Runtime MatMulNBits"] = work / "ort-int4"
    if not paths["ONNX Runtime MatMulNBits"].exists():
        peers.quantise(reference, work / "ort-int4")
    paths["ONNX Runtime quantize_dynamic int8"] = dynamically_quantised(reference, work)
    batches = read_batches(reference, text, texts, length, batch)
    found = {name: {"mb": round(weight_bytes(path) / 1e6, 1)} for name, path in paths.items()}
    compare(found, paths, batches, threads)
    click.echo(table(found))
    if output is not None:
        settings = {"model": reference.name, "text": text.name, "texts": texts, "length": length}
        record.write(output, "encoders", found, settings={**settings, "batch": batch})


def read_batches(
    reference: Path, text: Path, texts: int, length: int, batch: int
) -> list[NDArray[np.int64]]:
    """The first windows of a text, between the tokens that begin and end a sequence."""
    tokenizer = Tokenizer(Bundle.open(reference))
    first, *_, last = tokenizer.encode("a", bos=True)
    ids = tokenizer.encode(read_text(text), bos=False)
    inner = length - 2
    starts = range(0, texts * inner, inner)
    rows = np.array([[first, *ids[at : at + inner], last] for at in starts], np.int64)
    return [rows[at : at + batch] for at in range(0, texts, batch)]


def dynamically_quantised(reference: Path, work: Path) -> Path:
    """The reference by `quantize_dynamic`, as ONNX Runtime's documents use it."""
    from onnxruntime.quantization import QuantType, quantize_dynamic

    folder = work / "ort-int8"
    if not folder.exists():
        folder.mkdir()
        quantize_dynamic(
            reference / "model.onnx", folder / "model.onnx", weight_type=QuantType.QInt8
        )
    return folder


def compare(
    found: dict[str, dict[str, Any]], paths: dict[str, Path], batches: Batches, threads: int
) -> None:
    """Adds the quality and the speed of every model to what is known of it."""
    sessions = {name: session(path, threads) for name, path in paths.items()}
    reference = embeddings(sessions[FLOAT32], batches)
    for name, model in sessions.items():
        found[name] |= quality(reference, embeddings(model, batches))
        click.echo(f"{name:44} {found[name]}", err=True)
    seconds: dict[str, list[float]] = {name: [] for name in sessions}
    for _ in range(ROUNDS):
        for name, model in sessions.items():
            time.sleep(PAUSE)
            run(model, batches[0])  # the weights come back to the caches
            begin = time.perf_counter()
            run(model, batches[0])
            seconds[name].append(time.perf_counter() - begin)
    for name, spent in seconds.items():
        ratios = [a / b for a, b in zip(seconds[FLOAT32], spent, strict=True)]
        low, median, high = statistics.quantiles(ratios, n=4)
        milliseconds = 1e3 * statistics.median(spent)
        found[name] |= {"ms": round(milliseconds, 1), "speed": round(median, 3)}
        found[name]["speed_range"] = [round(low, 3), round(high, 3)]


def session(path: Path, threads: int) -> onnxruntime.InferenceSession:
    """A model with tamiz' ops."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    tamiz_ops.register(options)
    return onnxruntime.InferenceSession(
        path / "model.onnx", options, providers=["CPUExecutionProvider"]
    )


def run(model: onnxruntime.InferenceSession, ids: NDArray[np.int64]) -> NDArray[np.float32]:
    """The last hidden state ``[batch, length, width]``."""
    given = {"input_ids": ids, "attention_mask": np.ones_like(ids)}
    if any(value.name == "token_type_ids" for value in model.get_inputs()):
        given["token_type_ids"] = np.zeros_like(ids)
    hidden: NDArray[np.float32] = model.run(None, given)[0]
    return hidden


def embeddings(model: onnxruntime.InferenceSession, batches: Batches) -> Embeddings:
    """Of all texts ``[texts, width]``, of length 1."""
    found = np.concatenate([run(model, ids).mean(axis=1) for ids in batches])
    normal: Embeddings = found / np.linalg.norm(found, axis=1, keepdims=True)
    return normal


def quality(reference: Embeddings, built: Embeddings) -> dict[str, float]:
    """How alike the embeddings are, and whether they say alike which text is nearest."""
    cosines = (reference * built).sum(axis=1)
    agrees = (nearest(reference) == nearest(built)).mean()
    return {
        "cos": round(float(cosines.mean()), 6),
        "cos_p05": round(float(np.quantile(cosines, 0.05)), 6),
        "same_nearest": round(float(agrees), 4),
    }


def nearest(found: Embeddings) -> NDArray[np.intp]:
    """The nearest other text of each."""
    alike = found @ found.T
    np.fill_diagonal(alike, -np.inf)
    place: NDArray[np.intp] = alike.argmax(axis=1)
    return place


def table(found: dict[str, dict[str, Any]]) -> str:
    """Markdown, the smallest first."""
    lines = ["| model | MB | cosine | 5 % | same nearest, % | ms | : float32 |"]
    lines.append("| --- | --- | --- | --- | --- | --- | --- |")
    for name, row in sorted(found.items(), key=lambda item: item[1]["mb"]):
        numbers = f"{row['mb']:.1f} | {row['cos']:.5f} | {row['cos_p05']:.5f}"
        agrees = f"{100 * row['same_nearest']:.1f}"
        lines.append(f"| {name} | {numbers} | {agrees} | {row['ms']:.0f} | {row['speed']:.2f} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
