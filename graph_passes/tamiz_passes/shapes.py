"""Shapes and types of values: by ONNX's shape inference, and by rules for ops of ONNX Runtime.

The rules are registered as schemas for the time of one inference, so that ONNX's own inference
goes through ops that it does not know. A dimension that is not known gets a name of its own, which
values have in common where they must have the dimension in common.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any

import onnx_ir as ir

from tamiz.api import DOMAIN, INFERRED

if TYPE_CHECKING:
    import onnx
    from onnx.defs import OpSchema

#: Elements of the largest constant whose contents shape inference sees.
_SMALL = 256
_MICROSOFT = "com.microsoft"
#: Ops whose first output is like their first input.
_LIKE_FIRST = (
    *("BiasGelu", "FastGelu", "Gelu", "QuickGelu", "RotaryEmbedding", "GatedRelativePositionBias"),
    *("MultiHeadAttention", "GemmaRotaryEmbedding", "BiasAdd", "NhwcMaxPool"),
)
_OWN_LIKE_FIRST = (
    "RMSNorm",
    "LayerNorm",
    "Sum",
    "SwiGLU",
    "Scale",
    "SelectiveScan",
    "TextAttention",
)
#: Norms that give their input's sum with a residual as fourth output.
_SKIP_NORMS = ("SkipLayerNormalization", "SkipSimplifiedLayerNormalization")
#: Ops of the standard domain that only ONNX Runtime knows.
_STANDARD = ("SimplifiedLayerNormalization",)


def infer_shapes(model: ir.Model) -> None:
    """Gives the values of the main graph the types and shapes that can be inferred.

    Inputs and outputs of the graph stay as they are declared. Values get the mark `INFERRED`, so
    that a built model declares no more than its source: onnxruntime's own optimiser breaks some
    graphs whose shapes are declared.
    """
    import onnx

    _forget_made_names(model.graph)
    with _without_weights(model), _known_to_onnx():
        proto = ir.to_proto(model)
        try:
            inferred = onnx.shape_inference.infer_shapes(proto, data_prop=True)
        except Exception:  # a class of its own, or protobuf's where the model is too large
            return
    found = {info.name: info.type for info in inferred.graph.value_info}
    for node in model.graph:
        for value in node.outputs:
            if value.name in found and not value.is_graph_output():
                _set(value, found[value.name])


def _forget_made_names(graph: ir.Graph) -> None:
    """Takes off the names that an earlier inference gave to dimensions that it did not know."""
    for node in graph:
        for value in node.outputs:
            shape = value.shape
            if shape is not None and not value.is_graph_output() and any(map(_is_made, shape)):
                value.shape = ir.Shape([None if _is_made(dim) else dim for dim in shape])


def _is_made(dim: int | ir.SymbolicDim) -> bool:
    return not isinstance(dim, int) and (dim.value or "").startswith("unk__")


def _set(value: ir.Value, found: onnx.TypeProto) -> None:
    kind = ir.serde.deserialize_type_proto_for_type(found)
    shape = ir.serde.deserialize_type_proto_for_shape(found)
    if value.type is None or value.shape is None:
        value.meta[INFERRED] = True
    value.type = value.type or kind
    if shape is not None:
        value.shape = shape


@contextmanager
def _without_weights(model: ir.Model) -> Iterator[None]:
    """Makes inputs of large constants, so that they are not read."""
    graph, all_of_them = model.graph, list(model.graph.initializers.values())
    large = [v for v in all_of_them if v.const_value is None or v.const_value.size > _SMALL]
    added = [value for value in large if not value.is_graph_input()]
    for value in large:
        del graph.initializers[value.name or ""]
    graph.inputs.extend(added)
    try:
        yield
    finally:
        for value in added:
            graph.inputs.remove(value)
        graph.initializers.clear()
        for value in all_of_them:  # in their old order
            graph.initializers.add(value)


@contextmanager
def _known_to_onnx() -> Iterator[None]:
    """Registers the rules as schemas."""
    import onnx.defs

    for schema in _schemas():
        onnx.defs.register_schema(schema)
    try:
        yield
    finally:
        for schema in _schemas():
            onnx.defs.deregister_schema(schema.name, schema.since_version, schema.domain)


@cache
def _schemas() -> Sequence[OpSchema]:
    like = [_schema(name, _MICROSOFT, _like_first) for name in _LIKE_FIRST]
    like += [_schema(name, "", _like_first) for name in _STANDARD]
    return (
        *like,
        *(_schema(name, _MICROSOFT, _skip_norm) for name in _SKIP_NORMS),
        _schema("FusedMatMul", _MICROSOFT, _fused_matmul),
        _schema("Attention", _MICROSOFT, _packed_attention),
        _schema("EmbedLayerNormalization", _MICROSOFT, _embed),
        _schema("GroupQueryAttention", _MICROSOFT, _grouped_query_attention),
        _schema("MatMulNBits", _MICROSOFT, _matmul_nbits),
        _schema("GatherBlockQuantized", _MICROSOFT, _gather_block_quantized),
        _schema("DynamicQuantizeMatMul", _MICROSOFT, _matmul),
        _schema("MatMulIntegerToFloat", _MICROSOFT, _matmul_to_float),
        *(_schema(name, DOMAIN, _like_first) for name in _OWN_LIKE_FIRST),
        _schema("GatedDeltaNet", DOMAIN, _like_second),
        _schema("Mamba2", DOMAIN, _mamba2),
        _schema("ShortConv", DOMAIN, _like_third),
        *(_schema(name, DOMAIN, _rows_of_n) for name in ("BlockMatMul", "ChannelMatMul")),
        _schema("Attention", DOMAIN, _attention),
        _schema("ExpertMatMul", DOMAIN, _expert_matmul),
        _schema("ExpertSum", DOMAIN, _expert_sum),
    )


def _schema(name: str, domain: str, infer: Any) -> OpSchema:
    from onnx.defs import OpSchema

    def port(kind: str) -> OpSchema.FormalParameter:
        option = OpSchema.FormalParameterOption.Variadic
        return OpSchema.FormalParameter(
            kind, kind, param_option=option, is_homogeneous=False, min_arity=0
        )

    kinds = [f"tensor({kind})" for kind in _KINDS]
    constraints = [("x", kinds, ""), ("y", kinds, "")]
    schema = OpSchema(
        name, domain, 1, inputs=[port("x")], outputs=[port("y")], type_constraints=constraints
    )
    schema.set_type_and_shape_inference_function(infer)
    return schema


_KINDS = (
    *("float", "float16", "bfloat16", "double", "bool", "string"),
    *("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
)


def _like_first(context: Any) -> None:
    first = context.get_input_type(0)
    if first is not None:
        context.set_output_type(0, first)


def _like_second(context: Any) -> None:
    second = context.get_input_type(1)
    if second is not None:
        context.set_output_type(0, second)


def _like_third(context: Any) -> None:
    third = context.get_input_type(2)
    if third is not None:
        context.set_output_type(0, third)


def _mamba2(context: Any) -> None:
    """The columns of the projection without those of the convolution and of the heads."""
    if found := _tensors(context, 0, 1, 2):
        *rows, columns = found[0].shape.dim
        others = found[1].shape.dim[1].dim_value + found[2].shape.dim[0].dim_value
        _give(context, found[0].elem_type, *rows, columns.dim_value - others)


def _skip_norm(context: Any) -> None:
    _like_first(context)
    if context.get_num_outputs() > 3 and (first := context.get_input_type(0)) is not None:
        context.set_output_type(3, first)


def _tensors(context: Any, *indices: int) -> list[Any] | None:
    """The tensor types of these inputs; None where a shape is not known."""
    found = [context.get_input_type(index) for index in indices]
    if any(kind is None or not kind.tensor_type.HasField("shape") for kind in found):
        return None
    return [kind.tensor_type for kind in found]


def _give(context: Any, element: int, *dims: Any) -> None:
    """Sets the first output: dimensions of other values, or numbers."""
    import onnx

    kind = onnx.TypeProto()
    kind.tensor_type.elem_type = element
    kind.tensor_type.shape.SetInParent()
    for dim in dims:
        added = kind.tensor_type.shape.dim.add()
        if isinstance(dim, int):
            added.dim_value = dim
        else:
            added.CopyFrom(dim)
    context.set_output_type(0, kind)


def _integer(context: Any, name: str, default: int) -> int:
    attribute = context.get_attribute(name)
    return default if attribute is None else int(attribute.i)


def _product(context: Any, element: int, a: Any, b: Any) -> None:
    """``[..., M, K]`` times ``[..., K, N]`` of ranks that broadcast nothing but b."""
    left, right = list(a.shape.dim), list(b.shape.dim)
    if len(left) >= 2 and (len(right) == 2 or [*left[:-2]] == [*right[:-2]]):
        _give(context, element, *left[:-1], right[-1])


def _matmul(context: Any) -> None:
    if found := _tensors(context, 0, 1):
        _product(context, found[0].elem_type, *found)


def _matmul_to_float(context: Any) -> None:
    if found := _tensors(context, 0, 1):
        scale = context.get_input_type(2)
        _product(context, 1 if scale is None else scale.tensor_type.elem_type, *found)


def _fused_matmul(context: Any) -> None:
    found = _tensors(context, 0, 1)
    batched = any(_integer(context, name, 0) for name in ("transBatchA", "transBatchB"))
    if not found or batched or any(len(kind.shape.dim) < 2 for kind in found):
        return
    for kind, name in zip(found, ("transA", "transB"), strict=True):
        if _integer(context, name, 0):
            kind.shape.dim.reverse() if len(kind.shape.dim) == 2 else _swap(kind.shape)
    _product(context, found[0].elem_type, *found)


def _swap(shape: Any) -> None:
    """Swaps the last two dimensions."""
    dims = [type(dim).FromString(dim.SerializeToString()) for dim in shape.dim]
    shape.dim[-1].CopyFrom(dims[-2])
    shape.dim[-2].CopyFrom(dims[-1])


def _matmul_nbits(context: Any) -> None:
    _rows(context, _integer(context, "N", 0))


def _rows_of_n(context: Any) -> None:
    _rows(context, _integer(context, "n", 0))


def _rows(context: Any, n: int) -> None:
    """The shape of the first input, with n numbers in a row."""
    found = _tensors(context, 0)
    if found and n and len(found[0].shape.dim):
        _give(context, found[0].elem_type, *list(found[0].shape.dim)[:-1], n)


def _expert_matmul(context: Any) -> None:
    """``[..., top, N / E]``: the shape of the choice, and the outputs of one expert."""
    found, n = _tensors(context, 2), _integer(context, "n", 0)
    if found and n:
        _give(context, 1, *found[0].shape.dim, n // _integer(context, "experts", 1))


def _expert_sum(context: Any) -> None:
    """The shape of the first input without the dimension before the last."""
    if (found := _tensors(context, 0)) and len(found[0].shape.dim) > 1:
        dims = list(found[0].shape.dim)
        _give(context, found[0].elem_type, *dims[:-2], dims[-1])


def _attention(context: Any) -> None:
    """``[B, S, H·D]``: the heads of the queries, with the size of the keys' heads."""
    past_key, heads = _tensors(context, 3), _integer(context, "num_heads", 0)
    size = past_key and past_key[0].shape.dim[-1].dim_value
    if size and heads:
        _rows(context, size * heads)


def _packed_attention(context: Any) -> None:
    """``[B, S, H·D]``: a third of what the weight of query, key and value gives."""
    found = _tensors(context, 0, 1)
    if found and len(found[1].shape.dim) == 2 and not context.get_attribute("qkv_hidden_sizes"):
        _rows(context, found[1].shape.dim[1].dim_value // 3)


def _embed(context: Any) -> None:
    found = _tensors(context, 0, 2)
    if not found or len(found[1].shape.dim) != 2:
        return
    _give(context, found[1].elem_type, *found[0].shape.dim, found[1].shape.dim[1])
    if context.get_num_outputs() > 1:
        import onnx

        kind = onnx.TypeProto()
        kind.tensor_type.elem_type = onnx.TensorProto.INT32
        kind.tensor_type.shape.dim.add().CopyFrom(found[0].shape.dim[0])
        context.set_output_type(1, kind)


def _grouped_query_attention(context: Any) -> None:
    """``[B, S, H·D]``: the width of the query, which may have key and value behind it."""
    found = _tensors(context, 0)
    if not found or not len(found[0].shape.dim):
        return
    if context.get_input_type(1) is not None:
        context.set_output_type(0, context.get_input_type(0))
        return
    heads, kv_heads = (_integer(context, name, 0) for name in ("num_heads", "kv_num_heads"))
    width = found[0].shape.dim[-1].dim_value
    if heads and kv_heads and width:
        _rows(context, width // (heads + 2 * kv_heads) * heads)


def _gather_block_quantized(context: Any) -> None:
    found = _tensors(context, 0, 1, 2)
    if not found or _integer(context, "gather_axis", 0) != 0:
        return
    data, indices, scales = found
    rest = list(data.shape.dim)[1:]
    if rest and data.elem_type == 2 and rest[-1].HasField("dim_value"):  # two values a byte
        bits = _integer(context, "bits", 4)
        rest = [*rest[:-1], rest[-1].dim_value * 8 // bits]
    _give(context, scales.elem_type, *indices.shape.dim, *rest)
