"""Random graphs in foreign forms: passes and builds give what plain ONNX Runtime gives.

`tox -e fuzz` makes as many as TAMIZ_FUZZ says; the default is 300. Every graph goes through the
passes and a build in memory, every tenth through the files of export and build as well.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import Any

import onnx
from hypothesis import HealthCheck, given, settings

from kit.beside_onnxruntime import Refused, through_build
from kit.built_in_memory import check
from kit.random_graphs import models
from tamiz.plugins import load

TOTAL = int(os.environ.get("TAMIZ_FUZZ", "300"))
PLUGINS = load()
#: A default build, and one that stores the weights exactly.
BUILDS: tuple[dict[str, Any], ...] = ({}, {"block-quant": {"format": "q8_0"}})
#: The same graphs in every run of the matrix; others where many are requested.
ALL = settings(
    max_examples=TOTAL,
    deadline=None,
    derandomize="TAMIZ_FUZZ" not in os.environ,
    suppress_health_check=list(HealthCheck),
    print_blob=True,
)


@ALL
@given(models())
def test_passes_and_exact_builds_change_no_output(
    example: tuple[onnx.ModelProto, dict[str, Any]],
) -> None:
    with suppress(Refused):  # onnxruntime lacks a kernel for an op at this opset
        check(*example, PLUGINS)


@settings(ALL, max_examples=max(1, TOTAL // 10))
@given(models())
def test_exports_and_builds_change_no_output(
    example: tuple[onnx.ModelProto, dict[str, Any]],
) -> None:
    try:
        refusal = through_build(*example, PLUGINS, BUILDS)
    except Refused:
        return
    assert refusal is None
