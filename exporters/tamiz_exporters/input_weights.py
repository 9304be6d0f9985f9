"""Weights of inputs of single layers in a source, see `gemma_graph`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from tamiz_exporters.graph_weights import Weight
from tamiz_exporters.stored_tensor import Source, find_tensor

_TABLE = "embed_tokens_per_layer"
_PROJECTED, _PROJECTED_NORM = "per_layer_model_projection", "per_layer_projection_norm"
_GATE, _INPUT, _NORM = "per_layer_input_gate", "per_layer_projection", "post_per_layer_input_norm"


@dataclass(frozen=True)
class PartNames:
    """How a source names the weights of a part of a decoder.

    Attributes:
        whole: Those of no layer: their names in transformers → in the source.
        layer: Those of a layer, within it: likewise.
    """

    whole: Mapping[str, str]
    layer: Mapping[str, str]

    def in_transformers(self, prefix: str) -> PartNames:
        """The names in transformers.

        Args:
            prefix: What begins the names of the decoder's weights.
        """
        whole = {name: f"{prefix}{name}" for name in self.whole}
        return PartNames(whole, {name: name for name in self.layer})


GGUF_INPUTS = PartNames(
    {
        _TABLE: "per_layer_token_embd",
        _PROJECTED: "per_layer_model_proj",
        _PROJECTED_NORM: "per_layer_proj_norm",
    },
    {_GATE: "inp_gate", _INPUT: "proj", _NORM: "post_norm"},
)


def input_weights(
    source: Source, names: PartNames, width: int, hidden: int, layers: int
) -> Iterator[Weight]:
    """Yields the weights of no layer.

    Args:
        source: The checked source.
        names: How it names them.
        width: P, of the input of a layer.
        hidden: H, width of the residual stream.
        layers: Number of layers.

    Raises:
        TamizError: A tensor is missing, or has another shape or type.
    """
    shapes: dict[str, tuple[int | None, ...]] = {
        _TABLE: (None, layers * width),
        _PROJECTED: (layers * width, hidden),
        _PROJECTED_NORM: (width,),
    }
    for name, stored in names.whole.items():
        tensor = find_tensor(source, f"{stored}.weight", shapes[name])
        yield Weight(f"model.{name}.weight", tensor, embedding=name == _TABLE)


def layer_input_weights(
    source: Source, names: PartNames, width: int, hidden: int, layer: str, target: str
) -> Iterator[Weight]:
    """Yields those of one layer.

    Args:
        source: The checked source.
        names: How it names them.
        width: P, of the input of a layer.
        hidden: H, width of the residual stream.
        layer: What their names begin with in the source.
        target: What their names begin with in the graph.

    Raises:
        TamizError: As `input_weights`.
    """
    shapes: dict[str, tuple[int, ...]] = {
        _GATE: (width, hidden),
        _INPUT: (hidden, width),
        _NORM: (hidden,),
    }
    for name, stored in names.layer.items():
        tensor = find_tensor(source, f"{layer}.{stored}.weight", shapes[name])
        yield Weight(f"{target}.{name}.weight", tensor)
