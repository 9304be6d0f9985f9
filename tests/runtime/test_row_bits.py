"""The logits of a position have the same bits however its sequence is cut into runs.

Held where the manifest says `equal_runs`: on every instruction set, with any number of threads.
"""

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tamiz_ops
from tamiz.building.build import Options, build
from tamiz.files.bundle import Bundle
from tamiz.planning.plan import choose
from tamiz.plugins import Plugins
from tamiz.runtime.model import Model
from tamiz.survey.export import export
from tamiz.testing import tiny_llama

Kind = gguf.GGMLQuantizationType
#: More keys than attention sums in one range, and more than it leaves to one task.
TOKENS = [(7 * i * i + 3 * i) % 250 + 2 for i in range(300)]
#: Weights and techniques of the models.
MODELS: dict[str, tuple[gguf.GGMLQuantizationType, dict[str, Any]]] = {
    "q4_1": (Kind.Q4_1, {}),
    "q4_0": (Kind.Q4_0, {}),
    "q5_0": (Kind.Q5_0, {}),
    "q8_0 kv-int8": (Kind.Q8_0, {"kv-int8": {}}),
    "f16": (Kind.F16, {}),
    "bf16 kv-int8": (Kind.BF16, {"kv-int8": {}}),
    "q8_0 8-bit activations": (Kind.Q8_0, {"activation-bits": {}}),
    "q4_1 window": (Kind.Q4_1, {"win-attn": {"tokens": 150}}),
    "q4_1 window kv-int8": (Kind.Q4_1, {"win-attn": {"tokens": 30}, "kv-int8": {}}),
    "ternary": (Kind.F16, {"ternary": {"max_error": 1.0}}),
    "seed-delta": (Kind.F16, {"seed-delta": {"k": 32}}),
    "proc-sparse": (Kind.Q8_0, {"proc-sparse": {"fanout": 2, "shed_eps": 0.0}}),
    "kwta": (Kind.Q4_1, {"kwta": {"k": 0.5, "select": "topk", "duty": 3}}),
    "tt": (Kind.F16, {"tt": {}}),
}


@pytest.fixture(scope="module", params=list(MODELS))
def built(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, plugins: Plugins
) -> Path:
    linears, techniques = MODELS[request.param]
    if missing := sorted(set(techniques) - set(plugins.techniques())):
        pytest.skip(f"not installed: {', '.join(missing)}")
    folder = tmp_path_factory.mktemp("rows")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tiny_llama, "CONTEXT", 512)
        tiny_llama.write_tiny_llama(folder / "tiny.gguf", linears)
    dense = export(str(folder / "tiny.gguf"), folder / "dense", plugins, "stored").path
    policy = folder / "policy.json"
    policy.write_text(json.dumps({"version": 1, "defaults": {"gating": {}}}))
    chosen = choose(plugins.techniques(), techniques)
    options = Options(max_dppl=None, policy=policy)
    build(dense, folder / "built", chosen, plugins, options)
    assert set(techniques) <= set(Bundle.open(folder / "built").manifest.techniques)
    return folder / "built"


def logits(model: Model, cuts: list[int]) -> np.ndarray:
    """The bits of all logits ``[tokens, V]``, where runs end at `cuts`."""
    sequence, rows = model.sequence(), []
    for begin, end in pairwise([0, *cuts, len(TOKENS)]):
        part = TOKENS[begin:end]
        found = sequence.step(part[0])[None] if end - begin == 1 else sequence.logits(part)
        rows.append(found.copy())
    return np.concatenate(rows).view(np.int32)


@pytest.mark.parametrize("isa", tamiz_ops.cpu()["isas"])
def test_bits_do_not_depend_on_how_tokens_are_cut_into_runs(
    built: Path, isa: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert Bundle.open(built).manifest.equal_runs
    monkeypatch.setenv("TAMIZ_ISA", isa)
    models = [Model.load(built, threads) for threads in (1, 2, 3)]
    expected = logits(models[0], list(range(1, len(TOKENS))))

    @given(
        st.sampled_from(models),
        st.one_of(
            st.lists(st.integers(1, len(TOKENS) - 1), unique=True, max_size=40),
            # runs that verify guesses
            st.lists(st.integers(1, 17), min_size=10, max_size=40).map(
                lambda runs: [cut for cut in np.cumsum(runs).tolist() if cut < len(TOKENS)]
            ),
        ),
    )
    @settings(max_examples=5, database=None, derandomize=True)
    def check(model: Model, cuts: list[int]) -> None:
        np.testing.assert_array_equal(logits(model, sorted(cuts)), expected)

    check()
    np.testing.assert_array_equal(logits(models[1], []), expected)


def test_a_manifest_promises_no_equal_runs_of_other_products(dense_dir: Path) -> None:
    assert not Bundle.open(dense_dir).manifest.equal_runs
