from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from kit.decoders import (
    FFN,
    HEAD_DIM,
    HIDDEN,
    LAYER_SITES,
    VOCABULARY,
    constant,
    decoder,
    node_named,
    run_passes,
)
from tamiz.api.editing import GraphEditor
from tamiz.api.linear import weight_array
from tamiz.api.site import Site, SiteKind
from tamiz.interface.metadata import LAYER, SITE
from tamiz_passes.plugin import tamiz_find_sites
from tamiz_passes.sites import find_sites


def sites_of(model: ir.Model) -> dict[str, Site]:
    return {site.id: site for site in find_sites(model)[0]}


def graph(body: str, constants: str = "", opset: int = 18) -> ir.Model:
    text = f"""
    <ir_version: 8, opset_import: ["" : {opset}]>
    linears (float[B, 4] x) => (float[B, N] y)
    <float[4, 2] w = {{1, 2, 3, 4, 5, 6, 7, 8}}, float[2, 4] v = {{1, 2, 3, 4, 5, 6, 7, 8}},
     float[2] b = {{1, 2}} {constants}> {{ {body} }}
    """
    return ir.from_proto(onnx.parser.parse_model(text))


def test_a_decoder_has_the_sites_of_its_layers_in_graph_order() -> None:
    model = decoder()
    run_passes(model)
    expected = [f"layers.{layer}.{part}" for layer in range(2) for part in LAYER_SITES]
    assert [site.id for site in find_sites(model)[0]] == ["tok_embd", *expected, "output"]


def test_a_site_tells_its_weight_and_its_shape() -> None:
    model = decoder()
    run_passes(model)
    sites = sites_of(model)
    assert sites["layers.1.attn_k"] == Site(
        "layers.1.attn_k",
        SiteKind.LINEAR,
        "/model/layers.1/self_attn/k_proj/MatMul",
        layer=1,
        tensor="attn_k",
        weight="model.layers.1.self_attn.k_proj.weight",
        in_features=HIDDEN,
        out_features=2 * HEAD_DIM,
        layers=2,
    )
    table = sites["tok_embd"]
    assert (table.kind, table.layer, table.tensor) == (SiteKind.EMBEDDING, None, "tok_embd")
    assert (table.in_features, table.out_features, table.transposed) == (HIDDEN, VOCABULARY, True)


def test_a_head_tells_the_soft_cap_of_its_logits() -> None:
    model = decoder(layers=1, logit_cap=30.0)
    run_passes(model)
    assert sites_of(model)["output"].logit_cap == 30
    assert {site.logit_cap for name, site in sites_of(model).items() if name != "output"} == {0}
    model = decoder(layers=1)
    run_passes(model)
    assert sites_of(model)["output"].logit_cap == 0


def test_a_tanh_with_other_factors_is_no_soft_cap_of_the_logits() -> None:
    model = decoder(layers=1, logit_cap=30.0)
    node_named(model, "/lm_head/soft_cap/Div").replace_input_with(1, constant(model, "c", 20.0))
    run_passes(model)
    assert sites_of(model)["output"].logit_cap == 0


def test_a_tied_head_is_a_site_on_the_embedding_and_an_untied_one_on_its_own_weight() -> None:
    for tied, weight, transposed in (
        (True, "model.embed_tokens.weight", True),
        (False, "lm_head.weight", False),
    ):
        model = decoder(layers=1, tied=tied)
        run_passes(model)
        head = sites_of(model)["output"]
        assert (head.kind, head.weight, head.transposed) == (SiteKind.HEAD, weight, transposed)
        assert (head.in_features, head.out_features) == (HIDDEN, VOCABULARY)
        array = weight_array(GraphEditor(model).linear(head), head)
        stored = model.graph.initializers[weight].const_value.numpy()
        np.testing.assert_array_equal(array, stored if tied else stored.T)


def test_composite_sites_name_their_members_and_the_recognised_node() -> None:
    model = decoder(layers=1)
    run_passes(model)
    sites = sites_of(model)
    attention, ffn = sites["layers.0.attention"], sites["layers.0.ffn"]
    assert (attention.kind, ffn.kind) == (SiteKind.ATTENTION, SiteKind.FFN)
    assert attention.node == "/model/layers.0/self_attn/Attention"
    assert ffn.node == "/model/layers.0/mlp/SwiGLU"
    parts: tuple[str, ...] = ("attn_q", "attn_k", "attn_v", "attn_o")
    assert attention.members == tuple(f"layers.0.{part}" for part in parts)
    assert (attention.head_size, ffn.head_size) == (16, 0)
    parts = ("ffn_gate", "ffn_up", "ffn_down")
    assert ffn.members == tuple(f"layers.0.{part}" for part in parts)
    assert (ffn.weight, ffn.in_features, ffn.out_features) == (None, 0, 0)


def test_structure_names_the_sites_where_names_say_nothing() -> None:
    model = decoder()
    run_passes(model)
    expected = list(sites_of(model))
    for index, value in enumerate(list(model.graph.initializers.values())):
        value.name = f"onnx::MatMul_{index}"
    for index, node in enumerate(model.graph):
        node.name = f"n{index}"
    assert list(sites_of(model)) == expected


def test_names_are_enough_where_nothing_was_recognised() -> None:
    model = decoder()
    sites, notes = tamiz_find_sites(model)
    assert sorted(site.id for site in sites) == sorted(
        ["tok_embd", "output"] + [f"layers.{n}.{part}" for n in range(2) for part in LAYER_SITES]
    )
    nodes = {site.id: site.node for site in sites}
    assert nodes["layers.0.attention"] == "/model/layers.0/self_attn/o_proj/MatMul"
    assert nodes["layers.1.ffn"] == "/model/layers.1/mlp/down_proj/MatMul"
    assert [note.reason for note in notes] == ["Both operands are computed."] * 4


def test_a_bias_belongs_to_its_linear() -> None:
    model = decoder(layers=1, biases=True)
    run_passes(model)
    linear = GraphEditor(model).linear(sites_of(model)["layers.0.attn_q"])
    assert linear.bias.name == "model.layers.0.self_attn.q_proj.bias"
    assert linear.output.producer().op_type == "Add"
    assert GraphEditor(model).linear(sites_of(model)["layers.0.attn_o"]).bias is None


def test_nodes_of_a_layer_and_of_a_site_are_marked() -> None:
    model = decoder()
    run_passes(model)
    for node in model.graph:
        name = node.name or ""
        layer = name.split("/layers.")[1].split("/")[0] if "/layers." in name else None
        assert node.metadata_props.get(LAYER) == layer, name
    marked = {n.metadata_props[SITE] for n in model.graph if SITE in n.metadata_props}
    assert marked == set(sites_of(model))


def test_gated_feed_forwards_with_another_activation_are_found() -> None:
    model = decoder(layers=1)
    sigmoid = node_named(model, "/model/layers.0/mlp/act_fn/Sigmoid")
    sigmoid.op_type = "Tanh"
    for node in model.graph:
        node.name = (node.name or "").replace("_proj", "")
    run_passes(model)
    sites = sites_of(model)
    assert sites["layers.0.ffn_gate"].weight == "model.layers.0.mlp.gate_proj.weight"
    assert sites["layers.0.ffn"].node == "/model/layers.0/mlp/down/MatMul"


def test_a_feed_forward_without_a_gate_is_found() -> None:
    """down(relu(up(x)))"""
    model = decoder(layers=1)
    relu = node_named(model, "/model/layers.0/mlp/act_fn/Sigmoid")
    relu.op_type = "Relu"
    node_named(model, "/model/layers.0/mlp/down_proj/MatMul").replace_input_with(0, relu.outputs[0])
    for node in model.graph:
        node.name = (node.name or "").replace("_proj", "")
    for value in list(model.graph.initializers.values()):
        value.name = value.name.replace("_proj", "")
    run_passes(model)
    sites = sites_of(model)
    assert sites["layers.0.ffn_up"].weight == "model.layers.0.mlp.gate.weight"
    assert sites["layers.0.ffn"].members == ("layers.0.ffn_up", "layers.0.ffn_down")


def test_an_unknown_graph_has_linears_named_after_their_weights() -> None:
    model = graph("h = MatMul(x, w) y = MatMul(h, v)")
    sites, notes = find_sites(model)
    assert [(s.id, s.kind, s.layer, s.tensor) for s in sites] == [
        ("linear.w", SiteKind.LINEAR, None, None),
        ("linear.v", SiteKind.LINEAR, None, None),
    ]
    assert [(s.in_features, s.out_features, s.transposed) for s in sites] == [
        (4, 2, False),
        (2, 4, False),
    ]
    assert notes == []


def test_a_shared_weight_has_a_site_for_every_use() -> None:
    sites, _ = find_sites(graph("h = MatMul(x, w) g = MatMul(h, v) y = MatMul(g, w)"))
    assert [site.id for site in sites] == ["linear.w", "linear.v", "linear.w.2"]


def test_weights_are_found_behind_identity_and_transpose() -> None:
    sites, _ = find_sites(graph("i = Identity(v) t = Transpose(i) y = MatMul(x, t)"))
    (site,) = sites
    assert (site.id, site.in_features, site.out_features) == ("linear.v", 4, 2)
    assert site.transposed


@pytest.mark.parametrize(
    ("body", "transposed"),
    [
        ("y = Gemm(x, w, b)", False),
        ("y = Gemm<transB = 1>(x, v, b)", True),
        ("t = Transpose(w) y = Gemm<transB = 1>(x, t)", False),
    ],
)
def test_a_gemm_is_a_site(body: str, transposed: bool) -> None:
    model = graph(body)
    (site,) = find_sites(model)[0]
    assert (site.in_features, site.out_features, site.transposed) == (4, 2, transposed)
    linear = GraphEditor(model).linear(site)
    assert weight_array(linear, site).shape == (2, 4)
    assert (linear.bias.name if linear.bias else None) == ("b" if "b)" in body else None)


REFUSALS = {
    "y = MatMul(x, x)": "Both operands are computed.",
    "y = MatMul(v, x)": "The constant is the first operand, expected the second.",
    "y = MatMul(x, batch)": "The weight batch has shape [1,4,2], expected [K, N].",
    "c = Cast<to = 11>(x) y = MatMul(c, wide)": "The weight wide is DOUBLE, expected FLOAT.",
    "y = Gemm<alpha = 0.5>(x, w)": "Gemm has alpha = 0.5, expected 1.0.",
    "y = Gemm<beta = 2.0>(x, w, b)": "Gemm has beta = 2.0, expected 1.0.",
    "y = Gemm<transA = 1>(x, w)": "Gemm has transA = 1, expected 0.",
    "c = MatMul(x, w) y = Gemm(x, w, c)": "Gemm adds something else than a constant vector.",
    "y = Gemm(x, w, one)": "Gemm adds a vector of 1 elements, expected 2.",
}


@pytest.mark.parametrize("body", REFUSALS)
def test_what_is_no_site_says_why(body: str) -> None:
    constants = """, float[1, 4, 2] batch = {1, 2, 3, 4, 5, 6, 7, 8},
        double[4, 2] wide = {1, 2, 3, 4, 5, 6, 7, 8}, float[1] one = {1}"""
    notes = find_sites(graph(body, constants))[1]
    assert [note.reason for note in notes] == [REFUSALS[body]]


OF_ANOTHER_TOOL = {
    "q = DequantizeLinear(w8, scale) y = MatMul(x, q)": "Its weight comes from DequantizeLinear",
    "q = DequantizeLinear(v8, scale) t = Transpose(q) y = MatMul(x, t)": "Its weight comes from",
    "i = Cast<to = 2>(x) y = MatMulInteger(i, w8)": "MatMulInteger has a weight",
    "y = com.microsoft.MatMulNBits(x, w8)": "MatMulNBits has a weight",
    "y = com.microsoft.DynamicQuantizeMatMul(x, w8)": "DynamicQuantizeMatMul has a weight",
    "y = com.microsoft.GatherBlockQuantized(w8, x)": "GatherBlockQuantized has a weight",
}


@pytest.mark.parametrize("body", OF_ANOTHER_TOOL)
def test_a_weight_that_another_tool_quantised_is_noted(body: str) -> None:
    constants = """, uint8[4, 2] w8 = {1, 2, 3, 4, 5, 6, 7, 8}, float scale = {2},
        uint8[2, 4] v8 = {1, 2, 3, 4, 5, 6, 7, 8}"""
    sites, (note,) = find_sites(graph(body, constants))
    assert not sites
    assert note.reason.startswith(OF_ANOTHER_TOOL[body])
    assert "that another tool quantised, and stays as it is" in note.reason


def test_a_weight_that_a_run_can_set_is_no_site() -> None:
    model = graph("y = MatMul(x, w)")
    model.graph.inputs.append(model.graph.initializers["w"])
    sites, (note,) = find_sites(model)
    assert not sites
    assert note.reason == "The weight w is an input of the graph, so a run may set it."


def test_both_projections_of_a_feed_forward_read_the_same_width() -> None:
    model = decoder(layers=1)
    run_passes(model)
    sites = sites_of(model)
    for part in ("ffn_gate", "ffn_up"):
        assert sites[f"layers.0.{part}"].out_features == FFN
    assert sites["layers.0.ffn_down"].in_features == FFN


@pytest.mark.parametrize(
    ("name", "site", "layer"),
    [
        ("/encoder/layer.3/attention/self/query/MatMul", "layers.3.attention.self.query", 3),
        ("/encoder/layer.3/output/dense/MatMul_1", "layers.3.output.dense", 3),
        ("/layers.11/mlp/Wo/Gemm", "layers.11.mlp.Wo", 11),
        ("/encoder/block.2/layer.0/SelfAttention/q/MatMul", "layers.2.layer.0.SelfAttention.q", 2),
        ("/encoder/albert_layers.0/ffn/MatMul", "layers.0.ffn", 0),
        ("/pooler/dense/MatMul", "linear.w", None),
        ("/encoder/layer.3/MatMul", "linear.w", None),
    ],
)
def test_without_a_cache_a_linear_is_named_by_its_place(
    name: str, site: str, layer: int | None
) -> None:
    model = graph("y = MatMul(x, w)")
    model.graph[0].name = name
    (found,) = find_sites(model)[0]
    assert (found.id, found.layer, found.tensor) == (site, layer, None)
    assert model.graph[0].metadata_props.get(LAYER) == (None if layer is None else str(layer))


def test_linears_at_one_place_stay_apart() -> None:
    model = graph(
        "t = MatMul(x, w) u = Add(t, b) y = MatMul(u, q)", ", float[2, 2] q = {1, 2, 3, 4}"
    )
    model.graph[0].name, model.graph[2].name = "/layer.0/ffn/MatMul", "/layer.0/ffn/MatMul_1"
    assert [site.id for site in find_sites(model)[0]] == ["layers.0.ffn", "layers.0.ffn.2"]


def test_more_dimensions_than_the_ops_take_are_no_site() -> None:
    text = """
    <ir_version: 8, opset_import: ["" : 18]>
    linears (float[A, B, C, D, E, F, G, H, 4] x) => (float[A, B, C, D, E, F, G, H, 2] y)
    <float[4, 2] w = {1, 2, 3, 4, 5, 6, 7, 8}> { y = MatMul(x, w) }
    """
    model = ir.from_proto(onnx.parser.parse_model(text))
    sites, notes = find_sites(model)[:2]
    assert list(sites) == []
    assert [note.reason for note in notes] == ["x has 9 dimensions, expected at most 8."]
