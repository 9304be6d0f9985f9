"""``tamiz eval``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tamiz.cli._counts import Workers
from tamiz.cli._given import refuse_given
from tamiz.cli._metrics import RunMetrics, metrics_options
from tamiz.cli._output import print_json, print_table
from tamiz.cli._progress import status
from tamiz.cli._switches import without_option
from tamiz.cli._techniques import techniques
from tamiz.evaluation.windows import WINDOW
from tamiz.files.errors import TamizError

if TYPE_CHECKING:
    from tamiz.runtime.embedding.encoder import Encoder
    from tamiz.runtime.model import Model

#: Windows that a decoder reads; most windows that an encoder reads, and tokens of one.
_WINDOWS, _TEXTS, _TEXT = 8, 256, 128


@click.command("eval")
@click.argument("directory", metavar="DIR", type=click.Path(path_type=Path))
@click.option(
    "--text",
    type=click.Path(path_type=Path),
    help="UTF-8 text to score, cut into windows.",
)
@click.option(
    "--prompts",
    type=click.Path(path_type=Path),
    help="UTF-8 text with a prompt on each line, for greedy answers, in the chat template if DIR "
    "has one. Needs --against.",
)
@click.option(
    "--against", type=click.Path(path_type=Path), help="Bundle to compare DIR with, such as dense."
)
@click.option(
    "--tokens",
    type=click.IntRange(1),
    default=64,
    show_default=True,
    help="Largest number of tokens in an answer to one of --prompts.",
)
@click.option(
    "--count", type=click.IntRange(1), help="Number of prompts to answer.  [default: all]"
)
@click.option(
    "--windows",
    type=click.IntRange(1),
    help="Number of windows to score, from the start of the text.  [default: 8; of an encoder "
    f"what the text holds, at most {_TEXTS}]",
)
@click.option(
    "--window",
    type=click.IntRange(32),
    help="Tokens of a window. Techniques for long contexts act in long windows only.  [default: "
    f"{WINDOW}; of an encoder {_TEXT}]",
)
@click.option(
    "--decode/--prompt-only",
    default=None,
    help="Also score in steps, as decoding does: of one token, or of as many as all techniques of "
    "DIR take for a step.  [default: if a technique of DIR acts on steps only]",
)
@click.option(
    "--last",
    type=click.IntRange(1),
    help="Tokens at the end of each window that are scored in steps.  [default: all from position "
    "16 on]",
)
@click.option(
    "--threads",
    type=Workers(),
    help="Number of windows scored at once, one thread each.  [default: physical cores]",
)
@without_option
@metrics_options
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
@click.pass_context
def command(
    ctx: click.Context,
    directory: Path,
    text: Path | None,
    prompts: Path | None,
    against: Path | None,
    tokens: int,
    count: int | None,
    windows: int | None,
    window: int | None,
    decode: bool | None,
    last: int | None,
    threads: int | None,
    without: tuple[str, ...],
    metrics: bool,
    metrics_by_layer: bool,
    as_json: bool,
) -> None:
    """Measure quality: perplexity on a text, greedy answers to prompts, distance from dense.

    DIR is the bundle. With --against the perplexity of --text comes with its relative increase
    (dppl), the KL divergence (kl_mean, in nats per token) and how often the likeliest token agrees.

    With --prompts the other bundle answers each prompt with its likeliest tokens. The result says
    how many tokens DIR prefers as well, and by which margin it then prefers another one: the logit
    of its own token minus the logit of the other bundle's.

    An encoder turns each window of --text into an embedding: the mean over its tokens, or the first
    token's where 1_Pooling/config.json of sentence-transformers says so. The result
    is the cosine with that of the other bundle: its mean (cos_mean), its 5 % quantile (cos_p05),
    and the fraction of windows with an unchanged nearest other window (same_nearest).
    """
    from tamiz.evaluation.evaluate import evaluate, steps_of
    from tamiz.evaluation.windows import read_windows
    from tamiz.runtime.embedding.encoder import Encoder
    from tamiz.runtime.load import load_model
    from tamiz.runtime.model import Model
    from tamiz.runtime.switches import AUTO
    from tamiz.system.cores import cores

    if text is None and prompts is None:
        raise TamizError("found neither --text nor --prompts, expected one of them or both")
    if prompts is not None and against is None:
        raise TamizError("--prompts compares two bundles: add --against OTHER")
    _refuse_idle(ctx, text, prompts, decode)
    if AUTO in without:
        raise TamizError(
            f"--without={AUTO} measures the steps of an answer, and 'tamiz eval' has none; name the"
            " techniques to switch off"
        )
    built = load_model(directory, threads=1, without=without)
    at_once, counted = threads or cores(), None
    if isinstance(built, Encoder):
        others = (prompts, decode, last, metrics or metrics_by_layer or None)
        if any(option is not None for option in others) or text is None or against is None:
            raise TamizError(
                f"{directory}: is an encoder, whose embeddings are compared with those of another; "
                "expected --text and --against, and no --prompts, --decode, --last or --metrics"
            )
        report = _of_encoder(built, load_model(against, threads=1), text, windows, window, at_once)
    else:
        dense = None if against is None else Model.load(against, threads=1)
        report = {}
        if prompts is not None and dense is not None:
            report["greedy"] = _greedy(built, dense, prompts, tokens, count, at_once)
        if text is not None:
            rows = _step_rows(ctx, built, True if last else decode)
            size = window or WINDOW
            cuts = read_windows(text, built.bundle, windows or _WINDOWS, size)
            steps = steps_of(rows, size - (last or size))
            with status("load the models") as progress:
                report |= evaluate(built, dense, cuts, steps, at_once, progress)
        if metrics or metrics_by_layer:
            counted = RunMetrics(ctx, built.bundle, built.counts())
    if as_json:
        print_json({**report, **(counted.json(metrics_by_layer) if counted else {})})
        return
    if (found := report.pop("greedy", None)) is not None and isinstance(built, Model):
        _print_greedy(built, found)
    if report:
        print_table(("metric", ">value"), [(key, f"{value:.6g}") for key, value in report.items()])
    if counted:
        counted.print(metrics_by_layer)


def _refuse_idle(
    ctx: click.Context, text: Path | None, prompts: Path | None, decode: bool | None
) -> None:
    """Refuses options that set how something is scored that is not scored."""
    if prompts is None:
        where, other = "without --prompts", "add --prompts"
        refuse_given(ctx, "tokens", "count", where=where, other=other)
    if text is None:
        where, other = "without --text", "add --text"
        refuse_given(ctx, "windows", "window", "decode", "last", where=where, other=other)
    if decode is False:
        where = "with --prompt-only, which scores no steps"
        refuse_given(ctx, "last", where=where, other="--prompt-only")


def _of_encoder(
    built: Encoder,
    other: Encoder | Model,
    text: Path,
    windows: int | None,
    window: int | None,
    at_once: int,
) -> dict[str, Any]:
    """How close the embeddings are to those of the other encoder."""
    from tamiz.evaluation.embeddings import check_length, compare, read_texts
    from tamiz.runtime.embedding.encoder import Encoder
    from tamiz.runtime.embedding.settings import most_tokens

    if not isinstance(other, Encoder):
        raise TamizError(
            f"{other.bundle.path}: is a decoder, expected an encoder as {built.bundle.path} is"
        )
    bundles = built.bundle, other.bundle
    length = window or min(_TEXT, *(most_tokens(bundle) or _TEXT for bundle in bundles))
    check_length(other.bundle, length)
    texts = read_texts(text, built.bundle, windows, length, _TEXTS)
    with status(f"{len(texts)} windows") as progress:

        def done(count: int) -> None:
            progress(f"{count} of {len(texts)} windows are read")

        return compare(built, other, texts, at_once, done)


def _step_rows(ctx: click.Context, built: Model, wanted: bool | None) -> int | None:
    """Tokens of the steps that are scored as well, None for none; `wanted` None: where a technique
    acts on steps only."""
    from tamiz.planning.choice import built_step_rows

    all_of_it = built.bundle.manifest.techniques
    acting = {name: about for name, about in all_of_it.items() if name not in built.without}
    rows = built_step_rows(techniques(ctx), acting) if acting else None
    if wanted is None:
        return rows
    return (rows or 1) if wanted else None


def _greedy(
    built: Model, other: Model, prompts: Path, tokens: int, count: int | None, at_once: int
) -> dict[str, Any]:
    """Where the bundle leaves the other one's answers."""
    from tamiz.evaluation.greedy import compare_answers, encode_prompts, read_prompts

    ids = encode_prompts(built.bundle, read_prompts(prompts, count))
    with status(f"{len(ids)} prompts") as progress:

        def done(number: int) -> None:
            progress(f"{number} of {len(ids)} prompts are answered")

        return compare_answers(built, other, ids, tokens, at_once, done)


def _print_greedy(built: Model, found: dict[str, Any]) -> None:
    from tamiz.runtime.text.tokenizer import Tokenizer

    tokenizer = Tokenizer(built.bundle)
    if found["divergences"]:
        columns = (">prompt", ">equal tokens", "own token", "other token", ">margin")
        rows = [
            (
                str(each["prompt"] + 1),
                str(each["equal_tokens"]),
                repr(tokenizer.decode([each["own_token"]], special=True)),
                repr(tokenizer.decode([each["other_token"]], special=True)),
                f"{each['margin']:.3f}",
            )
            for each in found["divergences"]
        ]
        print_table(columns, rows)
    click.echo(f"{found['equal']} of {found['prompts']} answers are equal")
