"""activation-bits through build: the attribute of products, their bits, weights as stored."""

import json
from pathlib import Path

import numpy as np
import pytest
from gguf.constants import GGMLQuantizationType

from kit import tiny_gguf
from kit.decoding import IDS, built, distance, stages, steps
from kit.encoders import write_transformer
from tamiz.building.build import build
from tamiz.building.options import Options
from tamiz.files.bundle import DATA
from tamiz.planning.plan import choose
from tamiz.plugins import Plugins
from tamiz.runtime.model import Model
from tamiz.survey.export import export


def test_products_of_8_bits_are_near_those_of_16(plugins: Plugins, tiny_dense: Path) -> None:
    fewer = Model.load(built(plugins, tiny_dense, "bytes", activation_bits={}))
    exact = Model.load(built(plugins, tiny_dense, "exact"))
    assert 0 < distance(steps(fewer), steps(exact)) < 0.05


def test_a_prompt_and_steps_agree_bit_for_bit(plugins: Plugins, tiny_dense: Path) -> None:
    model = Model.load(built(plugins, tiny_dense, "bytes", activation_bits={}))
    longer = model.logits(np.array([IDS]))[0]
    np.testing.assert_array_equal(model.logits(np.array([IDS[:20]]))[0], longer[:20])


def test_16_bits_change_nothing(plugins: Plugins, tiny_dense: Path) -> None:
    model = Model.load(built(plugins, tiny_dense, "words", activation_bits={"bits": 16}))
    exact = Model.load(built(plugins, tiny_dense, "exact"))
    np.testing.assert_array_equal(steps(model), steps(exact))


def test_stored_weights_stay_as_they_are(tmp_path: Path, plugins: Plugins) -> None:
    tiny_gguf.write(tmp_path / "tiny.gguf", tiny_gguf.random_model(), GGMLQuantizationType.Q5_0)
    dense = export(str(tmp_path / "tiny.gguf"), tmp_path / "reference", plugins)
    wanted = choose(plugins.techniques(), {"activation-bits": {}})
    build(dense.path, tmp_path / "built", wanted, plugins, Options(max_dppl=None))
    assert (tmp_path / "built" / DATA).read_bytes() == (dense.path / DATA).read_bytes()


def test_a_dense_product_is_refused(plugins: Plugins, tiny_dense: Path, tmp_path: Path) -> None:
    wanted = choose(plugins.techniques(), {"activation-bits": {}, "block-quant": None})
    report = build(tiny_dense, tmp_path / "built", wanted, plugins, Options(max_dppl=None))
    assert "expected BlockMatMul" in str(report.as_json())
    assert report.totals.replaced == 0


def test_32_bits_are_nearer_to_float32_than_16(plugins: Plugins, tmp_path: Path) -> None:
    tiny_gguf.write(tmp_path / "tiny.gguf", tiny_gguf.random_model(), GGMLQuantizationType.Q4_0)
    floats = export(str(tmp_path / "tiny.gguf"), tmp_path / "floats", plugins, "float32")
    stored = export(str(tmp_path / "tiny.gguf"), tmp_path / "stored", plugins)
    expected = steps(Model.load(floats.path))
    errors = {}
    for bits in (16, 32):
        rounded = built(plugins, stored.path, str(bits), activation_bits={"bits": bits})
        errors[bits] = distance(steps(Model.load(rounded)), expected)
    assert errors[32] < 1e-6
    assert errors[32] < errors[16] / 10


@pytest.mark.parametrize(("queries", "expected"), [(8, 16), (16, 32), (32, 32)])
def test_attention_of_texts_rounds_its_factors_where_all_come_from_8_bits(
    plugins: Plugins, tmp_path: Path, queries: int, expected: int
) -> None:
    dense = write_transformer(tmp_path / "dense", heads=2)
    at_queries = {"techniques": {"activation-bits": {"bits": queries}}}
    policy = {"version": 1, "sites": {"linear.constant.8": at_queries}}  # of the first layer
    (tmp_path / "policy.json").write_text(json.dumps(policy))
    wanted = choose(plugins.techniques(), {"block-quant": {"bits": 8}, "activation-bits": {}})
    options = Options(min_cosine=None, policy=tmp_path / "policy.json")
    build(dense, tmp_path / "built", wanted, plugins, options)
    attentions = [s for s in stages(tmp_path / "built") if s.op == "TextAttention"]
    assert [s.attributes.get("factor_bits", 32) for s in attentions] == [expected, 16]
