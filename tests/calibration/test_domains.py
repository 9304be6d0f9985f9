"""The text that ships with tamiz: what is in it, how it is read, and who reads which part."""

from __future__ import annotations

import json
import zipfile
from collections import Counter
from pathlib import Path

import pytest

from kit.command_line import ok, refused
from tamiz.calibration.calibrate import Text, calibrate_bundle, read_texts
from tamiz.calibration.domains import ARCHIVE, DOMAINS, OWN, shipped_windows
from tamiz.calibration.file import load
from tamiz.evaluation.windows import window_hash
from tamiz.files.bundle import Bundle
from tamiz.plugins import Plugins
from tamiz.runtime.text.tokenizer import Tokenizer

ROOT = Path(__file__).parents[2]
_OWN_TEXTS = ("prose", "technical", "code", "mathematics", "languages", "lists")


def parts() -> dict[str, str]:
    with zipfile.ZipFile(ARCHIVE) as archive:
        return {name: archive.read(name).decode("utf-8") for name in archive.namelist()}


def test_the_archive_is_small_and_names_its_sources() -> None:
    assert ARCHIVE.stat().st_size < 1 << 20
    members = parts()
    suffix = {name: "json" if name == "dialogue" else "txt" for name in DOMAINS}
    expected = {f"{n}/{part}.{suffix[n]}" for n in DOMAINS for part in ("fit", "judge")}
    assert set(members) == {*expected, "NOTICE.txt"}
    notice = members["NOTICE.txt"]
    assert all(f"\n{name} " in notice for name in DOMAINS)
    assert "public domain" in notice
    assert "Apache-2.0" in notice


def test_parts_have_no_passage_in_common() -> None:
    members = parts()
    for name in set(DOMAINS) - {"dialogue", "languages"}:
        found = [
            {text for text in members[f"{name}/{part}.txt"].split("\n\n") if len(text) > 99}
            for part in ("fit", "judge")
        ]
        assert not found[0] & found[1], name


@pytest.mark.parametrize("name", _OWN_TEXTS)
def test_the_archive_has_the_text_of_the_repository(name: str) -> None:
    shipped = "".join(parts()[f"{name}/{part}.txt"] for part in ("fit", "judge"))
    text = (ROOT / "tools" / "domains" / "own" / f"{name}.txt").read_text("utf-8")
    lines = [line for line in text.splitlines() if len(line) > 40]
    assert sum(line in shipped for line in lines) > 0.9 * len(lines)


def test_dialogues_are_read_in_the_chat_template(tiny_dense: Path) -> None:
    bundle = Bundle.open(tiny_dense)
    (window, *_) = shipped_windows(bundle, "fit", 256, ["dialogue"])
    tokenizer = Tokenizer(bundle)
    controls = [token for token in window.tokens if token in tokenizer.controls]
    assert controls
    talks = json.loads(parts()["dialogue/fit.json"])
    assert talks[0][0]["content"][:30] in tokenizer.decode(window.tokens)


def test_windows_of_each_domain(tiny_dense: Path) -> None:
    bundle = Bundle.open(tiny_dense)
    fitting = shipped_windows(bundle, "fit", 128)
    judging = shipped_windows(bundle, "judge", 128)
    assert Counter(w.origin for w in fitting) == dict.fromkeys(DOMAINS, 3)
    assert Counter(w.origin for w in judging) == dict.fromkeys(DOMAINS, 8)
    hashes = [window_hash(w.tokens) for w in (*fitting, *judging)]
    assert len(set(hashes)) == len(hashes)


def test_a_text_is_a_domain_beside_the_shipped_ones(tiny_dense: Path, tmp_path: Path) -> None:
    text = tmp_path / "mine.txt"
    text.write_text("".join(f"the quick brown fox {n} jumps. " for n in range(400)))
    known = read_texts(Bundle.open(tiny_dense), [Text(text)], ["prose", OWN], windows=4)
    for windows in known:
        assert {"prose", "mine.txt"} < {window.origin for window in windows}
    hashes = [{window_hash(w.tokens) for w in windows} for windows in known]
    assert not hashes[0] & hashes[1]


def test_nothing_of_the_windows_that_judge_is_measured(
    tiny_dense: Path, plugins: Plugins, tmp_path: Path
) -> None:
    known = calibrate_bundle(tiny_dense, tmp_path / "known", plugins, domains=["code", "lists"])
    assert known.count == sum(len(window.tokens) for window in known.fitting)
    assert {window.origin for window in known.held_out} == {"code", "lists"}
    assert not {window_hash(w.tokens) for w in known.held_out} & set(known.windows)
    again = load(tmp_path / "known", Bundle.open(tiny_dense))
    assert again.held_out == known.held_out
    assert again.fitting == known.fitting
    again.merge(known)
    assert again.held_out == known.held_out


def test_unknown_domains_are_refused(tiny_dense: Path, tmp_path: Path) -> None:
    reason = refused("calibrate", tiny_dense, "-o", tmp_path / "known", "--domains=prosa")
    assert "--domains=prosa: expected all, none, or some of prose, " in reason
    assert "did you mean 'prose'?" in reason


@pytest.mark.slow
def test_a_bundle_is_scored_on_domains(tiny_dense: Path, tmp_path: Path) -> None:
    ok("build", tiny_dense, "-o", tmp_path / "built", "--block-quant-format=q2_k", "--max-dppl=off")
    given = ("eval", tmp_path / "built", "--against", tiny_dense, "--domains=code,data,prose")
    found = json.loads(ok(*given, "--json"))
    assert list(found["domains"]) == ["code", "data", "prose"]
    mean = sum(each["kl"] for each in found["domains"].values()) / 3
    assert found["domains_kl"] == pytest.approx(mean)
    assert found["new_domain_kl"] > mean
    assert "new_domain_kl" in ok(*given)
    reason = refused("eval", tiny_dense, "--domains=all")
    assert "--domains compares two bundles on shipped text: add --against" in reason
