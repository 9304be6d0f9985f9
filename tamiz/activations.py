"""Runs a dense model so that it gives the inputs of its linear sites.

The recognised graph in memory gets those inputs as its only outputs, and reads its weights from
the bundle's own data file: nothing is copied.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

import tamiz_ops
from tamiz.errors import TamizError
from tamiz.inspect import Survey
from tamiz.runtime import session_options
from tamiz.site import SiteKind


class Activations:
    """A session that gives the inputs of the sites.

    Attributes:
        inputs: Name of the graph's value by site id.
    """

    def __init__(self, found: Survey, threads: int | None = None) -> None:
        """Makes the session.

        Raises:
            TamizError: The model has no linear sites, or onnxruntime refuses it.
        """
        import onnx_ir as ir
        from onnx_ir.passes.common import RemoveUnusedNodesPass

        from tamiz.graph import find_linear

        model = found.model.clone()
        self.inputs: dict[str, str] = {}
        values: dict[str, ir.Value] = {}
        for site in found.sites:
            if site.kind in (SiteKind.LINEAR, SiteKind.HEAD):
                value = find_linear(model, site).input
                assert value.name is not None
                values[value.name] = value
                self.inputs[site.id] = value.name
        if not values:
            raise TamizError(f"{found.bundle.model}: has no linear sites to calibrate")
        for value in values.values():
            value.type = value.type or ir.TensorType(ir.DataType.FLOAT)
        model.graph.outputs.clear()
        model.graph.outputs.extend(values.values())
        RemoveUnusedNodesPass()(model)
        self._names = list(values)
        options = session_options(threads)
        options.add_session_config_entry(
            "session.model_external_initializers_file_folder_path", str(found.bundle.path.resolve())
        )
        tamiz_ops.register(options)
        try:
            self._session = ort.InferenceSession(
                ir.to_proto(model).SerializeToString(), options, providers=["CPUExecutionProvider"]
            )
        except Exception as error:  # onnxruntime raises a class for every status
            raise TamizError(
                f"{found.bundle.model}: onnxruntime cannot load it: {error}"
            ) from error

    def __call__(self, window: Sequence[int]) -> Mapping[str, NDArray[np.float32]]:
        """The inputs ``[T, K]`` by name for one sequence of T tokens."""
        ids = np.array([window], np.int64)
        feeds = {i.name: _feed(i, ids) for i in self._session.get_inputs()}
        outputs = self._session.run(self._names, feeds)
        return {
            name: value.reshape(len(window), -1)
            for name, value in zip(self._names, outputs, strict=True)
        }


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
    if node.name.startswith("past_key_values."):
        return np.zeros((1, node.shape[1], 0, node.shape[3]), np.float32)
    raise TamizError(f"the model has an input {node.name!r}, which calibration cannot feed")
