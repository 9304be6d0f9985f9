"""Finds the sites of a model: by structure first, by names where the structure does not say.

A decoder layer is what lies around one KV cache: the linears that feed its attention and the one
that reads it, then the feed-forward block. Layers have the numbers of their caches. Where
there is no cache, as in an encoder, a linear's place is in the name of its node:

    /encoder/layer.3/attention/self/query/MatMul  →  layers.3.attention.self.query
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace

import onnx_ir as ir

from tamiz.api import (
    DOMAIN,
    KEY_VALUES,
    LAYER,
    SITE,
    Note,
    Site,
    SiteKind,
    constant_weight,
    decodes,
    experts_of,
    input_of,
    is_of_experts,
    linear_at,
    stored_format,
)
from tamiz_passes.clean_up import name_nodes
from tamiz_passes.linears import no_linear, quantized_before
from tamiz_passes.soft_cap import logit_cap
from tamiz_passes.values import LAYOUT, operands, rank, scalar

_NAME = "sites"
_ATTENTION = ("attn_q", "attn_k", "attn_v", "attn_o")
_FFN = ("ffn_gate", "ffn_up", "ffn_down")

_NONLINEAR = frozenset({"Tanh", "Erf", "Sigmoid", "Gelu", "Relu", "Swish", "Softplus"})
#: Ops between the projections of a feed-forward block, and between the head and the logits.
_ELEMENTWISE = _NONLINEAR | {"Add", "Sub", "Mul", "Div", "Pow", "Cast", "Clip", "SwiGLU"}

_LAYER_NAME = re.compile(r"(?:layers|layer|blocks|block|blk|h)[./](\d+)[./]")
_CACHE = re.compile(re.escape(KEY_VALUES) + r"([0-9]+)\.(key|value)")
#: What follows the layer in the name of a linear that is no part of attention or feed-forward.
_OTHER = re.compile(
    r"((?:conv|linear_attn|mamba|laurel)[./].+?|self_attn[./]output_gate"
    r"|per_layer_(?:input_gate|projection))/(?:\w*MatMul|Gemm)(?:_\d+)?$"
)
#: What follows the layer in the name of a linear's node.
_REST = re.compile(r"(.+?)/(?:MatMul|Gemm)(?:_\d+)?$")
#: Tensor ids of the weights of experts by what the names of their nodes end with.
_OF_EXPERTS = {
    "gate_proj": "ffn_gate_exps",
    "up_proj": "ffn_up_exps",
    "down_proj": "ffn_down_exps",
}
_TENSOR_NAMES = {
    "attn_q": ("q_proj", "attn_q"),
    "attn_k": ("k_proj", "attn_k"),
    "attn_v": ("v_proj", "attn_v"),
    "attn_o": ("o_proj", "out_proj", "attn_output", "self_attn/dense"),
    "ffn_gate": ("gate_proj", "ffn_gate"),
    "ffn_up": ("up_proj", "ffn_up", "fc1"),
    "ffn_down": ("down_proj", "ffn_down", "fc2"),
}


@dataclass(frozen=True)
class _Role:
    """What a linear is. `tensor` is None where only the layer and a name are known."""

    tensor: str | None
    layer: int | None = None
    name: str = ""


def find_sites(model: ir.Model) -> tuple[list[Site], list[Note]]:
    """Finds the sites in graph order, and why other MatMul and Gemm nodes are none.

    Also gives every node a unique name, the nodes of a decoder layer their layer, and the nodes
    of sites their site as metadata.
    """
    name_nodes(model)
    linears: dict[ir.Node, None] = {}
    notes = []
    for node in model.graph:
        if stored_format(node) is not None and node.op_type == "BlockMatMul":
            linears[node] = None
        elif node.domain == "" and node.op_type in ("MatMul", "Gemm"):
            reason = no_linear(node)
            if reason is None:
                linears[node] = None
            else:
                notes.append(Note(_NAME, node.name or "", reason))
        elif (reason := quantized_before(node)) is not None:
            notes.append(Note(_NAME, node.name or "", reason))
    roles = _Roles(model, linears).find()
    _mark_layers(model, roles)
    found = [*_weight_sites(model, linears, roles), *_composite_sites(roles)]
    layers = len({role.layer for role in roles.values() if role.layer is not None})
    used = Counter(site.weight for site in found if site.weight)
    shared = {weight for weight, sites_of_it in used.items() if sites_of_it > 1}
    decoder = decodes(v.name for v in model.graph.inputs if not v.is_initializer())
    sites = [
        replace(site, layers=layers, shared=site.weight in shared, decoder=decoder)
        for site in found
    ]
    order = {node.name: index for index, node in enumerate(model.graph)}
    sites.sort(key=lambda site: (order[site.node], bool(site.members)))
    nodes = {node.name: node for node in model.graph}
    for site in sites:
        nodes[site.node].metadata_props.setdefault(SITE, site.id)
    return sites, notes


class _Roles:
    """Assigns tensor ids and layers to linears."""

    def __init__(self, model: ir.Model, linears: dict[ir.Node, None]) -> None:
        self.model = model
        self.linears = linears
        self.roles: dict[ir.Node, _Role] = {}

    def find(self) -> dict[ir.Node, _Role]:
        for node in self.model.graph:
            if _is_embedding(node):
                self.assign(node, "tok_embd", None)
        self.head()
        keys = _keys(self.model.graph)
        for layer, key in keys.items():
            self.attention(layer, key)
        if keys:
            self.by_place(_OTHER)
            self.by_name()
            self.feed_forward()
        else:
            self.by_place(_REST)
        self.experts()
        return self.roles

    def assign(self, node: ir.Node | None, tensor: str, layer: int | None) -> None:
        """Gives a role that is still free to a linear that has none."""
        taken = _Role(tensor, layer) in self.roles.values()
        if node is not None and node not in self.roles and not taken:
            self.roles[node] = _Role(tensor, layer)

    def head(self) -> None:
        for output in self.model.graph.outputs:
            if output.name == "logits":
                found = list(self.behind(output, _ELEMENTWISE | LAYOUT))
                if len(found) == 1:
                    self.assign(found[0], "output", None)

    def attention(self, layer: int, key: ir.Value) -> None:
        """The linears around the tamiz.Attention that has this past key, if it was recognised."""
        for node in key.consumers():
            if node.domain != DOMAIN or node.op_type != "Attention":
                continue
            for value, tensor in zip(operands(node), _ATTENTION[:3], strict=False):
                found = list(self.behind(value, frozenset({"Add", "RMSNorm"})))
                if len(found) == 1:
                    self.assign(found[0], tensor, layer)
            consumers = [n for n in node.outputs[0].consumers() if n in self.linears]
            if len(consumers) == 1:
                self.assign(consumers[0], "attn_o", layer)

    def experts(self) -> None:
        """The products with experts, whose weights are packed as their source stores them."""
        for node in filter(is_of_experts, self.model.graph):
            layer = _LAYER_NAME.search(node.name or "")
            tensor = _OF_EXPERTS.get((node.name or "").rpartition("/")[2])
            if layer is not None and tensor is not None and "format" in node.attributes:
                self.assign(node, tensor, int(layer.group(1)))

    def by_name(self) -> None:
        for node in self.linears:
            for name in (node.name or "", linear_at(node).weight.name or ""):
                layer = _LAYER_NAME.search(name)
                for tensor, words in _TENSOR_NAMES.items():
                    if layer is not None and any(word in name for word in words):
                        self.assign(node, tensor, int(layer.group(1)))

    def by_place(self, names: re.Pattern[str]) -> None:
        """Layers and names of linears around no cache; `names` matches behind the layer."""
        for node in self.linears:
            name = node.name or ""
            layer = _LAYER_NAME.search(name)
            rest = names.match(name, layer.end()) if layer else None
            if layer and rest and node not in self.roles:
                self.roles[node] = _Role(None, int(layer.group(1)), rest.group(1).replace("/", "."))

    def feed_forward(self) -> None:
        """Down is what reads gate and up (or up alone) through elementwise ops only."""
        layer = -1
        inputs = {n.inputs[0]: r.layer for n, r in self.roles.items() if r.tensor == "attn_q"}
        for node in self.model.graph:
            role = self.roles.get(node)
            if role is not None and role.tensor == "attn_o" and role.layer is not None:
                layer = role.layer
            if role is not None or node not in self.linears or node.inputs[0] is None:
                continue
            found = self.behind(node.inputs[0], _ELEMENTWISE)
            sources = {n.inputs[0] for n in found}
            gates = [n for n, nonlinear in found.items() if nonlinear]
            ups = [n for n in found if n not in gates] or gates
            if len(sources) != 1 or not gates or len(ups) != 1 or len(gates) != 1:
                continue
            own = inputs.get(sources.pop())  # attention and feed-forward side by side
            number = own if own is not None else layer
            if number >= 0:
                self.assign(ups[0], "ffn_up", number)
                self.assign(gates[0], "ffn_gate", number)
                self.assign(node, "ffn_down", number)

    def behind(self, value: ir.Value, ops: frozenset[str]) -> dict[ir.Node, bool]:
        """The linears that `value` comes from through `ops`, and whether a nonlinearity is between.

        Empty if it also comes from somewhere else, constants apart.
        """
        found: dict[ir.Node, bool] = {}
        stack = [(value, False)]
        while stack:
            value, nonlinear = stack.pop()
            node = value.producer()
            if value.is_initializer() or scalar(value) is not None:
                continue
            if node in self.linears:
                found[node] = found.get(node, False) or nonlinear
            elif node is None or node.op_type not in ops:
                return {}
            elif node.op_type == "SwiGLU":
                gate, *up = operands(node)
                stack += [(gate, True), *((v, nonlinear) for v in up)]
            else:
                inside = nonlinear or node.op_type in _NONLINEAR
                data = operands(node)[:1] if node.op_type in LAYOUT else operands(node)
                stack += [(v, inside) for v in data]
        return found


def _keys(graph: ir.Graph) -> dict[int, ir.Value]:
    """The pasts of keys by their layers, which their names say, or their places."""
    caches = [value for value in graph.inputs if rank(value) == 4]
    named = {value: _CACHE.fullmatch(value.name or "") for value in caches}
    found = [(int(m[1]), value) for value, m in named.items() if m and m[2] == "key"]
    if not all(named.values()):
        return dict(enumerate(caches[::2]))
    return dict(sorted(found, key=lambda pair: pair[0]))


def _is_embedding(node: ir.Node) -> bool:
    if node.op_type == "BlockGather" and stored_format(node) is not None:
        return node.inputs[0] is not None and node.inputs[0].name == "input_ids"
    if node.op_type != "Gather" or node.domain != "":
        return False
    source, ids = constant_weight(node.inputs[0]), node.inputs[1]
    axis = node.attributes.get("axis")
    return (
        source is not None
        and rank(source[0]) == 2
        and source[0].dtype == ir.DataType.FLOAT
        and ids is not None
        and ids.is_graph_input()
        and ids.name == "input_ids"
        and (axis is None or axis.as_int() == 0)
    )


def _weight_sites(
    model: ir.Model, linears: dict[ir.Node, None], roles: dict[ir.Node, _Role]
) -> Iterator[Site]:
    """Sites of linears, head and embedding."""
    taken: set[str] = set()
    for node in model.graph:
        role = roles.get(node)
        if role is None and node not in linears:
            continue
        table = 0 if node.op_type == "Gather" else 1
        source = constant_weight(node.inputs[table])
        assert source is not None
        weight, transposed = source
        experts, top = experts_of(node)
        format = node.attributes["format"].as_string() if experts else stored_format(node)
        if format is not None:
            stored_as_nk = True
            rows, columns = (node.attributes[name].as_int() for name in "nk")
        else:
            attribute = node.attributes.get("transB")
            flipped = attribute is not None and attribute.as_int() == 1
            stored_as_nk = transposed != flipped if table else not transposed
            assert weight.shape is not None
            rows, columns = int(weight.shape[0]), int(weight.shape[1])  # type: ignore[arg-type]
        layer = node.metadata_props.get(LAYER)
        yield Site(
            id=_unique(_site_id(role, weight), taken),
            kind=_KINDS.get(role.tensor or "", SiteKind.LINEAR) if role else SiteKind.LINEAR,
            node=node.name or "",
            layer=role.layer if role else (None if layer is None else int(layer)),
            tensor=role.tensor if role else None,
            weight=weight.name,
            in_features=columns if stored_as_nk else rows,
            out_features=rows if stored_as_nk else columns,
            transposed=stored_as_nk,
            format=format,
            logit_cap=logit_cap(model) if role and role.tensor == "output" else 0.0,
            experts=experts,
            top=top,
        )


_KINDS = {
    "output": SiteKind.HEAD,
    "tok_embd": SiteKind.EMBEDDING,
    **dict.fromkeys(_OF_EXPERTS.values(), SiteKind.EXPERTS),
}


def _site_id(role: _Role | None, weight: ir.Value) -> str:
    if role is None:
        return f"linear.{weight.name}"
    name = role.tensor or role.name
    return name if role.layer is None else f"layers.{role.layer}.{name}"


def _unique(name: str, taken: set[str]) -> str:
    """`name`, with a number where a shared weight has several sites."""
    found, count = name, 1
    while found in taken:
        count += 1
        found = f"{name}.{count}"
    taken.add(found)
    return found


def _composite_sites(roles: dict[ir.Node, _Role]) -> Iterator[Site]:
    """Feed-forward blocks and attentions of the layers that have all their linears."""
    nodes = {(role.layer, role.tensor): node for node, role in roles.items()}
    for layer in sorted({role.layer for role in roles.values() if role.layer is not None}):
        has = [t for t in (*_ATTENTION, *_FFN) if (layer, t) in nodes]
        for kind, tensors, op_type, last in (
            (SiteKind.ATTENTION, _ATTENTION, "Attention", "attn_o"),
            (SiteKind.FFN, _FFN, "SwiGLU", "ffn_down"),
        ):
            members = [t for t in tensors if t in has]
            if last not in members or len(members) < (4 if kind is SiteKind.ATTENTION else 2):
                continue
            node = nodes[layer, last]
            before = node.inputs[0].producer() if node.inputs[0] is not None else None
            if before is not None and before.domain == DOMAIN and before.op_type == op_type:
                node = before
            heads, head_size = _heads(node)
            yield Site(
                id=f"layers.{layer}.{kind.value}",
                kind=kind,
                node=node.name or "",
                layer=layer,
                members=tuple(f"layers.{layer}.{t}" for t in members),
                head_size=head_size,
                heads=heads,
            )


def _heads(node: ir.Node) -> tuple[int, int]:
    """Query heads of a tamiz.Attention and their size; 0 of another node."""
    if (node.domain, node.op_type) != (DOMAIN, "Attention"):
        return 0, 0
    past_key = input_of(node, "past_key")
    size = 0 if past_key is None or past_key.shape is None else past_key.shape[3]
    return node.attributes["num_heads"].as_int(), size if isinstance(size, int) else 0


def _mark_layers(model: ir.Model, roles: dict[ir.Node, _Role]) -> None:
    """Gives the nodes of layers their layer: that of the earliest linear that depends on them.

    Only what activations flow through is marked; masks and rotary tables serve all layers.
    """
    stream: set[ir.Node] = set()
    for node in model.graph:
        fed = any(v.producer() in stream for v in operands(node)) and node.op_type != "Shape"
        if fed or node in roles:
            stream.add(node)
    layers: dict[ir.Node, int] = {}
    for node in reversed(model.graph):
        role = roles.get(node)
        if role is not None:
            if role.layer is not None:
                layers[node] = role.layer
        elif node in stream:
            after = [layers[n] for v in node.outputs for n in v.consumers() if n in layers]
            if after:
                layers[node] = min(after)
    for node, layer in layers.items():
        node.metadata_props[LAYER] = str(layer)
