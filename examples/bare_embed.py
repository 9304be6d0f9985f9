"""Search by embeddings in plain ONNX Runtime: of tamiz, only the op library is needed.

    pip install onnxruntime tamiz-ops tokenizers
    python examples/bare_embed.py BUNDLE texts.txt "how do I sieve flour" [--most 5]

Prints the lines of a file that are nearest to a query, with their cosines. An embedding is the mean
of the hidden states over the tokens of a text, or the first one where 1_Pooling/config.json says
so, of length 1.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
import onnxruntime as ort
from tokenizers import Tokenizer

import tamiz_ops

BATCH = 8


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
        pooling = bundle / "1_Pooling" / "config.json"
        found = json.loads(pooling.read_text("utf-8")) if pooling.exists() else {}
        self.takes_first = found.get("pooling_mode_cls_token", False)
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
            sums = hidden[:, 0] if self.takes_first else (hidden * mask[:, :, None]).sum(axis=1)
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
