from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

import tamiz_ops
from kit.decoders import CASES, LAYER_SITES, decoder, largest_error, ops, run_passes, session
from tamiz.api.attention import add_sketch
from tamiz.api.editing import GraphEditor
from tamiz.api.ports import input_of
from tamiz.api.site import SiteKind
from tamiz.interface.metadata import CACHE, LAYER, SITE, TECHNIQUE
from tamiz.interface.states import present_of
from tamiz_ops.program import read_program
from tamiz_passes.fuse import FuseNodes
from tamiz_passes.sites import find_sites

PROGRAM = """\
layers.0:
RMSNorm epsilon=9.99999975e-06 : 0 1 -> 28
BlockMatMul bits=8 k=64 n=64 : 28 2 - - -> 29
BlockMatMul bits=8 k=64 n=32 : 28 3 - - -> 30
BlockMatMul bits=8 k=64 n=32 : 28 4 - - -> 31
Attention kv_heads=2 num_heads=4 : 29 30 31 5 6 7 8 9 -> 32 33 34
BlockMatMul bits=8 k=64 n=64 : 32 10 - - -> 35
RMSNorm epsilon=9.99999975e-06 : 0 11 35 -> 36 37
BlockMatMul bits=8 k=64 n=96 : 36 12 - - -> 38
BlockMatMul bits=8 k=64 n=96 : 36 13 - - -> 39
SwiGLU : 38 39 -> 40
BlockMatMul bits=8 k=96 n=64 : 40 14 - - -> 41
layers.1:
RMSNorm epsilon=9.99999975e-06 : 37 15 41 -> 42 43
BlockMatMul bits=8 k=64 n=64 : 42 16 - - -> 44
BlockMatMul bits=8 k=64 n=32 : 42 17 - - -> 45
BlockMatMul bits=8 k=64 n=32 : 42 18 - - -> 46
Attention kv_heads=2 num_heads=4 : 44 45 46 19 20 7 8 9 -> 47 48 49
BlockMatMul bits=8 k=64 n=64 : 47 21 - - -> 50
RMSNorm epsilon=9.99999975e-06 : 43 22 50 -> 51 52
BlockMatMul bits=8 k=64 n=96 : 51 23 - - -> 53
BlockMatMul bits=8 k=64 n=96 : 51 24 - - -> 54
SwiGLU : 53 54 -> 55
BlockMatMul bits=8 k=96 n=64 : 55 25 - - -> 56
/model/norm/RMSNorm:
RMSNorm epsilon=9.99999975e-06 : 52 26 56 -> 57 -
logits_to_keep:
LastPositions : 57 27 -> 58"""


#: Parts after the layers.
LAST = ["/model/norm/RMSNorm", "logits_to_keep"]
DENSE_LAYER = tuple(
    f"layers.1.{tensor}"
    for tensor in ("attn_q", "attn_k", "attn_v", "attn_o", "ffn_gate", "ffn_up", "ffn_down")
)


def packed(model: ir.Model, *, dense: tuple[str, ...] = (), pack: bool = False) -> ir.Model:
    """Recognises, and puts BlockMatMul at every linear of a layer but those in `dense`.

    Without `pack` the constants are empty: the graph can be looked at, not run.
    """
    run_passes(model)
    for site in find_sites(model)[0]:
        if site.kind is not SiteKind.LINEAR or site.id in dense:
            continue
        graph = GraphEditor(model)
        linear = graph.linear(site)
        n, k = site.out_features, site.in_features
        weight = int8(linear.weight.const_value.numpy().T) if pack else np.zeros(1, np.uint8)
        value = graph.constant(f"{site.weight}.int8", weight)
        inputs = {"x": linear.input, "weight": value, "bias": linear.bias}
        node = graph.replace(linear, "BlockMatMul", inputs, {"bits": 8, "n": n, "k": k})
        node.metadata_props[TECHNIQUE] = "test"
    return model


def int8(weight: np.ndarray) -> np.ndarray:
    groups = weight.reshape(len(weight), -1, 32)
    scales = (np.abs(groups).max(-1) / 127).astype(np.float16)
    quants = np.rint(groups / scales[..., None].astype(np.float32)).clip(-127, 127)
    return tamiz_ops.pack_int8(quants.astype(np.int8).reshape(weight.shape), scales)


def fuse(model: ir.Model) -> FuseNodes:
    fusion = FuseNodes()
    fusion(model)
    return fusion


def fused(model: ir.Model) -> dict[str, ir.Node]:
    return {node.name or "": node for node in model.graph if node.op_type == "Fused"}


def stages(node: ir.Node) -> list[str]:
    return [stage.op for stage in read_program(node.attributes["program"].as_string())]


def parts(node: ir.Node) -> list[str]:
    program = read_program(node.attributes["program"].as_string())
    return [part for part, _ in groupby(stage.part for stage in program)]


def test_all_layers_become_one_node_with_their_program() -> None:
    model = packed(decoder())
    assert fuse(model).notes == []
    assert sorted(ops(model)) == ["Fused", "Gather", "MatMul", "Transpose"]
    (node,) = fused(model).values()
    assert node.name == "fused"
    assert node.attributes["program"].as_string() == PROGRAM
    assert node.attributes["outputs"].as_ints() == (33, 34, 48, 49, 58)
    assert [v.name for v in node.outputs] == [
        "present.0.key",
        "present.0.value",
        "present.1.key",
        "present.1.value",
        "logits_to_keep.hidden",
    ]


def test_a_fused_node_tells_its_layers_sites_and_techniques() -> None:
    model = packed(decoder())
    fuse(model)
    metadata = fused(model)["fused"].metadata_props
    assert metadata[LAYER] == "0,1"
    assert metadata[TECHNIQUE] == "test"
    sites = [f"layers.{layer}.{tensor}" for layer in (0, 1) for tensor in LAYER_SITES]
    assert metadata[SITE] == ",".join(sites)


def test_what_has_no_layer_joins_under_its_own_name() -> None:
    model = packed(decoder(layers=1))
    gather = next(node for node in model.graph if node.op_type == "Gather")
    table = GraphEditor(model).constant("table", np.zeros(1, np.uint8))
    inputs, attributes = {"ids": gather.inputs[1], "weight": table}, {"bits": 8, "k": 64}
    GraphEditor(model).replace(gather, "BlockGather", inputs, attributes)
    fuse(model)
    node = fused(model)["fused"]
    assert stages(node)[:2] == ["BlockGather", "RMSNorm"]
    assert parts(node) == ["/model/embed_tokens/Gather", "layers.0", *LAST]
    assert [v.name for v in node.inputs][:2] == ["input_ids", "table"]


def test_a_dense_linear_splits_the_node() -> None:
    model = packed(decoder(), dense=("layers.1.attn_o",))
    notes = fuse(model).notes
    assert [(n.node, n.reason) for n in notes] == [
        ("/model/layers.1/self_attn/o_proj/MatMul", "MatMul stays and splits layer 1.")
    ]
    first, second = fused(model).values()
    assert (first.name, second.name) == ("fused.1", "fused.2")
    assert parts(first) == ["layers.0", "layers.1"]
    assert stages(first)[-5:] == ["RMSNorm", *["BlockMatMul"] * 3, "Attention"]
    assert parts(second) == ["layers.1", *LAST]
    assert stages(second) == [
        "RMSNorm",
        "BlockMatMul",
        "BlockMatMul",
        "SwiGLU",
        "BlockMatMul",
        "RMSNorm",
        "LastPositions",
    ]


def test_a_dense_layer_in_the_middle_splits_the_node() -> None:
    model = packed(decoder(layers=3), dense=DENSE_LAYER)
    fuse(model)
    first, second = fused(model).values()
    assert parts(first) == ["layers.0", "layers.1"]  # with the norm of layer 1
    assert parts(second) == ["layers.2", *LAST]


def sketched(model: ir.Model, planes: dict[int, int]) -> ir.Model:
    """Lets the attention of some layers keep sketches, of so many planes; marks its cache."""
    attentions = [node for node in model.graph if node.op_type == "Attention"]
    for layer, count in planes.items():
        add_sketch(model, attentions[layer], count)
        for port in ("past_key", "past_value"):
            past = input_of(attentions[layer], port)
            past.metadata_props[CACHE] = "test"
    return model


def states(values: Iterable[ir.Value]) -> dict[str, list[int | str]]:
    shapes = {value.name: value.shape for value in values}
    names = [name for name in shapes if name.startswith(("past_", "present"))]
    return {name: [str(size) for size in shapes[name]] for name in names}


def test_states_of_all_layers_become_one_tensor() -> None:
    model = sketched(packed(decoder(layers=4)), {0: 1, 1: 2, 2: 1, 3: 1})
    fuse(model)
    (node,) = fused(model).values()
    past, present = "past_sequence_length", "past_sequence_length + sequence_length"
    found = states(model.graph.inputs)
    assert found == {
        "past_layers.key_values": ["8", "batch_size", "2", past, "16"],
        "past_layers.sketch": ["3", "batch_size", "2", past, "3"],
        "past_sketch.1": ["batch_size", "2", past, "5"],
    }
    expected = {present_of(k): [present if s == past else s for s in v] for k, v in found.items()}
    assert states(model.graph.outputs) == expected
    assert node.attributes["stacks"].as_ints() == (8, 3)
    stacks = ["past_layers.key_values", "past_layers.sketch"]
    assert [v.name for v in node.inputs[-2:]] == stacks
    assert [v.name for v in node.outputs[-2:]] == [present_of(name) for name in stacks]


def test_keys_and_values_as_optimum_knows_them_stay() -> None:
    model = packed(decoder())
    before = states(model.graph.inputs), states(model.graph.outputs)
    fuse(model)
    assert (states(model.graph.inputs), states(model.graph.outputs)) == before
    assert len(before[0]) == 4


def test_each_of_several_nodes_has_stacks_of_its_own() -> None:
    model = sketched(
        packed(decoder(layers=5), dense=("layers.2.attn_o",)), dict.fromkeys(range(5), 1)
    )
    fuse(model)
    found = {name: shape[0] for name, shape in states(model.graph.inputs).items()}
    assert found == {
        "past_layers.key_values": "6",
        "past_layers.sketch": "3",
        "past_layers.key_values.2": "4",
        "past_layers.sketch.2": "2",
    }


def test_a_piece_of_one_node_stays_with_a_note() -> None:
    dense = tuple(f"layers.0.{part}" for part in ("ffn_gate", "ffn_up"))
    model = packed(decoder(layers=1), dense=("layers.0.attn_o", *dense))
    reasons = [note.reason for note in fuse(model).notes]
    assert "It stands alone: nothing to fuse it with." in reasons
    assert ops(model).count("RMSNorm") == 1


def test_all_linears_dense_leaves_all_nodes_of_the_layers() -> None:
    model = decoder(layers=1)
    run_passes(model)
    before = ops(model)
    fuse(model)
    assert parts(fused(model)["fused"]) == LAST
    layers = [node.op_type for node in model.graph if LAYER in node.metadata_props]
    assert len(layers) == 11
    assert layers == [op for op in before if op not in ("Gather", "Transpose")][:11]


def test_packed_weights_replace_the_dense_ones_in_the_file() -> None:
    model = packed(decoder(layers=1))
    fuse(model)
    names = set(model.graph.initializers)
    assert "model.layers.0.mlp.up_proj.weight.int8" in names
    assert "model.layers.0.mlp.up_proj.weight" not in names
    assert "model.embed_tokens.weight" in names


def test_fusing_twice_changes_nothing() -> None:
    model = packed(decoder())
    fuse(model)
    before = ir.to_proto(model).SerializeToString(deterministic=True)
    assert not FuseNodes()(model).modified
    assert ir.to_proto(model).SerializeToString(deterministic=True) == before


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(
    "variant",
    [
        {},
        {"dense": ("layers.0.attn_o", "layers.1.attn_k")},
        {"layers": 3, "dense": DENSE_LAYER},
        {"head_norms": True},
        {"norms_behind": True},
        {"biases": True, "tied": False},
    ],
    ids=["whole", "pieces", "dense layer", "head norms", "norms behind", "biases"],
)
def test_the_fused_graph_computes_what_its_nodes_do(variant: dict[str, Any], case: str) -> None:
    options = {key: value for key, value in variant.items() if key != "dense"}
    dense = variant.get("dense", ())
    single = packed(decoder(**options), dense=dense, pack=True)
    model = packed(decoder(**options), dense=dense, pack=True)
    fuse(model)
    assert largest_error(session(single), session(model), case) < 1e-6
