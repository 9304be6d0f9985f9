"""Fixtures that all tests share: a decoder of 40,000 weights, as GGUF and as a dense bundle."""

import shutil
from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import pytest

LAYERS, HIDDEN, HEADS, KV_HEADS, FFN = 2, 64, 4, 2, 96
SPECIAL = ["<|im_start|>", "<|im_end|>"]
MERGES = ["h e", "l l", "he ll", "hell o"]
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def vocabulary() -> list[str]:
    """Two special tokens, GPT-2's 256 byte characters, and what the merges make."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    characters = {byte: chr(byte) for byte in printable}
    characters |= {byte: chr(256 + index) for index, byte in enumerate(others)}
    merged = [merge.replace(" ", "") for merge in MERGES]
    return [*SPECIAL, *(characters[byte] for byte in range(256)), *merged]


def write_tiny_gguf(path: Path, linears: gguf.GGMLQuantizationType, seed: int = 0) -> None:
    """Writes a llama with random weights; the linears in `linears`, the embedding in Q8_0."""
    tokens = vocabulary()
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(256)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(FFN)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_rope_dimension_count(HIDDEN // HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_types([3, 3] + [1] * (len(tokens) - 2))
    writer.add_token_merges(MERGES)
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(1)
    writer.add_chat_template(CHAT_TEMPLATE)
    generator = np.random.default_rng(seed)

    def add(name: str, shape: tuple[int, ...], kind: gguf.GGMLQuantizationType) -> None:
        values = generator.normal(0, shape[-1] ** -0.5, shape).astype(np.float32)
        writer.add_tensor(name, gguf.quants.quantize(values, kind), raw_dtype=kind)

    def add_norm(name: str) -> None:
        writer.add_tensor(name, generator.uniform(0.5, 1.5, HIDDEN).astype(np.float32))

    kv = HIDDEN // HEADS * KV_HEADS
    add("token_embd.weight", (len(tokens), HIDDEN), gguf.GGMLQuantizationType.Q8_0)
    for layer in range(LAYERS):
        block = f"blk.{layer}"
        add_norm(f"{block}.attn_norm.weight")
        add_norm(f"{block}.ffn_norm.weight")
        for name, shape in {
            "attn_q": (HIDDEN, HIDDEN),
            "attn_k": (kv, HIDDEN),
            "attn_v": (kv, HIDDEN),
            "attn_output": (HIDDEN, HIDDEN),
            "ffn_gate": (FFN, HIDDEN),
            "ffn_up": (FFN, HIDDEN),
            "ffn_down": (HIDDEN, FFN),
        }.items():
            add(f"{block}.{name}.weight", shape, linears)
    add_norm("output_norm.weight")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.fixture(scope="session")
def make_gguf() -> Callable[[Path, gguf.GGMLQuantizationType], None]:
    """Writes the tiny llama with its linears in the given format."""
    return write_tiny_gguf


@pytest.fixture(scope="session")
def tiny_gguf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A GGUF of a tiny llama: linears in Q4_1, tied embedding in Q8_0."""
    path = tmp_path_factory.mktemp("gguf") / "tiny.gguf"
    write_tiny_gguf(path, gguf.GGMLQuantizationType.Q4_1)
    return path


@pytest.fixture(scope="session")
def _exported(tiny_gguf: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tamiz.export import export
    from tamiz.plugins import load

    return export(str(tiny_gguf), tmp_path_factory.mktemp("tiny") / "dense", load()).path


@pytest.fixture
def tiny_dense(_exported: Path, tmp_path: Path) -> Path:
    """A dense bundle of the tiny llama; a copy of one's own."""
    return Path(shutil.copytree(_exported, tmp_path / "tiny-dense"))
