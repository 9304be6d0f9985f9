"""Mutated input ends in one sentence or works: no crash, no traceback, no hang.

`tox -e fuzz` reads 100,000 inputs; TAMIZ_FUZZ sets another number, TAMIZ_FUZZ_SEED other inputs.
A crash of the native library ends the test process; faulthandler then shows the test, and
``input.txt`` in its folder is the input.
"""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors
import safetensors.numpy

import tamiz_ops
from kit import tiny_safetensors
from kit.command_line import ok
from kit.mutations import mutate_bytes, mutate_json, mutate_text
from kit.tiny_gguf import random_model as tiny_gguf_model
from tamiz.calibration.file import load as load_calibration
from tamiz.files.bundle import MANIFEST, Bundle
from tamiz.files.errors import TamizError
from tamiz.planning.policy import read_policy
from tamiz.plugins import Plugins
from tamiz.reporting.reader import read_report
from tamiz.runtime.text.chat_template import ChatTemplate
from tamiz.survey.survey import survey
from tamiz_exporters.gguf_config import hf_config
from tamiz_exporters.gguf_file import GgufFile
from tamiz_exporters.gguf_model import GgufModel
from tamiz_exporters.gguf_tokenizer import GgufTokenizer
from tamiz_exporters.hf_model import HfModel
from tamiz_ops.program import read_program

pytestmark = pytest.mark.slow

TOTAL = int(os.environ.get("TAMIZ_FUZZ", "3000"))
SEED = int(os.environ.get("TAMIZ_FUZZ_SEED", "0"))
#: Shares of the inputs. A template needs a process of its own.
SHARES = {
    "program": 40,
    "gguf": 20,
    "safetensors": 5,
    "policy": 4,
    "calibration": 13,
    "report": 13,
    "bundle": 5,
}
TEMPLATES = max(10, TOTAL // 200)


def inputs(name: str) -> Iterator[random.Random]:
    """Random numbers for each of a target's inputs."""
    for number in range(max(1, TOTAL * SHARES.get(name, 1) // 100)):
        yield random.Random(f"{SEED} {name} {number}")


def one_sentence(read: Callable[[], Any]) -> bool:
    """Whether a reader takes its input; if not, its error is one short sentence."""
    try:
        read()
    except TamizError as error:
        text = str(error)
        assert text.isprintable(), text
        assert len(text) < 1100, text
        return False
    return True


PROGRAM = """\
layers.0:
RMSNorm epsilon=9.99999975e-06 : 0 1 2 -> 3 -
layers.1:
SwiGLU : 3 3 -> 4
RMSNorm epsilon=9.99999975e-06 : 4 1 - -> 5 6"""
WORDS = (
    "RMSNorm",
    "Attention",
    "BlockMatMul",
    ":",
    "->",
    "-",
    "\n",
    "\r",
    "epsilon=nan",
    "k=-1",
    " ",
)


def test_programs(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    tensors = [rng.standard_normal(shape, np.float32) for shape in ((2, 8), 8, (2, 8))]
    tamiz_ops.run("Fused", tensors, program=PROGRAM, outputs=[5])
    for choice in inputs("program"):
        program = mutate_text(PROGRAM, choice, WORDS).replace("\0", "")
        outputs = [choice.choice((4, 5, -1, 0, 2**40))] if choice.random() < 0.2 else [5]
        stacks = [choice.choice((-(2**63), 2**63 - 1, 0, 2))] if choice.random() < 0.1 else []
        (tmp_path / "input.txt").write_text(f"{program!r} {outputs} {stacks}", "utf-8")
        settings: dict[str, Any] = {
            "program": program,
            "outputs": outputs,
            **({"stacks": stacks} if stacks else {}),
        }
        errors = [
            refusal(lambda: tamiz_ops.run("Fused", tensors, **settings)),  # noqa: B023
            refusal(lambda: read_program(program)),  # noqa: B023
        ]
        assert all(len(error) < 5000 for error in errors)


def refusal(read: Callable[[], Any]) -> str:
    """The error with which native code, or what mirrors it, refuses; nothing if it does not."""
    try:
        read()
    except (ValueError, RuntimeError) as error:
        return str(error)
    return ""


def test_gguf_files(tmp_path: Path, tiny_gguf: Path) -> None:
    path, whole = tmp_path / "m.gguf", tiny_gguf.read_bytes()
    begin = 12_000  # the metadata and the tensors' names, shapes and formats
    for choice in inputs("gguf"):
        if choice.random() < 0.8:
            path.write_bytes(mutate_bytes(whole[:begin], choice) + whole[begin:])
        else:
            path.write_bytes(mutate_bytes(whole, choice))

        def read() -> None:
            file = GgufFile(path)
            model = GgufModel(file)
            tokenizer = GgufTokenizer(file, model.vocabulary)
            json.dumps(
                [hf_config(model), tokenizer.tokenizer_json(), tokenizer.generation_config()]
            )
            json.dumps(tokenizer.tokenizer_config(model.context))

        one_sentence(read)


def test_safetensors(tmp_path: Path) -> None:
    shapes: list[dict[str, Any]] = [
        {},
        {"architecture": "gemma3", "layers": 6, "window": 8},
        {"architecture": "gemma2", "window": 8, "soft_caps": (2.0, 3.0)},
    ]
    folders = [
        tiny_safetensors.write(tmp_path / f"{number}", tiny_gguf_model(**shape))
        for number, shape in enumerate(shapes)
    ]
    whole = [(folder / "model.safetensors").read_bytes() for folder in folders]
    configs = [json.loads((folder / "config.json").read_text()) for folder in folders]
    for choice in inputs("safetensors"):
        number = choice.randrange(len(shapes))
        folder, content = folders[number], whole[number]
        if choice.random() < 0.5:
            begin = 8 + int.from_bytes(content[:8], "little")
            content = mutate_bytes(content[:begin], choice) + content[begin:]
        (folder / "model.safetensors").write_bytes(content)
        text = mutate_json(configs[number], choice)
        (folder / "config.json").write_text(text, "utf-8", "replace")
        one_sentence(lambda: HfModel(folder).weights().find())  # noqa: B023


POLICY: dict[str, Any] = {
    "version": 1,
    "defaults": {"enable": True, "K": {"gate": 256}, "gating": {"min_mean": 0.4, "min_p05": 0.1}},
    "ranges": [{"layers": "0-1", "autotune": {"enabled": True, "schedule": [64, 128]}}],
    "layers": {"1": {"enable": False, "tensors": {"ffn_up": {"K": 3}}}},
    "sites": {"re:layers\\.\\d+\\.attn_.": {"techniques": {"block-quant": {"enable": True}}}},
}


def test_policies(tmp_path: Path, tiny_dense: Path, plugins: Plugins) -> None:
    sites = survey(Bundle.open(tiny_dense), plugins).sites
    techniques = plugins.techniques()
    path = tmp_path / "policy.json"
    path.write_text(json.dumps(POLICY))
    read_policy(path, techniques, sites)
    for choice in inputs("policy"):
        path.write_text(mutate_json(POLICY, choice), "utf-8")
        one_sentence(lambda: read_policy(path, techniques, sites))


def test_calibrations(tmp_path: Path, tiny_dense: Path) -> None:
    (tmp_path / "text").write_text("The quick brown fox jumps over the lazy dog. " * 60)
    path = tmp_path / "c"
    ok("calibrate", tiny_dense, "-o", path, "--text", tmp_path / "text", "--windows", "2")
    bundle, whole = Bundle.open(tiny_dense), path.read_bytes()
    with safetensors.safe_open(path, "np") as file:
        about = json.loads(file.metadata()["tamiz-calibration"])
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    begin = 8 + int.from_bytes(whole[:8], "little")
    for choice in inputs("calibration"):
        if choice.random() < 0.5:
            path.write_bytes(mutate_bytes(whole[:begin], choice) + whole[begin:])
        else:
            text = mutate_json(about, choice)
            safetensors.numpy.save_file(tensors, path, {"tamiz-calibration": text})
        one_sentence(lambda: load_calibration(path, bundle))


def test_reports(tmp_path: Path, tiny_dense: Path) -> None:
    ok("build", tiny_dense, "-o", tmp_path / "out")
    report = json.loads((tmp_path / "out" / "report.json").read_text("utf-8"))
    path = tmp_path / "report.json"
    for choice in inputs("report"):
        path.write_text(mutate_json(report, choice), "utf-8")
        one_sentence(lambda: read_report(path))


def test_bundles(tiny_dense: Path) -> None:
    """The manifest, and the graph as the runtime walks it."""
    for name in (MANIFEST, "model.onnx"):
        whole = (tiny_dense / name).read_bytes()
        for choice in inputs("bundle"):
            if name == MANIFEST:
                data = mutate_json(json.loads(whole), choice).encode()
            else:
                data = mutate_bytes(whole, choice)
                data = data[: len(whole)] + bytes(max(0, len(whole) - len(data)))
            (tiny_dense / name).write_bytes(data)
            one_sentence(lambda: Bundle.open(tiny_dense))
        (tiny_dense / name).write_bytes(whole)


TEMPLATE = (
    "{% for m in messages %}{% if m.role == 'user' %}[{{ m.content | trim }}]{% else %}"
    "{{ raise_exception('no ' ~ m.role) }}{% endif %}{% endfor %}{{ '%s' % (1 + 2 * 3) }}"
)
PARTS = (
    "{{ 9 ** 9 ** 9 }}",
    "{% for i in range(10 ** 9) %}{% endfor %}",
    "{{ 'x' * 10 ** 10 }}",
    "{{ ''.__class__ }}",
    "{%",
    "}}",
    "(" * 300,
    "| join | list | sort",
)


def test_templates() -> None:
    for number in range(TEMPLATES):
        choice = random.Random(f"{SEED} template {number}")
        source = mutate_text(TEMPLATE, choice, PARTS)
        template = ChatTemplate({"chat_template": source})
        one_sentence(lambda: template.render([{"role": "user", "content": "hi"}]))  # noqa: B023
