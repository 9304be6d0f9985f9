from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
from decoders import CASES, decoder, largest_error, ops, run_passes, session

import tamiz_ops
from tamiz.graph import LAYER, SITE, TECHNIQUE, add_initializer, find_linear, replace_linear
from tamiz.site import SiteKind
from tamiz_passes.layer import FuseLayers
from tamiz_passes.sites import find_sites

PROGRAM = """\
RMSNorm epsilon=9.99999975e-06 : 0 1 -> 15
BlockMatMul bits=8 k=64 n=64 : 15 2 - - -> 16
BlockMatMul bits=8 k=64 n=32 : 15 3 - - -> 17
BlockMatMul bits=8 k=64 n=32 : 15 4 - - -> 18
Attention kv_heads=2 num_heads=4 : 16 17 18 5 6 7 8 9 -> 19 20 21
BlockMatMul bits=8 k=64 n=64 : 19 10 - - -> 22
RMSNorm epsilon=9.99999975e-06 : 0 11 22 -> 23 24
BlockMatMul bits=8 k=64 n=96 : 23 12 - - -> 25
BlockMatMul bits=8 k=64 n=96 : 23 13 - - -> 26
SwiGLU : 25 26 -> 27
BlockMatMul bits=8 k=96 n=64 : 27 14 - - -> 28"""


def packed(model: ir.Model, *, dense: tuple[str, ...] = (), pack: bool = False) -> ir.Model:
    """Recognises, and puts BlockMatMul at every linear of a layer but those in `dense`.

    Without `pack` the constants are empty: the graph can be looked at, not run.
    """
    run_passes(model)
    for site in find_sites(model)[0]:
        if site.kind is not SiteKind.LINEAR or site.id in dense:
            continue
        linear = find_linear(model, site)
        n, k = site.out_features, site.in_features
        weight = int8(linear.weight.const_value.numpy().T) if pack else np.zeros(1, np.uint8)
        value = add_initializer(model, f"{site.weight}.int8", weight)
        node = replace_linear(
            model,
            linear,
            "BlockMatMul",
            [linear.input, value, None, linear.bias],
            {"bits": 8, "n": n, "k": k},
        )
        node.metadata_props[TECHNIQUE] = "test"
    return model


def int8(weight: np.ndarray) -> np.ndarray:
    groups = weight.reshape(len(weight), -1, 32)
    scales = (np.abs(groups).max(-1) / 127).astype(np.float16)
    quants = np.rint(groups / scales[..., None].astype(np.float32)).clip(-127, 127)
    return tamiz_ops.pack_int8(quants.astype(np.int8).reshape(weight.shape), scales)


def fuse(model: ir.Model) -> FuseLayers:
    fusion = FuseLayers()
    fusion(model)
    return fusion


def fused(model: ir.Model) -> dict[str, ir.Node]:
    return {node.name or "": node for node in model.graph if node.op_type == "Fused"}


def stages(node: ir.Node) -> list[str]:
    return [line.split()[0] for line in node.attributes["program"].as_string().splitlines()]


def test_a_layer_becomes_one_node_with_its_program():
    model = packed(decoder())
    assert fuse(model).notes == []
    assert ops(model) == ["Gather", "Transpose", "Fused", "Fused", "MatMul"] or ops(model) == [
        "Gather",
        "Fused",
        "Fused",
        "Transpose",
        "MatMul",
    ]
    node = fused(model)["layers.0"]
    assert node.attributes["program"].as_string() == PROGRAM
    assert node.attributes["outputs"].as_ints() == (20, 21, 24, 28)
    assert [v.name for v in node.outputs] == [
        "present.0.key",
        "present.0.value",
        "/model/layers.0/Add_output_0",
        "/model/layers.0/mlp/down_proj/MatMul_output_0",
    ]


def test_the_last_layer_takes_the_final_norm_in():
    model = packed(decoder())
    fuse(model)
    node = fused(model)["layers.1"]
    assert stages(node)[-2:] == ["BlockMatMul", "RMSNorm"]
    assert node.attributes["program"].as_string().endswith(" -> 32 -")  # nobody wants the sum
    assert [v.name for v in node.outputs][2:] == ["/model/norm/Mul_1_output_0"]


def test_a_fused_node_tells_its_layer_sites_and_techniques():
    model = packed(decoder(layers=1))
    fuse(model)
    metadata = fused(model)["layers.0"].metadata_props
    assert metadata[LAYER] == "0"
    assert metadata[TECHNIQUE] == "test"
    parts = [
        "attn_q",
        "attn_k",
        "attn_v",
        "attention",
        "attn_o",
        "ffn_gate",
        "ffn_up",
        "ffn",
        "ffn_down",
    ]
    assert metadata[SITE] == ",".join(f"layers.0.{part}" for part in parts)


def test_a_dense_linear_splits_its_layer():
    model = packed(decoder(layers=1), dense=("layers.0.attn_o",))
    notes = fuse(model).notes
    assert [(n.node, n.reason) for n in notes] == [
        ("/model/layers.0/self_attn/o_proj/MatMul", "MatMul stays and splits layer 0.")
    ]
    pieces = {name: stages(node) for name, node in fused(model).items()}
    assert pieces == {
        "layers.0.attention_block": ["RMSNorm", *["BlockMatMul"] * 3, "Attention"],
        "layers.0.ffn_block": [
            "RMSNorm",
            "BlockMatMul",
            "BlockMatMul",
            "SwiGLU",
            "BlockMatMul",
            "RMSNorm",
        ],
    }


def test_a_piece_of_one_node_stays_with_a_note():
    dense = tuple(f"layers.0.{part}" for part in ("ffn_gate", "ffn_up"))
    model = packed(decoder(layers=1), dense=("layers.0.attn_o", *dense))
    reasons = [note.reason for note in fuse(model).notes]
    assert "It stands alone in layer 0: nothing to fuse it with." in reasons
    assert ops(model).count("RMSNorm") == 1


def test_all_linears_dense_leaves_all_nodes():
    model = decoder(layers=1)
    run_passes(model)
    before = ops(model)
    fuse(model)
    assert ops(model) == before


def test_packed_weights_replace_the_dense_ones_in_the_file():
    model = packed(decoder(layers=1))
    fuse(model)
    names = set(model.graph.initializers)
    assert "model.layers.0.mlp.up_proj.weight.int8" in names
    assert "model.layers.0.mlp.up_proj.weight" not in names
    assert "model.embed_tokens.weight" in names


def test_fusing_twice_changes_nothing():
    model = packed(decoder())
    fuse(model)
    before = ir.to_proto(model).SerializeToString(deterministic=True)
    assert not FuseLayers()(model).modified
    assert ir.to_proto(model).SerializeToString(deterministic=True) == before


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(
    "variant",
    [
        {},
        {"dense": ("layers.0.attn_o", "layers.1.attn_k")},
        {"head_norms": True},
        {"biases": True, "tied": False},
    ],
    ids=["whole layers", "pieces", "head norms", "biases"],
)
def test_the_fused_graph_computes_what_its_nodes_do(variant: dict[str, object], case: str):
    options = {key: value for key, value in variant.items() if key != "dense"}
    dense = variant.get("dense", ())
    single = packed(decoder(**options), dense=dense, pack=True)
    model = packed(decoder(**options), dense=dense, pack=True)
    fuse(model)
    assert largest_error(session(single), session(model), case) < 1e-6
