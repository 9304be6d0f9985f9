"""A bundle with head-shortlist against the same bundle without.

    python -m benchmarks head BASE SHORT [--text FILE] [--tokens N] [--json FILE]

- greedy: both continue the prompts of common/prompts.txt; every divergence is listed with its
  margin, the difference of BASE's two largest logits there.
- recall, along BASE's continuations: how often the largest logit (the 10 largest) of BASE is exact
  in SHORT.
- perplexity with estimates (--text): one decode step a token, windows of 512 tokens.
- speed, interleaved with 2 threads: the head's node alone, and whole decode steps at context 128.
"""

import argparse
import time
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper

import tamiz_ops
from benchmarks.common import record
from tamiz.runtime.model import Model
from tamiz.runtime.sampling import Sampling
from tamiz.runtime.text.chat_template import ChatTemplate, encode_chat
from tamiz.runtime.text.tokenizer import Tokenizer
from tamiz_ops.program import read_program, write_program

PROMPTS = Path(__file__).parents[1] / "common" / "prompts.txt"
WINDOW, CONTEXT, ROUNDS, STEPS = 512, 128, 400, 2


def continuations(model, prompts, count):
    return [list(model.generate(prompt, Sampling(temperature=0), count)) for prompt in prompts]


def step_logits(model, prompt, following):
    """Logits before each token of `following`, by decode steps."""
    sequence = model.sequence(len(prompt) + len(following))
    yield sequence.read(prompt)
    for token in following[:-1]:
        yield sequence.step(token)


def divergence(base, tokenizer, prompt, one, other):
    """Where two continuations part, and how near a tie BASE was there; None if they do not."""
    parts = (i for i, pair in enumerate(zip(one, other, strict=False)) if pair[0] != pair[1])
    at = next(parts, min(len(one), len(other)))
    if at == max(len(one), len(other)):
        return None
    sequence = base.sequence(len(prompt) + at)
    logits = sequence.read(prompt + one[:at])
    order = np.argsort(-logits)
    stop = min(base.stop_ids)
    told = [ids[at] if at < len(ids) else stop for ids in (one, other)]
    return {
        "token": at,
        "base": tokenizer.decode(told[:1]),
        "short": tokenizer.decode(told[1:]),
        "margin": float(logits[order[0]] - logits[order[1]]),
        "lost": float(logits[told[0]] - logits[told[1]]),
    }


def greedy(base, short, count):
    tokenizer = Tokenizer(base.bundle)
    template = ChatTemplate(tokenizer.settings)
    texts = PROMPTS.read_text("utf-8").splitlines()
    messages = [[{"role": "user", "content": text}] for text in texts]
    prompts = [encode_chat(tokenizer, template, m) for m in messages]
    expected = continuations(base, prompts, count)
    found = continuations(short, prompts, count)
    parted = [
        {"prompt": text} | part
        for text, prompt, one, other in zip(texts, prompts, expected, found, strict=True)
        if (part := divergence(base, tokenizer, prompt, one, other))
    ]
    result = {"prompts": len(prompts), "tokens": sum(map(len, expected)), "divergences": parted}
    return result, list(zip(prompts, expected, strict=True))


def recall(base, short, pairs):
    hits = []
    for prompt, following in pairs:
        both = (step_logits(model, prompt, following) for model in (base, short))
        for exact, mixed in zip(*both, strict=True):
            top = np.argsort(-exact)[:10]
            hits.append([exact[top[0]] == mixed[top[0]], (exact[top] == mixed[top]).mean()])
    argmax, top10 = np.mean(hits, axis=0)
    return {"argmax_recall": float(argmax), "top10_recall": float(top10), "steps": len(hits)}


def perplexity(model, windows):
    losses = []
    for window in windows:
        for logits, token in zip(
            step_logits(model, window[:1], window[1:]), window[1:], strict=True
        ):
            shifted = logits.astype(np.float64) - logits.max()
            losses.append(np.log(np.exp(shifted).sum()) - shifted[token])
    return float(np.exp(np.mean(losses)))


def head(path):
    """A call of the head alone, the last stage of the model's node, and its input."""
    model = onnx.load(path / "model.onnx", load_external_data=False)
    fused = next(node for node in model.graph.node if "logits" in node.output)
    stage = read_program(helper.get_node_attr_value(fused, "program").decode())[-1]
    read = [value for value in stage.inputs if value is not None]
    names = ["x", *(fused.input[value] for value in read[1:])]
    node = helper.make_node("Fused", names, ["logits"], domain=fused.domain)
    program = write_program(read, [stage], stage.outputs)
    node.attribute.extend(helper.make_attribute(*item) for item in program.items())
    constants = [value for value in model.graph.initializer if value.name in names]
    sizes = stage.attributes
    x = np.random.default_rng(0).standard_normal((1, 1, sizes["k"]), dtype=np.float32)
    y = np.empty((1, 1, sizes["n"]), np.float32)
    info = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, array.shape)
        for name, array in (("x", x), ("logits", y))
    ]
    graph = helper.make_graph([node], "head", info[:1], info[1:], constants)
    made = helper.make_model(graph, opset_imports=model.opset_import, ir_version=model.ir_version)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 2
    folder = "session.model_external_initializers_file_folder_path"
    options.add_session_config_entry(folder, str(path))
    tamiz_ops.register(options)
    session = onnxruntime.InferenceSession(made.SerializeToString(), options)
    binding = session.io_binding()
    binding.bind_cpu_input("x", x)
    binding.bind_output("logits", "cpu", 0, np.float32, y.shape, y.ctypes.data)
    return lambda _keep=(x, y): session.run_with_iobinding(binding)


def stepper(model):
    """A call of STEPS decode steps at context 128."""
    sequence = model.sequence(CONTEXT + STEPS)
    sequence.read(list(range(1000, 1000 + CONTEXT)))

    def call():
        sequence.truncate(CONTEXT)
        for _ in range(STEPS):
            sequence.step(1000)

    return call


def interleaved(base, short, rounds):
    """Median seconds of both; ratios of the medians, of the 10th percentiles and of the minima."""
    times = []
    for call in (base, short):
        call()
    for _ in range(rounds):
        pair = []
        for call in (base, short):
            start = time.perf_counter()
            call()
            pair.append(time.perf_counter() - start)
        times.append(pair)
    columns = np.array(times).T
    medians, tenths = np.median(columns, axis=1), np.percentile(columns, 10, axis=1)
    ratios = {"median": medians, "tenth": tenths, "minimum": columns.min(axis=1)}
    return {"base": float(medians[0]), "short": float(medians[1])} | {
        f"ratio_of_{name}s": float(one / other) for name, (one, other) in ratios.items()
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("base", type=Path)
    parser.add_argument("short", type=Path)
    parser.add_argument("--text", type=Path, help="score this text, too")
    parser.add_argument("--windows", type=int, default=2, help="of 512 tokens of the text")
    parser.add_argument("--tokens", type=int, default=96, help="that follow each prompt")
    parser.add_argument("--json", type=Path, help="write everything to this file")
    arguments = parser.parse_args()
    base, short = (Model.load(path, 2) for path in (arguments.base, arguments.short))
    result = {
        "head": interleaved(head(arguments.base), head(arguments.short), ROUNDS),
        "decode": interleaved(stepper(base), stepper(short), ROUNDS // STEPS),
    }
    for name in ("head", "decode"):
        print(name, {key: round(value, 6) for key, value in result[name].items()}, flush=True)
    if arguments.tokens:
        result["greedy"], pairs = greedy(base, short, arguments.tokens)
        result["recall"] = recall(base, short, pairs)
        for part in result["greedy"]["divergences"]:
            print(part)
        same = result["greedy"]["prompts"] - len(result["greedy"]["divergences"])
        print(f"{same} of {result['greedy']['prompts']} continuations are identical")
        print(result["recall"])
    if arguments.text:
        ids = Tokenizer(base.bundle).encode(arguments.text.read_text("utf-8"), bos=False)
        windows = [ids[i * WINDOW : (i + 1) * WINDOW] for i in range(arguments.windows)]
        result["perplexity"] = {
            name: perplexity(model, windows) for name, model in (("base", base), ("short", short))
        }
        print(result["perplexity"])
    if arguments.json:
        record.write(arguments.json, "head", result, settings=vars(arguments))
