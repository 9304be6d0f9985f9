"""A policy like the example of seed_delta_policy.txt, from file to report."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from kit.command_line import ok
from kit.decoding import stages
from tamiz.building.build import build
from tamiz.building.options import Options
from tamiz.files.bundle import REPORT
from tamiz.planning.plan import choose
from tamiz.plugins import Plugins
from tamiz.reporting.report import Report
from tamiz.testing import write_tiny_llama

TENSORS = {f"ffn_{t}" for t in ("gate", "up", "down")} | {f"attn_{t}" for t in "qkvo"}
#: 32 of 64 weights do not pass at 0.8, SeedLM's 3 bits do.
POLICY: dict[str, Any] = {
    "version": 1,
    "defaults": {
        "enable": True,
        "block": 32,
        "K": {"gate": 32, "up": 32, "down": 32},
        "gating": {"metric": "cos_xw", "min_mean": 0.8},
        "autotune": {
            "enabled": False,
            "schedule_gate_up": [32, {"base": "seedlm", "base_bits": 3}],
        },
        "techniques": {"seed-delta": {"enable": True}},
    },
    "ranges": [{"layers": "1", "autotune": {"enabled": True}}],
    "layers": {"1": {"tensors": {"ffn_down": {"enable": False}}}},
    "sites": {"re:.*attn_.*|output": {"techniques": {"seed-delta": {"enable": False}}}},
}


EXAMPLE = """{
  "version": 1,
  "defaults": {
    "enable": true,
    "block": 32,
    "K": { "gate": 256, "up": 256, "down": 512 },
    "strip": true,
    "gating": {
      "metric": "cos_xw",
      "min_mean": { "gate": 0.45, "up": 0.45, "down": 0.25 },
      "min_p05":  { "gate": 0.30, "up": 0.30, "down": 0.15 }
    },
    "autotune": {
      "enabled": false,
      "schedule_gate_up":  [128, 256, 384, 512],
      "schedule_down":     [256, 512, 768, 1024],
      "max_iters": 4
    }
  },
  "ranges": [
    {
      "layers": "15-20",
      "autotune": { "enabled": true }
    }
  ],
  "layers": {
    "8": { "enable": false },
    "19": { "enable": true },
    "20": { "enable": true }
  }
}
"""


def built(plugins: Plugins, dense: Path, name: str, **options: Any) -> Report:
    policy = dense.parent / "policy.json"
    policy.write_text(json.dumps(POLICY))
    choices = choose(plugins.techniques(), {})
    asked = replace(Options(policy=policy, max_dppl=None), **options)
    return build(dense, dense.parent / name, choices, plugins, asked)


def test_the_report_explains_every_tensor(plugins: Plugins, tiny_dense: Path) -> None:
    report = built(plugins, tiny_dense, "built")
    emitted = 0
    for number in ("0", "1"):
        names = {site.tensor: site for site in report.sites.values() if site.layer == int(number)}
        tensors = {name: site for name, site in names.items() if name is not None}
        assert set(tensors) == TENSORS
        for name, tensor in tensors.items():
            decision, attempts = tensor.decision, tensor.autotune.attempts
            assert decision.applied in (["seed-delta"], ["block-quant"]), name
            assert attempts[-1].passed
            assert all(a.passed or "the gate accepts at least" in a.reason for a in attempts)
            for technique in {a.technique for a in attempts}:
                assert f"{technique}: " in decision.reason
            emitted += decision.applied == ["seed-delta"]
            wanted = name.startswith("ffn_") and (number, name) != ("1", "ffn_down")
            assert (attempts[0].technique == "seed-delta") == wanted
    ops = [stage.op for stage in stages(tiny_dense.parent / "built")]
    assert emitted == ops.count("SeedDeltaMatMul")
    tuned = report.sites["layers.1.ffn_up"]
    assert [attempt.passed for attempt in tuned.autotune.attempts] == [False, True]
    assert tuned.applied[0].config["base"] == "seedlm"
    assert tuned.decision.strip_applied
    refused = report.sites["layers.0.ffn_up"]
    assert refused.decision.refused == ["seed-delta"]
    assert [fitted.name for fitted in refused.applied] == ["block-quant"]


def test_two_builds_and_one_from_the_report_have_the_same_bytes(
    plugins: Plugins, tiny_dense: Path
) -> None:
    for name in ("one", "two"):
        built(plugins, tiny_dense, name)
    again = Options(report=tiny_dense.parent / "one" / REPORT)
    build(tiny_dense, tiny_dense.parent / "three", [], plugins, again)
    files = [
        {file.name: file.read_bytes() for file in (tiny_dense.parent / name).iterdir()}
        for name in ("one", "two", "three")
    ]
    assert files[0] == files[1]
    for name in ("model.onnx", "model.onnx.data"):
        assert files[0][name] == files[2][name]


def test_where_the_whole_model_refuses_everything_the_bundle_is_the_int4_one(
    plugins: Plugins, tiny_dense: Path
) -> None:
    report = built(plugins, tiny_dense, "built", max_dppl=0.0)
    tuned = report.sites["layers.1.ffn_up"].decision
    assert tuned.applied == ["block-quant"]
    assert "seed-delta: refused: backed off by the gate of the whole model" in tuned.reason
    build(tiny_dense, tiny_dense.parent / "int4", choose(plugins.techniques(), {}), plugins)
    folders = [tiny_dense.parent / name for name in ("built", "int4")]
    data = [(folder / "model.onnx.data").read_bytes() for folder in folders]
    assert data[0] == data[1]


def test_a_policy_protects_what_it_does_not_name(tmp_path: Path) -> None:
    """21 layers; K is more than the inputs there are, so all of a residual is stored."""
    gguf, policy, out = tmp_path / "tiny.gguf", tmp_path / "policy.json", tmp_path / "out"
    write_tiny_llama(gguf, layers=21)
    policy.write_text(EXAMPLE)
    flags = ("--seed-delta=on", "--policy", policy, "--max-dppl=off")
    ok("export", gguf, "-o", tmp_path / "dense", "--dtype", "float32")
    planned = json.loads(ok("plan", tmp_path / "dense", *flags[:-1], "--json"))
    report = json.loads(ok("build", tmp_path / "dense", "-o", out, *flags, "--json"))
    for site in planned["sites"]:
        mlp = "ffn_" in site["site"] and not site["site"].startswith("layers.8.")
        assert ("seed-delta" in site["techniques"]) == mlp, site["site"]
    for name, site in report["sites"].items():
        mlp = (site["tensor"] or "").startswith("ffn_") and site["layer"] != 8
        assert site["decision"]["emit_delta"] == mlp, name
        assert site["decision"]["applied"] == ["seed-delta" if mlp else "block-quant"], name
        assert site["decision"]["reason"]
        gating, attempts = site["gating"], site["autotune"]["attempts"]
        assert gating["max_rel_l2"] is None, name
        assert site["autotune"]["enabled"] == (15 <= (site["layer"] or 0) <= 20), name
        assert all(attempt["seconds"] >= 0 for attempt in attempts)
        down = site["tensor"] == "ffn_down"
        if (site["tensor"] or "").startswith("ffn_"):
            limits = (0.25, 0.15) if down else (0.45, 0.30)
            assert (gating["min_mean"], gating["min_p05"]) == limits
            assert site["resolved"]["strip"]
        else:
            assert (gating["min_mean"], gating["min_p05"]) == (0.98, 0.95), name
        if mlp:
            first = (
                (256 if down else 128) if site["autotune"]["enabled"] else (512 if down else 256)
            )
            assert attempts[0]["config"]["k"] == first
            assert attempts[0]["config"]["block"] == 32
