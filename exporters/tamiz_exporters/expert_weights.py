"""The weights of mixtures of experts in a source.

A graph has one matrix for each projection of all experts of a layer: the rows of expert 0, of
expert 1, and so on. Sources store it as one tensor ``[E, N, K]``, as one tensor for each expert, or
with gate and up of each expert in one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from tamiz_exporters.decoder_config import Experts
from tamiz_exporters.graph_weights import Weight
from tamiz_exporters.stored_tensor import Source, StackedTensor, StoredTensor, find_tensor
from tamiz_ops.formats import TILE

GATE, UP, DOWN = "gate_proj", "up_proj", "down_proj"


@dataclass(frozen=True)
class ExpertNames:
    """How a source names the weights of experts, within a layer.

    Attributes:
        router: The router.
        parts: `GATE`, `UP` and `DOWN` → names; ``{}`` stands for the number of an expert, and
            without it the tensor has all experts. A tensor that two of them name has both, the rows
            of each expert's gate before those of its up.
        shared: The same of the shared expert, which has no number.
        shared_gate: What the shared expert's score is made of; empty: it counts 1.
        bias: The tensor whose numbers are added to scores for the choice; empty for none.
        interleaved: Whether rows of two projections in one tensor take turns.
        router_norm: The norm of what the router reads; empty: it reads what experts read.
        factors: Factors on the experts' weights; empty for none.
    """

    router: str
    parts: Mapping[str, str]
    shared: Mapping[str, str] = field(default_factory=dict)
    shared_gate: str = ""
    bias: str = ""
    interleaved: bool = False
    router_norm: str = ""
    factors: str = ""


def expert_weights(
    source: Source, names: ExpertNames, experts: Experts, hidden: int, layer: str, target: str
) -> Iterator[Weight]:
    """Yields the weights of one layer.

    Args:
        source: The checked source.
        names: How it names them.
        experts: The mixture.
        hidden: H, width of the residual stream.
        layer: What their names begin with in the source.
        target: What their names begin with in the graph.

    Raises:
        TamizError: A tensor is missing, or has another shape or type.
    """
    router = [find_tensor(source, f"{layer}.{names.router}.weight", (experts.count, hidden))]
    if experts.shared_gate:
        router.append(_row(source, f"{layer}.{names.shared_gate}.weight", hidden))
    stacked = StackedTensor(tuple(router))
    yield Weight(f"{target}.gate.weight", stacked, embedding=True, packable=False)
    if experts.biased:
        bias = _row(source, f"{layer}.{names.bias}", experts.count)
        yield Weight(f"{target}.gate.bias", replace(bias, shape=(experts.count,)))
    if (name := f"{layer}.{names.router}.bias") in source.tensors:
        yield Weight(f"{target}.gate.offset", find_tensor(source, name, (experts.count,)))
    if names.router_norm:
        norm = find_tensor(source, f"{layer}.{names.router_norm}", (hidden,))
        yield Weight(f"{target}.router_norm.weight", norm)
    if names.factors:
        factors = find_tensor(source, f"{layer}.{names.factors}", (experts.count,))
        yield Weight(f"{target}.gate.scale", factors)
    for part in names.parts:
        yield from _stack(source, names, experts, hidden, layer, part, target)
    for part, stored in names.shared.items() if experts.shared_width else ():
        n, k = _shape(part, experts.shared_width, hidden)
        together = [name for name in names.shared if names.shared[name] == stored]
        tensor = find_tensor(source, f"{layer}.{stored}.weight", (n * len(together), k))
        rows = np.arange(n) + n * together.index(part) if len(together) > 1 else None
        yield Weight(f"{target}.shared_expert.{part}.weight", tensor, rows)


def _row(source: Source, name: str, width: int) -> StoredTensor:
    """A tensor ``[width]`` or ``[1, width]``."""
    flat = name in source.tensors and len(source.tensors[name].shape) == 1
    return find_tensor(source, name, (width,) if flat else (1, width))


def _shape(part: str, width: int, hidden: int) -> tuple[int, int]:
    return (hidden, width) if part == DOWN else (width, hidden)


def _stack(
    source: Source,
    names: ExpertNames,
    experts: Experts,
    hidden: int,
    layer: str,
    part: str,
    target: str,
) -> Iterator[Weight]:
    """One projection of all experts, and its bias."""
    stored = f"{layer}.{names.parts[part]}"
    together = [name for name in names.parts if names.parts[name] == names.parts[part]]
    n, k = _shape(part, experts.width, hidden)
    each, count = n * len(together), experts.count
    if "{}" in stored:
        of_each = [f"{stored.format(expert)}.weight" for expert in range(count)]
        stacked = StackedTensor(tuple(find_tensor(source, name, (each, k)) for name in of_each))
        if types := {tensor.type.name for tensor in stacked.parts} - {stacked.parts[0].type.name}:
            expected = f"{stacked.parts[0].type.name}, as of the first expert"
            source.fail(f"tensor {stored}: type", types.pop(), expected)
    else:
        whole = stored if stored in source.tensors else f"{stored}.weight"
        stacked = StackedTensor((find_tensor(source, whole, (count, each, k)),))
    rows = None
    if len(together) > 1:
        parts = (count, n, len(together)) if names.interleaved else (count, len(together), n)
        axis = 2 if names.interleaved else 1
        order = np.arange(count * each, dtype=np.int64).reshape(parts)
        rows = order.take(together.index(part), axis).ravel()
    packable = n % TILE == 0
    name = f"{target}.experts.{part}"
    yield Weight(f"{name}.weight", stacked, rows, packable=packable, experts=count)
    if f"{stored}.bias" in source.tensors:
        bias = find_tensor(source, f"{stored}.bias", (count, each)).as_vector()
        yield Weight(f"{name}.bias", bias, rows)
