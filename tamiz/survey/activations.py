"""Runs a dense model so that it gives values inside of it: the inputs of its linear sites.

The recognised graph in memory gets those values as its only outputs, and reads its weights from
the bundle's own data file: nothing is copied.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

import tamiz_ops
from tamiz.api.site import SiteKind
from tamiz.files.errors import TamizError
from tamiz.runtime.session import session_options
from tamiz.runtime.states import KEY_VALUES, State
from tamiz.survey.survey import Survey


class Values:
    """A session that gives values of the graph.

    Attributes:
        names: The values.
    """

    def __init__(self, survey: Survey, names: Sequence[str], threads: int | None = None) -> None:
        """Makes the session.

        Args:
            survey: A dense model.
            names: Names of floating-point values of its recognised graph.
            threads: Threads of onnxruntime.

        Raises:
            TamizError: onnxruntime refuses the model.
        """
        import onnx_ir as ir
        from onnx_ir.passes.common import RemoveUnusedNodesPass

        model = survey.model.clone()
        values = {value.name: value for node in model.graph for value in node.outputs}
        self.names = list(names)
        model.graph.outputs.clear()
        for name in self.names:
            values[name].type = values[name].type or ir.TensorType(ir.DataType.FLOAT)
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
        return dict(zip(self.names, self._session.run(self.names, feeds), strict=True))


class Activations(Values):
    """A session that gives the inputs of the sites.

    Attributes:
        inputs: Name of the graph's value by site id.
    """

    def __init__(self, survey: Survey, threads: int | None = None) -> None:
        """Makes the session.

        Raises:
            TamizError: The model has no linear sites, or onnxruntime refuses it.
        """
        self.inputs = linear_inputs(survey)
        if not self.inputs:
            raise TamizError(f"{survey.bundle.model}: has no linear sites to calibrate")
        super().__init__(survey, list(dict.fromkeys(self.inputs.values())), threads)


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
    if node.name.startswith(KEY_VALUES) and (state := State.of(node)):
        return state.zeros()
    raise TamizError(f"the model has an input {node.name!r}, which calibration cannot feed")
