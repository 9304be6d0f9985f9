import shutil
from collections.abc import Iterator
from dataclasses import replace
from itertools import chain

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tamiz.evaluation import evaluate, scores, windows
from tamiz.evaluation.scores import DenseReference, Steps
from tamiz.files.errors import TamizError
from tamiz.runtime.model import Model

WINDOWS = np.random.default_rng(1).integers(2, 262, (3, 100)).tolist()


@pytest.fixture(scope="module")
def other(dense_dir, tmp_path_factory) -> Model:
    """The tiny llama with every weight changed by some percent."""
    folder = shutil.copytree(dense_dir, tmp_path_factory.mktemp("other") / "dense")
    weights = np.fromfile(folder / "model.onnx.data", np.float32)
    weights *= np.random.default_rng(0).normal(1, 0.05, weights.shape).astype(np.float32)
    weights.tofile(folder / "model.onnx.data")
    return Model.load(folder, threads=1)


def log_p(model: Model) -> np.ndarray:
    """log softmax of the logits that predict positions 1 to 99, from one run a window."""
    logits = model.logits(np.array(WINDOWS))[:, :-1].astype(np.float64)
    return logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))


def direct(model: Model, first: int) -> float:
    """Perplexity of the positions from `first` on."""
    targets = np.array(WINDOWS)[:, 1:, None]
    nll = -np.take_along_axis(log_p(model), targets, axis=-1)[:, first - 1 :]
    return float(np.exp(nll.mean()))


def test_perplexity_is_that_of_a_direct_computation(model) -> None:
    quality = evaluate.perplexity(model, WINDOWS)
    assert quality.ppl == pytest.approx(direct(model, 1), rel=1e-6)
    assert quality.ppl_from_16 == pytest.approx(direct(model, 16), rel=1e-6)


def test_slices_do_not_change_the_perplexity(model, monkeypatch) -> None:
    whole = evaluate.perplexity(model, WINDOWS)
    monkeypatch.setattr(scores, "_SLICE", 7)
    monkeypatch.setattr(scores, "_ROWS", 3)
    sliced = evaluate.perplexity(model, WINDOWS)
    assert sliced.ppl == pytest.approx(whole.ppl, rel=1e-6)
    assert sliced.ppl_from_16 == pytest.approx(whole.ppl_from_16, rel=1e-6)


def test_comparison_is_that_of_a_direct_computation(dense, other) -> None:
    result = evaluate.compare(other, DenseReference(dense), WINDOWS)
    p, q = log_p(dense), log_p(other)
    assert result.kl_mean == pytest.approx((np.exp(p) * (p - q)).sum(axis=-1).mean(), rel=1e-5)
    assert result.top1_agreement == (p.argmax(axis=-1) == q.argmax(axis=-1)).mean()
    assert result.dense == evaluate.perplexity(dense, WINDOWS)
    assert result.built == evaluate.perplexity(other, WINDOWS)
    worse = max(direct(other, 1) / direct(dense, 1), direct(other, 16) / direct(dense, 16))
    assert result.dppl == pytest.approx(worse - 1, abs=1e-6)


def test_a_model_agrees_with_itself(dense) -> None:
    result = evaluate.compare(dense, DenseReference(dense), WINDOWS)
    assert (result.dppl, result.kl_mean, result.top1_agreement) == (0, 0, 1)


def test_scores_that_are_kept_on_disk_are_those_of_the_model(
    dense, other, tmp_path, monkeypatch
) -> None:
    direct = evaluate.compare(other, DenseReference(dense), WINDOWS)
    reference = DenseReference(dense, tmp_path)
    first = evaluate.compare(other, reference, WINDOWS)
    monkeypatch.setattr(dense, "sequence", None)  # it does not run again
    assert evaluate.compare(other, reference, WINDOWS) == first
    assert (first.built, first.dense) == (direct.built, direct.dense)
    assert first.top1_agreement == direct.top1_agreement
    assert first.kl_mean == pytest.approx(direct.kl_mean, abs=1e-4)
    size = sum(file.stat().st_size for file in tmp_path.iterdir())
    assert size == 2 * sum(len(window) - 1 for window in WINDOWS) * dense.vocabulary


def test_windows_that_are_read_side_by_side_give_the_same(dense, shared, tmp_path) -> None:
    one, two = (tmp_path / name for name in ("one", "two"))
    one.mkdir(), two.mkdir()
    alone = evaluate.compare(shared, DenseReference(dense, one), WINDOWS, Steps(16))
    reference = DenseReference(dense, two)
    assert evaluate.compare(shared, reference, WINDOWS, Steps(16), at_once=3) == alone
    assert evaluate.compare(shared, reference, WINDOWS, Steps(16), at_once=2) == alone


def test_a_full_disk_only_costs_time(dense, other, tmp_path, monkeypatch) -> None:
    full = shutil.disk_usage(tmp_path)._replace(free=1000)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: full)
    kept = evaluate.compare(other, DenseReference(dense, tmp_path), WINDOWS)
    assert kept == evaluate.compare(other, DenseReference(dense), WINDOWS)
    assert not list(tmp_path.iterdir())


def test_windows_do_not_overlap_and_the_rest_is_left() -> None:
    assert windows.cut(range(10), 2, 4) == [[0, 1, 2, 3], [4, 5, 6, 7]]


def test_windows_of_a_calibration_lie_all_over_the_text() -> None:
    found = windows.spread(range(2000), 40, 5)
    starts = [tokens[0] // 5 for tokens in found]
    assert all(tokens == list(range(tokens[0], tokens[0] + 5)) for tokens in found)
    passages = [starts[i : i + windows.PASSAGE] for i in range(0, 40, windows.PASSAGE)]
    assert all(passage == list(range(passage[0], passage[0] + 4)) for passage in passages)
    firsts = [passage[0] for passage in passages]
    assert sorted(firsts) == list(range(0, 400, 40))
    for n in range(2, 11):  # as far apart as two thirds of an even spacing, but for the ends
        gaps = np.diff(sorted(firsts[:n]))
        assert gaps.min() >= 400 / n * 0.6


@given(st.integers(1, 70), st.integers(0, 300))
def test_windows_of_a_calibration_do_not_overlap(count, more) -> None:
    found = windows.spread(range(3 * (count + more) + 2), count, 3)
    assert len(found) == count
    assert len(set(chain.from_iterable(found))) == 3 * count


def test_a_short_text_is_refused(dense, tmp_path) -> None:
    (tmp_path / "short.txt").write_text("hello" * 5, "utf-8")
    reason = r"short\.txt: the text has 5 tokens, expected at least 2048 \(2 windows"
    with pytest.raises(TamizError, match=reason):
        windows.read_windows(tmp_path / "short.txt", dense.bundle, 2)


def test_other_vocabularies_cannot_be_compared(dense, other, monkeypatch) -> None:
    monkeypatch.setattr(other, "vocabulary", 7)
    with pytest.raises(TamizError, match=r"has 7 logits, but .* has 262"):
        evaluate.compare(other, DenseReference(dense), WINDOWS)


def test_decoding_gives_what_reading_gives(dense, shared) -> None:
    result = evaluate.compare(shared, DenseReference(dense), WINDOWS, steps=Steps(16))
    assert result.built.ppl_decode == pytest.approx(direct(shared, 16), rel=1e-5)
    read = evaluate.perplexity(dense, WINDOWS)
    assert result.dense == replace(read, ppl_decode=read.ppl_from_16)
    assert evaluate.perplexity(shared, WINDOWS, steps=Steps(16)) == result.built
    assert result.kl_decode == pytest.approx(0, abs=1e-6)
    assert result.top1_agreement_decode == pytest.approx(1, abs=0.01)
    assert result.top10_recall_decode == pytest.approx(1, abs=0.01)


@pytest.mark.parametrize(("start", "rows"), [(2, 1), (60, 1), (61, 8), (16, 8), (99, 3)])
def test_steps_may_begin_late_and_have_several_tokens(dense, shared, start, rows) -> None:
    steps = Steps(start, rows)
    result = evaluate.compare(shared, DenseReference(dense), WINDOWS, steps=steps)
    assert result.built.ppl_decode == pytest.approx(direct(shared, start), rel=1e-5)
    assert result.dense.ppl_decode == pytest.approx(direct(dense, start), rel=1e-5)
    assert evaluate.perplexity(shared, WINDOWS, steps=steps) == result.built


def test_the_error_is_that_of_the_steps_where_these_lose_more(dense, shared, monkeypatch) -> None:
    step = type(shared.sequence()).step
    monkeypatch.setattr(
        type(shared.sequence()), "step", lambda self, token: 2.0 * step(self, token)
    )
    found = evaluate.compare(shared, DenseReference(dense), WINDOWS, steps=Steps(60))
    alone = [evaluate.compare(shared, DenseReference(dense), [w], steps=Steps(60)) for w in WINDOWS]
    losses, divergences = zip(*((np.log1p(c.dppl), c.kl_decode) for c in alone), strict=True)
    root = len(WINDOWS) ** 0.5
    assert found.dppl_error == pytest.approx(np.std(losses, ddof=1) / root, rel=1e-6)
    assert found.kl_error == pytest.approx(np.std(divergences, ddof=1) / root, rel=1e-6)
    assert found.kl_decode > found.kl_mean


def test_late_steps_add_what_they_lose_to_the_loss_of_all_positions(
    dense, other, monkeypatch
) -> None:
    step = type(other.sequence()).step
    monkeypatch.setattr(type(other.sequence()), "step", lambda self, token: 2.0 * step(self, token))
    found = evaluate.compare(other, DenseReference(dense), WINDOWS, steps=Steps(60))
    p, q = log_p(dense), log_p(other)
    sharpened = 2.0 * q - np.log(np.exp(2.0 * q).sum(axis=-1, keepdims=True))
    targets = np.array(WINDOWS)[:, 1:, None]
    more = np.take_along_axis(q - sharpened, targets, axis=-1)[:, 59:, 0].mean(axis=1)
    of_prompt = np.take_along_axis(p - q, targets, axis=-1)[:, 15:, 0].mean(axis=1)
    assert found.dppl == pytest.approx(np.expm1((of_prompt + more).mean()), rel=1e-5)
    error = np.std(of_prompt + more, ddof=1) / len(WINDOWS) ** 0.5
    assert found.dppl_error == pytest.approx(error, rel=1e-4)
    diverged = (np.exp(p) * (p - q)).sum(axis=-1)[:, 15:].mean()
    further = (np.exp(p) * (q - sharpened)).sum(axis=-1)[:, 59:].mean()
    assert found.kl_decode == pytest.approx(diverged + further, rel=1e-4)


def test_a_token_that_dense_never_writes_adds_nothing(dense, shared, monkeypatch) -> None:
    def sharp(logits) -> np.ndarray:
        return 3000 * logits

    def largest(logits) -> np.ndarray:
        return np.where(logits >= np.sort(logits)[-8], sharp(logits), -np.inf)

    of_dense, of_built = (type(model.sequence()) for model in (dense, shared))
    logits, step = of_dense.logits, of_built.step
    monkeypatch.setattr(of_dense, "logits", lambda self, ids: sharp(logits(self, ids)))
    monkeypatch.setattr(of_built, "step", lambda self, token: largest(step(self, token)))
    result = evaluate.compare(shared, DenseReference(dense), WINDOWS, Steps(16))
    assert np.isfinite(result.kl_decode)
    assert result.kl_decode > 0
    assert np.isinf(result.dppl)
    assert np.isinf(result.built.ppl_decode)


def test_a_loss_of_steps_alone_counts(dense, shared, monkeypatch) -> None:
    step = type(shared.sequence()).step
    monkeypatch.setattr(
        type(shared.sequence()), "step", lambda self, token: 0.5 * step(self, token)
    )
    read = evaluate.compare(shared, DenseReference(dense), WINDOWS)
    assert read.dppl == pytest.approx(0, abs=1e-6)
    assert read.built.ppl_decode is None
    decoded = evaluate.compare(shared, DenseReference(dense), WINDOWS, steps=Steps(16))
    tempered = 0.5 * shared.logits(np.array(WINDOWS))[:, 15:-1].astype(np.float64)
    tempered -= np.log(np.exp(tempered).sum(axis=-1, keepdims=True))
    nll = -np.take_along_axis(tempered, np.array(WINDOWS)[:, 16:, None], axis=-1)
    assert decoded.built.ppl_decode == pytest.approx(np.exp(nll.mean()), rel=1e-5)
    assert decoded.dppl == pytest.approx(
        max(decoded.built.ppl_decode / decoded.dense.ppl_from_16 - 1, 0), abs=1e-6
    )


def test_equal_windows_are_read_while_one_of_them_is_written(dense, tmp_path, monkeypatch) -> None:
    reference, window = DenseReference(dense, tmp_path), WINDOWS[0]
    expected = [log_p for _, log_p, _ in reference.scores(window)]
    reading, run, found = reference.scores(window), DenseReference._run, []

    def run_while_another_reads(self, tokens) -> Iterator[tuple[np.ndarray, ...]]:
        for block in run(self, tokens):
            yield block
            found.append(next(reading)[1])

    monkeypatch.setattr(DenseReference, "_run", run_while_another_reads)
    reference._kept.clear()  # as another thread finds it, which began at the same time
    again = [log_p for _, log_p, _ in reference.scores(window)]
    assert np.array_equal(np.concatenate(found), np.concatenate(expected))
    assert np.array_equal(np.concatenate(again), np.concatenate(expected))
