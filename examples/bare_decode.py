"""Greedy decoding in plain ONNX Runtime: of tamiz, only the op library is needed.

    pip install onnxruntime tamiz-ops tokenizers
    python examples/bare_decode.py BUNDLE "The capital of France is" [--tokens 32]

Every state of the graph (keys, values, whatever a technique adds) is a buffer of full capacity that
is bound as input and as output, so that a step appends in place and copies nothing.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

# Before it is imported: versions from 1.29 on look up a host for telemetry.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

import numpy as np
import onnxruntime as ort
from tokenizers import Tokenizer

import tamiz_ops


class Decoder:
    """One sequence of a bundle with a shared KV cache."""

    def __init__(self, bundle: Path, capacity: int) -> None:
        """Loads the model and binds state for `capacity` tokens."""
        options = ort.SessionOptions()
        options.log_severity_level = 3  # a warning tells that logits_to_keep has a default: wanted
        tamiz_ops.register(options)
        self.session = ort.InferenceSession(bundle / "model.onnx", options)
        self.binding = self.session.io_binding()
        self.length = 0
        for past in self.session.get_inputs():
            if not past.name.startswith("past_"):
                continue
            sizes = {"batch_size": 1, "past_sequence_length": capacity}
            shape = [sizes.get(size, size) for size in past.shape]
            state = ort.OrtValue.ortvalue_from_numpy(np.zeros(shape, np.float32))
            present = past.name.replace("past_key_values", "present").replace("past_", "present_")
            self.binding.bind_ortvalue_input(past.name, state)
            self.binding.bind_ortvalue_output(present, state)
        last = ort.OrtValue.ortvalue_from_numpy(np.ones(1, np.int64))
        self.binding.bind_ortvalue_input("logits_to_keep", last)
        self.binding.bind_output("logits")

    def read(self, ids: list[int]) -> np.ndarray:
        """Reads tokens; returns the logits ``[vocabulary]`` of the next one."""
        first, self.length = self.length, self.length + len(ids)
        self.binding.bind_cpu_input("input_ids", np.array([ids]))
        self.binding.bind_cpu_input("position_ids", np.arange(first, self.length)[None])
        self.binding.bind_cpu_input("attention_mask", np.ones((1, self.length), np.int64))
        self.session.run_with_iobinding(self.binding)
        return self.binding.get_outputs()[-1].numpy()[0, -1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("bundle", type=Path)
    parser.add_argument("prompt")
    parser.add_argument("--tokens", type=int, default=32)
    arguments = parser.parse_args()
    tokenizer = Tokenizer.from_file(str(arguments.bundle / "tokenizer.json"))
    ids = tokenizer.encode(arguments.prompt).ids
    decoder = Decoder(arguments.bundle, len(ids) + arguments.tokens)
    answer = [int(decoder.read(ids).argmax())]
    while len(answer) < arguments.tokens:
        answer.append(int(decoder.read(answer[-1:]).argmax()))
    print(tokenizer.decode(answer))


if __name__ == "__main__":
    main()
