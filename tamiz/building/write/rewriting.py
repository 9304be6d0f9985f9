"""From the recognised graph and the accepted fits to the files of a built model."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from tamiz.api.site import Site
from tamiz.api.technique import FitError, Technique
from tamiz.building.fit.fitting import Attempt
from tamiz.building.write.broken_pass import check_products
from tamiz.files import bundle as bundles
from tamiz.files.bundle import Bundle
from tamiz.files.errors import blaming
from tamiz.files.external_data import check_written, locations
from tamiz.files.mapping import keep_places
from tamiz.files.outputs import link_or_copy
from tamiz.interface.states import PAST
from tamiz.interface.switches import is_switch
from tamiz.planning.choice import Choice
from tamiz.planning.plan import Plan
from tamiz.survey.survey import Survey, reading, run_passes, unchanged

if TYPE_CHECKING:
    import onnx_ir as ir

    from tamiz.api.passes import Note
    from tamiz.plugins import Plugins

#: Larger constants go to the data file, each at a multiple of the page size.
_INLINE_BYTES = 256
_PAGE = 4096
#: Bytes of the smallest file beside the model that is linked; people edit smaller ones.
_LINKED_BYTES = 1 << 20
#: Ops of ONNX that move values, or compute each from those at the same place.
_TOKEN_BY_TOKEN = {
    *("Cast", "Concat", "Constant", "Expand", "Gather", "Identity", "Reshape", "Shape", "Slice"),
    *("Squeeze", "Transpose", "Unsqueeze", "Add", "Mul", "Sub", "Div", "Tanh", "Sigmoid"),
    *("Less", "Max", "Relu", "Sqrt", "Where"),
}


@dataclass(frozen=True)
class Written:
    """What a written model is.

    Attributes:
        notes: What passes of both phases left as it was.
        constant_bytes: Bytes of all constants.
        kv_cache: As the manifest names it.
        equal_runs: As the manifest names it.
        step_techniques: As the manifest names them.
        refused: Why a rewrite left its site as it was, by site id and technique's name.
    """

    notes: tuple[Note, ...]
    constant_bytes: int
    kv_cache: str
    equal_runs: bool
    step_techniques: frozenset[str]
    refused: Mapping[tuple[str, str], str]


def write_model(
    survey: Survey,
    plan: Plan,
    accepted: Mapping[str, Sequence[Attempt]],
    refused: Mapping[str, Sequence[str]],
    plugins: Plugins,
    folder: Path,
    *,
    checked: bool = False,
) -> Written:
    """Rewrites a copy of the recognised graph, fuses it and writes it with the bundle's files.

    Args:
        survey: The dense bundle's graph; it stays as it is.
        plan: What was planned.
        accepted: Fits to apply by site id, in order.
        refused: Techniques that were refused, by site id; their nodes are marked.
        plugins: The loaded plugins.
        folder: Existing folder to write into; the manifest is not written.
        checked: Whether the products of all sites are compared with those of the dense weights.

    Raises:
        DifferentModelError: The product of a site points elsewhere.
    """
    from tamiz.api.passes import Phase
    from tamiz.interface import metadata

    model = survey.model.clone()
    nodes = {node.name: node for node in model.graph}
    left: dict[tuple[str, str], str] = {}
    for site_plan in plan.sites:
        site = site_plan.site
        mark = f"{site.id}:{','.join(refused.get(site.id, ()))}"
        if site.id in refused and site.node in nodes:
            nodes[site.node].metadata_props[metadata.UNSAFE] = mark
        for attempt in accepted.get(site.id, ()):
            technique = attempt.choice.technique
            fit = replace(attempt.fit(), strip=strips(plan, site, attempt.choice))
            try:
                with blaming(f"technique {technique.name}", FitError):
                    rewritten = technique.rewrite(site, fit, model)
            except FitError as error:
                left[site.id, technique.name] = str(error)
                break  # what follows may need what this one would have provided
            _connect_switch(technique, rewritten, model)
            for node in rewritten:
                _sign(node, site, attempt.choice, plan.policy)
                if site.id in refused:
                    node.metadata_props[metadata.UNSAFE] = mark
    if checked:
        check_products(survey, model, (p.site for p in plan.sites if p.site.id in accepted))
    notes = (*run_passes(model, plugins, Phase.FUSE), *unchanged(survey, model))
    kv_cache = "shared" if _shares_kv_cache(model) else "exact"
    equal_runs = kv_cache == "shared" and all(map(_equal_in_runs, model.graph))
    with reading(survey.bundle):
        _save(model, survey.bundle, folder)
    _copy_companions(survey.bundle, folder)
    used = [attempt.choice.technique for attempts in accepted.values() for attempt in attempts]
    steps = frozenset(technique.name for technique in used if technique.decode_only)
    return Written(notes, constant_bytes(model), kv_cache, equal_runs, steps, left)


def _copy_companions(dense: Bundle, folder: Path) -> None:
    """Copies the files beside the model, or links large ones."""
    own = {bundles.MODEL, bundles.DATA, *locations(dense.external)}
    for name in sorted(set(dense.manifest.files) - own):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        large = dense.file(name).stat().st_size >= _LINKED_BYTES
        (link_or_copy if large else shutil.copyfile)(dense.file(name), folder / name)


def _connect_switch(technique: Technique, nodes: Sequence[ir.Node], model: ir.Model) -> None:
    """Lets a run do without a technique at the nodes that it made, where they can."""
    from tamiz.api.editing import GraphEditor
    from tamiz.api.ports import has_input, input_of

    graph, (op_type, _, port) = GraphEditor(model), technique.switch.partition(".")
    for node in nodes:
        replaced = not has_input(node, "dense") or input_of(node, "dense") is not None
        if node.op_type == op_type and replaced:
            graph.connect(node, port, graph.switch(technique.name))


def strips(plan: Plan, site: Site, choice: Choice) -> bool:
    """Whether the dense weight goes: always, unless the technique could fall back to it."""
    return plan.rules[site.id].strip or not choice.technique.fallback


def _sign(node: ir.Node, site: Site, choice: Choice, policy: str) -> None:
    """Writes on a rewritten node what made it; several techniques may have, in their order."""
    from tamiz.interface import metadata

    earlier = node.metadata_props
    signature = {metadata.POLICY: policy, metadata.SITE: site.id}
    for key, value in (
        (metadata.TECHNIQUE, choice.technique.name),
        (metadata.VERSION, choice.technique.version),
    ):
        signature[key] = f"{earlier[key]},{value}" if key in earlier else value
    if site.layer is not None:
        signature[metadata.LAYER] = str(site.layer)
    node.metadata_props.update(signature)


def constant_bytes(model: ir.Model) -> int:
    """Bytes of all constants, also of graphs inside of nodes; the defaults of switches are none."""
    total = 0
    for graph in (model.graph, *model.graph.subgraphs()):
        values = (v for name, v in graph.initializers.items() if not is_switch(name))
        nodes = (node for node in graph if (node.domain, node.op_type) == ("", "Constant"))
        tensors = (
            *(value.const_value for value in values),
            *(node.attributes["value"].as_tensor() for node in nodes if "value" in node.attributes),
        )
        total += sum(int(tensor.nbytes) for tensor in tensors if tensor is not None)
    return total


def _shares_kv_cache(model: ir.Model) -> bool:
    """Whether only tamiz's ops, which append in place, read what is kept of a sequence.

    A run then writes float32 logits into a buffer of the caller.
    """
    import onnx_ir as ir

    if any(v.name == "logits" and v.dtype != ir.DataType.FLOAT for v in model.graph.outputs):
        return False
    pasts = [i for i in model.graph.inputs if (i.name or "").startswith(PAST)]
    readers = [node for past in pasts for node in past.consumers()]
    return bool(pasts) and all(node.domain == "tamiz" for node in readers)


def _equal_in_runs(node: ir.Node) -> bool:
    """Whether a token's row of the outputs has the same bits however many tokens a run reads.

    This holds for tamiz's ops (`tests/runtime/test_row_bits.py`), of techniques that act on single
    steps only without these. ONNX Runtime's products and sums add in another order, unless each
    token has a product or a sum of its own.
    """
    return node.domain == "tamiz" or node.op_type in _TOKEN_BY_TOKEN or _of_one_token(node)


def _of_one_token(node: ir.Node) -> bool:
    """Whether a MatMul has tokens in its batch alone, or a mean is of a token's own numbers."""
    if node.domain or node.op_type not in ("MatMul", "ReduceMean"):
        return False
    first = node.inputs[0]
    if first is None or first.shape is None or not isinstance(first.shape[-1], int):
        return False
    if node.op_type == "MatMul":
        return _ends_in_numbers(node.outputs[0], 2)
    axes = node.inputs[1].const_value if len(node.inputs) > 1 and node.inputs[1] else None
    return axes is not None and axes.numpy().tolist() == [-1] and _ends_in_numbers(first, 1)


def _ends_in_numbers(value: ir.Value, count: int) -> bool:
    """Whether the last dimensions are the same in each run, and tokens are in those before them.

    A written model has lost the shapes that passes inferred.
    """
    shape = value.shape
    if shape is None or len(shape) < 2 + count:
        return False
    return all(isinstance(size, int) for size in shape[-count:])


def _save(model: ir.Model, dense: Bundle, folder: Path) -> None:
    """Writes the model; its weights share the dense bundle's data file if none is changed."""
    import onnx_ir as ir

    from tamiz.api.nodes import remove_unused
    from tamiz.interface import metadata

    remove_unused(model)
    for value in (v for node in model.graph for v in node.outputs):
        if metadata.INFERRED in value.meta and not value.is_graph_output():
            value.type = value.shape = None
    if keep_places(model, dense.external, bundles.DATA):
        ir.save(model, folder / bundles.MODEL)
        (location,) = locations(dense.external)
        link_or_copy(dense.file(location), folder / bundles.DATA)
        return
    ir.save(
        model,
        folder / bundles.MODEL,
        external_data=bundles.DATA,
        size_threshold_bytes=_INLINE_BYTES,
        alignment=_PAGE,
        align_threshold=_INLINE_BYTES,
    )
    check_written(folder / bundles.MODEL)
