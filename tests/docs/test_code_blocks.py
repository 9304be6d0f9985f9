"""Every console, Python and JSON block of the README, the quickstart and the guides runs.

A page runs from its first block to its last in one folder, as for a reader, with a tiny model as
`model.gguf` and a text as `text.txt`; pages that begin with a bundle find `dense` and `small`. A
block that cannot run has the comment ``<!-- not run: REASON -->`` before it.
"""

import shutil
from pathlib import Path

import pytest

from kit.command_line import ok
from kit.pages import Reader, blocks
from kit.rooms import ROOT
from tamiz.evaluation import bench, windows
from tamiz.testing import tiny_llama

pytestmark = pytest.mark.slow

PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "docs" / "index.md",
    ROOT / "docs" / "quickstart.md",
    *sorted((ROOT / "docs" / "guides").glob("*.md")),
]
#: Every block that is not run: its page, and the reason that the page gives.
NOT_RUN = {
    ("CONTRIBUTING.md", "needs a cross compiler and an emulator"),
    ("CONTRIBUTING.md", "sets up the environment that runs this test"),
    ("CONTRIBUTING.md", "runs tests"),
    ("README.md", "compiles the native library"),
    ("README.md", "runs until it is stopped"),
    (
        "calibrate.md",
        "the reader has no such file; tests/building/fit/test_imatrix_build.py has one",
    ),
    ("choose-a-budget.md", "measures the machine"),
    ("choose-a-budget.md", "measures the machine; the speed of a toy model means nothing"),
    ("choose-a-budget.md", "needs a model whose layers are worth masking"),
    ("deploy.md", "serves until it is stopped; tests/examples/test_service.py runs it"),
    ("deploy.md", "tests/e2e/test_bare_session.py runs this script"),
    ("deploy.md", "tests/examples/test_triton.py runs it"),
    ("embeddings.md", "a line for a session of your own"),
    ("embeddings.md", "downloads a model"),
    ("embeddings.md", "needs an encoder; tests/building/decide/test_encoder_limits.py has one"),
    ("embeddings.md", "needs an encoder; tests/cli/test_text_commands.py has one"),
    ("embeddings.md", "needs an encoder; tests/examples/test_bare_embed.py has one"),
    ("embeddings.md", "needs an encoder; tests/inference/test_embedding_model.py has one"),
    ("embeddings.md", "needs a reranker; tests/inference/test_cross_encoder.py has one"),
    ("embeddings.md", "needs sentence-transformers; tests/examples/test_other_doors.py has it"),
    ("from-a-gguf.md", "the file of this page has SiLU"),
    ("from-a-gguf.md", "the file of this page has no experts"),
    ("from-hugging-face.md", "downloads a model"),
    ("from-hugging-face.md", "installs torch, 1 GB and more"),
    ("from-onnx.md", "needs a model"),
    ("from-onnx.md", "needs a model and optimum"),
    ("quickstart.md", "compiles the native library"),
    ("read-a-report.md", "exits with code 1, as the bundles differ"),
    ("serve-in-production.md", "measures the machine"),
    ("serve-in-production.md", "takes 20 minutes"),
    (
        "serve-in-production.md",
        "needs ray, and starts a cluster; tests/serving/test_ray.py does",
    ),
    ("processors.md", "needs a machine with two memory nodes"),
    ("processors.md", "needs a model file"),
    ("serve.md", "needs a server; tests/serving/test_openai_client.py has one"),
    ("serve.md", "runs until it is stopped"),
    ("write-a-technique.md", "a part of plugins/tamiz_window_attention/plugin.py"),
    ("write-a-technique.md", "tests/docs/test_write_a_technique.py runs these blocks"),
}


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the pages begin with; the model has a context long enough for the tools."""
    folder = tmp_path_factory.mktemp("start")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tiny_llama, "CONTEXT", 2048)
        tiny_llama.write_tiny_llama(folder / "model.gguf")
    (folder / "text.txt").write_text("hello world, this is a sieve. " * 200, "utf-8")
    (folder / "request.txt").write_text("What is a sieve?", "utf-8")
    ok("export", folder / "model.gguf", "-o", folder / "dense")
    ok("build", folder / "dense", "-o", folder / "small", "--recipe", "small")
    return folder


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measurements of one short round."""
    monkeypatch.setattr(bench, "ROUNDS", 1)
    monkeypatch.setattr(bench, "TOKENS", 3)
    monkeypatch.setattr(bench, "PAUSE", 0.0)
    monkeypatch.setattr(bench, "read_bandwidth", lambda threads: 1.0)
    monkeypatch.setattr(windows, "WINDOW", 256)
    monkeypatch.setenv("XDG_CACHE_HOME", "cache")


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_blocks_of_a_page_run(page: Path, start: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(start, tmp_path / "reader"))
    reader = Reader(folder)
    for block in blocks(page):
        if block.reason is None:
            try:
                reader.run(block)
            except Exception as error:
                raise AssertionError(f"{page.name}:{block.line}: {error}") from error


def test_blocks_that_are_not_run_are_listed() -> None:
    found = [(page.name, block.reason) for page in PAGES for block in blocks(page) if block.reason]
    assert set(found) == NOT_RUN
