"""Search by embeddings in plain ONNX Runtime: of tamiz, only the op library is needed.

    pip install onnxruntime tamiz-ops tokenizers
    python examples/bare_embed.py BUNDLE texts.txt "how do I sieve flour" [--most 5]

Prints the lines of a file that are nearest to a query, with their cosines. An embedding is pooled
from the hidden states of the tokens of a text as 1_Pooling/config.json says, and has length 1. For
models with other modules (Dense), or prompts, see `tamiz.load(BUNDLE).embed(texts)`.
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path

# Before it is imported: versions from 1.29 on look up a host for telemetry.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

import numpy as np
import onnxruntime as ort
from tokenizers import Tokenizer

import tamiz_ops

BATCH = 8
KNOWN = ("Transformer", "Pooling", "Normalize")
#: Modes of a pooling by their key in older files.
MODES = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}


def token_weights(mode: str, mask: np.ndarray) -> np.ndarray:
    """How much each token counts in an embedding, ``[texts, tokens]``."""
    places = np.arange(1, mask.shape[1] + 1)
    if mode == "cls":
        return (places == 1) * mask
    if mode == "lasttoken":
        return places == mask.sum(axis=1, keepdims=True)
    return mask * places if mode == "weightedmean" else mask


def pool(mode: str, hidden: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """One vector a text, up to a factor: every embedding is scaled to length 1."""
    if mode == "max":
        return np.where(mask[:, :, None] == 1, hidden, -np.inf).max(axis=1)
    return (hidden * token_weights(mode, mask)[:, :, None]).sum(axis=1)


def read_mode(bundle: Path) -> str:
    """The one mode of the model's pooling."""
    listed = bundle / "modules.json"
    for module in json.loads(listed.read_text("utf-8")) if listed.exists() else []:
        if (kind := module["type"].rpartition(".")[2]) not in KNOWN:
            raise SystemExit(f"{listed}: this example has no {kind}; use tamiz.load(...).embed")
    path = bundle / "1_Pooling" / "config.json"
    config = json.loads(path.read_text("utf-8")) if path.exists() else {}
    given = config.get("pooling_mode") or [name for key, name in MODES.items() if config.get(key)]
    modes = [given] if isinstance(given, str) else given or ["mean"]
    if len(modes) > 1 or modes[0] not in MODES.values():
        raise SystemExit(f"{path}: found {modes}, expected one of {', '.join(MODES.values())}")
    return modes[0]


class Encoder:
    """A bundle of an encoder."""

    def __init__(self, bundle: Path, threads: int = 0) -> None:
        """Loads the model and its tokenizer; 0 threads leave the number to ONNX Runtime."""
        options = ort.SessionOptions()
        options.intra_op_num_threads = threads
        tamiz_ops.register(options)
        self.session = ort.InferenceSession(bundle / "model.onnx", options)
        self.tokenizer = Tokenizer.from_file(str(bundle / "tokenizer.json"))
        config = json.loads((bundle / "config.json").read_text("utf-8"))
        self.mode = read_mode(bundle)
        padding = config.get("pad_token_id") or 0
        self.tokenizer.enable_padding(pad_id=padding)
        # Positions of some models, such as RoBERTa, begin behind the padding token.
        self.tokenizer.enable_truncation(config.get("max_position_embeddings", 512) - padding - 1)

    def embeddings(self, texts: list[str]) -> np.ndarray:
        """Embeddings ``[texts, width]``, each of length 1."""
        parts = []
        for at in range(0, len(texts), BATCH):
            encoded = self.tokenizer.encode_batch(texts[at : at + BATCH])
            ids = np.array([text.ids for text in encoded])
            mask = np.array([text.attention_mask for text in encoded])
            feeds = {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}
            names = [given.name for given in self.session.get_inputs()]
            hidden = self.session.run(None, {name: feeds[name] for name in names})[0]
            sums = pool(self.mode, hidden, mask)
            parts.append(sums / np.linalg.norm(sums, axis=1, keepdims=True))
        return np.concatenate(parts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("bundle", type=Path)
    parser.add_argument("texts", type=Path)
    parser.add_argument("query")
    parser.add_argument("--most", type=int, default=5)
    arguments = parser.parse_args()
    lines = [line for line in arguments.texts.read_text("utf-8").splitlines() if line.strip()]
    encoder = Encoder(arguments.bundle)
    (query,) = encoder.embeddings([arguments.query])
    cosines = encoder.embeddings(lines) @ query
    for place in np.argsort(-cosines, kind="stable")[: arguments.most]:
        print(f"{cosines[place]:.4f}  {lines[place]}")


if __name__ == "__main__":
    main()
