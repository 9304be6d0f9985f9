"""ONNX's backend tests through export and default build, beside plain ONNX Runtime.

300 of them are in the default matrix. TAMIZ_BACKEND=all, as `tox -e peers` sets it, runs all: as
they are, and with all inputs but one made constants.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import onnx
import pytest

from kit.beside_onnxruntime import Refused, through_build
from kit.onnx_backend import Case, cases
from tamiz.plugins import Plugins

ALL = os.environ.get("TAMIZ_BACKEND") == "all"
COUNT = 300
#: Which numeric input of a case is left, where the others are made constants.
FORMS = ["as it is", "first input", "last input"]
#: What docs/guides/from-onnx.md says of models that are refused.
DOCUMENTED = ("operator Loop", "holds strings, expected numbers")


def chosen() -> list[Case]:
    """All cases, or `COUNT` of them from the whole list."""
    every = cases()
    return list(every) if ALL else list(every)[:: max(1, len(every) // COUNT)][:COUNT]


def with_constants(case: Case, kept: int) -> tuple[onnx.ModelProto, dict[str, Any]]:
    """The case with one of its numeric inputs left, the others made constants."""
    model, inputs = onnx.ModelProto(), dict(case.inputs)
    model.CopyFrom(case.model)
    numeric = [n for n, v in inputs.items() if isinstance(v, np.ndarray) and v.dtype.kind in "fiub"]
    for name in [n for n in numeric if n != numeric[kept]]:
        tensor = onnx.numpy_helper.from_array(inputs.pop(name), name)
        model.graph.initializer.append(tensor)
        model.graph.input.remove(next(v for v in model.graph.input if v.name == name))
    return model, inputs


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS if ALL else FORMS[:1])
def test_a_default_build_gives_what_onnxruntime_gives(plugins: Plugins, form: str) -> None:
    ran, wrong = 0, []
    for case in chosen():
        model, inputs = case.model, case.inputs
        if form != "as it is":
            if not inputs:
                continue
            model, inputs = with_constants(case, 0 if form == "first input" else -1)
        try:
            refusal = through_build(model, inputs, plugins)
        except Refused:
            continue  # plain onnxruntime does not run it
        except Exception as error:
            wrong.append(f"{case.name}: {type(error).__name__}: {error}")
            continue
        ran += 1
        if refusal is not None and not any(known in refusal for known in DOCUMENTED):
            wrong.append(f"{case.name}: {refusal}")
    assert not wrong, "\n".join(wrong)
    assert ran > len(chosen()) // 2
