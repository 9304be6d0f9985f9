import json
import re
from pathlib import Path
from typing import Any

import pytest

from kit.policies import (
    SITES,
    TECHNIQUES,
    SeedConfig,
    read,
    rules,
)
from tamiz.api.site import Site, SiteKind
from tamiz.api.technique import (
    Standing,
)
from tamiz.files.errors import TamizError
from tamiz.planning.plan import choose, make_plan
from tamiz.planning.policy import Gating, Rules, Tuning, read_policy
from tamiz.planning.policy_schema import matches, policy_model
from tamiz.plugins import load

#: The example of the document seed_delta_policy.txt, with ranges inside of 30 layers.
SEED = {
    "version": 1,
    "defaults": {
        "enable": True,
        "block": 32,
        "K": {"gate": 256, "up": 256, "down": 512},
        "strip": True,
        "gating": {
            "metric": "cos_xw",
            "min_mean": {"gate": 0.45, "up": 0.45, "down": 0.25},
            "min_p05": {"gate": 0.30, "up": 0.30, "down": 0.15},
        },
        "autotune": {
            "enabled": False,
            "schedule_gate_up": [128, 256, 384, 512],
            "schedule_down": [256, 512, 768, 1024],
            "max_iters": 4,
        },
    },
    "ranges": [{"layers": "15-20", "autotune": {"enabled": True}}],
    "layers": {"8": {"enable": False}, "19": {"enable": True}, "20": {"enable": True}},
}


def test_an_example_with_defaults_ranges_and_layers(tmp_path: Path) -> None:
    policy = read(tmp_path, SEED)
    up, down = rules(policy, "layers.3.ffn_up"), rules(policy, "layers.16.ffn_down")
    assert up.fields["seeded"] == {"k": 256, "block": 32}
    assert up.gating == Gating("cos_xw", 0.45, 0.30, None)
    assert up.tuning == Tuning(False, (128, 256, 384, 512), 4)
    assert down.fields["seeded"] == {"k": 512, "block": 32}
    assert down.gating == Gating("cos_xw", 0.25, 0.15, None)
    assert down.tuning == Tuning(True, (256, 512, 768, 1024), 4)
    assert not rules(policy, "layers.8.ffn_up").enable
    assert rules(policy, "layers.20.ffn_up").enable
    other = rules(policy, "layers.3.attn_q")
    assert other.fields["seeded"] == {"block": 32}
    assert other.gating == Gating(max_rel_l2=None), "the default gate, without rel_l2"
    assert other.protected == {"seeded"}
    plan = make_plan(SITES, choose(TECHNIQUES, {"seeded": {}}), policy=policy)
    by_id = {p.site.id: p for p in plan.sites}
    assert [c.technique.name for c in by_id["layers.3.ffn_up"].choices] == ["seeded"]
    assert by_id["layers.3.ffn_up"].choices[0].config == SeedConfig(k=256, block=32)
    assert [c.technique.name for c in by_id["layers.3.ffn_up"].fallbacks] == ["base"]
    for left_alone in ("layers.8.ffn_up", "layers.3.attn_q", "output"):
        assert [c.technique.name for c in by_id[left_alone].choices] == ["base"], left_alone


@pytest.mark.parametrize(
    ("policy", "site", "k"),
    [
        ({}, "layers.5.ffn_up", None),
        ({"defaults": {"K": 1}}, "layers.5.ffn_up", 1),
        ({"defaults": {"K": 1}}, "output", 1),
        ({"defaults": {"K": 1}, "ranges": [{"layers": "5-6", "K": 2}]}, "layers.5.ffn_up", 2),
        ({"defaults": {"K": 1}, "ranges": [{"layers": "5-6", "K": 2}]}, "layers.7.ffn_up", 1),
        (
            {"ranges": [{"layers": "0-9", "K": 2}, {"layers": "5", "K": 3}]},
            "layers.5.ffn_up",
            3,
        ),
        (
            {"ranges": [{"layers": "5", "K": 3}, {"layers": "0-9", "K": 2}]},
            "layers.5.ffn_up",
            2,
        ),
        (
            {"ranges": [{"layers": "5", "K": 3}], "layers": {"5": {"K": 4}}},
            "layers.5.ffn_up",
            4,
        ),
        (
            {"layers": {"5": {"tensors": {"ffn_up": {"K": 5}}, "K": 4}}},
            "layers.5.ffn_up",
            5,
        ),
        (
            {"layers": {"5": {"tensors": {"ffn_up": {"K": 5}}, "K": 4}}},
            "layers.5.ffn_down",
            4,
        ),
        (
            {"defaults": {"K": {"up": 1, "down": 2}}, "layers": {"5": {"K": {"up": 9}}}},
            "layers.5.ffn_down",
            2,
        ),
        ({"defaults": {"K": {"up": 1}}, "layers": {"5": {"K": 7}}}, "layers.5.ffn_down", 7),
        ({"defaults": {"K": {"ffn_up": 6}}}, "layers.5.ffn_up", 6),
        (
            {
                "layers": {"5": {"tensors": {"ffn_up": {"K": 5}}}},
                "sites": {"re:layers\\.\\d+\\.ffn_.*": {"K": 6}, "layers.5.ffn_up": {"K": 8}},
            },
            "layers.5.ffn_up",
            8,
        ),
        ({"sites": {"output": {"K": 6}}}, "output", 6),
        ({"defaults": {"K": 1, "techniques": {"seeded": {"k": 2}}}}, "layers.5.ffn_up", 2),
        ({"defaults": {"techniques": {"seeded": {"k": {"up": 3}}}}}, "layers.5.ffn_up", 3),
    ],
)
def test_merge(tmp_path: Path, policy: dict[str, Any], site: str, k: int | None) -> None:
    found = rules(read(tmp_path, {"version": 1, **policy}), site)
    assert found.fields["seeded"].get("k") == k


@pytest.mark.parametrize(
    ("entry", "names"),
    [
        ({}, ["base"]),
        ({"techniques": {"seeded": {}}}, ["seeded"]),
        ({"techniques": {"seeded": {}, "base": {"enable": False}}}, ["seeded"]),
        ({"techniques": {"seeded": {}}, "enable": False}, ["base"]),
        ({"techniques": {"seeded": {"enable": False}}}, ["base"]),
        ({"techniques": {"base": {"enable": False}}}, []),
    ],
)
def test_a_policy_switches_techniques(
    tmp_path: Path, entry: dict[str, Any], names: list[str]
) -> None:
    policy = read(tmp_path, {"version": 1, "layers": {"5": entry, "6": {"techniques": {}}}})
    plan = make_plan(SITES, choose(TECHNIQUES), policy=policy)
    by_id = {p.site.id: p for p in plan.sites}
    assert [c.technique.name for c in by_id["layers.5.ffn_up"].choices] == names
    assert [c.technique.name for c in by_id["layers.6.ffn_up"].choices] == ["base"]


REFUSED = [
    ('{"version": 1,\n "defaults": {\n  "enabel": true}}', r":3: \$.defaults.enabel: unknown key"),
    ('{"version": 1,\n "defaults": {"K": 1,\n "K": 2}}', r":3: .*duplicate key 'K'"),
    ('{"version": 1,\n "defaults": {"K": NaN}}', ":2: not valid JSON: expected a value"),
    ('{"version": 2}', r":1: \$.version: expected 1, found 2"),
    ("{}", r":1: \$: lacks the key 'version'$"),
    ("[]", ":1: .*expected an object, found list"),
    ('{"version": 1}\n}', ":1: not valid JSON: more text"),
    ('{"version": 1,\n"ranges": [{"layers": "20-15"}]}', r":2: .*\[0\].layers: .*found '20-15'"),
    (
        '{"version": 1,\n"ranges": [{"layers": "x"}]}',
        r":2: .*layers: expected layers such as 15-20 or 7, found 'x'$",
    ),
    ('{"version": 1,\n"ranges": [{"K": 1}]}', r":2: \$.ranges\[0\]: lacks the key 'layers'$"),
    ('{"version": 1, "layers": {"-1": {}}}', "expected the number of a layer, found '-1'$"),
    ('{"version": 1, "layers": {"1' + "0" * 5000 + '": {}}}', "expected the number of a layer"),
    ('{"version": 1,\n"ranges": [{"layers": "3-30"}]}', "layer 30 does not exist, .*0 to 29"),
    (
        '{"version": 1,\n"ranges": [{"layers": "0-9999999999"}]}',
        "layer 9999999999 does not exist, .*0 to 29",
    ),
    ('{"version": 1,\n"layers": {\n"999": {}}}', r':3: \$.layers\["999"\]: layer 999 does not'),
    ('{"version": 1, "layers": {"5": {"tensors":\n{"ffn_in": {}}}}}', r":2: .*ffn_in"),
    ('{"version": 1, "defaults": {"techniques":\n{"magic": {}}}}', r":2: .*magic: unknown key"),
    ('{"version": 1, "defaults": {"techniques": {"seeded":\n{"q": 1}}}}', ":2: .*unknown key"),
    ('{"version": 1, "defaults": {"K":\n0}}', r":2?1?: \$.defaults.K: .*greater than or equal"),
    ('{"version": 1, "defaults": {"K": {"sideways": 1}}}', "sideways"),
    ('{"version": 1, "defaults": {"gating": {"min_mean": 1.5}}}', "min_mean: .*less than or equal"),
    ('{"version": 1, "defaults": {"gating": {"metric": "l2"}}}', "metric: expected 'cos_xw'"),
    ('{"version": 1, "defaults": {"autotune": {"max_iters": 0}}}', "max_iters"),
    ('{"version": 1, "sites": {"layers.99.ffn_up": {}}}', "matches no site of the model"),
    (
        '{"version": 1, "sites": {"layers.9.fn_up": {}}}',
        r"matches no site of the model; did you mean 'layers.9.ffn_up'\?$",
    ),
    ('{"version": 1, "defalts": {}}', r"\$.defalts: unknown key; did you mean 'defaults'\?$"),
    ('{"version": 1, "defaults": {"enabel": true}}', r"unknown key; did you mean 'enable'\?$"),
    ('{"version": 1, "defaults": {"gating": {"min_p5": 0.1}}}', r"did you mean 'min_p05'\?$"),
    ('{"version": 1, "defaults": {"autotune": {"enable": true}}}', r"did you mean 'enabled'\?$"),
    ('{"version": 1, "defaults": {"techniques": {"seded": {}}}}', r"did you mean 'seeded'\?$"),
    (
        '{"version": 1, "layers": {"5": {"techniques": {"seeded": {"blok": 1}}}}}',
        r"did you mean 'block'\?$",
    ),
    ('{"version": 1, "layers": {"5": {"tensor": {}}}}', r"did you mean 'tensors'\?$"),
    ('{"version": 1, "sites": {"re:(": {}}}', "no regular expression: unclosed group"),
    ('{"version": 1, "sites": {"re:a)(b": {}}}', "no regular expression: unopened group"),
    ('{"version": 1, "sites": {"re:(a)\\\\1": {}}}', "backreferences are not supported"),
    ('{"version": 1, "sites": {"re:(?=a)": {}}}', r"look-around, .* is not supported"),
    ('{"version": 1, "sites": {"re:(a{999}){999}": {}}}', "exceeds size limit"),
    (
        f'{{"version": 1, "sites": {{"re:{"(" * 5000}{")" * 5000}": {{}}}}}}',
        "no regular expression: ",
    ),
    (
        '{"version": 1,\n"layers": {"5": {"enable": false,\n"strip": true}}}',
        ":3: .*strips the dense",
    ),
    ('{"version": 1, "defaults": ' + "[" * 100, "nested deeper"),
    ("", ":1: not valid JSON: expected a value"),
    ('{"a": "\x00"}', "not valid JSON"),
]


@pytest.mark.parametrize(("text", "reason"), REFUSED)
def test_refusals_name_file_line_and_path(tmp_path: Path, text: str, reason: str) -> None:
    with pytest.raises(TamizError) as caught:
        read(tmp_path, text)
    message = str(caught.value)
    assert message.startswith(str(tmp_path / "policy.json"))
    assert "\n" not in message
    assert re.search(reason, message), message


def test_a_huge_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TamizError, match="larger than 1 MB"):
        read(tmp_path, '{"version": 1, "x": "' + "y" * (10 << 20) + '"}')


def test_short_keys_of_a_technique_that_is_off(tmp_path: Path) -> None:
    policy = read(tmp_path, SEED)
    with pytest.raises(TamizError, match="the key 'K' belongs to seeded, which is off"):
        make_plan(SITES, choose(TECHNIQUES), policy=policy)


def test_the_policy_changes_the_hash(tmp_path: Path) -> None:
    chosen = choose(TECHNIQUES, {"seeded": {}})
    plain = make_plan(SITES, chosen).policy
    one = make_plan(SITES, chosen, policy=read(tmp_path, SEED)).policy
    again = make_plan(SITES, chosen, policy=read(tmp_path, json.dumps(SEED))).policy
    assert one == again != plain


def test_the_schema_knows_the_techniques() -> None:
    schema = policy_model(TECHNIQUES).model_json_schema()["$defs"]
    assert {"K", "block"} < set(schema["Entry"]["properties"])
    assert set(schema["Techniques"]["properties"]) == {"base", "seeded"}
    assert "Entries of the residual." in json.dumps(schema["seeded"])
    without = policy_model({"base": TECHNIQUES["base"]}).model_json_schema()["$defs"]
    assert "K" not in without["Entry"]["properties"]


def test_every_key_of_the_schema_has_a_description() -> None:
    schema = policy_model(load().techniques()).model_json_schema()
    objects = {"Policy": schema, **schema["$defs"]}
    lacking = [
        f"{name}.{key}"
        for name, entry in objects.items()
        for key, value in entry.get("properties", {}).items()
        if not value.get("description")
    ]
    assert lacking == []


def test_a_policy_may_name_its_schema(tmp_path: Path) -> None:
    plain = read(tmp_path, SEED)
    assert read(tmp_path, {"$schema": "./policy.schema.json", **SEED}).value == plain.value
    assert "$schema" in policy_model(TECHNIQUES).model_json_schema()["properties"]
    with pytest.raises(TamizError, match=r'\$\["\$schema"\]: expected a valid string, found 1'):
        read(tmp_path, {"$schema": 1, **SEED})


EXAMPLES = sorted((Path(__file__).parents[2] / "examples" / "policies").glob("*.json"))
LAYERS = {"smollm2": 30, "qwen7b": 28, "gemma": 26}


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_the_examples_hold(path: Path) -> None:
    sites = [
        Site(f"layers.{n}.{tensor}", SiteKind.LINEAR, "n", n, tensor, "w", 8, 8)
        for n in range(LAYERS[path.name.split(".")[2]])
        for tensor in ("attn_k", "ffn_up")
    ]
    techniques = load().techniques()
    policy = read_policy(path, techniques, sites)
    named = policy.value["defaults"]["techniques"]
    assert {techniques[name].standing for name in named} <= {
        Standing.RECOMMENDED,
        Standing.SITUATIONAL,
    }
    assert policy.rules(sites[-1], Rules()).resolved


def test_there_are_examples() -> None:
    assert len(EXAMPLES) == 3


@pytest.mark.parametrize(
    ("policy", "origin"),
    [
        ({"defaults": {"K": 1}}, "defaults"),
        ({"defaults": {"K": {"gate": 1, "up": 2}}}, "defaults"),
        ({"ranges": [{"layers": "0", "K": 1}, {"layers": "5", "K": 2}]}, "ranges[1]"),
        ({"defaults": {"K": {"up": 1}}, "ranges": [{"layers": "5", "K": 2}]}, "ranges[0]"),
        ({"defaults": {"K": 1}, "ranges": [{"layers": "5", "K": {"up": 2}}]}, "ranges[0]"),
        ({"ranges": [{"layers": "5", "K": 1}], "layers": {"5": {"K": 2}}}, "layers[5]"),
        (
            {"layers": {"5": {"K": 1, "tensors": {"ffn_up": {"K": 2}}}}},
            "layers[5].tensors[ffn_up]",
        ),
        (
            {"layers": {"5": {"K": 1}}, "sites": {r"re:.*\.ffn_up": {"K": 2}}},
            r"sites[re:.*\.ffn_up]",
        ),
        ({"defaults": {"techniques": {"seeded": {"k": 1}}}, "layers": {"5": {"K": 2}}}, "defaults"),
    ],
)
def test_the_entry_that_won(tmp_path: Path, policy: dict[str, Any], origin: str) -> None:
    found = rules(read(tmp_path, {"version": 1, **policy}), "layers.5.ffn_up")
    assert found.field_origins["seeded"] == {"k": origin}


def test_a_key_that_is_replaced_forgets_its_parts(tmp_path: Path) -> None:
    policy = {"defaults": {"K": {"up": 1, "down": 3}}, "layers": {"5": {"K": 2}}}
    found = rules(read(tmp_path, {"version": 1, **policy}), "layers.5.ffn_up")
    assert found.origins == {"K": "layers[5]"}
    elsewhere = rules(read(tmp_path, {"version": 1, **policy}), "layers.6.ffn_up")
    assert elsewhere.origins == {"K.up": "defaults", "K.down": "defaults"}


def test_a_pattern_takes_time_that_is_linear_in_the_site() -> None:
    """`re` would take 2**400 steps."""
    assert not matches("(a+)+b", "a" * 400)
    assert not matches("(a|a)*b", "a" * 400)
    assert matches("(a+)+b", "a" * 400 + "b")
    assert not matches("a|b", "ab")
    assert not matches("a", "a\n")
