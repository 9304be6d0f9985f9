"""Runs a dense model so that it gives values inside of it: the inputs of its linear sites.

The recognised graph in memory gets those values as its only outputs, and reads its weights from
the bundle's own data file: nothing is copied.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

import tamiz_ops
from tamiz.api.site import SiteKind
from tamiz.files.errors import TamizError
from tamiz.interface.states import PAST, State
from tamiz.runtime.session import session_options
from tamiz.survey.experts import ExpertSums
from tamiz.survey.survey import Survey

if TYPE_CHECKING:
    import onnx_ir as ir


#: Tokens of a run that shows which values have a row for each.
_PROBE = 3


class Values:
    """A session that gives values of the graph, computed ones or constants."""

    def __init__(self, survey: Survey, names: Sequence[str], threads: int | None = None) -> None:
        """Makes the session.

        Args:
            survey: A dense model.
            names: Names of values of its recognised graph.
            threads: Threads of onnxruntime.

        Raises:
            TamizError: onnxruntime refuses the model.
        """
        import onnx_ir as ir
        from onnx_ir.passes.common import RemoveUnusedNodesPass

        model = survey.model.clone()
        values = {value.name: value for node in model.graph for value in node.outputs}
        constants = survey.model.graph.initializers
        self._constants = {name: constants[name] for name in names if name in constants}
        self._computed = [name for name in names if name not in constants]
        model.graph.outputs.clear()
        for name in self._computed:
            values[name].type = values[name].type or _type_of(values[name])
            model.graph.outputs.append(values[name])
        RemoveUnusedNodesPass()(model)
        options = session_options(threads)
        options.add_session_config_entry(
            "session.model_external_initializers_file_folder_path",
            str(survey.bundle.path.resolve()),
        )
        tamiz_ops.register(options)
        try:
            self._session = ort.InferenceSession(
                ir.to_proto(model).SerializeToString(), options, providers=["CPUExecutionProvider"]
            )
        except Exception as error:  # onnxruntime raises a class for every status
            raise TamizError(
                f"{survey.bundle.model}: onnxruntime cannot load it: {error}"
            ) from error

    def __call__(self, window: Sequence[int]) -> dict[str, NDArray[np.float32]]:
        """The values ``[T, K]`` by name for one sequence of T tokens."""
        values = self.in_shape(window)
        return {name: value.reshape(len(window), -1) for name, value in values.items()}

    def in_shape(self, window: Sequence[int]) -> dict[str, NDArray[np.float32]]:
        """The values by name for one sequence of tokens, in the shapes that the graph has."""
        ids = np.array([window], np.int64)
        feeds = {i.name: _feed(i, ids) for i in self._session.get_inputs()}
        activations = dict(
            zip(self._computed, self._session.run(self._computed, feeds), strict=True)
        )
        for name, value in self._constants.items():
            assert value.const_value is not None
            activations[name] = value.const_value.numpy()
        return activations


class Activations(Values):
    """A session that gives the inputs of the sites.

    Attributes:
        inputs: Name of the graph's value by site id, of sites that read one row for each token.
        experts: Names of the inputs and of the chosen experts by site id, of sites of experts.
    """

    def __init__(self, survey: Survey, threads: int | None = None) -> None:
        """Makes the session.

        Raises:
            TamizError: The model has no linear sites, or onnxruntime refuses it.
        """
        of_tokens = _of_tokens(survey)
        inputs = linear_inputs(survey).items()
        self.inputs = {site: name for site, name in inputs if name in of_tokens}
        if not self.inputs:
            raise TamizError(f"{survey.bundle.model}: has no linear sites to calibrate")
        self._sites = {site.id: site for site in survey.sites if site.kind == SiteKind.EXPERTS}
        self.experts = expert_inputs(survey)
        names = [*self.inputs.values(), *(name for pair in self.experts.values() for name in pair)]
        super().__init__(survey, list(dict.fromkeys(names)), threads)
        self._leave_out_pooled(survey)

    def _leave_out_pooled(self, survey: Survey) -> None:
        """Leaves out sites that read another number of rows than of tokens.

        A head that classifies, for one, reads a row for each text.
        """
        widths = {site.id: site.in_features for site in survey.sites}
        values = self.in_shape([0] * _PROBE)
        fit = {id for id, name in self.inputs.items() if values[name].size == _PROBE * widths[id]}
        self.inputs = {id: name for id, name in self.inputs.items() if id in fit}

    def measure(
        self, window: Sequence[int]
    ) -> tuple[dict[str, NDArray[Any]], dict[str, ExpertSums]]:
        """The inputs of linear sites ``[T, K]``, and sums over those of experts, by name."""
        names = {*self.inputs.values(), *(name for pair in self.experts.values() for name in pair)}
        found = self.in_shape(window)
        values = {name: found[name].reshape(len(window), -1) for name in names}
        sums: dict[str, ExpertSums] = {}
        for id, (x, chosen) in self.experts.items():
            if x not in sums:
                site = self._sites[id]
                rows = values[x].reshape(-1, site.in_features)
                sums[x] = ExpertSums.of_tokens(rows, values[chosen], site.experts)
        return {name: values[name] for name in self.inputs.values()}, sums


def _type_of(value: ir.Value) -> ir.TensorType:
    """The type of a value that has none, by what reads it."""
    import onnx_ir as ir

    uses = {(use.node.op_type, use.idx) for use in value.uses()}
    if ("Where", 0) in uses:
        return ir.TensorType(ir.DataType.BOOL)
    whole = {("GatherElements", 1), ("Split", 1), *(("Slice", index) for index in range(1, 5))}
    return ir.TensorType(ir.DataType.INT64 if uses & whole else ir.DataType.FLOAT)


def _of_tokens(survey: Survey) -> set[str]:
    """Names of the values that depend on tokens, and not only on how many there are.

    DeBERTa, for one, has products with embeddings of relative positions.
    """
    inputs = {value.name for value in survey.model.graph.inputs}
    for node in survey.model.graph:
        if node.op_type not in ("Shape", "Size") and any(
            value is not None and value.name in inputs for value in node.inputs
        ):
            inputs.update(output.name for output in node.outputs)
    return {name for name in inputs if name is not None}


def linear_inputs(survey: Survey) -> dict[str, str]:
    """Name of the graph's value that each linear site and head reads, by site id."""
    from tamiz.api.editing import GraphEditor

    inputs = {}
    for site in survey.sites:
        if site.kind in (SiteKind.LINEAR, SiteKind.HEAD):
            name = GraphEditor(survey.model).linear(site).input.name
            assert name is not None
            inputs[site.id] = name
    return inputs


def expert_inputs(survey: Survey) -> dict[str, tuple[str, str]]:
    """Names of the input of each product with experts, and of what says which are chosen, by site
    id."""
    from tamiz.api.editing import GraphEditor

    names = {}
    for site in survey.sites:
        if site.kind == SiteKind.EXPERTS:
            x, _, chosen = GraphEditor(survey.model).linear(site).node.inputs[:3]
            assert x is not None
            assert chosen is not None
            names[site.id] = (x.name or "", chosen.name or "")
    return names


def _feed(node: Any, ids: NDArray[np.int64]) -> NDArray[Any]:
    """One input of the graph: a whole sequence that nothing precedes."""
    if node.name == "input_ids":
        return ids
    if "position" in node.name:
        return np.arange(ids.shape[1])[None]
    if "mask" in node.name:
        return np.ones_like(ids)
    if "type" in node.name:
        return np.zeros_like(ids)
    if node.name.startswith(PAST) and (state := State.of(node)):
        return state.zeros()
    raise TamizError(f"the model has an input {node.name!r}, which calibration cannot feed")
