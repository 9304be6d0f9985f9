"""Peers as engines of `bench_child`: ``peer_child.py llama.cpp|openvino|genai PATH THREADS``.

Runs under the interpreter that has the peer installed. Each peer is driven through its lowest
public interface, so that its Python wrapper costs it nothing that tamiz does not pay as well.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np

sys.path.append(str(Path(__file__).resolve().parents[2]))  # last: only for bench_child
from tamiz.evaluation.bench_child import DECODE_ROOM, serve

BATCH = 512


class LlamaCpp:
    """llama.cpp with its defaults (fp16 KV cache, flash attention where it chooses to)."""

    def __init__(self, path: str, threads: int) -> None:
        import llama_cpp.llama_cpp as api

        self.api = api
        self.threads = threads
        api.llama_backend_init()
        self.model = api.llama_model_load_from_file(path.encode(), api.llama_model_default_params())
        if not self.model:
            raise ValueError(f"llama.cpp cannot load {path}")
        vocabulary = api.llama_model_get_vocab(self.model)
        self.vocabulary = api.llama_vocab_n_tokens(vocabulary)
        self.limit = api.llama_model_n_ctx_train(self.model)
        self.context = None
        self._new_context(BATCH)

    def _new_context(self, tokens: int) -> None:
        if self.context is not None:
            self.api.llama_free(self.context)
        params = self.api.llama_context_default_params()
        params.n_ctx = tokens
        params.n_batch = params.n_ubatch = BATCH
        params.n_threads = params.n_threads_batch = self.threads
        self.context = self.api.llama_init_from_model(self.model, params)
        self.capacity = tokens
        self.memory = self.api.llama_get_memory(self.context)

    def prefill(self, ids: list[int]) -> None:
        self.api.llama_memory_clear(self.memory, True)
        if self.capacity < len(ids) + DECODE_ROOM:
            self._new_context(min(len(ids) + DECODE_ROOM, self.limit))
        tokens = (self.api.llama_token * len(ids))(*ids)
        for start in range(0, len(ids), BATCH):
            count = min(BATCH, len(ids) - start)
            part = (self.api.llama_token * count)(*tokens[start : start + count])
            self._run(part, count)
        self.next = self._greedy()

    def decode(self, tokens: int) -> None:
        token = self.next
        for _ in range(tokens):
            self._run((self.api.llama_token * 1)(token), 1)
            token = self._greedy()

    def rewind(self, length: int) -> None:
        self.api.llama_memory_seq_rm(self.memory, 0, length, -1)

    def _run(self, tokens, count: int) -> None:
        batch = self.api.llama_batch_get_one(tokens, count)
        if self.api.llama_decode(self.context, batch) != 0:
            raise ValueError("llama_decode failed")

    def _greedy(self) -> int:
        logits = self.api.llama_get_logits_ith(self.context, -1)
        return int(np.ctypeslib.as_array(logits, (self.vocabulary,)).argmax())


class Genai:
    """onnxruntime-genai, greedy search, KV buffer shared and sized for the sequence."""

    def __init__(self, path: str, threads: int) -> None:
        import json

        import onnxruntime_genai as og

        self.og = og
        settings = json.loads(Path(path, "genai_config.json").read_text())["model"]
        self.vocabulary = settings["vocab_size"]
        self.limit = settings["context_length"]
        config = og.Config(path)
        options = {"intra_op_num_threads": threads}
        config.overlay(json.dumps({"model": {"decoder": {"session_options": options}}}))
        self.model = og.Model(config)

    def prefill(self, ids: list[int]) -> None:
        params = self.og.GeneratorParams(self.model)
        room = min(len(ids) + DECODE_ROOM, self.limit)
        # min_length: an end-of-text token must not stop the measurement.
        params.set_search_options(max_length=room, min_length=room, do_sample=False)
        self.generator = None  # frees its KV buffer first
        self.generator = self.og.Generator(self.model, params)
        self.generator.append_tokens(np.array([ids], np.int32))
        self.generator.generate_next_token()

    def decode(self, tokens: int) -> None:
        for _ in range(tokens):
            self.generator.generate_next_token()

    def rewind(self, length: int) -> None:
        self.generator.rewind_to(length)
        self.generator.generate_next_token()  # as in prefill: the next token is known again


class OpenVino:
    """OpenVINO with its defaults for CPUs (8-bit inputs of products, an 8-bit KV cache).

    The model that OpenVINO GenAI makes of a GGUF, a stateful graph, without GenAI's sampling. As in
    GenAI, the head reads the last position only.
    """

    def __init__(self, path: str, threads: int) -> None:
        import openvino

        core = openvino.Core()
        model = core.read_model(f"{path}/openvino_model.xml")
        head = model.output("logits").get_node()
        while head.get_type_name() != "MatMul":
            head = head.input_value(0).get_node()
        ends = ([-1], [np.iinfo(np.int64).max], [1], [1])
        last = openvino.opset13.slice(head.input_value(0), *ends)
        head.input(0).replace_source_output(last.output(0))
        options = {"INFERENCE_NUM_THREADS": threads, "PERFORMANCE_HINT": "LATENCY"}
        compiled = core.compile_model(model, "CPU", options)
        self.vocabulary = model.output("logits").get_partial_shape()[2].get_length()
        self.limit = sys.maxsize  # the graph has none
        self.inputs = {name for each in compiled.inputs for name in each.names}
        self.request = compiled.create_infer_request()

    def prefill(self, ids: list[int]) -> None:
        self.request.reset_state()
        self.prompt, self.length = ids, 0
        self.next = self._run(ids)

    def decode(self, tokens: int) -> None:
        for _ in range(tokens):
            self.next = self._run([self.next])

    def rewind(self, length: int) -> None:
        self.prefill(self.prompt[:length])  # its state cannot be cut

    def _run(self, ids: list[int]) -> int:
        end = self.length + len(ids)
        feeds = {
            "input_ids": np.array([ids], np.int64),
            "attention_mask": np.ones((1, end), np.int64),
            "position_ids": np.arange(self.length, end, dtype=np.int64)[None],
            "beam_idx": np.zeros(1, np.int32),
        }
        self.request.infer({name: feeds[name] for name in self.inputs})
        self.length = end
        return int(self.request.get_output_tensor(0).data[0, -1].argmax())


PEERS: dict[str, Any] = {"llama.cpp": LlamaCpp, "openvino": OpenVino, "genai": Genai}

if __name__ == "__main__":
    peer, path, threads = sys.argv[1:]
    serve(lambda: PEERS[peer](path, int(threads)))
