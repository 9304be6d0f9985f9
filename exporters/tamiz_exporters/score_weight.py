"""The weight that makes a score of a hidden state, as a tensor of the graph."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from tamiz_exporters.stored_tensor import StoredTensor


def score_weight(
    tensor: StoredTensor, tokens: tuple[int, ...] | None, factor: float = 1.0
) -> ir.LazyTensor:
    """A head of labels, or a difference of two rows of the head that writes tokens.

    logit(t) - logit(f) = x·W[t] - x·W[f] = x·(W[t] - W[f]), so no other logits are computed.

    Args:
        tensor: ``[labels, H]``, or ``[V, H]``.
        tokens: t, or t and f; None where all rows are labels.
        factor: What the rows are multiplied by.

    Returns:
        ``float32 [H, labels]``, read when it is written.
    """

    def read() -> ir.TensorProtocol:
        rows = tensor.dequantize(None if tokens is None else np.array(tokens))
        if tokens is not None:
            rows = rows[:1] - rows[1:] if len(tokens) > 1 else rows
        return ir.Tensor(np.ascontiguousarray(rows.T * np.float32(factor)))

    labels = tensor.shape[0] if tokens is None else 1
    return ir.LazyTensor(read, ir.DataType.FLOAT, ir.Shape((tensor.shape[1], labels)))
