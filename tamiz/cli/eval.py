"""``tamiz eval``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tamiz.cli._domain_scores import of_decoder, of_encoder, print_domains
from tamiz.cli._domains import OWN, Domains
from tamiz.cli._options import PATH, Workers, refuse_given
from tamiz.cli._output import print_json, print_table
from tamiz.cli._progress import status
from tamiz.cli._running import Running, running_options
from tamiz.cli._sources import bundle_at, source
from tamiz.cli._techniques import techniques
from tamiz.evaluation.windows import WINDOW
from tamiz.files.errors import TamizError

if TYPE_CHECKING:
    from tamiz.files.bundle import Bundle
    from tamiz.runtime.embedding.encoder import Encoder
    from tamiz.runtime.model import Model

#: Windows that a decoder reads; most windows that an encoder reads, and tokens of one.
_WINDOWS, _TEXTS, _TEXT = 8, 256, 128
#: Tokens of a window of the shipped domains.
_DOMAIN_WINDOW = 512


@click.command("eval")
@source
@click.option("--text", type=PATH, help="UTF-8 text to score, cut into windows.")
@click.option(
    "--domains",
    type=Domains(),
    metavar="NAMES",
    help="Domains of the text that ships with tamiz to score, separated by commas, or all: the "
    "part on which builds are judged. Needs --against.",
)
@click.option(
    "--prompts",
    type=PATH,
    help="UTF-8 text with a prompt on each line, for greedy answers, in the chat template if MODEL "
    "has one. Needs --against.",
)
@click.option("--against", type=PATH, help="Model to compare MODEL with, such as dense.")
@click.option(
    "samples",
    "--sample",
    type=PATH,
    multiple=True,
    help="NumPy .npz file with one valid input of a model that reads no text, or a folder of such "
    "files. May be given several times.  [default: inputs are made up]",
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
    "MODEL take for a step.  [default: if a technique of MODEL acts on steps only]",
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
@running_options
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
@click.pass_context
def command(
    ctx: click.Context, /, path: Path, running: Running, as_json: bool, **given: Any
) -> None:
    """Measure quality, alone or against another bundle.

    MODEL is a bundle, a .gguf file or a folder that 'tamiz export' reads; one that is no bundle is
    built once, as 'tamiz serve' does it. With --against the perplexity of --text comes with its
    relative increase (dppl), the KL divergence (kl_mean, in nats per token) and how often the
    likeliest token agrees.

    With --domains the result has the loss on each domain of the text that ships with tamiz, and
    the mean over domains (domains_dppl, domains_kl). new_domain_kl is the predicted limit for
    another domain, which is exceeded in one case of ten.

    With --prompts the other bundle answers each prompt with its likeliest tokens. The result says
    how many tokens MODEL prefers as well, and by which margin it then prefers another one: the
    logit of its own token minus the logit of the other bundle's.

    An encoder turns each window of --text into an embedding: the mean over its tokens, or the first
    token's where 1_Pooling/config.json of sentence-transformers says so. The result
    is the cosine with that of the other bundle: its mean (cos_mean), its 5 % quantile (cos_p05),
    and the fraction of windows with an unchanged nearest other window (same_nearest).

    Of another model, such as a classifier or one of images, the result is the cosine of each output
    with that of the other bundle, on --text, --domains or --sample.
    """
    from tamiz.runtime.embedding.encoder import Encoder
    from tamiz.runtime.load import load_model
    from tamiz.runtime.model import Model
    from tamiz.runtime.switches import AUTO

    directory, against = _found(path), given["against"]
    given["against"] = against and _found(against)
    if _is_other(directory):
        _print_outputs(_of_other(ctx, directory, running, given), as_json)
        return
    _refuse_idle(ctx, given)
    if AUTO in running.without:
        raise TamizError(
            f"--without={AUTO} measures the steps of an answer, and 'tamiz eval' has none; name the"
            " techniques to switch off"
        )
    built = load_model(directory, threads=1, without=running.without)
    counted = None
    if isinstance(built, Model):
        report = _of_decoder(ctx, built, given)
        counted = running.counted(ctx, built.bundle, built.counts())
    else:
        assert isinstance(built, Encoder)  # of others outputs are compared
        report = _of_encoder(built, running, given)
    if as_json:
        print_json({**report, **(counted.json() if counted else {})})
        return
    _print(built.bundle, report)
    if counted:
        counted.print()


def _print(bundle: Bundle, report: Mapping[str, Any]) -> None:
    """The scores of a decoder or an encoder."""
    if (greedy := report.get("greedy")) is not None:
        _print_greedy(bundle, greedy)
    if (domains := report.get("domains")) is not None:
        print_domains(domains)
    apart = ("greedy", "domains")
    figures = [
        (key, "–" if value is None else f"{value:.6g}")
        for key, value in report.items()
        if key not in apart
    ]
    if figures:
        print_table(("metric", ">value"), figures)


def _refuse_idle(ctx: click.Context, given: Mapping[str, Any]) -> None:
    """Refuses options that set how something is scored that is not scored."""
    text, prompts, against = given["text"], given["prompts"], given["against"]
    decode, domains = given["decode"], given["domains"]
    if text is None and prompts is None and not domains:
        raise TamizError(
            "found neither --text nor --domains nor --prompts, expected one of them or more"
        )
    if domains and (against is None or OWN in domains):
        raise TamizError("--domains compares two bundles on shipped text: add --against OTHER")
    refuse_given(ctx, "samples", where="on a model that reads text", other="add --text")
    if prompts is not None and against is None:
        raise TamizError("--prompts compares two bundles: add --against OTHER")
    if prompts is None:
        where, other = "without --prompts", "add --prompts"
        refuse_given(ctx, "tokens", "count", where=where, other=other)
    if text is None:
        where, other = "without --text", "add --text"
        refuse_given(ctx, "windows", where=where, other=other)
        if not domains:
            refuse_given(ctx, "window", "decode", "last", where=where, other=other)
    if decode is False:
        where = "with --prompt-only, which scores no steps"
        refuse_given(ctx, "last", where=where, other="--prompt-only")


def _of_decoder(ctx: click.Context, built: Model, given: Mapping[str, Any]) -> dict[str, Any]:
    """The scores of a decoder.

    Args:
        ctx: The running command.
        built: The decoder.
        given: Values of the command's options.
    """
    from tamiz.evaluation.evaluate import evaluate, steps_of
    from tamiz.evaluation.windows import read_windows
    from tamiz.runtime.model import Model
    from tamiz.system.cores import cores

    at_once, report = given["threads"] or cores(), dict[str, Any]()
    dense = None if given["against"] is None else Model.load(given["against"], threads=1)
    if given["prompts"] is not None and dense is not None:
        report["greedy"] = _greedy(
            built, dense, given["prompts"], given["tokens"], given["count"], at_once
        )
    if given["text"] is not None:
        last, size = given["last"], given["window"] or WINDOW
        rows = _step_rows(ctx, built, True if last else given["decode"])
        cuts = read_windows(given["text"], built.bundle, given["windows"] or _WINDOWS, size)
        steps = steps_of(rows, size - (last or size))
        with status("load the models") as progress:
            report |= evaluate(built, dense, cuts, steps, at_once, progress)
    if given["domains"] and dense is not None:
        last, size = given["last"], given["window"] or min(_DOMAIN_WINDOW, built.limit)
        rows = _step_rows(ctx, built, True if last else given["decode"])
        steps = steps_of(rows, size - (last or size))
        with status("load the models") as progress:
            report |= of_decoder(built, dense, given["domains"], size, steps, at_once, progress)
    return report


def _of_encoder(built: Encoder, running: Running, given: Mapping[str, Any]) -> dict[str, Any]:
    """How close the embeddings are to those of the other encoder.

    Args:
        built: The encoder.
        running: How it runs.
        given: Values of the command's options.
    """
    from tamiz.evaluation.embeddings import check_length, compare, read_texts
    from tamiz.runtime.embedding.encoder import Encoder
    from tamiz.runtime.embedding.settings import most_tokens
    from tamiz.runtime.load import load_model
    from tamiz.system.cores import cores

    unfit = [given[name] for name in ("prompts", "decode", "last")]
    if running.metrics or any(option is not None for option in unfit) or given["against"] is None:
        raise TamizError(
            f"{built.bundle.path}: is an encoder, whose embeddings are compared with those of "
            "another; expected --text or --domains, --against, and no --prompts, --decode, --last "
            "or --metrics"
        )
    other = load_model(given["against"], threads=1)
    text, windows, window = given["text"], given["windows"], given["window"]
    at_once = given["threads"] or cores()
    if not isinstance(other, Encoder):
        raise TamizError(
            f"{other.bundle.path}: is no encoder, expected one as {built.bundle.path} is"
        )
    bundles = built.bundle, other.bundle
    report = of_encoder(built, other, given["domains"], at_once) if given["domains"] else {}
    if text is None:
        return report
    length = window or min(_TEXT, *(most_tokens(bundle) or _TEXT for bundle in bundles))
    check_length(other.bundle, length)
    texts = read_texts(text, built.bundle, windows, length, _TEXTS)
    with status(f"{len(texts)} windows") as progress:

        def done(count: int) -> None:
            progress(f"{count} of {len(texts)} windows are read")

        return {**report, **compare(built, other, texts, at_once, done)}


def _found(path: Path) -> Path:
    """The bundle of a model; a path that is not there is told after options that are wrong."""
    return bundle_at(path) if path.exists() else path


def _is_other(directory: Path) -> bool:
    """Whether a model is neither a decoder nor gives embeddings of texts."""
    from tamiz.evaluation.output_losses import reads_texts
    from tamiz.files.bundle import Bundle
    from tamiz.files.onnx_versions import graph_inputs
    from tamiz.interface.states import PAST
    from tamiz.runtime.session import load_session

    if not directory.exists():
        return False
    bundle = Bundle.open(directory)
    if any(name.startswith(PAST) for name in graph_inputs(bundle.model)):
        return False
    if not reads_texts(bundle):
        return True
    first = load_session(bundle, threads=1)[0].get_outputs()[0]
    return first.name == "logits" or len(first.shape) != 3


def _of_other(
    ctx: click.Context, directory: Path, running: Running, given: Mapping[str, Any]
) -> dict[str, Any]:
    """How close the outputs are to those of the other bundle.

    Args:
        ctx: The running command.
        directory: The bundle.
        running: How it runs.
        given: Values of the command's options.
    """
    from tamiz.cli._output_scores import of_outputs, texts_of
    from tamiz.evaluation.output_losses import reads_texts
    from tamiz.files.bundle import Bundle
    from tamiz.survey.sample_inputs import sample_files
    from tamiz.system.cores import cores

    where = "on a model that is neither a decoder nor an encoder"
    unfit = ("prompts", "tokens", "count", "decode", "last")
    refuse_given(ctx, *unfit, where=where, other="give --text or --sample")
    built, against = Bundle.open(directory), given["against"]
    if running.metrics or running.without or against is None:
        raise TamizError(
            f"{directory}: is neither a decoder nor an encoder, so its outputs are compared with "
            "those of another bundle; expected --against, and no --metrics or --without"
        )
    if not reads_texts(built):
        refuse_given(
            ctx, "text", "domains", where="on a model that reads no text", other="--sample"
        )
    text, domains = given["text"], given["domains"] or ()
    if text is None:
        refuse_given(ctx, "windows", "window", where="without --text", other="add --text")
    size = given["windows"] or _TEXTS, given["window"] or _TEXT
    texts = texts_of(built, text, domains, *size)
    samples, at_once = sample_files(given["samples"]), given["threads"] or cores()
    with status("load the models") as progress:
        return of_outputs(built, Bundle.open(against), samples, texts, at_once, progress)


def _print_outputs(report: Mapping[str, Any], as_json: bool) -> None:
    if as_json:
        print_json(report)
        return
    keys = list(next(iter(report["outputs"].values())))
    rows = [
        (name, *(f"{each[key]:.6g}" if key in each else "" for key in keys))
        for name, each in report["outputs"].items()
    ]
    print_table(["output", *(f">{key}" for key in keys)], rows)


def _step_rows(ctx: click.Context, built: Model, decode: bool | None) -> int | None:
    """Tokens of the steps that are scored as well, None for none; `decode` None: where a technique
    acts on steps only."""
    from tamiz.planning.choice import built_step_rows

    all_of_it = built.bundle.manifest.techniques
    acting = {name: about for name, about in all_of_it.items() if name not in built.without}
    rows = built_step_rows(techniques(ctx), acting) if acting else None
    if decode is None:
        return rows
    return (rows or 1) if decode else None


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


def _print_greedy(bundle: Bundle, greedy: Mapping[str, Any]) -> None:
    from tamiz.runtime.text.tokenizer import Tokenizer

    tokenizer = Tokenizer(bundle)
    if greedy["divergences"]:
        columns = (">prompt", ">equal tokens", "own token", "other token", ">margin")
        rows = [
            (
                str(each["prompt"] + 1),
                str(each["equal_tokens"]),
                repr(tokenizer.decode([each["own_token"]], special=True)),
                repr(tokenizer.decode([each["other_token"]], special=True)),
                f"{each['margin']:.3f}",
            )
            for each in greedy["divergences"]
        ]
        print_table(columns, rows)
    click.echo(f"{greedy['equal']} of {greedy['prompts']} answers are equal")
