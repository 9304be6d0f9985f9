"""``tamiz serve``."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import click

from tamiz.cli._config_file import config_option
from tamiz.cli._options import FILE, FOLDER, PATH, Workers
from tamiz.files.errors import TamizError
from tamiz.serving.drafts import MOST


@click.command("serve")
@click.argument("sources", metavar="[NAME=]SRC...", nargs=-1, required=True)
@config_option(("models", "sources"))
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=8080,
    show_default=True,
    help="Port to listen on; 0 takes a free one.",
)
@click.option("--uds", type=PATH, help="Path of a Unix socket, in place of a port.")
@click.option(
    "--api-key",
    "keys",
    multiple=True,
    metavar="KEY",
    help="API key that requests must send; may be given several times. Default: none is needed.",
)
@click.option("--api-key-file", type=FILE, help="File with one API key per line.")
@click.option("--threads", type=Workers(), help="Threads per model.  [default: physical cores]")
@click.option(
    "--context",
    type=click.IntRange(min=64),
    default=16384,
    show_default=True,
    help="Tokens that the KV cache of a model holds: all running answers and kept prefixes.",
)
@click.option(
    "--cache-dir",
    type=FOLDER,
    help="Folder that keeps prefixes for the next start. Default: they are kept in memory only.",
)
@click.option(
    "--cache-mb",
    type=click.IntRange(1, 1 << 20),
    default=4096,
    show_default=True,
    help="Largest size of a model's files in --cache-dir, in MB.",
)
@click.option(
    "--concurrent",
    type=click.IntRange(1, 256),
    default=16,
    show_default=True,
    help="Largest number of answers that a model computes at once; other requests wait.",
)
@click.option(
    "--max-queue",
    type=click.IntRange(1, 100_000),
    default=256,
    show_default=True,
    help="Largest number of requests that wait; further ones get status 429.",
)
@click.option(
    "--max-drafts",
    type=click.IntRange(0, MOST),
    default=MOST,
    show_default=True,
    help="Largest number of guessed tokens that a run verifies, of all answers. The server "
    "verifies fewer where more do not pay; 0 switches guesses off. It changes no answer.",
)
@click.option(
    "--timeout",
    type=click.FloatRange(1, 86_400),
    default=600.0,
    show_default=True,
    help="Time limit of an answer, in seconds.",
)
@click.option(
    "--drain",
    type=click.FloatRange(0, 3600),
    default=30.0,
    show_default=True,
    help="Time that running answers have after SIGTERM, in seconds.",
)
@click.option(
    "--cache-scope",
    type=click.Choice(["key", "all"]),
    default="key",
    show_default=True,
    help="Requests that share cached prefixes: those of one API key, or all.",
)
@click.option(
    "--precise",
    is_flag=True,
    help="Build sources with 16-bit inputs of products. Default: 8 bits, as llama.cpp has them. "
    "With AVX-512 or AMX, several answers at once are then up to 1.7 × as fast.",
)
@click.option("--strict", is_flag=True, help="Refuse requests with unknown fields.")
@click.option(
    "--log-format",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="Form of the log on stderr.",
)
def command(sources: tuple[str, ...], **options: Any) -> None:
    """Serve models with OpenAI's API.

    SRC is a bundle, a .gguf file or a folder that 'tamiz export' reads. A source that is no bundle
    is built once, with the recipe 'serve', and kept in the cache folder. NAME is the name of the
    model in requests; by default it is the name of the file or folder.

    The address shows a page to try the server. The API is below /v1, its description at /docs.
    """
    try:
        import tamiz.serving.app  # noqa: F401
    except ModuleNotFoundError as error:
        raise TamizError(
            f"tamiz serve needs {error.name}; try: pip install 'tamiz[serve]'"
        ) from error
    _serve(sources, **options)


def _serve(
    sources: tuple[str, ...],
    *,
    host: str,
    port: int,
    uds: Path | None,
    keys: tuple[str, ...],
    api_key_file: Path | None,
    threads: int | None,
    context: int,
    cache_dir: Path | None,
    cache_mb: int,
    concurrent: int,
    max_queue: int,
    max_drafts: int,
    timeout: float,
    drain: float,
    cache_scope: Literal["key", "all"],
    precise: bool,
    strict: bool,
    log_format: str,
) -> None:
    """Serves the sources, which are loaded behind the address, until a signal ends it."""
    from tamiz.building.of_source import bundle_of
    from tamiz.runtime.batching.page_files import FilesOfPages
    from tamiz.serving.api.served import State
    from tamiz.serving.app import make_app
    from tamiz.serving.catalog import Catalog, load
    from tamiz.serving.engine import Limits
    from tamiz.serving.server import Address, logging_as, make_server, run
    from tamiz.serving.settings import Settings
    from tamiz.serving.sources import names_of_sources, read_keys

    named = names_of_sources(sources)
    allowed = (*keys, *(read_keys(api_key_file) if api_key_file else ()))
    settings = Settings(allowed, strict, cache_scope, seconds=timeout)
    state = State(Catalog(), settings, ready=False)
    files = None if cache_dir is None else FilesOfPages(cache_dir, cache_mb * 1_000_000)
    limits = Limits(context, concurrent, max_queue, drafts=max_drafts, files=files)

    def load_all() -> None:
        for name, source in named.items():
            bundle = bundle_of(source, log.info, precise)
            state.catalog.add(load(str(bundle), name, threads, limits))
            log.info("%s: ready", name)

    with logging_as(log_format) as log:
        app, address = make_app(state), Address(host, port, uds)
        server = make_server(app, address, drain, lambda url: log.info("serving at %s", url))
        run(server, state, load_all, drain)
