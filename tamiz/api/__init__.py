"""All that plugins, exporters and graph passes import of tamiz.

Stable: every name in ``__all__``, its parameters and attributes, and the hooks of
docs/reference/hooks.md. They change only with a note in CHANGELOG.md; what is removed warns for one
release first. Not stable: other modules of tamiz, names with a leading underscore, the order of
parameters that can be given by name, and the texts of messages.

Importing this package does not import onnx_ir, so that commands which read no model start fast.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from tamiz.api.attention import (
    add_sketch,
    filtered_cost,
    rewrite_filter,
    set_attention,
    sketch_words,
)
from tamiz.api.config import POLICY_ONLY, TechniqueConfig
from tamiz.api.cost import Access, Cost, Part
from tamiz.api.dense import replace_weight
from tamiz.api.editing import GraphEditor, replace_product
from tamiz.api.hookspecs import Exporter, hookimpl, offer
from tamiz.api.linear import (
    Linear,
    constant_weight,
    experts_of,
    is_constant,
    is_of_experts,
    linear_at,
    stored_format,
)
from tamiz.api.ports import attribute_of, has_input, input_of, output_of, product_of
from tamiz.api.rotary import rotary_frequencies, rotary_tables
from tamiz.api.site import Site, SiteKind, taken_share
from tamiz.api.sparsity import importance, largest_blocks, largest_in_rows
from tamiz.api.statistics import (
    ExpertInputs,
    Imatrix,
    Sensitivity,
    Statistics,
    usual_samples,
)
from tamiz.api.technique import (
    Autotune,
    Claim,
    Claims,
    Fit,
    FitError,
    Graph,
    Identity,
    Mode,
    Offline,
    Planning,
    Resource,
    Standing,
    Strength,
    Technique,
    Where,
)
from tamiz.api.weights import dequantize, quantize
from tamiz.files.bundle import DATA, MODEL
from tamiz.files.errors import TamizError
from tamiz.files.external_data import inside as file_inside
from tamiz.files.mapping import map_tensors
from tamiz.files.text_file import read_json, read_text, write_json
from tamiz.files.unknown_sizes import mark_unknown_sizes
from tamiz.interface.end_names import END_NAMES, END_OR_TAG, MESSAGE_END, ends_of_turns
from tamiz.interface.metadata import (
    CACHE,
    DOMAIN,
    INFERRED,
    LAYER,
    OPSET_VERSION,
    POLICY,
    SITE,
    STAYS,
    TECHNIQUE,
    UNSAFE,
    VERSION,
)
from tamiz.interface.states import (
    KEY_VALUES,
    OF_DECODERS,
    PAST,
    RECENT,
    SEQUENCES,
    SLOTS,
    SPARE,
    TEXT_BEGINS,
    State,
    decodes,
    present_of,
    stacked,
)

if TYPE_CHECKING:
    from tamiz.api.nodes import captured, draws, graphs_in, remove_unused
    from tamiz.api.passes import GraphPass, Note, Phase

__all__ = [
    "CACHE",
    "DATA",
    "DOMAIN",
    "END_NAMES",
    "END_OR_TAG",
    "INFERRED",
    "KEY_VALUES",
    "LAYER",
    "MESSAGE_END",
    "MODEL",
    "OF_DECODERS",
    "OPSET_VERSION",
    "PAST",
    "POLICY",
    "POLICY_ONLY",
    "RECENT",
    "SEQUENCES",
    "SITE",
    "SLOTS",
    "SPARE",
    "STAYS",
    "TECHNIQUE",
    "TEXT_BEGINS",
    "UNSAFE",
    "VERSION",
    "Access",
    "Autotune",
    "Claim",
    "Claims",
    "Cost",
    "ExpertInputs",
    "Exporter",
    "Fit",
    "FitError",
    "Graph",
    "GraphEditor",
    "GraphPass",
    "Identity",
    "Imatrix",
    "Linear",
    "Mode",
    "Note",
    "Offline",
    "Part",
    "Phase",
    "Planning",
    "Resource",
    "Sensitivity",
    "Site",
    "SiteKind",
    "Standing",
    "State",
    "Statistics",
    "Strength",
    "TamizError",
    "Technique",
    "TechniqueConfig",
    "Where",
    "add_sketch",
    "attribute_of",
    "captured",
    "constant_weight",
    "decodes",
    "dequantize",
    "draws",
    "ends_of_turns",
    "experts_of",
    "file_inside",
    "filtered_cost",
    "graphs_in",
    "has_input",
    "hookimpl",
    "importance",
    "input_of",
    "is_constant",
    "is_of_experts",
    "largest_blocks",
    "largest_in_rows",
    "linear_at",
    "map_tensors",
    "mark_unknown_sizes",
    "offer",
    "output_of",
    "present_of",
    "product_of",
    "quantize",
    "read_json",
    "read_text",
    "remove_unused",
    "replace_product",
    "replace_weight",
    "rewrite_filter",
    "rotary_frequencies",
    "rotary_tables",
    "set_attention",
    "sketch_words",
    "stacked",
    "stored_format",
    "taken_share",
    "usual_samples",
    "write_json",
]


_LAZY = {
    **dict.fromkeys(("GraphPass", "Note", "Phase"), "tamiz.api.passes"),
    **dict.fromkeys(("captured", "draws", "graphs_in", "remove_unused"), "tamiz.api.nodes"),
}


#: Names of earlier versions, which warn for one release.
_FORMER = {
    "dequantise": "dequantize",
    "filtered": "filtered_cost",
    "inside": "file_inside",
    "largest": "largest_in_rows",
    "quantise": "quantize",
    "usual": "usual_samples",
}


def __getattr__(name: str) -> Any:
    """Imports what needs onnx_ir when it is first used; a former name warns."""
    if name in _FORMER:
        import warnings

        text = f"tamiz.api.{name} is now tamiz.api.{_FORMER[name]}"
        warnings.warn(text, DeprecationWarning, stacklevel=2)
        return globals()[_FORMER[name]]
    module = _LAZY.get(name)
    if module is not None:
        return getattr(import_module(module), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
