"""Quantisers at their bytes: block-quant's fits and llama.cpp's own quantiser, by KL divergence.

    tamiz export model.gguf -o model.ref
    tamiz calibrate model.ref -o model.cal --text wikitext2-valid.txt --samples 1024
    python -m benchmarks quantisers model.ref model.gguf --calibration model.cal \
        --text wikitext2-test.txt --python other-venv/bin/python --work work --json quantisers.json

The reference is MODEL.GGUF with its weights dequantised. llama.cpp quantises it from float32 with
`llama_model_quantize`, without and with the imatrix of the calibration (type, type+im). Its files
are exported and run by tamiz, so that activations are rounded alike. tamiz packs all weights in one
format by one fit, or chooses formats within limits: --frontier names the folder of `tamiz frontier
--keep`. Finished models in --work are kept and used again. --dense, an export with --dtype float32,
adds ONNX Runtime's MatMulNBits (4 bits, groups of 32, a zero point).
"""

from __future__ import annotations

import ctypes
import json
import subprocess
import sys
from pathlib import Path

import numpy as np

TYPES = "Q3_K_M,IQ4_XS,Q4_0,Q4_K_S,Q4_K_M,Q5_K_M,Q6_K"
_NAMES = {"attn_o": "attn_output"}


def child(source: str, target: str, kind: str, imatrix: str) -> None:
    """Quantises a GGUF file; has llama-cpp-python."""
    import llama_cpp.llama_cpp as api

    api.llama_backend_init()
    params = api.llama_model_quantize_default_params()
    params.nthread, params.allow_requantize = 2, True
    params.ftype = getattr(api, f"LLAMA_FTYPE_MOSTLY_{kind}")
    kept = dict(np.load(imatrix)) if imatrix else {}
    entries = (api.llama_model_imatrix_data * (len(kept) + 1))()  # an empty one ends the list
    for entry, (name, values) in zip(entries, kept.items(), strict=False):
        entry.name, entry.size = name.encode(), values.size
        entry.data = values.ctypes.data_as(ctypes.POINTER(ctypes.c_float))
    if kept:
        params.imatrix = ctypes.cast(entries, type(params.imatrix))
    if api.llama_model_quantize(source.encode(), target.encode(), ctypes.byref(params)) != 0:
        raise SystemExit(f"llama_model_quantize failed for {kind}")


def write_imatrix(calibration: Path, target: Path) -> None:
    """The mean squared inputs of a calibration under the names of GGUF tensors."""
    from safetensors import safe_open

    found = {}
    with safe_open(calibration, "np") as file:
        about = json.loads(file.metadata()["tamiz-calibration"])
        for site, name in about["inputs"].items():
            mean = (file.get_tensor(f"sum/{name}") / about["count"]).astype(np.float32)
            _, *place = site.split(".")
            if place:
                found[f"blk.{place[0]}.{_NAMES.get(place[1], place[1])}.weight"] = mean
            else:
                found["output.weight"] = found["token_embd.weight"] = mean
    np.savez(target, **found)


def run(*command: str | Path) -> None:
    """Runs a program; ends this one with its last words where it fails."""
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(map(str, command))}: {done.stderr[-1500:]}")


class Maker:
    """Makes bundles in a folder, each once."""

    def __init__(self, reference: Path, work: Path, calibration: Path | None) -> None:
        """The reference bundle, the folder, and the calibration that fits read."""
        self.reference, self.work, self.calibration = reference, work, calibration
        self.tamiz = Path(sys.executable).with_name("tamiz")

    def of_llama(self, gguf: Path, kind: str, python: str, imatrix: Path | None) -> Path:
        """llama.cpp's quantisation of a float GGUF file."""
        name = kind + ("+im" if imatrix else "")
        bundle, file = self.work / f"llama.{name}", self.work / f"{name}.gguf"
        if not bundle.exists():
            if not file.exists():
                run(python, __file__, gguf, file, kind, imatrix or "")
            run(self.tamiz, "export", file, "-o", bundle)
            file.unlink()
        return bundle

    def of_tamiz(self, form: str, fit: str, inputs: int = 16) -> Path:
        """block-quant's fit of the reference, with activations of that many bits.

        `form`: a format, and after a colon the inputs that share a scale where they are not 32.
        """
        name, _, shared = form.partition(":")
        stem = form.replace(":", "-")
        bundle = self.work / f"tamiz.{stem}.{fit}{'' if inputs == 16 else f'.a{inputs}'}"
        if not bundle.exists():
            command: list[str | Path] = [
                self.tamiz,
                "build",
                self.reference,
                "-o",
                bundle,
                "--max-dppl=off",
                "--min-cosine=off",
            ]
            command += [f"--block-quant-format={name}", f"--block-quant-fit={fit}"]
            command += [f"--block-quant-scale-inputs={shared}"] if shared else []
            command += [] if inputs == 16 else [f"--activation-bits={inputs}"]
            if self.calibration and fit != "nearest":
                command.append(f"--calibration={self.calibration}")
            run(*command)
        return bundle

    def by_default(self) -> Path:
        """What a build makes where nothing is requested."""
        bundle = self.work / "tamiz.default"
        if not bundle.exists():
            run(self.tamiz, "build", self.reference, "-o", bundle)
        return bundle

    def chosen(self, cosine: str, inputs: int = 16) -> Path:
        """Formats that a build chooses for an encoder within a limit of cosine."""
        bundle = self.work / f"tamiz.{cosine}{'' if inputs == 16 else f'.a{inputs}'}"
        if not bundle.exists():
            options = [f"--min-cosine={cosine}", f"--calibration={self.calibration}"]
            options += [] if inputs == 16 else [f"--activation-bits={inputs}", "--allow=bits"]
            run(self.tamiz, "build", self.reference, "-o", bundle, *options)
        return bundle


def weight_bytes(bundle: Path) -> int:
    """Bytes of the graph and constants of a bundle, or of a model in OpenVINO."""
    files = (*bundle.glob("model.onnx*"), *bundle.glob("openvino_model.*"))
    return sum(file.stat().st_size for file in files)


def score(
    reference: Path, bundles: dict[str, Path], text: Path, windows: int, work: Path
) -> dict[str, dict[str, float]]:
    """Bytes, KL and Δppl of every bundle, each of its windows read as a prompt."""
    from tamiz.evaluation.evaluate import compare
    from tamiz.evaluation.scores import DenseReference
    from tamiz.evaluation.windows import read_windows
    from tamiz.runtime.model import Model

    dense = DenseReference(Model.load(reference, 2), work)
    tokens = read_windows(text, dense.model.bundle, windows)
    found = {}
    for name, path in bundles.items():
        compared = compare(Model.load(path, 2), dense, tokens)
        found[name] = {
            "mb": round(weight_bytes(path) / 1e6, 1),
            "kl": compared.kl_mean,
            "dppl": compared.built.ppl / compared.dense.ppl - 1,
            "top1": compared.top1_agreement,
        }
        print(f"{name:24} {found[name]}", file=sys.stderr, flush=True)
    return found


def table(found: dict[str, dict[str, float]]) -> str:
    """Markdown, the smallest first."""
    lines = ["| weights | MB | KL, nats | Δppl, % | top-1, % |", "| --- | --- | --- | --- | --- |"]
    for name, row in sorted(found.items(), key=lambda item: item[1]["mb"]):
        numbers = f"{row['mb']:.1f} | {row['kl']:.4f} | {100 * row['dppl']:.2f}"
        lines.append(f"| {name} | {numbers} | {100 * row['top1']:.1f} |")
    return "\n".join(lines)


def main() -> None:
    import click

    from benchmarks.common import record
    from benchmarks.engines import peers
    from benchmarks.quality.perplexity import write_float32

    @click.command()
    @click.argument("reference", type=click.Path(exists=True, file_okay=False, path_type=Path))
    @click.argument("gguf", type=click.Path(exists=True, path_type=Path))
    @click.option("--text", type=click.Path(exists=True, path_type=Path), required=True)
    @click.option("--work", type=click.Path(path_type=Path), required=True)
    @click.option("--calibration", type=click.Path(exists=True, path_type=Path))
    @click.option("--dense", type=click.Path(exists=True, path_type=Path), help="For ort-int4.")
    @click.option("--python", help="Interpreter with llama-cpp-python; none leaves llama.cpp out.")
    @click.option("--types", default=TYPES, show_default=True, help="llama.cpp's types.")
    @click.option("--plain/--no-plain", default=True, help="llama.cpp without an imatrix too.")
    @click.option("--formats", default="q4_0,iq4_nl,q5_0,q8_0", show_default=True)
    @click.option("--fits", default="nearest,search,gptq", show_default=True)
    @click.option("--frontier", type=click.Path(exists=True, path_type=Path), help="Bundles.")
    @click.option("--windows", default=16, show_default=True)
    @click.option("--json", "output", type=click.Path(path_type=Path), help="Also write this file.")
    def command(
        reference: Path,
        gguf: Path,
        text: Path,
        work: Path,
        calibration: Path | None,
        dense: Path | None,
        python: str | None,
        types: str,
        plain: bool,
        formats: str,
        fits: str,
        frontier: Path | None,
        windows: int,
        output: Path | None,
    ) -> None:
        """Compares quantisers of REFERENCE, the export of GGUF."""
        work.mkdir(exist_ok=True)
        maker = Maker(reference, work, calibration)
        bundles = {}
        if python:
            floats, imatrix = work / "float32.gguf", work / "imatrix.npz"
            if not floats.exists():
                write_float32(gguf, floats)
            if calibration:
                write_imatrix(calibration, imatrix)
            ways: list[Path | None] = [None] if plain or not calibration else []
            ways += [imatrix] if calibration else []
            for kind in filter(None, types.split(",")):
                for known in ways:
                    name = f"llama.cpp {kind}" + (" imatrix" if known else "")
                    bundles[name] = maker.of_llama(floats, kind, python, known)
        for form in filter(None, formats.split(",")):
            for fit in filter(None, fits.split(",")):
                bundles[f"tamiz {form} {fit}"] = maker.of_tamiz(form, fit)
        for bundle in sorted(frontier.iterdir()) if frontier else ():
            bundles[f"tamiz choice {bundle.name}"] = bundle
        if dense:
            bundles["ONNX Runtime MatMulNBits"] = work / "ort-int4"
            if not bundles["ONNX Runtime MatMulNBits"].exists():
                peers.quantize(dense, work / "ort-int4")
        found = score(reference, bundles, text, windows, work)
        print(table(found))
        if output is not None:
            settings = {"model": gguf.name, "text": text.name, "windows": windows}
            other = {}
            if python:
                other["llama-cpp-python"] = record.version_of(python, "llama-cpp-python")
            record.write(output, "quantisers", found, settings=settings, peers=other)

    command()


if __name__ == "__main__":  # under the interpreter that has llama-cpp-python
    child(*sys.argv[1:5])
