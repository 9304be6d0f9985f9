"""Reads a bundle's graph and finds its sites."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tamiz.api.site import Site, SiteKind
from tamiz.files.bundle import Bundle
from tamiz.files.errors import TamizError, blaming
from tamiz.files.mapping import map_tensors
from tamiz.interface.metadata import DOMAIN
from tamiz.interface.states import PAST, decodes, reads_texts

if TYPE_CHECKING:
    import onnx_ir as ir

    from tamiz.api.passes import GraphPass, Note, Phase
    from tamiz.plugins import Plugins


@dataclass(frozen=True)
class Survey:
    """A bundle's graph after the passes that recognise its structure.

    Attributes:
        bundle: The bundle.
        model: Its graph; weights are read from the file when they are used.
        sites: Where techniques may act, in graph order.
        notes: What was not recognised, and why.
        recognised: How many nodes of each op of the domain `tamiz` the passes made.
    """

    bundle: Bundle
    model: ir.Model
    sites: tuple[Site, ...]
    notes: tuple[Note, ...]
    recognised: Mapping[str, int]

    @property
    def output(self) -> str:
        """The name of the model's first output: ``logits`` of a decoder."""
        return self.model.graph.outputs[0].name or ""

    @property
    def reads_tokens(self) -> bool:
        """Whether the model reads token ids; else images, sounds, or something else."""
        return any(value.name == "input_ids" for value in self.model.graph.inputs)

    @property
    def decodes(self) -> bool:
        """Whether the model is a decoder: it gives logits, and keeps states of what it read."""
        inputs = self.model.graph.inputs
        required = (value.name for value in inputs if not value.is_initializer())
        return self.output == "logits" and decodes(required)

    @property
    def embeds(self) -> bool:
        """Whether the model is an encoder of texts: it gives hidden states of their tokens."""
        shape = self.model.graph.outputs[0].shape
        texts = self.bundle.has_tokenizer and reads_texts(v.name for v in self.model.graph.inputs)
        return texts and self.output != "logits" and shape is not None and len(shape) == 3

    @property
    def vocabulary(self) -> int | None:
        """Token ids are below this; None where no embedding says it."""
        kind = SiteKind.EMBEDDING
        return min((site.out_features for site in self.sites if site.kind is kind), default=None)

    @property
    def constants(self) -> dict[str, int]:
        """Bytes of all constants of the graph, by name."""
        values = self.model.graph.initializers.items()
        tensors = ((name, value.const_value) for name, value in values)
        return {name: int(tensor.nbytes) for name, tensor in tensors if tensor is not None}

    @property
    def nodes(self) -> int:
        """Number of nodes of the graph."""
        return len(self.model.graph)

    def multiplying(self, site: Site) -> Site:
        """The site that multiplies with a site's weight, whose input its fit depends on.

        That is the site itself, or the head that shares the weight of an embedding.
        """
        if site.kind is SiteKind.EMBEDDING and site.shared:
            others = (s for s in self.sites if s.weight == site.weight and s.id != site.id)
            return next(others, site)
        return site

    def weight_bytes(self, site: Site) -> int:
        """Bytes of the site's dense weight; 0 for a composite site."""
        if site.weight is None:
            return 0
        tensor = self.model.graph.initializers[site.weight].const_value
        assert tensor is not None
        return int(tensor.nbytes)

    @property
    def bytes_of_a_token(self) -> int:
        """Bytes that a token adds to what the graph keeps of a sequence; 0 of an encoder."""
        total = 0
        for value in self.model.graph.inputs:
            if not (value.name or "").startswith(PAST) or value.shape is None or not value.dtype:
                continue
            sizes = [size for size in value.shape if isinstance(size, int)]
            if len(value.shape) - len(sizes) == 2:  # batch and tokens; others are of fixed size
                total += math.prod(sizes) * value.dtype.bitwidth // 8
        return total

    def cache_bytes(self, site: Site) -> int:
        """Bytes of keys and values that the site keeps of a token; 0 where it is no attention."""
        names = {f"past_key_values.{site.layer}.{part}" for part in ("key", "value")}
        if site.kind is not SiteKind.ATTENTION:
            return 0
        total = 0
        for value in self.model.graph.inputs:
            if value.name in names and value.shape is not None and value.dtype is not None:
                heads, size = value.shape[1], value.shape[3]
                if isinstance(heads, int) and isinstance(size, int):
                    total += heads * size * value.dtype.bitwidth // 8
        return total


def survey(bundle: Bundle, plugins: Plugins) -> Survey:
    """Loads the graph of a dense bundle, runs the passes of phase `recognise`, finds the sites.

    Raises:
        TamizError: The model cannot be read, or no plugin finds its sites.
    """
    import onnx_ir as ir

    from tamiz.api.passes import Phase

    try:
        model = ir.load(bundle.model)
        map_tensors(model, bundle.path)
    except TamizError:
        raise
    except Exception as error:  # protobuf, serde and numpy each raise their own
        raise TamizError(f"{bundle.model}: cannot be read as an ONNX model: {error}") from error
    notes = run_passes(model, plugins, Phase.RECOGNISE)
    sites_and_notes = plugins.find_sites(model)
    if sites_and_notes is None:
        raise TamizError(
            f"{bundle.model}: no installed plugin finds its sites, see 'tamiz plugins'"
        )
    sites, more = sites_and_notes
    recognised = Counter(node.op_type for node in model.graph if node.domain == DOMAIN)
    return Survey(bundle, model, tuple(sites), (*notes, *more), recognised)


def recognised(surveyed: Survey, plugins: Plugins) -> tuple[Counter[str], tuple[Note, ...]]:
    """What a build recognises beside the sites, whatever techniques it applies.

    Returns:
        Nodes of each op of the domain `tamiz`, and why other nodes stay as they are. Notes on sites
        are left out, as are passes that fuse what techniques have made of them.
    """
    from tamiz.api.passes import Phase

    model = surveyed.model.clone()
    passes = [p for p in plugins.passes(Phase.FUSE) if "ops-final" not in p.needs]
    sites = {site.node for site in surveyed.sites}
    notes = [note for note in _run(passes, model) if note.node not in sites]
    ops = Counter(node.op_type for node in model.graph if node.domain == DOMAIN)
    return ops, (*unchanged(surveyed, model), *notes)


def unchanged(surveyed: Survey, model: ir.Model) -> tuple[Note, ...]:
    """Notes of the survey on nodes that are still in `model`, which was made of its graph."""
    gone = _names(surveyed.model) - _names(model)
    return tuple(note for note in surveyed.notes if note.node not in gone)


def _names(model: ir.Model) -> set[str]:
    """What notes call the nodes of a graph; see `GraphPass.note`."""
    return {node.name or node.op_type for node in model.graph.all_nodes()}


def run_passes(model: ir.Model, plugins: Plugins, phase: Phase) -> list[Note]:
    """Runs the graph passes of one phase in place and returns their notes."""
    return _run(plugins.passes(phase), model)


def _run(passes: Iterable[type[GraphPass]], model: ir.Model) -> list[Note]:
    notes: list[Note] = []
    for graph_pass in passes:
        with blaming(f"graph pass {graph_pass.name}"):
            instance = graph_pass()
            instance(model)
        notes += instance.notes
    return notes


@contextmanager
def reading(dense: Bundle) -> Iterator[None]:
    """Names the bundle where onnx-ir refuses its external data."""
    try:
        yield
    except ValueError as error:
        raise TamizError(f"{dense.model}: {error}") from error
