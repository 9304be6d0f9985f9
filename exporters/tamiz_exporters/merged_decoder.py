"""Takes decoders apart that hold two graphs in one If: for a prompt, and with a past.

Optimum wrote them as ``decoder_model_merged.onnx``. The branch with a past serves both where it
computes a prompt after an empty past as the other one does.
"""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import onnx_ir as ir

from tamiz.api import TamizError, decodes

SWITCH = "use_cache_branch"
_TOKENS = 5
_log = logging.getLogger(__name__)


def is_decoder(model: ir.Model) -> bool:
    """Whether a run gives a model all that it requires: tokens, and states of those before."""
    inputs = (value.name for value in model.graph.inputs if not value.is_initializer())
    return decodes(name for name in inputs if name != SWITCH)


def take_apart(path: Path, model: ir.Model) -> bool:
    """Puts the branch with a past in place of the If.

    Args:
        path: The file of the model, for messages.
        model: The model; the input ``use_cache_branch`` goes.

    Returns:
        Whether there was such an If.

    Raises:
        TamizError: The branch with a past cannot run a prompt.
    """
    graph = model.graph
    switch = next((value for value in graph.inputs if value.name == SWITCH), None)
    if switch is None:
        return False
    if not is_decoder(model):
        _log.warning(
            "%s: holds two graphs in one If, whose products stay as they are; try its two files "
            "decoder_model.onnx and decoder_with_past_model.onnx, which optimum writes too",
            path,
        )
        return False
    branching = [node for node in switch.consumers() if node.op_type == "If"]
    if len(branching) != 1 or len(switch.uses()) != 1 or switch.is_graph_output():
        raise TamizError(
            f"{path}: found the input {SWITCH} with {len(switch.uses())} uses, expected one If "
            "that chooses between a prompt and a step"
        )
    _check_prompt(path, model)
    node = branching[0]
    branch = node.attributes["then_branch"].as_graph()
    for value in list(branch.initializers.values()):
        branch.initializers.pop(value.name or "")
        graph.register_initializer(value)
    made = list(branch.outputs)
    branch.outputs.clear()
    moved = list(branch)
    branch.remove(moved)
    graph.insert_before(node, moved)
    for old, new in zip(node.outputs, made, strict=True):
        name, kind, shape = old.name, old.type, old.shape
        old.replace_all_uses_with(new, replace_graph_outputs=True)
        old.name = None
        new.name, new.type, new.shape = name, kind, shape or new.shape
    graph.remove(node, safe=True)
    graph.inputs.remove(switch)
    return True


def _check_prompt(path: Path, model: ir.Model) -> None:
    """Compares both branches on a prompt after an empty past."""
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.log_severity_level = 4
    try:
        session = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        results = [session.run(["logits"], _prompt(session, past))[0] for past in (False, True)]
    except Exception as error:  # a class of its own for every status
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise TamizError(
            f"{path}: its branch with a past cannot run a prompt ({reason}); export the decoder as "
            "one graph with past, such as optimum's text-generation-with-past"
        ) from error
    a, b = results
    if a.shape != b.shape or not np.allclose(a, b, rtol=0, atol=1e-4 * np.abs(a).max()):
        raise TamizError(
            f"{path}: its two branches give other logits for a prompt; export the decoder as one "
            "graph with past, such as optimum's text-generation-with-past"
        )


def _prompt(session: object, past: bool) -> dict[str, np.ndarray]:
    feeds: dict[str, np.ndarray] = {}
    for node in session.get_inputs():  # type: ignore[attr-defined]
        if node.name == SWITCH:
            feeds[node.name] = np.array([past])
        elif node.name == "position_ids":
            feeds[node.name] = np.arange(_TOKENS)[None]
        elif len(node.shape) == 4:
            kind = np.float16 if "float16" in node.type else np.float32
            feeds[node.name] = np.zeros((1, node.shape[1], 0, node.shape[3]), kind)
        else:
            feeds[node.name] = np.ones((1, _TOKENS), np.int64)
    return feeds
