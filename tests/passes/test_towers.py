"""The attention of towers is recognised: of images, sounds and texts that have no attention_mask.

The graphs hold what torch 2.13 writes of ViT, CLIP and the encoder of Whisper (transformers 5.24),
by scripting and by `torch.export`, with one layer. The reference is onnxruntime on the graph before
the pass.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from kit.decoders import ops, session
from tamiz_passes.clean_up import CleanUp
from tamiz_passes.text_attention import RecogniseTextAttention

WIDTH, PATCHES = 32, 4

_IMAGE = """float[batch, 3, 8, 8] pixel_values"""
_PATCHES = """
    patches = Conv <kernel_shape = [4, 4], strides = [4, 4]> (pixel_values, conv)
    flat = Reshape (patches, flattened) inner = Transpose <perm = [0, 2, 1]> (flat)
    x = Add (inner, positions)"""
_SOUND = """float[batch, 3, 4] input_features"""
_FRAMES = """
    frames = Conv <kernel_shape = [3], pads = [1, 1]> (input_features, conv_of_frames)
    inner = Transpose <perm = [0, 2, 1]> (frames) x = Add (inner, positions)"""
_TEXT = """int64[batch, sequence] input_ids"""
_TOKENS = """
    looked = Gather (words, input_ids) x = Add (looked, first)"""
_PROJECTIONS = """
    q = MatMul (x, wq) k = MatMul (x, wk) v = MatMul (x, wv)"""
#: Shapes as scripting computes them.
_SCRIPT = """
    batch = Shape <start = 0, end = 1> (x) length = Shape <start = 1, end = 2> (x)
    heads = Concat <axis = 0> (batch, length, minus_one, sixteen)
    joined = Concat <axis = 0> (batch, length, minus_one)"""
_FIXED = """
    batch = Shape <start = 0, end = 1> (x) heads = Concat <axis = 0> (batch, four, two, sixteen)
    joined = Concat <axis = 0> (batch, four, minus_one)"""
_HEADS = """
    q4 = Reshape (q, heads) qt = Transpose <perm = [0, 2, 1, 3]> (q4)
    k4 = Reshape (k, heads) kt = Transpose <perm = [0, 2, 3, 1]> (k4)
    v4 = Reshape (v, heads) vt = Transpose <perm = [0, 2, 1, 3]> (v4)"""
_SCALED = "product = MatMul (qt, kt) scores = Mul (product, quarter)"
#: As F.scaled_dot_product_attention is written.
_ROOTS = "qs = Mul (qt, half) ks = Mul (kt, half) scores = MatMul (qs, ks)"
_QUERY_SCALED = "small = Mul (qt, quarter) scores = MatMul (small, kt)"
_CAUSAL = """
    size = Shape <start = 1, end = 2> (x) both = Concat <axis = 0> (size, size)
    none = ConstantOfShape <value = int64[1] {0}> (two) mask = Slice (triangle, none, both)
    masked = Add (scores, mask)"""
#: As the layers of T5 behind the first one read its length.
_HEADS_BEFORE = """
    other_k = MatMul (x, before) before4 = Reshape (other_k, heads)
    before_heads = Transpose <perm = [0, 2, 1, 3]> (before4)"""
_CAUSAL_AS_BEFORE = _CAUSAL.replace(
    "Shape <start = 1, end = 2> (x)", "Shape <start = 2, end = 3> (before_heads)"
)
_SQUARE = "masked = Add (scores, square)"
_ATTENDED = """
    at = MatMul (weights, vt) a4 = Transpose <perm = [0, 2, 1, 3]> (at)
    a = Reshape (a4, joined) y = Add (x, a)"""
_SEEN = f"weights = Softmax <axis = -1> (scores) {_ATTENDED}"
_MASKED = f"weights = Softmax <axis = -1> (masked) {_ATTENDED}"


@dataclass(frozen=True)
class Tower:
    """A tower's input, its nodes, and what is read."""

    input: str
    nodes: str
    shape: tuple[int, ...] = (3, 8, 8)

    def model(self) -> ir.Model:
        tokens = PATCHES if len(self.shape) > 1 else "sequence"
        proto = onnx.parser.parse_model(
            f"""<ir_version: 10, opset_import: ["" : 20]>
            g ({self.input}) => (float[batch, {tokens}, {WIDTH}] y) {{ {self.nodes} }}"""
        )
        random = np.random.default_rng(0)

        def normal(*shape: int) -> np.ndarray:
            return random.standard_normal(shape).astype(np.float32)

        hidden = (normal(PATCHES, PATCHES) > 0) & ~np.eye(PATCHES, dtype=bool)
        constants = {
            **{name: normal(WIDTH, WIDTH) / 5 for name in ("wq", "wk", "wv", "before")},
            "conv": normal(WIDTH, 3, 4, 4),
            "conv_of_frames": normal(WIDTH, 3, 3),
            "positions": normal(1, PATCHES, WIDTH),
            "words": normal(50, WIDTH),
            "first": normal(WIDTH),
            "square": np.where(hidden, np.float32(-3e38), np.float32(0)),
            "triangle": np.triu(np.full((64, 64), -3e38, np.float32), 1),
            "flattened": np.array([0, WIDTH, -1]),
            "minus_one": np.array([-1]),
            "two": np.array([2]),
            "four": np.array([PATCHES]),
            "sixteen": np.array([16]),
            "quarter": np.float32(0.25),
            "half": np.float32(0.5),
        }
        for name, array in constants.items():
            proto.graph.initializer.append(onnx.numpy_helper.from_array(np.asarray(array), name))
        return ir.from_proto(onnx.shape_inference.infer_shapes(proto))

    def inputs(self, batch: int) -> np.ndarray:
        random = np.random.default_rng(batch)
        if len(self.shape) == 1:
            return random.integers(0, 50, (batch, *self.shape))
        return random.standard_normal((batch, *self.shape)).astype(np.float32)


TOWERS = {
    "image, scripting": Tower(_IMAGE, _PATCHES + _PROJECTIONS + _SCRIPT + _HEADS + _SCALED + _SEEN),
    "image, torch.export": Tower(
        _IMAGE, _PATCHES + _PROJECTIONS + _FIXED + _HEADS + _ROOTS + _SEEN
    ),
    "sound, queries scaled first": Tower(
        _SOUND, _FRAMES + _PROJECTIONS + _SCRIPT + _HEADS + _QUERY_SCALED + _SEEN, (3, 4)
    ),
    "text before a token": Tower(
        _TEXT, _TOKENS + _PROJECTIONS + _SCRIPT + _HEADS + _SCALED + _CAUSAL + _MASKED, (11,)
    ),
    "text of a layer before": Tower(
        _TEXT,
        _TOKENS
        + _PROJECTIONS
        + _SCRIPT
        + _HEADS_BEFORE
        + _HEADS
        + _SCALED
        + _CAUSAL_AS_BEFORE
        + _MASKED,
        (11,),
    ),
}


def recognise(model: ir.Model) -> list[str]:
    """Runs the pass, and returns its notes."""
    CleanUp()(model)
    each = RecogniseTextAttention()
    each(model)
    return [note.reason for note in each.notes]


@pytest.mark.parametrize("name", TOWERS)
def test_an_attention_without_a_mask(name: str) -> None:
    tower = TOWERS[name]
    model = tower.model()
    before = session(tower.model())
    assert recognise(model) == []
    found = Counter(ops(model))
    assert found["TextAttention"] == 1
    assert found["Softmax"] == 0
    assert "text_begins" not in {value.name for value in model.graph.inputs}
    after = session(model)
    feed = before.get_inputs()[0].name
    for batch in (1, 3):
        inputs = {feed: tower.inputs(batch)}
        (expected,), (y,) = before.run(None, inputs), after.run(None, inputs)
        np.testing.assert_allclose(y, expected, atol=1e-5 * np.abs(expected).max())


def test_only_texts_before_a_token_are_causal() -> None:
    found = {}
    for name, tower in TOWERS.items():
        model = tower.model()
        recognise(model)
        (node,) = [n for n in model.graph if n.op_type == "TextAttention"]
        found[name] = node.attributes.get_int("causal", 0)
    texts = {name for name in TOWERS if name.startswith("text")}
    assert found == dict.fromkeys(TOWERS, 0) | dict.fromkeys(texts, 1)


def test_a_mask_of_chosen_patches_stays() -> None:
    nodes = _PATCHES + _PROJECTIONS + _SCRIPT + _HEADS + _SCALED + _SQUARE + _MASKED
    model = Tower(_IMAGE, nodes).model()
    (note,) = recognise(model)
    assert "hides other tokens than padding" in note
    assert Counter(ops(model))["TextAttention"] == 0


_TWO_TEXTS = """
    int64[batch, sequence] input_ids, int64[batch, sequence] attention_mask,
    int64[batch, answer] decoder_input_ids"""
_ANSWER = "looked = Gather (words, decoder_input_ids) x = Add (looked, first)"
_QUESTION = "read = Gather (words, input_ids) other = Add (read, first)"
_OF_ANSWER = "q = MatMul (x, wq) k = MatMul (x, wk) v = MatMul (x, wv)"
_OF_BOTH = "q = MatMul (x, wq) k = MatMul (other, wk) v = MatMul (other, wv)"
_OWN_SHAPES = """
    begun = Shape <start = 0, end = 1> (x) count = Shape <start = 1, end = 2> (x)
    several = Shape <start = 1, end = 2> (other)
    heads = Concat <axis = 0> (begun, count, minus_one, sixteen)
    key_heads = Concat <axis = 0> (begun, several, minus_one, sixteen)
    joined = Concat <axis = 0> (begun, count, minus_one)"""
_KEY_HEADS = _HEADS.replace("(k, heads)", "(k, key_heads)").replace("(v, heads)", "(v, key_heads)")
_PADDING = """
    hidden = Cast <to = 1> (attention_mask) far = Sub (hidden, one) added = Mul (far, large)
    row = Unsqueeze (added, middle) masked = Add (scores, row)"""


def _answered(nodes: str) -> Tower:
    return Tower(_TWO_TEXTS, nodes, (7,))


def _of_two_texts(tower: Tower) -> ir.Model:
    model = ir.to_proto(tower.model())
    model.graph.output[0].type.tensor_type.shape.dim[1].dim_param = "answer"
    arrays = {"one": np.float32(1), "large": np.float32(1e30), "middle": np.array([1, 2])}
    for name, array in arrays.items():
        model.graph.initializer.append(onnx.numpy_helper.from_array(np.asarray(array), name))
    return ir.from_proto(onnx.shape_inference.infer_shapes(model))


def test_a_decoder_does_not_see_the_mask_of_its_encoder() -> None:
    nodes = _ANSWER + _OF_ANSWER + _SCRIPT + _HEADS + _SCALED + _CAUSAL + _MASKED
    model = _of_two_texts(_answered(nodes))
    before = session(_of_two_texts(_answered(nodes)))
    assert recognise(model) == []
    (node,) = [n for n in model.graph if n.op_type == "TextAttention"]
    assert "attention_mask" not in {value.name for value in node.inputs if value is not None}
    random = np.random.default_rng(0)
    for answer in (9, 5):
        feeds = {
            "input_ids": random.integers(0, 50, (2, 9)),
            "attention_mask": np.array([[1] * 9, [1] * 4 + [0] * 5]),
            "decoder_input_ids": random.integers(0, 50, (2, answer)),
        }
        (expected,), (y,) = before.run(None, feeds), session(model).run(None, feeds)
        np.testing.assert_allclose(y, expected, atol=1e-5 * np.abs(expected).max())


@pytest.mark.parametrize("masked", [True, False])
def test_attention_to_another_text_stays(masked: bool) -> None:
    seen = _PADDING + _MASKED if masked else _SEEN
    parts = (_ANSWER, _QUESTION, _OF_BOTH, _OWN_SHAPES, _KEY_HEADS, _SCALED, seen)
    model = _of_two_texts(_answered(" ".join(parts)))
    (note,) = recognise(model)
    assert "not known to be of the same tokens" in note
    assert Counter(ops(model))["TextAttention"] == 0


def test_a_mask_of_other_tokens_stays() -> None:
    nodes = _ANSWER + _OF_ANSWER + _SCRIPT + _HEADS + _SCALED + _PADDING + _MASKED
    model = _of_two_texts(_answered(nodes))
    (note,) = recognise(model)
    assert "depends on the input decoder_input_ids [batch, answer]" in note
    assert Counter(ops(model))["TextAttention"] == 0
