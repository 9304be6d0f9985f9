"""Builds of encoders: formats within a limit of cosine, and the gate of the whole model."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from kit.encoders import write_text, write_transformer
from tamiz.building.build import build
from tamiz.building.decide import within_limits
from tamiz.building.options import Options
from tamiz.calibration.calibrate import calibrate_bundle
from tamiz.calibration.domains import DOMAINS
from tamiz.calibration.file import load as load_calibration
from tamiz.calibration.file import save as save_calibration
from tamiz.evaluation.embeddings import compare, read_texts
from tamiz.evaluation.judges.encoder import texts_of
from tamiz.files.bundle import Bundle
from tamiz.files.errors import TamizError
from tamiz.planning.goal import Goal
from tamiz.planning.plan import choose
from tamiz.plugins import Plugins, load
from tamiz.reporting.page import render
from tamiz.reporting.report import Report
from tamiz.runtime.embedding.encoder import Encoder
from tamiz.runtime.load import load_model

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an encoder in float32, its calibration, and another text."""
    folder = tmp_path_factory.mktemp("encoder")
    write_transformer(folder / "dense")
    words = write_text(folder / "text.txt", 4200).read_text().split()
    (folder / "other.txt").write_text(" ".join(reversed(words)))
    calibrate_bundle(folder / "dense", folder / "known", load(), texts=[folder / "text.txt"])
    return folder


def built(
    encoder: Path, out: Path, plugins: Plugins, known: bool = True, **fields: object
) -> Report:
    calibration = encoder / "known" if known else None
    options = Options(calibration=calibration, goal=Goal(**fields))  # type: ignore[arg-type]
    return build(encoder / "dense", out, choose(plugins.techniques()), plugins, options)


def formats(report: Report) -> set[object]:
    return {at.applied[0].config.get("format") for at in report.sites.values() if at.applied}


def cosine(encoder: Path, bundle: Path) -> float:
    """The mean cosine on a text that no build has read."""
    ours, dense = (load_model(path) for path in (bundle, encoder / "dense"))
    assert isinstance(ours, Encoder)
    assert isinstance(dense, Encoder)
    texts = read_texts(encoder / "other.txt", dense.bundle, None, 128, 16)
    found: float = compare(ours, dense, texts)["cos_mean"]
    return found


def test_a_limit_of_cosine_is_used(encoder: Path, plugins: Plugins, tmp_path: Path) -> None:
    loose = built(encoder, tmp_path / "loose", plugins, min_cosine=0.9985)
    strict = built(encoder, tmp_path / "strict", plugins, min_cosine=0.9998)
    for report, least in ((loose, 0.9985), (strict, 0.9998)):
        assert report.gate.min_cosine == least
        assert report.gate.max_dppl is None
        trial = report.gate.result
        assert trial is not None
        assert least <= trial.cosine <= 1 - 0.4 * (1 - least)
        assert 0 < trial.cosine_error < 1 - trial.cosine
        assert (trial.dppl, trial.kl, trial.predicted_tok_s) == (None, None, None)
    assert loose.totals.bytes_after < 0.85 * strict.totals.bytes_after
    assert len(formats(strict)) > 1
    # On other text the cosine is about as large.
    assert cosine(encoder, tmp_path / "strict") == pytest.approx(
        strict.gate.result.cosine, abs=1e-4
    )


def test_predictions_are_near_the_first_trial(
    encoder: Path, plugins: Plugins, tmp_path: Path
) -> None:
    report = built(encoder, tmp_path / "out", plugins, min_cosine=0.995)
    first = report.gate.trials[0]
    passages, queries = first.domains.values()
    assert 1 - passages.cosine == pytest.approx(first.predicted, rel=0.5)
    assert queries.cosine < passages.cosine


def test_a_limit_of_size_is_used(encoder: Path, plugins: Plugins, tmp_path: Path) -> None:
    whole = built(encoder, tmp_path / "whole", plugins, max_bytes=10**9, prefer="quality")
    most = int(0.7 * whole.totals.bytes_after)
    report = built(encoder, tmp_path / "out", plugins, max_bytes=most, prefer="quality")
    assert 0.95 * most <= report.totals.bytes_after <= most
    assert report.gate.result.cosine < whole.gate.result.cosine
    assert report.gate.min_cosine is None


@pytest.mark.parametrize(("kept", "texts"), [(1 << 30, 16), (1, 4)])
def test_large_models_read_fewer_texts(
    encoder: Path,
    plugins: Plugins,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    kept: int,
    texts: int,
) -> None:
    monkeypatch.setattr(within_limits, "_KEPT", kept)
    told: set[tuple[str, int]] = set()
    build(
        encoder / "dense",
        tmp_path / "out",
        choose(plugins.techniques()),
        plugins,
        Options(calibration=encoder / "known", goal=Goal(min_cosine=0.99)),
        progress=lambda what, done, total: told.add((what, total)),
    )
    assert ("measure sensitivity", texts) in told


def test_equal_builds_have_equal_bytes(encoder: Path, plugins: Plugins, tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ("one", "two")]
    for folder in folders:
        built(encoder, folder, plugins, min_cosine=0.99)
    one, two = ({p.name: p.read_bytes() for p in folder.iterdir()} for folder in folders)
    assert one == two


@pytest.mark.parametrize(
    ("goal", "message"),
    [
        (Goal(max_dppl=0.02), "--max-dppl needs the logits of a decoder"),
        (Goal(max_kl=0.02), "--max-kl needs the logits of a decoder"),
        (Goal(max_bytes=10**6, min_tok_s=3.0), "--min-tok-s needs the logits of a decoder"),
        (Goal(min_cosine=0.9, allow=("bits", "kwta")), "weight formats only, found kwta"),
        (Goal(min_cosine=0.9, force=("kwta",)), "weight formats only, found kwta"),
        (Goal(min_cosine=0.999999), "no trial is within the limits: .* of cosine; lower --min-cos"),
    ],
)
def test_limits_that_do_not_apply_are_refused(
    encoder: Path, plugins: Plugins, tmp_path: Path, goal: Goal, message: str
) -> None:
    options = Options(calibration=encoder / "known", goal=goal)
    chosen = choose(plugins.techniques())
    with pytest.raises(TamizError, match=message):
        build(encoder / "dense", tmp_path / "out", chosen, plugins, options)
    assert not (tmp_path / "out").exists()


def test_a_decoder_has_no_limit_of_cosine(
    tiny_dense: Path, plugins: Plugins, tmp_path: Path
) -> None:
    chosen = choose(plugins.techniques())
    with pytest.raises(TamizError, match="--min-cosine bounds the embeddings of an encoder"):
        build(tiny_dense, tmp_path / "out", chosen, plugins, Options(goal=Goal(min_cosine=0.9)))


def test_of_both_budgets_the_one_that_applies_counts(
    encoder: Path, plugins: Plugins, tmp_path: Path
) -> None:
    report = built(encoder, tmp_path / "out", plugins, max_dppl=0.02, min_cosine=0.99)
    assert (report.gate.max_dppl, report.gate.min_cosine) == (None, 0.99)


def test_limits_need_a_text(encoder: Path, plugins: Plugins, tmp_path: Path) -> None:
    with pytest.raises(TamizError, match="a model without logits writes no text; expected --text"):
        build(
            encoder / "dense",
            tmp_path / "out",
            choose(plugins.techniques()),
            plugins,
            Options(goal=Goal(min_cosine=0.9), domains=()),
        )


def test_a_calibration_of_sites_with_other_names_is_refused(
    encoder: Path, plugins: Plugins, tmp_path: Path
) -> None:
    bundle = Bundle.open(encoder / "dense")
    known = load_calibration(encoder / "known", bundle)
    known.inputs = {f"old.{site}": name for site, name in known.inputs.items()}
    save_calibration(known, tmp_path / "known")
    options = Options(calibration=tmp_path / "known", goal=Goal(min_cosine=0.9))
    chosen = choose(plugins.techniques())
    with pytest.raises(
        TamizError, match=r"known: measured old\..* and other sites that .* does not"
    ):
        build(encoder / "dense", tmp_path / "out", chosen, plugins, options)


def test_limits_need_held_out_windows(encoder: Path, plugins: Plugins, tmp_path: Path) -> None:
    known = tmp_path / "known"
    calibrate_bundle(encoder / "dense", known, plugins, texts=[encoder / "text.txt"], windows=1)
    options = Options(calibration=known, goal=Goal(min_cosine=0.9))
    chosen = choose(plugins.techniques())
    with pytest.raises(TamizError, match="keeps 1 windows of 512 tokens, expected at least 2"):
        build(encoder / "dense", tmp_path / "out", chosen, plugins, options)


def test_the_gate_backs_off_what_loses_too_much(
    encoder: Path, plugins: Plugins, tmp_path: Path
) -> None:
    flags = {"block-quant": {"bits": 4}}
    chosen = choose(plugins.techniques(), flags)
    options = Options(calibration=encoder / "known")
    free = build(
        encoder / "dense", tmp_path / "free", chosen, plugins, replace(options, min_cosine=None)
    )
    assert free.gate.skipped == "switched off"
    assert cosine(encoder, tmp_path / "free") < 0.999
    held = build(
        encoder / "dense", tmp_path / "held", chosen, plugins, replace(options, min_cosine=0.999)
    )
    trial = held.gate.result
    assert trial is not None
    assert trial.cosine >= 0.999
    assert trial.refused
    assert held.totals.bytes_after > free.totals.bytes_after
    assert cosine(encoder, tmp_path / "held") > 0.998
    page = render(held)
    assert "cosine of embeddings" in page
    assert "Limit: cosine 0.999" in page


def test_without_a_calibration_the_shipped_text_is_read(
    encoder: Path, plugins: Plugins, tmp_path: Path
) -> None:
    chosen = choose(plugins.techniques())
    report = build(encoder / "dense", tmp_path / "out", chosen, plugins, Options())
    assert (report.gate.skipped, report.gate.text) == (None, "domains")
    assert report.gate.min_cosine == 0.999  # of the recipe `embed`
    assert set(report.gate.result.domains) <= {*DOMAINS, "queries"}


def test_texts_are_pieces_of_windows_with_ends(encoder: Path) -> None:
    bundle = Bundle.open(encoder / "dense")
    windows = [list(range(2, 42)) * 5, list(range(3, 43)) * 5]  # 200 tokens
    found = texts_of(windows, bundle)
    assert found.shape == (2, 128)
    assert found[:, 1:-1].tolist() == [window[:126] for window in windows]
    assert found[:, [0, -1]].tolist() == [[0, 1]] * 2
    assert texts_of([[5] * 40], bundle).shape == (1, 40)
    assert texts_of([[5] * 512], bundle).shape == (4, 128)
    assert texts_of(windows, bundle).dtype == np.int64
