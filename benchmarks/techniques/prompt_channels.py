"""Whether channels chosen by the prompt could draft: acceptance and loss, without an operator.

    python -m benchmarks prompt-channels DENSE [--kinds requests,passages] [--json FILE]

A channel of a feed-forward block is a row of gate and up and a column of down. A draft that keeps a
share of them for a whole text reads these side by side, and the others not at all:

    score_j = ‖W_down[:, j]‖ · sqrt(mean_t (h_tj / ‖h_t‖)²)       the largest of each layer stay

with h = act(gate) · up over the tokens t of the prompt (GRIFFIN, Dong et al. 2024, which has no
W_down), of the text so far at every start (``text``), or of the answer itself (``hindsight``, which
no choice for the whole answer can know). The graph of DENSE gets a factor of 0 or 1 for each
channel, so nothing is saved here: what is measured is how often the draft is right.

The model answers greedily. At every `STRIDE`-th token of its answer the draft guesses up to `DEPTH`
tokens after the exact keys and values, as ``--speculate=self`` does. ``accepted`` has the mean
number of right guesses of at most 1, 2, … ``looked up`` has those of ``--speculate=ngram``. ``kl``
is the mean KL divergence of the draft's logits on the answer, in nats per token: what
`--max-dppl 0.02` allows of it is 0.0198. ``speed`` is what the right guesses give at best, relative
to steps: (1 + accepted) / (price of a run + guesses · price of a guess). The default prices are
those of Qwen2.5-Coder-1.5B on 2 threads of a Zen 5; a guess has that of made models with 0.31 and
0.51 of the channels and a quarter of the head. Prompts are requests for prose, and passages of the
shipped prose that the model is to retell, in the chat template.
"""

from __future__ import annotations

import argparse
import itertools
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
from numpy.typing import NDArray
from onnx import TensorProto, helper

import tamiz_ops
from benchmarks.common import record
from benchmarks.engines.speculation import prompts as requests
from tamiz.calibration.domains import shipped_windows
from tamiz.evaluation.greedy import encode_prompts
from tamiz.files.bundle import Bundle
from tamiz.files.mapping import map_tensors
from tamiz.runtime.logprobs import log_softmax
from tamiz.runtime.speculation.lookup import Lookup
from tamiz.runtime.text.tokenizer import Tokenizer
from tamiz_ops import formats
from tamiz_ops.formats import FORMATS

Float = NDArray[np.float32]
States = dict[str, Float]

DEPTH, STRIDE, PASSAGE = 6, 6, 256
RUNS = "1.09,1.18,1.40,1.65,1.92"
CHOICES = ("prompt", "text", "hindsight")
_RETELL = "Retell this text in your own words."
_DOWN = re.compile(r"layers\.(\d+)/mlp/down_proj")


@dataclass(frozen=True)
class Text:
    """A run of the exact model over a text: what drafts start from.

    Attributes:
        ids: Tokens of prompt and answer.
        prompt: How many of them are the prompt's.
        states: Keys and values of all tokens, by input name, the tokens on axis 2.
        exact: Log probabilities after the prompt and after each token of the answer.
        hidden: Squares of h / ‖h‖ of each layer, ``[T, channels]``.
    """

    ids: list[int]
    prompt: int
    states: States
    exact: Float
    hidden: list[Float]

    @property
    def starts(self) -> range:
        """Numbers of tokens after which drafts start."""
        return range(self.prompt, len(self.ids) - DEPTH, STRIDE)

    def before(self, length: int) -> States:
        """Keys and values of the first tokens."""
        return {name: np.ascontiguousarray(s[:, :, :length]) for name, s in self.states.items()}


class MaskedModel:
    """A dense bundle whose feed-forward channels have factors, which are inputs of its graph."""

    def __init__(self, bundle: Bundle, threads: int) -> None:
        """Loads the changed graph, with the bundle's weights."""
        model = onnx.load(bundle.path / "model.onnx", load_external_data=False)
        downs = [n for n in model.graph.node if n.op_type == "BlockMatMul" and _DOWN.search(n.name)]
        weights = ir.load(bundle.path / "model.onnx")
        map_tensors(weights, bundle.path)
        self.worth = [_column_norms(node, weights.graph.initializers) for node in downs]
        self.everything = [np.ones(len(worth), np.float32) for worth in self.worth]
        places = {id(node): place for place, node in enumerate(model.graph.node)}
        for layer, node in reversed(list(enumerate(downs))):
            h, factor = node.input[0], f"factor.{layer}"
            node.input[0] = f"{h}.chosen"
            scale = helper.make_node("Mul", [h, factor], [node.input[0]])
            model.graph.node.insert(places[id(node)], scale)
            size = [len(self.worth[layer])]
            model.graph.input.append(helper.make_tensor_value_info(factor, TensorProto.FLOAT, size))
            model.graph.output.append(helper.make_tensor_value_info(h, TensorProto.FLOAT, None))
        self._hidden = [node.input[0].removesuffix(".chosen") for node in downs]
        past = [i for i in model.graph.input if i.name.startswith("past_key_values.")]
        self._empty = {i.name: _empty(i) for i in past}
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        tamiz_ops.register(options)
        folder = "session.model_external_initializers_file_folder_path"
        options.add_session_config_entry(folder, str(bundle.path))
        self._session = onnxruntime.InferenceSession(model.SerializeToString(), options)

    def run(
        self, ids: Sequence[int], past: States | None, factors: list[Float]
    ) -> tuple[Float, States]:
        """Logits after each token, and the keys and values of all."""
        names = ["logits", *(name.replace("past_key_values", "present") for name in self._empty)]
        logits, *states = self._session.run(names, self._feed(ids, past, factors))
        return logits[0], dict(zip(self._empty, states, strict=True))

    def answer(self, prompt: list[int], count: int) -> Text:
        """The likeliest `count` tokens after a prompt, none of which ends it early."""
        ids, states, read = list(prompt), None, 0
        while len(ids) < len(prompt) + count:
            rows, states = self.run(ids[read:], states, self.everything)
            read = len(ids)
            ids.append(int(rows[-1].argmax()))
        names = ["logits", *self._hidden]
        logits, *hidden = self._session.run(names, self._feed(ids, None, self.everything))
        squares = [np.square(h[0]) / np.square(h[0]).sum(axis=1, keepdims=True) for h in hidden]
        exact = log_softmax(logits[0, len(prompt) - 1 :]).astype(np.float32)
        return Text(ids, len(prompt), states or self._empty, exact, squares)

    def choose(self, rows: Iterable[Float], keep: float) -> list[Float]:
        """Factors of the channels of each layer that are worth most on some tokens."""
        factors = []
        for squares, worth in zip(rows, self.worth, strict=True):
            score = worth * np.sqrt(squares.mean(axis=0))
            factor = np.zeros(len(score), np.float32)
            factor[np.argsort(-score)[: round(keep * len(score))]] = 1
            factors.append(factor)
        return factors

    def _feed(
        self, ids: Sequence[int], past: States | None, factors: list[Float]
    ) -> dict[str, Any]:
        before = past or self._empty
        end = next(iter(before.values())).shape[2] + len(ids)
        return {
            "input_ids": np.array([ids], np.int64),
            "attention_mask": np.ones((1, end), np.int64),
            "position_ids": np.arange(end - len(ids), end, dtype=np.int64)[None],
            **before,
            **{f"factor.{layer}": factor for layer, factor in enumerate(factors)},
        }


def _empty(state: onnx.ValueInfoProto) -> Float:
    sizes = [d.dim_value for d in state.type.tensor_type.shape.dim]
    return np.zeros((1, sizes[1], 0, sizes[3]), np.float32)


def _column_norms(node: onnx.NodeProto, constants: Mapping[str, ir.Value]) -> Float:
    """‖W[:, j]‖ of the weight of a product."""
    sizes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
    packed = constants[node.input[1]].const_value
    assert packed is not None
    stored = sizes.get("format")
    kind = FORMATS[stored.decode()] if stored else formats.int_format(sizes["bits"], 16)
    weight = formats.dequantize(kind, packed.numpy(), sizes["n"], sizes["k"])
    norms: Float = np.linalg.norm(weight, axis=0)
    return norms


def drafted(model: MaskedModel, text: Text, keep: float, choice: str) -> dict[str, Any]:
    """Numbers of right guesses from each start, and the divergence over the answer."""
    part = {"prompt": slice(0, text.prompt), "hindsight": slice(text.prompt, None)}
    right, factors = [], model.everything
    for start in text.starts:
        if choice == "text" or start == text.prompt:
            seen = part.get(choice, slice(0, start))
            factors = model.choose((squares[seen] for squares in text.hidden), keep)
        rows, _ = model.run(text.ids[start : start + DEPTH], text.before(start), factors)
        right.append(_agreed(rows.argmax(axis=1), text.ids[start + 1 :]))
    before = text.before(text.prompt - 1)
    other = log_softmax(model.run(text.ids[text.prompt - 1 :], before, factors)[0])
    kl = (np.exp(text.exact) * (text.exact - other)).sum(axis=1, dtype=np.float64).mean()
    return {"right": right, "kl": float(kl)}


def looked_up(text: Text) -> dict[str, Any]:
    """Numbers of right guesses of the look-up from the same starts."""
    lookup, right = Lookup(text.ids[: text.prompt]), []
    for end, token in enumerate(text.ids[text.prompt :], text.prompt + 1):
        lookup.add(token)
        if end - 1 in text.starts:
            right.append(_agreed(lookup.guess(DEPTH), text.ids[end:]))
    return {"right": right}


def _agreed(guesses: Iterable[int], tokens: Sequence[int]) -> int:
    pairs = zip(guesses, tokens, strict=False)
    return sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))


def summary(found: list[dict[str, Any]], runs: list[float], guess: float) -> dict[str, Any]:
    """Of the texts of one choice: mean right guesses of at most 1, 2, …, speed and divergence."""
    right = np.array([count for one in found for count in one["right"]])
    accepted = [round(float(np.minimum(right, most).mean()), 3) for most in range(1, DEPTH + 1)]
    numbers: dict[str, Any] = {"starts": len(right), "accepted": accepted}
    numbers["speed"] = round(best_speed(accepted, runs, guess), 3)
    if "kl" in found[0]:
        numbers["kl"] = round(float(np.mean([one["kl"] for one in found])), 4)
    return numbers


def best_speed(accepted: Sequence[float], runs: Sequence[float], guess: float) -> float:
    """The most tokens in the time of a step, over numbers of guesses; 1 without any."""
    rates = (
        (1 + right) / (run + count * guess)
        for count, (right, run) in enumerate(zip(accepted, runs, strict=False), 1)
    )
    return max(1.0, *rates)


def prompts(bundle: Bundle, kind: str) -> Iterator[list[int]]:
    """Token ids of the prompts of a kind."""
    if kind == "requests":
        yield from (ids for _, ids in requests(bundle.path, ("prose",)))
    else:
        tokenizer = Tokenizer(bundle)
        windows = shipped_windows(bundle, "judge", PASSAGE, ("prose",))
        texts = (tokenizer.decode([int(t) for t in window.tokens]) for window in windows)
        yield from encode_prompts(bundle, (f"{_RETELL}\n\n{text}" for text in texts))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("dense", type=Path)
    parser.add_argument("--kinds", default="requests,passages")
    parser.add_argument("--prompts", type=int, default=4, help="of each kind")
    parser.add_argument("--tokens", type=int, default=96, help="tokens of an answer")
    parser.add_argument("--keep", default="0.3,0.5", help="shares of the channels")
    parser.add_argument("--guesses", default="0.42,0.56", help="price of a guess of each share")
    parser.add_argument("--runs", default=RUNS, help="prices of runs of 2, 3, … rows, in steps")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", type=Path, help="write the results to this file")
    options = parser.parse_args()
    kinds = options.kinds.split(",")
    keeps, guesses, runs = (
        [float(number) for number in text.split(",")]
        for text in (options.keep, options.guesses, options.runs)
    )
    prices = dict(zip(keeps, guesses, strict=True))
    bundle = Bundle.open(options.dense)
    model = MaskedModel(bundle, options.threads)
    found: dict[tuple[str, float], list[dict[str, Any]]] = {}  # by name and price of a guess
    for kind in kinds:
        for prompt in itertools.islice(prompts(bundle, kind), options.prompts):
            text = model.answer(prompt, options.tokens)
            found.setdefault((f"{kind}, looked up", 0.0), []).append(looked_up(text))
            for keep, choice in itertools.product(keeps, CHOICES):
                case = f"{kind}, {keep:g} chosen by {choice}", prices[keep]
                found.setdefault(case, []).append(drafted(model, text, keep, choice))
    results = {name: summary(of, runs, guess) for (name, guess), of in found.items()}
    print(json.dumps(results, indent=1))
    if options.json:
        settings = {"bundle": options.dense, "prompts": options.prompts, "tokens": options.tokens}
        settings |= {"guess_prices": prices, "run_prices": runs, "threads": options.threads}
        record.write(options.json, "prompt-channels", results, settings=settings)


if __name__ == "__main__":
    main()
