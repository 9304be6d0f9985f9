"""Which tokens an attention reads.

tamiz.TextAttention reads queries, keys and values of the same tokens, and the mask of these. A
graph of several texts, such as an encoder and a decoder in one, has attentions that a proof on
samples of one length cannot tell from it.
"""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from tamiz_passes.probe import MASK_INPUT, POSITION_INPUT
from tamiz_passes.values import LAYOUT, Refusal, before, constant, operands, rank, shown, walk

#: Inputs whose elements are those of the mask by their names.
_OF_MASK = frozenset({MASK_INPUT, POSITION_INPUT, "input_ids", "token_type_ids"})


def check_tokens(read: Sequence[ir.Value], mask: ir.Value | None) -> None:
    """Checks that an attention reads the tokens of one text.

    Args:
        read: What queries, keys and values are made of, ``[B, S, n]``.
        mask: The mask of tokens ``[B, S]`` that hides some of them; None: nothing does.

    Raises:
        Refusal: They are not known to be of the same tokens, or of those of the mask.
    """
    first, *others = read
    for other in others:
        if _source(first) is not _source(other) and not _same_tokens(first, other):
            raise Refusal(
                f"queries {shown(first)} and keys or values {shown(other)} are not known to be of"
                " the same tokens"
            )
    if mask is None:
        return
    for value in walk(read, before):
        if value.is_graph_input() and not _of_mask(value, mask):
            raise Refusal(
                f"it depends on the input {value.name} {shown(value)}, whose tokens are not known"
                f" to be those of {mask.name} {shown(mask)}"
            )


def _source(value: ir.Value) -> ir.Value:
    """Goes back through what works token by token on one value, such as a linear."""
    while (node := value.producer()) is not None:
        inputs = operands(node)
        computed = inputs[:1] if node.op_type in LAYOUT else [v for v in inputs if _computed(v)]
        if len(computed) != 1:
            break
        value = computed[0]
    return value


def _computed(value: ir.Value) -> bool:
    return constant(value) is None and not value.is_initializer()


def _same_tokens(a: ir.Value, b: ir.Value) -> bool:
    """Whether the first two dimensions, of batch and tokens, are known to be equal."""
    if a.shape is None or b.shape is None or min(len(a.shape), len(b.shape)) < 2:
        return False
    pairs = zip(a.shape[:2], b.shape[:2], strict=True)
    return all(i == j and (isinstance(i, int) or i.value is not None) for i, j in pairs)


def _of_mask(value: ir.Value, mask: ir.Value) -> bool:
    """Whether an input has an element for each token of the mask, or is a number."""
    known = value.is_initializer() or value.name in _OF_MASK or rank(value) == 0
    return known or _same_tokens(value, mask)
