"""Every form of graph that `kit.graph_forms` declares, beside plain ONNX Runtime."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import onnx_ir as ir
import onnxruntime as ort
import pytest

from kit.decoders import session
from kit.equal_passes import assert_close
from kit.graph_forms import FORMS, Form
from tamiz.api.passes import Phase
from tamiz.plugins import load

#: Masks and numbers of new tokens.
CASES = (([[1] * 7] * 2, 7), ([[1] * 20], 3), ([[1] * 20] * 2, 1))
PADDED = (([[0, 0, 1, 1, 1], [1] * 5], 5), ([[1] * 9, [0] * 4 + [1] * 5], 1))


def feeds(model: ir.Model, rows: list[list[int]], length: int) -> dict[str, Any]:
    random, mask = np.random.default_rng(1), np.array(rows)
    past = mask.shape[1] - length
    every = {
        "input_ids": random.integers(0, 50, (len(mask), length)),
        "attention_mask": mask,
        "position_ids": np.maximum(mask.cumsum(1) - 1, 0)[:, -length:],
        "x": random.standard_normal((len(mask), length, 64), np.float32),
    }
    found = {}
    for value in model.graph.inputs:
        name = value.name or ""
        if name.startswith("past"):
            assert value.shape is not None
            _, heads, _, size = value.shape
            assert isinstance(heads, int)
            assert isinstance(size, int)
            shape = (len(mask), heads, past, size)
            found[name] = random.standard_normal(shape, np.float32)
        elif name in every:
            found[name] = every[name]
    return found


@pytest.mark.parametrize("form", FORMS, ids=lambda form: f"{form.part}: {form.title}")
def test_what_becomes_of_a_form(form: Form) -> None:
    model = form.graph()
    result, reasons = model.clone(), set()
    for graph_pass in load().passes(Phase.RECOGNISE):
        instance = graph_pass()
        instance(result)
        reasons |= {note.reason for note in instance.notes}
    before, after = session(model), session(result)
    for rows, length in (*CASES, *(PADDED if form.padded else ())):
        if not form.continued and 1 < length < len(rows[0]):
            continue
        given, kept = feeds(model, rows, length), np.array(rows)[:, -length:] != 0
        for name, a, b in zip(*_run(before, given), after.run(None, given), strict=True):
            a, b = (a[kept], b[kept]) if a.ndim == 3 else (a, b)
            assert_close(b, a, 5e-6, f"{name} of {length} tokens")
    count = Counter(".".join(filter(None, (n.domain, n.op_type))) for n in result.graph)
    assert {op: count[op] for op in form.becomes} == form.becomes
    if form.refused is not None:
        assert form.refused in reasons


def _run(model: ort.InferenceSession, given: dict[str, Any]) -> tuple[list[str], list[Any]]:
    return [output.name for output in model.get_outputs()], model.run(None, given)
