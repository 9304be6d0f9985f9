"""``tamiz inspect``."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tamiz.cli._output import experts_line, fold, print_json, print_table, size
from tamiz.cli._sources import source, unbuilt
from tamiz.cli._techniques import plugins

if TYPE_CHECKING:
    import onnx_ir as ir

    from tamiz.api.cost import Cost
    from tamiz.survey.survey import Survey


@click.command("inspect")
@source
@click.option("--json", "as_json", is_flag=True, help="Print sites, operators and notes as JSON.")
@click.pass_context
def command(ctx: click.Context, path: Path, as_json: bool) -> None:
    """List the layers that can be optimised.

    MODEL is a bundle, or a file or folder that 'tamiz export' reads, which is exported to a
    temporary folder first. Lists its sites, which are the layers that techniques can replace, the
    operators that tamiz recognised in the graph, and why other nodes stay unchanged.
    """
    from tamiz.files.bundle import Bundle
    from tamiz.survey.survey import recognised, survey

    installed = plugins(ctx)
    with unbuilt(path, installed) as folder:
        surveyed = survey(Bundle.open(folder), installed)
        ops, notes = recognised(surveyed, installed)
        surveyed = replace(surveyed, recognised=ops, notes=notes)
        if as_json:
            print_json({"bundle": str(path)} | _as_dict(surveyed))
        else:
            _print(surveyed)


def _as_dict(surveyed: Survey) -> dict[str, Any]:
    experts = _experts(surveyed)
    return {
        "kind": surveyed.bundle.manifest.kind,
        "bytes": surveyed.bundle.size,
        "cache_bytes_per_token": surveyed.bytes_of_a_token,
        "nodes": len(surveyed.model.graph),
        "recognised": dict(surveyed.recognised),
        "experts": {"bytes": experts.stored, "read_per_token": experts.read},
        "sites": [{**asdict(s), "bytes": surveyed.weight_bytes(s)} for s in surveyed.sites],
        "notes": [asdict(note) for note in surveyed.notes],
        "inputs": _inputs(surveyed),
    }


def _print(surveyed: Survey) -> None:
    from tamiz.runtime.recommended import recommendation

    manifest = surveyed.bundle.manifest
    click.echo(f"{manifest.kind} bundle of {manifest.source.name}, {size(surveyed.bundle.size)}")
    if (sampling := recommendation(surveyed.bundle)) is not None:
        click.echo(sampling)
    for line in _text_lines(surveyed):
        click.echo(line)
    if kept := surveyed.bytes_of_a_token:
        click.echo(f"cache: {size(kept)} per token of a sequence")
    if not surveyed.reads_tokens:
        click.echo("inputs, for --sample: " + ", ".join(_inputs(surveyed)))
    rows = [
        (
            site,
            (
                site.kind.value,
                f"{site.out_features} × {site.in_features}" if site.weight else "",
                size(surveyed.weight_bytes(site)) if site.weight else "",
            ),
        )
        for site in surveyed.sites
    ]
    for name, technique in manifest.techniques.items():
        config = technique["config"].items()
        fields = ", ".join(f"{key} {value}" for key, value in config if value is not None)
        click.echo(f"{name}: {fields}")
    if rows:
        print_table(["site", ">sites", "kind", ">outputs × inputs", ">bytes each"], fold(rows))
    experts = _experts(surveyed)
    if experts.stored:
        click.echo(experts_line(experts))
    ops = (
        ", ".join(f"{count} {op}" for op, count in sorted(surveyed.recognised.items())) or "nothing"
    )
    click.echo(f"recognised: {ops}; {len(surveyed.model.graph)} nodes in all")
    reasons = Counter((note.pass_name, note.reason) for note in surveyed.notes)
    if reasons:
        examples = {(n.pass_name, n.reason): n.node for n in reversed(surveyed.notes)}
        print_table(
            ["pass", ">nodes", "unchanged because", "for example"],
            [(p, str(n), reason, examples[p, reason]) for (p, reason), n in reasons.items()],
        )


def _experts(surveyed: Survey) -> Cost:
    """What all experts cost."""
    from tamiz.planning.costs import dense_cost, of_experts

    return of_experts((site, dense_cost(surveyed, site, 0)) for site in surveyed.sites)


def _inputs(surveyed: Survey) -> list[str]:
    """What a run gives: ``x float32[2, 3, ?]`` for each input."""
    return [
        f"{value.name} {_type(value)}{_sizes(value)}"
        for value in surveyed.model.graph.inputs
        if not value.is_initializer()
    ]


def _type(value: ir.Value) -> str:
    """NumPy's name of a tensor's type; ONNX's of others."""
    names = {"FLOAT": "float32", "DOUBLE": "float64"}
    return "" if value.dtype is None else names.get(value.dtype.name, value.dtype.name.lower())


def _sizes(value: ir.Value) -> str:
    """The sizes of a tensor; ``?`` or a name for those that are not fixed."""
    if value.shape is None:
        return "[...]"
    dims = (dim if isinstance(dim, int) else dim.value or "?" for dim in value.shape)
    return f"[{', '.join(map(str, dims))}]"


def _text_lines(surveyed: Survey) -> list[str]:
    """What an encoder makes of texts, and which texts it takes; nothing of a decoder."""
    from tamiz.runtime.embedding.modules import read_modules
    from tamiz.runtime.embedding.settings import read_settings

    output = surveyed.model.graph.outputs[0]
    inputs = {value.name for value in surveyed.model.graph.inputs}
    dims = [] if output.shape is None else list(output.shape)
    if "input_ids" not in inputs or len(dims) < 2 or not isinstance(dims[-1], int):
        return []
    if len(dims) == 3 and surveyed.embeds:
        modules = read_modules(surveyed.bundle, dims[-1])
        layers = [type(layer).__name__ for layer in modules.layers]
        pooled = ", ".join((f"pooling {' and '.join(modules.pooling.modes)}", *layers))
        kind = f"encoder: embeddings of {modules.width(dims[-1])} numbers ({pooled})"
    elif len(dims) == 2 and output.name == "logits":
        kind = f"classifier: {dims[-1]} {'label' if dims[-1] == 1 else 'labels'}"
    else:
        return []
    settings = read_settings(surveyed.bundle)
    limit = "any length" if settings.limit is None else f"at most {settings.limit} tokens"
    prompts = f"; prompts {', '.join(settings.prompts)}" if settings.prompts else ""
    return [f"{kind}; texts of {limit}{prompts}"]
