"""The main job on a real model: what an int4 bundle keeps of SmolLM2, and what it gives."""

import json
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

import tamiz_ops
from tamiz.evaluation.evaluate import evaluate
from tamiz.evaluation.windows import read_windows
from tamiz.runtime.model import Model
from tamiz.runtime.sampling import Sampling
from tamiz.runtime.text.tokenizer import Tokenizer

pytestmark = pytest.mark.slow

PROMPTS = [
    "What is a sieve?",
    "The capital of France is",
    "def fibonacci(n):",
    "Write a haiku about the sea.",
    "1 + 1 = 2, 2 + 2 =",
    "¿Cómo se dice 'bread' en español?",
    "Once upon a time, in a village by the river,",
    "List three uses of a hammer:",
]
FP32_PPL = 29.185  # transformers in fp32 on the same weights, N = 8


def greedy(model: Model, prompt: list[int], count: int) -> list[int]:
    return list(model.generate(prompt, Sampling(temperature=0.0), count))


def test_int4_recovers_every_weight_bit_for_bit(dense: Path, int4: Path) -> None:
    """Q4_1 and Q8_0 weights come back exactly, so that int4 costs no quality."""
    weights = ir.load(dense / "model.onnx").graph.initializers
    report = json.loads((int4 / "report.json").read_text(encoding="utf-8"))
    assert report["totals"]["replaced"] == report["totals"]["exact"] == 30 * 7 + 2
    for name, site in report["sites"].items():
        (technique,) = site["techniques"]
        assert technique["metrics"]["exact"] == 1.0, name

    stored = ir.load(int4 / "model.onnx").graph.initializers
    table = weights["model.embed_tokens.weight"].const_value.numpy()
    rebuilt = tamiz_ops.dequantize(
        stored["model.embed_tokens.weight.int8"].const_value.numpy(), 8, *table.shape
    )
    np.testing.assert_array_equal(rebuilt, table)
    down = weights["model.layers.17.mlp.down_proj.weight"].const_value.numpy()
    down = down if down.shape[0] == 576 else down.T
    rebuilt = tamiz_ops.dequantize(
        stored["model.layers.17.mlp.down_proj.weight.int4"].const_value.numpy(), 4, *down.shape
    )
    np.testing.assert_array_equal(rebuilt, down)


def test_perplexity_is_that_of_fp32(int4: Path, wikitext: Path) -> None:
    model = Model.load(int4, 2)
    quality = evaluate(model, None, read_windows(wikitext, model.bundle, 8))
    assert quality["ppl"] == pytest.approx(FP32_PPL, rel=5e-3)


def test_fused_ops_with_fp32_weights_answer_as_dense(dense: Path, fp32: Path) -> None:
    reference, model = Model.load(dense, 2), Model.load(fp32, 2)
    tokenizer = Tokenizer(reference.bundle)
    for prompt in PROMPTS:
        ids = tokenizer.encode(prompt)
        assert greedy(model, ids, 24) == greedy(reference, ids, 24), prompt


def test_batch_with_left_padding_equals_single_runs(int4: Path) -> None:
    model = Model.load(int4, 2)
    tokenizer = Tokenizer(model.bundle)
    rows = [tokenizer.encode(prompt) for prompt in PROMPTS[4:7]]
    length = max(map(len, rows))
    assert len({len(row) for row in rows}) > 1
    ids = np.array([[0] * (length - len(row)) + row for row in rows])
    mask = np.array([[0] * (length - len(row)) + [1] * len(row) for row in rows])
    together = model.logits(ids, mask)
    for row, tokens in zip(together, rows, strict=True):
        alone = model.logits(np.array([tokens]))[0]
        np.testing.assert_allclose(row[-len(tokens) :], alone, rtol=0, atol=2e-4)


def test_a_bundle_is_little_more_than_its_packed_weights(int4: Path) -> None:
    """5 bits a linear weight, 8.5 a head weight; the embedding is the head's tensor."""
    linears = 30 * (2 * 576 * 576 + 2 * 576 * 192 + 3 * 576 * 1536)
    packed = (linears * 5 + 49152 * 576 * 8.5) / 8
    assert packed < (int4 / "model.onnx.data").stat().st_size < packed * 1.01


def test_one_node(int4: Path) -> None:
    assert [node.op_type for node in ir.load(int4 / "model.onnx").graph] == ["Fused"]
