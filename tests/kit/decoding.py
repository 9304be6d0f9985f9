"""Bundles of the tiny model, and the logits of their decode steps."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

import tamiz_ops
from tamiz.building.build import build
from tamiz.building.options import Options
from tamiz.planning.plan import choose
from tamiz.plugins import Plugins
from tamiz.runtime.model import Model
from tamiz_ops.program import Stage, read_program

IDS = np.random.default_rng(0).integers(2, 262, 120).tolist()
PROMPT = 60


def built(
    plugins: Plugins, source: Path, name: str, calibration: Path | None = None, **techniques: Any
) -> Path:
    """A bundle beside its source, without a gate; ``_`` stands for ``-`` in a technique's name."""
    out = source.parent / name
    wanted = {key.replace("_", "-"): value for key, value in techniques.items()}
    choices = choose(plugins.techniques(), wanted)
    build(source, out, choices, plugins, Options(max_dppl=None, calibration=calibration))
    return out


def steps(
    model: Model, ids: list[int] = IDS, start: int = PROMPT, sequence: Any = None
) -> np.ndarray:
    """Logits of the last token of a prompt and of every step after it, [steps, vocabulary]."""
    sequence = sequence or model.sequence(len(ids))
    rows = [sequence.read(ids[:start]).copy()]
    return np.array(rows + [sequence.step(token).copy() for token in ids[start:]])


def stages(bundle: Path) -> list[Stage[int]]:
    """All stages of the `Fused` nodes of a bundle."""
    nodes = [node for node in ir.load(bundle / "model.onnx").graph if node.op_type == "Fused"]
    return [s for node in nodes for s in read_program(node.attributes["program"].as_string())]


def counted(model: Model, name: str) -> float:
    """A metric, summed over the nodes of a model."""
    return sum(node.get(name, 0.0) for node in tamiz_ops.metrics(model.session).values())


def distance(a: np.ndarray, b: np.ndarray) -> float:
    """Relative to b."""
    return float(np.linalg.norm(a - b) / np.linalg.norm(b))
