"""Weights of several residual streams in a source, see `stream_graph`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from tamiz_exporters.decoder_config import Streams
from tamiz_exporters.graph_weights import Weight
from tamiz_exporters.input_weights import PartNames
from tamiz_exporters.stored_tensor import Source, StackedTensor, find_tensor

_STACKS = ("altup_projections", "altup_unembed_projections")
_SCALE = "altup.correct_output_scale"
#: Products of a few numbers of each token; the graph has their weights as they lie.
_BY_TOKEN = ("altup.modality_router", "altup.prediction_coefs", "altup.correction_coefs")


@dataclass(frozen=True)
class StreamNames(PartNames):
    """How a source names the weights.

    Attributes:
        stacked: Whether the matrices of all streams but the first are one tensor.
    """

    stacked: bool = False


GGUF_STREAMS = StreamNames(
    {
        "altup_projections": "altup_proj",
        "altup_unembed_projections": "altup_unembd_proj",
    },
    {
        "laurel.linear_left": "laurel_l",
        "laurel.linear_right": "laurel_r",
        "laurel.post_laurel_norm": "laurel_post_norm",
        "altup.router_norm": "altup_router_norm",
        "altup.modality_router": "altup_router",
        "altup.prediction_coefs": "altup_predict_coef",
        "altup.correction_coefs": "altup_correct_coef",
        _SCALE: "altup_correct_scale",
    },
    stacked=True,
)


def hf_streams(prefix: str) -> StreamNames:
    """The names in transformers, see `PartNames.in_transformers`."""
    names = GGUF_STREAMS.in_transformers(prefix)
    return StreamNames(names.whole, names.layer)


def stream_weights(source: Source, names: StreamNames, streams: Streams) -> Iterator[Weight]:
    """Yields the weights of no layer.

    Raises:
        TamizError: A tensor is missing, or has another shape or type.
    """
    hidden, others = streams.hidden, streams.count - 1
    for stack in _STACKS:
        for number in range(others):
            target = f"model.{stack}.{number}.weight"
            if names.stacked:
                all_of_it = find_tensor(
                    source, f"{names.whole[stack]}.weight", (others, hidden, hidden)
                )
                rows = number * hidden + np.arange(hidden)
                yield Weight(target, StackedTensor((all_of_it,)), rows)
            else:
                stored = f"{names.whole[stack]}.{number}.weight"
                yield Weight(target, find_tensor(source, stored, (hidden, hidden)))


def layer_weights(
    source: Source, names: StreamNames, streams: Streams, layer: str, target: str
) -> Iterator[Weight]:
    """Yields those of one layer.

    Args:
        source: The checked source.
        names: How it names them.
        streams: The sizes.
        layer: What their names begin with in the source.
        target: What their names begin with in the graph.

    Raises:
        TamizError: As `stream_weights`.
    """
    hidden, count = streams.hidden, streams.count
    shapes: dict[str, tuple[int, ...]] = {
        "laurel.linear_left": (streams.rank, hidden),
        "laurel.linear_right": (hidden, streams.rank),
        "altup.modality_router": (count, hidden),
        "altup.prediction_coefs": (count * count, count),
        "altup.correction_coefs": (count, count),
    }
    for name, stored in names.layer.items():
        whole = f"{layer}.{stored}"
        whole = whole if whole in source.tensors else f"{whole}.weight"
        tensor = find_tensor(source, whole, shapes.get(name, (hidden,)))
        alone = name in _BY_TOKEN
        if name != _SCALE or streams.scaled:
            yield Weight(f"{target}.{name}.weight", tensor, embedding=alone, packable=not alone)
