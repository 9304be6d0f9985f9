"""A llama of 110,000 random weights, as GGUF and as a dense bundle."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import gguf

    from tamiz.plugins import Plugins

LAYERS, HIDDEN, HEADS, KV_HEADS, FFN, CONTEXT = 2, 64, 4, 2, 96, 256
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


def write_tiny_llama(
    path: Path,
    linears: gguf.GGMLQuantizationType | None = None,
    seed: int = 0,
    layers: int = LAYERS,
) -> None:
    """Writes the model as GGUF, its embedding, which is also the head, in Q8_0.

    Args:
        path: The file to write.
        linears: Format of the linear layers; Q4_1 by default.
        seed: Of the weights.
        layers: Number of decoder layers.
    """
    import gguf

    Kind = gguf.GGMLQuantizationType
    linears = Kind.Q4_1 if linears is None else linears
    writer = gguf.GGUFWriter(path, "llama")
    _add_header(writer, layers)
    generator = np.random.default_rng(seed)

    def add(name: str, shape: tuple[int, ...], kind: gguf.GGMLQuantizationType) -> None:
        values = generator.normal(0, shape[-1] ** -0.5, shape).astype(np.float32)
        writer.add_tensor(name, gguf.quants.quantize(values, kind), raw_dtype=kind)

    def add_norm(name: str) -> None:
        writer.add_tensor(name, generator.uniform(0.5, 1.5, HIDDEN).astype(np.float32))

    kv = HIDDEN // HEADS * KV_HEADS
    add("token_embd.weight", (len(vocabulary()), HIDDEN), Kind.Q8_0)
    for layer in range(layers):
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


def _add_header(writer: Any, layers: int) -> None:
    tokens = vocabulary()
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(layers)
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


def export_tiny_llama(folder: Path, plugins: Plugins, activation: str | None = None) -> Path:
    """Writes the model into `folder` and returns the path of its dense bundle.

    Its linear weights come from Q4_1 and its embedding from Q8_0, so block-quant loses nothing. The
    activation of its feed-forward blocks is SiLU where `activation` names no other.
    """
    from tamiz.survey.export import export

    source = folder / "tiny.gguf"
    write_tiny_llama(source)
    return export(str(source), folder / "dense", plugins, "float32", activation=activation).path
