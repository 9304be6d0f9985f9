"""The reference pages are what the declarations say, and the declarations say everything."""

import dataclasses
import subprocess
import sys
from types import ModuleType

import pytest
from pydantic import Field

from kit.command_line import ok
from kit.noisy import NoisyConfig, noisy
from kit.rooms import ROOT
from kit.scripts import load_script
from tamiz.api import hookspecs
from tamiz.api.technique import Claim, Mode, Resource
from tamiz.plugins import load

pytestmark = pytest.mark.slow

GENERATE = ROOT / "tools" / "site" / "generate.py"


@pytest.fixture
def generate(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(GENERATE.parent))
    return load_script("tools/site/generate.py")


def test_reference_pages_are_current() -> None:
    done = subprocess.run(
        [sys.executable, GENERATE, "--check"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_the_page_of_commands_shows_their_help() -> None:
    page = (ROOT / "docs" / "reference" / "cli.md").read_text("utf-8")
    _, _, told = ok("schema", "--help").partition("\n")
    assert told.strip() in page


class SilentConfig(NoisyConfig):
    loudness: int = Field(1, ge=1)


def test_what_is_not_documented_is_named(
    generate: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert generate.undocumented() == []
    silent = noisy(config=SilentConfig)
    installed = load()
    monkeypatch.setattr(type(installed), "techniques", lambda self: {"noisy": silent}, raising=True)
    monkeypatch.setattr(hookspecs, "tamiz_new_hook", lambda: None, raising=False)
    assert set(generate.undocumented()) >= {
        "flag --noisy-loudness",
        "hook tamiz_new_hook",
    }


def test_interactions_fall_out_of_the_declarations(generate: ModuleType) -> None:
    masks = [
        noisy(
            name=name,
            claims=(Claim(Resource.CANDIDATES, Mode.NARROWING, order, block),),
            requires=frozenset({"skippable-blocks"}),
        )
        for name, order, block in (("b-first", 1, 8), ("a-second", 2, 8), ("c-odd", 3, 24))
    ]
    rival = noisy(name="rival")
    packed = dataclasses.replace(
        noisy(name="packed"), default=True, provides=frozenset({"skippable-blocks"})
    )
    techniques = {t.name: t for t in (*masks, rival, packed)}
    outcome = generate.interactions.outcome

    def between(a: str, b: str) -> tuple[str, str]:
        found: tuple[str, str] = outcome((techniques[a], techniques[b]), techniques)
        return found

    found, how = between("a-second", "b-first")
    assert found == "compose"
    assert "packed → b-first → a-second, blocks of 8" in how
    found, how = between("a-second", "c-odd")
    assert (found, how.split(":")[0]) == ("conflict", "one-partition")
    found, how = between("rival", "packed")
    assert (found, how.split(":")[0]) == ("conflict", "one-owner")
    found, how = between("a-second", "rival")
    assert (found, how.split(":")[0]) == ("needs", "required-capability")
    assert "| **a-second** |" in generate.interactions.page(techniques)
